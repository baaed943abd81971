//! What travels: requests to the store, replies and letters from it. Anything may be late or lost, within what the
//! port allows ([`tenure_engine::Engine`]).

use std::time::Duration;

use tenure_core::lease::ASK_WINDOW_MS;
use tenure_core::{HolderId, Message, Moment, Name, Owner, Reply, Request};
use tenure_engine::{FaultKind, Letter};
use tokio::time::sleep;

use crate::store::Sabotage;
use crate::world::{Sim, World, locked};

/// How long a request can be on its way at the most.
pub(crate) const WAY_MS_MAX: u64 = 7_000;

/// What a call is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Ask,
    Renew,
    Release,
    Stop,
    Look,
    Names,
    Card,
}

impl Verb {
    pub(crate) fn of(request: &Request) -> Self {
        match request {
            Request::Ask { .. } => Self::Ask,
            Request::Renew { .. } => Self::Renew,
            Request::Release { .. } => Self::Release,
            Request::Stop { .. } => Self::Stop,
        }
    }
}

/// A call of the library that has no answer yet.
pub(crate) struct Call {
    pub(crate) id: u64,
    /// The future of the workload that carries it; `None`: the driver's background task.
    pub(crate) within: Option<u64>,
    pub(crate) verb: Verb,
    pub(crate) holder: Option<HolderId>,
}

/// A request on its way to the store.
pub(crate) struct Parcel {
    name: Name,
    request: Request,
    /// Of one owner, these come first if they come at all.
    first: Vec<u64>,
    /// Its call was answered or dropped.
    pub(crate) given_up: bool,
}

/// What becomes of the requests of one call.
pub(crate) enum Route {
    /// None of them leaves.
    Fault { after_ms: u64, kind: FaultKind },
    /// They arrive together, and so do the replies; `None` in their place: it never leaves.
    Sent { parcels: Vec<Option<u64>>, there_ms: u64, back_ms: u64, lose_reply: bool },
}

fn owner_of(request: &Request) -> Option<Owner> {
    match request {
        Request::Ask { owner, .. } | Request::Renew { owner, .. } | Request::Release { owner } => {
            Some(*owner)
        }
        Request::Stop { .. } => None,
    }
}

pub(crate) fn holder_of(request: &Request) -> Option<HolderId> {
    owner_of(request).map(|owner| owner.holder)
}

impl World {
    fn trip_ms(&mut self) -> u64 {
        let most = if self.calm { 3 } else { self.swarm.latency_ms };
        self.random.below(most + 1)
    }

    /// There and back, for what only reads. `None`: lost.
    pub(crate) fn reading_trip(&mut self, me: usize) -> Option<(u64, u64)> {
        let now_ms = self.now_ms();
        let there_ms = self.trip_ms();
        let lost = !self.calm && self.random.chance(self.swarm.lost_requests);
        let member = &self.members[me];
        (member.alive && member.cut_until_ms <= now_ms && !lost).then(|| (there_ms, self.trip_ms()))
    }

    /// Decides what becomes of the requests of one call, and puts them on their way.
    pub(crate) fn send(&mut self, me: usize, calls: &[(Name, Request)], limit_ms: u64) -> Route {
        let now_ms = self.now_ms();
        let member = &self.members[me];
        if !member.alive {
            return Route::Fault { after_ms: 0, kind: FaultKind::Unknown };
        }
        let cut = member.cut_until_ms > now_ms;
        let releasing = calls.iter().filter(|(_, request)| Verb::of(request) == Verb::Release);
        let releasing: Vec<HolderId> = releasing.filter_map(|(_, request)| holder_of(request)).collect();
        if self.is_traced() {
            for holder in &releasing {
                let who = self.short(*holder);
                self.note(format_args!("{who} sends a release"));
            }
        }
        let (mut there_ms, mut back_ms) = (self.trip_ms(), self.trip_ms());
        let (mut lose_from, mut lose_reply) = (calls.len(), false);
        if cut {
            match self.random.below(4) {
                0 => return Route::Fault { after_ms: there_ms, kind: FaultKind::NotRun },
                1 => lose_reply = true,
                _ => lose_from = 0,
            }
        } else if !self.calm {
            if self.random.chance(self.swarm.not_run) {
                return Route::Fault { after_ms: there_ms, kind: FaultKind::NotRun };
            }
            if self.random.chance(self.swarm.refused) {
                self.oracle.refused.extend(releasing);
                return Route::Fault { after_ms: there_ms, kind: FaultKind::Refused };
            }
            if self.random.chance(self.swarm.slow) {
                there_ms = self.random.below(limit_ms + 1);
                back_ms = self.random.below(limit_ms + 1);
            }
            if self.random.chance(self.swarm.stuck) {
                there_ms = self.random.within(limit_ms, WAY_MS_MAX.max(limit_ms));
            }
            if self.random.chance(self.swarm.lost_requests) {
                // A connection that breaks in the middle of a batch has carried the first of it.
                lose_from = self.random.below(calls.len() as u64) as usize;
            }
            lose_reply = self.random.chance(self.swarm.lost_replies);
        }
        if self.store.sabotage == Some(Sabotage::OwnRandomness) {
            use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
            static CALLS: AtomicU64 = AtomicU64::new(0);
            there_ms += CALLS.fetch_add(1, Relaxed) % 3;
        }
        let mut parcels = Vec::with_capacity(calls.len());
        for (at, (name, request)) in calls.iter().enumerate() {
            let first = self.keep_order(request);
            if at >= lose_from {
                parcels.push(None);
                continue;
            }
            let mut request = request.clone();
            if let Request::Ask { not_after, .. } = &mut request {
                not_after.get_or_insert(Moment(now_ms + ASK_WINDOW_MS));
            }
            let id = self.fresh_id();
            self.parcels.insert(id, Parcel { name: name.clone(), request, first, given_up: false });
            parcels.push(Some(id));
        }
        Route::Sent { parcels, there_ms, back_ms, lose_reply }
    }

