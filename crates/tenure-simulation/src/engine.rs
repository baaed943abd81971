//! The engine of one process: the library's way into the simulated network.

use std::fmt;
use std::future::pending;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{HolderId, Moment, Name, ProcessId, Request, lease};
use tenure_engine::{Answer, BoxFuture, Card, Ear, Engine, Fault, FaultKind, Look};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::network::{Call, Route, Verb, arrive_now, deliver, holder_of, pause};
use crate::random::Random;
use crate::store::Sabotage;
use crate::world::{Sim, locked};

/// How long a look may take.
const READ_LIMIT_MS: u64 = 1_000;

pub(crate) struct SimEngine {
    pub(crate) sim: Sim,
    pub(crate) me: usize,
    pub(crate) process: ProcessId,
    pub(crate) clock: Arc<Clock>,
    pub(crate) secrets: Mutex<Random>,
    pub(crate) near: bool,
}

impl fmt::Debug for SimEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimEngine({})", self.me)
    }
}

/// A call that is under way: answered or dropped, what it has sent is given up.
struct UnderWay {
    sim: Sim,
    ids: Vec<u64>,
    parcels: Vec<Option<u64>>,
}

impl UnderWay {
    fn begin(sim: &Sim, verbs: impl Iterator<Item = (Verb, Option<HolderId>)>) -> Self {
        let mut world = locked(sim);
        let within = world.polled;
        let mut ids = Vec::new();
        for (verb, holder) in verbs {
            let id = world.fresh_id();
            ids.push(id);
            world.calls.push(Call { id, within, verb, holder });
            // A future is known by the claim that it asks for.
            if let Some(running) = within.and_then(|within| world.running.get_mut(&within)) {
                running.holder = running.holder.or(holder);
            }
        }
        Self { sim: sim.clone(), ids, parcels: Vec::new() }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut world = locked(&self.sim);
        world.calls.retain(|call| !self.ids.contains(&call.id));
        for id in self.parcels.iter().flatten() {
            if let Some(parcel) = world.parcels.get_mut(id) {
                parcel.given_up = true;
            }
        }
    }
}

fn fault(kind: FaultKind) -> Fault {
    match kind {
        FaultKind::Unknown => Fault::unknown("no reply"),
        FaultKind::NotRun => Fault::not_run("connection refused"),
        FaultKind::Refused => Fault::refused("wrong password"),
    }
}

impl SimEngine {
    async fn exchange(&self, calls: &[(Name, Request)], limit: Duration) -> Vec<Answer> {
        let in_background = locked(&self.sim).polled.is_none();
        let verbs = calls.iter().map(|(_, request)| (Verb::of(request), holder_of(request)));
        let mut under_way = UnderWay::begin(&self.sim, verbs);
        self.clock.goes_on().await;
        let limit_ms = limit.as_millis() as u64;
        let route = locked(&self.sim).send(self.me, calls, limit_ms);
        let none = |kind| calls.iter().map(|_| Err(fault(kind))).collect();
        let answers: Vec<Answer> = match route {
            Route::Fault { after_ms, kind } => {
                pause(after_ms.min(limit_ms)).await;
                none(kind)
            }
            Route::Sent { parcels, there_ms, back_ms, lose_reply } => {
                under_way.parcels.clone_from(&parcels);
                let all = !parcels.contains(&None);
                let (calm, sabotage, instant) = {
                    let world = locked(&self.sim);
                    (world.calm, world.store.sabotage, world.swarm.instant)
                };
                if sabotage == Some(Sabotage::NeverAnswer)
                    && in_background
                    && !calm
                    && calls.iter().any(|(_, request)| Verb::of(request) == Verb::Release)
                {
                    return pending().await;
                }
                if instant && there_ms + back_ms == 0 && all && !lose_reply && !calm {
                    arrive_now(&self.sim, &parcels)
                        .into_iter()
                        .map(|reply| reply.ok_or_else(|| fault(FaultKind::Unknown)))
                        .collect()
                } else {
                    let (reply_to, replies) = oneshot::channel();
                    let reply_to = Some(reply_to).filter(|_| !lose_reply);
                    tokio::spawn(deliver(self.sim.clone(), parcels, (there_ms, back_ms), reply_to));
                    let mut came = None;
                    let _ = timeout(limit, async {
                        came = replies.await.ok();
                        // The rest might come yet.
                        if !all || came.is_none() {
                            pending::<()>().await;
                        }
                    })
                    .await;
                    came.map_or_else(
                        || none(FaultKind::Unknown),
                        |came| {
                            came.into_iter()
                                .map(|reply| reply.ok_or_else(|| fault(FaultKind::Unknown)))
                                .collect()
                        },
                    )
                }
            }
        };
        self.clock.goes_on().await;
        answers
    }

