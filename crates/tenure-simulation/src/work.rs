//! What the tasks of a process do: anything that the library offers, in any order, patiently or not.

use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure::{AcquireError, Client, Guard, Lease, Lock, LostAtWork, ReleaseError, Session, WithError};
use tenure_core::Name;
use tokio::time::sleep;

use crate::awaits::{OnPurpose, Op, Patience, drive};
use crate::clock::Clock;
use crate::network::pause;
use crate::oracle::Rule;
use crate::random::Random;
use crate::swarm::{DEEDS, Deed};
use crate::world::{Sim, locked};

/// The locks that a simulation knows.
pub(crate) const NAMES: [&str; 3] = ["x", "y", "z"];

#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) sim: Sim,
    pub(crate) me: usize,
    pub(crate) client: Client,
    /// Shared by the tasks of a process.
    pub(crate) session: Session,
}

/// A future that does not run while its process is stopped.
pub(crate) async fn stoppable(clock: Arc<Clock>, work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    let mut nap = pin!(sleep(Duration::ZERO));
    poll_fn(|cx| {
        while clock.stopped_ms() > 0 {
            nap.as_mut().reset(tokio::time::Instant::now() + Duration::from_millis(clock.stopped_ms()));
            if nap.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        work.as_mut().poll(cx)
    })
    .await;
}

impl Task {
    /// Lives until faults are over.
    pub(crate) async fn live(self) {
        pause(self.draw(|random| random.below(500))).await;
        while !locked(&self.sim).calm {
            let deed = {
                let mut world = locked(&self.sim);
                let weights = world.swarm.deeds;
                DEEDS[world.random.weighted(&weights)]
            };
            match deed {
                Deed::Acquire | Deed::TryAcquire | Deed::AcquireNow => self.take(deed).await,
                Deed::With => self.with().await,
                Deed::Nest => self.nest().await,
                Deed::Inspect => {
                    let name = self.name();
                    let client = &self.client;
                    let _ = drive(&self.sim, Op::Inspect, self.patience(), |_| client.inspect(name)).await;
                }
                Deed::List => {
                    let _ = drive(&self.sim, Op::List, self.patience(), |_| self.client.list()).await;
                }
                Deed::AskToStop => self.ask_to_stop().await,
                Deed::Close => {
                    locked(&self.sim).done_by(self.me);
                    let client = self.client.clone();
                    drive(&self.sim, Op::Close, self.patience(), |_| client.close(Duration::from_secs(1)))
                        .await;
                }
                Deed::Rest => {}
            }
            // Not everything at once: a task that never rests would keep time from passing.
            let rest = |random: &mut Random| {
                let most = random.pick(&[1, 20, 200, 600]);
                random.within(1, most)
            };
            pause(self.draw(rest)).await;
        }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut locked(&self.sim).random)
    }

    fn name(&self) -> &'static str {
        let locks = locked(&self.sim).swarm.locks as usize;
        self.draw(|random| random.pick(&NAMES[..locks]))
    }

    fn patience(&self) -> Patience {
        let mut world = locked(&self.sim);
        let cancel = world.swarm.cancel;
        if world.calm || !world.random.chance(cancel) {
            return Patience::Endless;
        }
        if world.random.chance(40) {
            return Patience::Polls(world.random.below(5));
        }
        let most = world.random.pick(&[3, 30, 300, 3_000]);
        Patience::Ms(world.random.below(most) + 1)
    }

    fn ttl(&self) -> Duration {
        let ttls = locked(&self.sim).swarm.ttls_ms;
        Duration::from_millis(self.draw(|random| random.pick(&ttls)))
    }

    fn lock(&self) -> Lock {
        self.on_any_terms(self.client.lock(self.name()))
    }

    fn on_any_terms(&self, lock: Lock) -> Lock {
        let mut lock = lock.ttl(self.ttl());
        lock = match self.draw(|random| random.below(5)) {
            0 => lock.wait_forever(),
            1 => lock.wait(Duration::from_millis(self.draw(|random| random.below(200)))),
            2 => lock.wait(Duration::from_millis(self.draw(|random| random.below(20_000)))),
            _ => lock,
        };
        if self.draw(|random| random.chance(25)) { lock.without_renewal() } else { lock }
    }

    async fn take(&self, deed: Deed) {
        if let Some(guard) = self.acquire(deed, self.lock()).await {
            self.hold(guard).await;
        }
    }

    async fn acquire(&self, deed: Deed, lock: Lock) -> Option<Guard> {
        let (sim, patience) = (&self.sim, self.patience());
        let taken = match deed {
            Deed::TryAcquire => drive(sim, Op::TryAcquire, patience, |_| lock.try_acquire()).await,
            Deed::AcquireNow => drive(sim, Op::AcquireNow, patience, |_| lock.acquire_now())
                .await
                .map(|taken| taken.map(Some)),
            _ => drive(sim, Op::Acquire, patience, |_| lock.acquire()).await.map(|taken| taken.map(Some)),
        };
        match taken {
            Some(Ok(guard)) => guard,
            Some(Err(error)) => {
                self.refused(&error);
                None
            }
            None => None,
        }
    }

    /// Takes a lock of the session again, which holds it by then or not; the guards go in any order.
    async fn nest(&self) {
        let name = self.name();
        let mut guards = Vec::new();
        for _ in 0..2 {
            let deed = self.draw(|random| random.pick(&[Deed::Acquire, Deed::TryAcquire, Deed::AcquireNow]));
            if let Some(guard) = self.acquire(deed, self.on_any_terms(self.session.lock(name))).await {
                let id = locked(&self.sim).watch(self.me, guard.lease().clone());
                guards.push((id, guard));
            }
        }
        while !guards.is_empty() {
            let (id, guard) =
                guards.swap_remove(self.draw(|random| random.below(guards.len() as u64)) as usize);
            self.work(&guard).await;
            self.give_back(id, guard).await;
        }
    }

    fn refused(&self, error: &AcquireError) {
        let mut world = locked(&self.sim);
        if world.is_traced() {
            // Not in its own words: they name this machine.
            let kind = format!("{error:?}");
            let kind = kind.split(['(', ' ', '{']).next().unwrap_or_default();
            let me = self.me;
            world.note(format_args!("p{me} did not acquire: {kind}"));
        }
        let expected = match error {
            AcquireError::Busy(_)
            | AcquireError::WaitElapsed { .. }
            | AcquireError::Backend(_)
            | AcquireError::OldGuards { .. }
            | AcquireError::LostAtOnce(_) => true,
            AcquireError::ClockAhead { .. } => world.swarm.wrong_clocks,
            _ => false,
        };
        if !expected {
            world.fail(Rule::Cause, format!("an acquire failed without a cause: {error}"));
        }
    }

    async fn hold(&self, guard: Guard) {
        let id = locked(&self.sim).watch(self.me, guard.lease().clone());
        self.work(&guard).await;
        self.give_back(id, guard).await;
    }

    async fn give_back(&self, id: u64, guard: Guard) {
        locked(&self.sim).done(id);
        if self.draw(|random| random.chance(30)) {
            return drop(guard);
        }
        let (holder, name) = (guard.holder(), guard.name().to_owned());
        let told = guard.watch().state().lost.is_some() || !guard.holds();
        let released = drive(&self.sim, Op::Release, self.patience(), |_| guard.release()).await;
        let mut world = locked(&self.sim);
        match released {
            Some(Err(ReleaseError::NotHeld)) => world.alarmed(holder, told),
            Some(Ok(released)) if released.is_confirmed() => world.confirmed(&name, holder),
            _ => {}
        }
    }

    /// Anything that can be done with a lease.
    async fn work(&self, lease: &Lease) {
        let sim = &self.sim;
        for _ in 0..self.draw(|random| random.below(4)) {
            // Nobody waits for ever for a loss.
            let patience = Patience::Ms(self.draw(|random| random.below(2_000)) + 1);
            match self.draw(|random| random.below(6)) {
                0 => {
                    let ttl = self.ttl();
                    let _ = drive(sim, Op::Extend, self.patience(), |_| lease.extend(ttl)).await;
                }
                1 => {
                    drive(sim, Op::Lost, patience, |_| lease.lost()).await;
                }
                2 => {
                    let mut watch = lease.watch();
                    watch.state();
                    drive(sim, Op::Changed, patience, |_| watch.changed()).await;
                }
                // Longer than many a lease, whatever becomes of it.
                3 => pause(self.draw(|random| random.below(4_000))).await,
                _ => pause(self.draw(|random| random.below(100))).await,
            }
            locked(sim).check();
        }
    }

    async fn with(&self) {
        let lock = self.lock();
        let panics = self.draw(|random| random.chance(10));
        let done = drive(&self.sim, Op::With, self.patience(), |running| async move {
            let work = |lease: Lease| async move {
                let _working = Working::begin(self, running, &lease);
                self.work(&lease).await;
                if panics {
                    resume_unwind(Box::new(OnPurpose));
                }
                (lease.holder(), lease.watch().state().lost.is_some() || !lease.holds())
            };
            lock.with(work).await
        });
        match done.await {
            Some(Err(WithError::Lost(LostAtWork { value: Some((holder, told)), .. }))) => {
                locked(&self.sim).alarmed(holder, told);
            }
            Some(Err(WithError::Acquire(error))) => self.refused(&error),
            _ => {}
        }
    }

    async fn ask_to_stop(&self) {
        let name = self.name();
        let occupant = locked(&self.sim).store.occupant(&Name::new(name).expect("a name"));
        if let Some((owner, _, _)) = occupant {
            let (client, holder) = (&self.client, owner.holder);
            let _ =
                drive(&self.sim, Op::AskToStop, self.patience(), |_| client.ask_to_stop(name, holder, "sim"))
                    .await;
        }
    }
}

/// Work under a lock, from its beginning to its end or its drop.
struct Working<'a> {
    task: &'a Task,
    running: u64,
    watched: u64,
}

impl<'a> Working<'a> {
    fn begin(task: &'a Task, running: u64, lease: &Lease) -> Self {
        let mut world = locked(&task.sim);
        let watched = world.watch(task.me, lease.clone());
        if let Some(running) = world.running.get_mut(&running) {
            running.at_work = true;
        }
        Self { task, running, watched }
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut world = locked(&self.task.sim);
        world.done(self.watched);
        if let Some(running) = world.running.get_mut(&self.running) {
            (running.at_work, running.has_worked) = (false, true);
        }
    }
}
