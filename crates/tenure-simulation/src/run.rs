//! One seed, from the beginning to the end.

use std::cell::RefCell;
use std::fmt;
use std::panic::{self, PanicHookInfo};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use tenure::Client;
use tenure_core::lease::PLACE_MS;
use tenure_core::{Message, ProcessId};
use tenure_engine::Letter;
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::awaits::Awaits;
use crate::clock::{Clock, DRIFT_PER_MILLE_MAX};
use crate::engine::SimEngine;
use crate::network::mail;
use crate::oracle::Rule;
use crate::random::Random;
use crate::store::{Sabotage, Store};
use crate::swarm::Swarm;
use crate::work::{NAMES, Task, stoppable};
use crate::world::{Member, Sim, World, locked};

/// How long after the end of the faults everything that was under way has come to its end: the longest way of a
/// request, and the round trips that it causes.
const SETTLED_MS: u64 = 10_000;

/// How long a lock can stay taken by processes that are gone: a place, a lease after it, and their guards.
const FREE_MS: u64 = 3 * PLACE_MS + SETTLED_MS;

/// More than every wait and every limit of a history together.
const AT_THE_LATEST: Duration = Duration::from_secs(1_000);

/// A seed that went well.
#[derive(Debug)]
pub struct History {
    /// Where futures were dropped.
    pub awaits: Awaits,
    /// What happened, line by line, if that was wanted.
    pub trace: String,
}

/// A seed that did not.
#[derive(Debug)]
pub struct Failure {
    /// What is not true.
    pub rule: Rule,
    /// In words.
    pub what: String,
    /// What happened, line by line, if that was wanted.
    pub trace: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)
    }
}

/// Runs one seed, with a bug in it if that is wanted.
pub fn simulate(seed: u64, sabotage: Option<Sabotage>, trace: bool) -> Result<History, Failure> {
    PANICS.set(Some(Vec::new()));
    hear_panics();
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O needs nothing");
    let (world, broken) = runtime.block_on(async {
        let sim = begin(seed, sabotage, trace);
        if timeout(AT_THE_LATEST, live(&sim)).await.is_err() {
            locked(&sim).fail(Rule::Progress, "it does not come to an end".to_owned());
        }
        end(&sim)
    });
    drop(runtime);
    let panicked = PANICS.take().and_then(|panics| panics.into_iter().next());
    let (awaits, trace) = world;
    match panicked.map(|what| (Rule::Panic, what)).or(broken) {
        Some((rule, what)) => Err(Failure { rule, what, trace }),
        None => Ok(History { awaits, trace }),
    }
}

thread_local! {
    /// The panics of the simulation on this thread, while there is one.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// A task that panics tells nobody: the hook does.
fn hear_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            let heard = PANICS.with_borrow_mut(|panics| {
                panics.as_mut().map(|panics| panics.push(info.to_string())).is_some()
            });
            if !heard {
                usual(info);
            }
        }));
    });
}

/// Something that happens to the whole world.
#[derive(Clone, Copy, Debug)]
enum Event {
    Crash,
    Stop,
    Cut,
    Forget,
}

fn begin(seed: u64, sabotage: Option<Sabotage>, trace: bool) -> Sim {
    let mut random = Random::new(seed);
    let swarm = Swarm::draw(&mut random);
    let truth = Arc::default();
    let clock = Arc::new(Clock::new(Instant::now(), 0, 0, 0, truth));
    let store = Store { sabotage, ..Store::default() };
    let mut world = World::new(random, swarm, clock, store, trace);
    if world.is_traced() {
        let text = format!("{:?}", world.swarm);
        world.note(format_args!("seed {seed}: {text}"));
    }
    Arc::new(Mutex::new(world))
}

/// Starts a process.
fn start(sim: &Sim) -> (usize, Client) {
    let (engine, me) = {
        let mut world = locked(sim);
        let me = world.members.len();
        let per_mille = if world.swarm.drift {
            world.random.below(2 * DRIFT_PER_MILLE_MAX + 1).cast_signed() - DRIFT_PER_MILLE_MAX.cast_signed()
        } else {
            0
        };
        let wrong = world.swarm.wrong_clocks && world.random.chance(50);
        let behind_ms = if wrong { world.random.below(120_000) } else { 0 };
        // The clock of the store is another one, but on the same host.
        let base_ms = if world.swarm.near { 0 } else { world.random.below(1 << 40) };
        let process = ProcessId(world.random.next());
        let secrets = Mutex::new(Random::new(world.random.next()));
        // All clocks began when that of the store did.
        let began = Instant::now() - Duration::from_millis(world.now_ms());
        let clock = Arc::new(Clock::new(began, base_ms, per_mille, behind_ms, world.truth.clone()));
        world.members.push(Member {
            process,
            clock: clock.clone(),
            alive: true,
            cut_until_ms: 0,
            ear: None,
            card: None,
            client: None,
            tasks: Vec::new(),
        });
        world.note(format_args!("p{me} starts as {process}, {per_mille} per mille, {behind_ms} ms behind"));
        (SimEngine { sim: sim.clone(), me, process, clock, secrets, near: world.swarm.near }, me)
    };
    let client = Client::over(Arc::new(engine)).expect("there is a runtime");
    locked(sim).members[me].client = Some(client.clone());
    (me, client)
}