    /// There and back; the second half is awaited by [`SimEngine::comes_back`].
    async fn read<T>(&self, verb: Verb, what: impl FnOnce(&Sim) -> T) -> Result<T, Fault> {
        let _under_way = UnderWay::begin(&self.sim, [(verb, None)].into_iter());
        self.clock.goes_on().await;
        let trip = locked(&self.sim).reading_trip(self.me);
        let Some((there_ms, back_ms)) = trip else {
            pause(READ_LIMIT_MS).await;
            self.clock.goes_on().await;
            return Err(fault(FaultKind::Unknown));
        };
        pause(there_ms).await;
        let read = what(&self.sim);
        pause(back_ms).await;
        self.clock.goes_on().await;
        Ok(read)
    }
}

impl Engine for SimEngine {
    fn call<'a>(&'a self, name: &'a Name, request: &'a Request, limit: Duration) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let calls = [(name.clone(), request.clone())];
            self.exchange(&calls, limit).await.pop().expect("one answer to one request")
        })
    }

    fn call_many<'a>(&'a self, calls: &'a [(Name, Request)], limit: Duration) -> BoxFuture<'a, Vec<Answer>> {
        assert!(locked(&self.sim).store.sabotage != Some(Sabotage::Panic), "a bug in an engine");
        Box::pin(self.exchange(calls, limit))
    }

    fn listen(&self, ear: Ear) {
        locked(&self.sim).members[self.me].ear = Some(ear);
    }

    fn process(&self) -> ProcessId {
        self.process
    }

    fn guard_ms(&self, ttl_ms: u64) -> u64 {
        if self.near { 0 } else { lease::guard_ms(ttl_ms) }
    }

    fn scope(&self) -> String {
        "simulated".to_owned()
    }

    fn look<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Look, Fault>> {
        Box::pin(self.read(Verb::Look, |sim| {
            let mut world = locked(sim);
            let now_ms = world.now_ms();
            world.at_store(name, |store, eyes| store.look(now_ms, eyes))
        }))
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Fault>> {
        Box::pin(self.read(Verb::Names, |sim| locked(sim).store.locks.keys().cloned().collect()))
    }

    fn card(&self, process: ProcessId) -> BoxFuture<'_, Result<Option<Card>, Fault>> {
        Box::pin(self.read(Verb::Card, move |sim| {
            let world = locked(sim);
            world.member(process).and_then(|member| world.members[member].card.clone())
        }))
    }

    fn post<'a>(&'a self, card: &'a Card) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            self.read(Verb::Card, |sim| locked(sim).members[self.me].card = Some(card.clone())).await
        })
    }

    fn job_file(&self, _holder: HolderId) -> Result<Option<OwnedFd>, Fault> {
        Ok(None)
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn unix_ms(&self) -> u64 {
        self.clock.unix_ms()
    }

    fn secrets(&self) -> Vec<u128> {
        let mut random = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        (0..16).map(|_| u128::from(random.next()) << 64 | u128::from(random.next())).collect()
    }
}