    /// A request never overtakes an earlier one of the same owner that was given up: that one comes first or never.
    /// Which of them have to come first. Where [`crate::swarm::Swarm::asks_overtake`], asks know no such rule.
    fn keep_order(&mut self, request: &Request) -> Vec<u64> {
        let Some(owner) = owner_of(request) else { return Vec::new() };
        let earlier: Vec<u64> = self
            .parcels
            .iter()
            .filter(|(_, parcel)| parcel.given_up && owner_of(&parcel.request) == Some(owner))
            .filter(|(_, parcel)| !(self.swarm.asks_overtake && Verb::of(&parcel.request) == Verb::Ask))
            .map(|(id, _)| *id)
            .collect();
        let (first, never): (Vec<u64>, Vec<u64>) = earlier.into_iter().partition(|_| self.random.chance(50));
        for id in never {
            self.parcels.remove(&id);
        }
        first
    }

    /// Requests arrive at the store together.
    fn arrive(&mut self, parcels: &[Option<u64>]) -> Vec<Option<Reply>> {
        parcels.iter().map(|id| self.carry_out((*id)?)).collect()
    }

    fn carry_out(&mut self, id: u64) -> Option<Reply> {
        let Parcel { name, request, first, .. } = self.parcels.remove(&id)?;
        for id in first {
            self.carry_out(id);
        }
        let now_ms = self.now_ms();
        let before = self.store.occupant(&name);
        let reply = self.at_store(&name, |store, eyes| store.apply(now_ms, &request, eyes));
        if self.is_traced() {
            let who = holder_of(&request).map(|holder| self.short(holder)).unwrap_or_default();
            let what = match &request {
                Request::Ask { ttl_ms, .. } => format!("ask for {ttl_ms} ms"),
                Request::Renew { ttl_ms, .. } => format!("renewal for {ttl_ms} ms"),
                other => format!("{:?}", Verb::of(other)).to_lowercase(),
            };
            self.note(format_args!("{name}: {what} of {who}: {reply:?}"));
        }
        self.judge(&name, &request, &reply, before);
        Some(reply)
    }
}

/// Carries requests to the store, and the replies back as far as they come: what is not there when the sender does
/// is its business.
pub(crate) async fn deliver(
    sim: Sim,
    parcels: Vec<Option<u64>>,
    (there_ms, back_ms): (u64, u64),
    reply_to: Option<tokio::sync::oneshot::Sender<Vec<Option<Reply>>>>,
) {
    pause(there_ms).await;
    let replies = arrive_now(&sim, &parcels);
    pause(back_ms).await;
    if let Some(reply_to) = reply_to {
        let _ = reply_to.send(replies);
    }
}

pub(crate) fn arrive_now(sim: &Sim, parcels: &[Option<u64>]) -> Vec<Option<Reply>> {
    let replies = locked(sim).arrive(parcels);
    mail(sim);
    replies
}

pub(crate) async fn pause(ms: u64) {
    if ms > 0 {
        sleep(Duration::from_millis(ms)).await;
    }
}

/// Puts on its way what the store has said.
pub(crate) fn mail(sim: &Sim) {
    let mut world = locked(sim);
    let world = &mut *world;
    for letter in std::mem::take(&mut world.letters) {
        let Some(me) = world.member(letter.owner.holder.process) else { continue };
        let cut = world.members[me].cut_until_ms > world.now_ms();
        let mut ways = vec![world.trip_ms()];
        if !world.calm && letter.message != Message::Look {
            if world.random.chance(world.swarm.late_letters) {
                ways[0] = world.random.below(WAY_MS_MAX);
            }
            if world.random.chance(world.swarm.doubled_letters) {
                ways.push(world.random.below(WAY_MS_MAX));
            }
            if cut || world.random.chance(world.swarm.lost_letters) {
                ways.remove(0);
            }
        }
        for ms in ways {
            tokio::spawn(hand_in(sim.clone(), me, letter.clone(), ms));
        }
    }
}

async fn hand_in(sim: Sim, me: usize, letter: Letter, after_ms: u64) {
    pause(after_ms).await;
    let clock = locked(&sim).members[me].clock.clone();
    clock.goes_on().await;
    let ear = {
        let mut world = locked(&sim);
        let member = &world.members[me];
        let ear = if member.alive { member.ear.clone() } else { None };
        if world.is_traced() {
            let (who, arrives) = (world.short(letter.owner.holder), ear.is_some());
            world.note(format_args!("{}: letter to {who}: {:?} ({arrives})", letter.name, letter.message));
        }
        ear
    };
    if let Some(ear) = ear {
        ear(letter);
        locked(&sim).check();
    }
}