/// Starts a process with its tasks.
fn populate(sim: &Sim, tasks: &mut Vec<JoinHandle<()>>) {
    let (me, client) = start(sim);
    let (many, clock) = {
        let world = locked(sim);
        (world.swarm.tasks, world.members[me].clock.clone())
    };
    let session = client.session();
    for _ in 0..many {
        let task = Task { sim: sim.clone(), me, client: client.clone(), session: session.clone() };
        let handle = tokio::spawn(stoppable(clock.clone(), task.live()));
        locked(sim).members[me].tasks.push(handle.abort_handle());
        tasks.push(handle);
    }
}

async fn live(sim: &Sim) {
    let began = Instant::now();
    let at = |ms| began + Duration::from_millis(ms);
    let (processes, chaos_ms) = {
        let world = locked(sim);
        (world.swarm.processes, world.swarm.chaos_ms)
    };
    let mut tasks = Vec::new();
    for _ in 0..processes {
        populate(sim, &mut tasks);
    }
    for (ms, event) in events(sim) {
        sleep_until(at(ms)).await;
        happen(sim, event, &mut tasks);
    }
    sleep_until(at(chaos_ms)).await;
    {
        let mut world = locked(sim);
        world.calm = true;
        world.members.iter_mut().for_each(|member| member.cut_until_ms = 0);
        world.note(format_args!("faults are over"));
    }
    // A task that was aborted is done, and one that panics is heard by the hook.
    for task in tasks {
        if timeout_at(at(chaos_ms + FREE_MS), task).await.is_err() {
            return locked(sim).fail(Rule::Progress, "a task is still not done".to_owned());
        }
    }
    sleep(Duration::from_millis(SETTLED_MS)).await;
    nothing_is_left(sim).await;
    everybody_is_served(sim).await;
}

fn events(sim: &Sim) -> Vec<(u64, Event)> {
    let mut world = locked(sim);
    let Swarm { crashes, stops, cuts, forgets, chaos_ms, .. } = world.swarm;
    let kinds = [(Event::Crash, crashes), (Event::Stop, stops), (Event::Cut, cuts), (Event::Forget, forgets)];
    let mut events: Vec<(u64, Event)> = kinds
        .into_iter()
        .flat_map(|(event, times)| (0..times).map(move |_| event))
        .map(|event| (world.random.below(chaos_ms), event))
        .collect();
    events.sort_by_key(|(at, _)| *at);
    events
}

fn happen(sim: &Sim, event: Event, tasks: &mut Vec<JoinHandle<()>>) {
    let me = {
        let mut world = locked(sim);
        let alive: Vec<usize> = (0..world.members.len()).filter(|me| world.members[*me].alive).collect();
        let me = world.random.pick(&alive);
        world.note(format_args!("{event:?} p{me}"));
        me
    };
    match event {
        Event::Crash => {
            let client = {
                let mut world = locked(sim);
                world.gone(me);
                let member = &mut world.members[me];
                member.alive = false;
                member.tasks.iter().for_each(tokio::task::AbortHandle::abort);
                member.client.take()
            };
            drop(client);
            populate(sim, tasks);
        }
        Event::Stop => {
            let mut world = locked(sim);
            let ms = world.random.below(6_000);
            world.members[me].clock.stop(ms);
        }
        Event::Cut => {
            let mut world = locked(sim);
            let ms = world.random.below(5_000);
            world.members[me].cut_until_ms = world.now_ms() + ms;
            drop(world);
            tokio::spawn(reconnect(sim.clone(), me, ms));
        }
        Event::Forget => locked(sim).forget(),
    }
}

/// Whoever waited while it was cut off looks again.
async fn reconnect(sim: Sim, me: usize, after_ms: u64) {
    sleep(Duration::from_millis(after_ms)).await;
    {
        let mut world = locked(&sim);
        let process = world.members[me].process;
        let looks: Vec<Letter> = world
            .store
            .locks
            .iter()
            .flat_map(|(name, ledger)| ledger.places.iter().map(move |place| (name, place.owner)))
            .filter(|(_, owner)| owner.holder.process == process)
            .map(|(name, owner)| Letter { name: name.clone(), owner, message: Message::Look })
            .collect();
        world.letters.extend(looks);
    }
    mail(&sim);
}

async fn nothing_is_left(sim: &Sim) {
    let clients: Vec<Client> =
        locked(sim).members.iter().filter_map(|member| member.client.clone()).collect();
    for client in clients {
        if !client.close(Duration::ZERO).await {
            locked(sim).fail(Rule::Idle, "a driver has something left to do".to_owned());
        }
    }
    locked(sim).expect_nothing_left();
}

async fn everybody_is_served(sim: &Sim) {
    let (me, client) = start(sim);
    let locks = locked(sim).swarm.locks as usize;
    for name in &NAMES[..locks] {
        let lock = client.lock(name).wait(Duration::from_millis(FREE_MS));
        match lock.acquire().await {
            Ok(guard) => {
                let id = locked(sim).watch(me, guard.lease().clone());
                locked(sim).done(id);
                if !guard.release().await.is_ok_and(tenure::Released::is_confirmed) {
                    locked(sim)
                        .fail(Rule::Confirmed, "a release without faults was not confirmed".to_owned());
                }
            }
            Err(tenure::AcquireError::ClockAhead { .. }) => {}
            Err(error) => locked(sim).fail(Rule::Progress, format!("the last acquire failed: {error}")),
        }
    }
}

/// What is left of a world: whatever could keep it alive is taken out of it.
fn end(sim: &Sim) -> ((Awaits, String), Option<(Rule, String)>) {
    let mut world = locked(sim);
    let members = std::mem::take(&mut world.members);
    let oracle = std::mem::take(&mut world.oracle);
    let left = ((world.awaits.clone(), world.take_trace()), oracle.failure.clone());
    drop(world);
    drop((members, oracle));
    left
}
