//! Everything that one seed is made of.

use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure::Client;
use tenure_core::{HolderId, Name, ProcessId, Sight};
use tenure_engine::{Card, Ear, Letter};
use tokio::task::AbortHandle;

use crate::awaits::{Awaits, Running};
use crate::clock::Clock;
use crate::network::{Call, Parcel};
use crate::oracle::Oracle;
use crate::random::Random;
use crate::store::{Eyes, Store};
use crate::swarm::Swarm;

/// A world that its engines, its tasks and its letters share. Never locked while the library is called, except by the
/// oracle, whose questions do not come back here.
pub(crate) type Sim = Arc<Mutex<World>>;

pub(crate) fn locked(sim: &Sim) -> MutexGuard<'_, World> {
    sim.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One process.
pub(crate) struct Member {
    pub(crate) process: ProcessId,
    pub(crate) clock: Arc<Clock>,
    pub(crate) alive: bool,
    /// Cut off from the store until then.
    pub(crate) cut_until_ms: u64,
    pub(crate) ear: Option<Ear>,
    pub(crate) card: Option<Card>,
    pub(crate) client: Option<Client>,
    pub(crate) tasks: Vec<AbortHandle>,
}

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) swarm: Swarm,
    /// Faults are over.
    pub(crate) calm: bool,
    /// The clock of the store.
    pub(crate) clock: Arc<Clock>,
    /// See [`Clock`].
    pub(crate) truth: Arc<AtomicBool>,
    pub(crate) store: Store,
    pub(crate) members: Vec<Member>,
    /// What is on its way to the store.
    pub(crate) parcels: BTreeMap<u64, Parcel>,
    /// Calls of the library that have no answer yet.
    pub(crate) calls: Vec<Call>,
    /// What the store has said and nobody has carried yet.
    pub(crate) letters: Vec<Letter>,
    /// Futures of the workload, and the one that is polled just now.
    pub(crate) running: BTreeMap<u64, Running>,
    pub(crate) polled: Option<u64>,
    pub(crate) awaits: Awaits,
    pub(crate) oracle: Oracle,
    ids: u64,
    trace: Option<String>,
}

impl World {
    pub(crate) fn new(random: Random, swarm: Swarm, clock: Arc<Clock>, store: Store, trace: bool) -> Self {
        Self {
            random,
            swarm,
            calm: false,
            truth: Arc::default(),
            clock,
            store,
            members: Vec::new(),
            parcels: BTreeMap::new(),
            calls: Vec::new(),
            letters: Vec::new(),
            running: BTreeMap::new(),
            polled: None,
            awaits: Awaits::new(),
            oracle: Oracle::default(),
            ids: 0,
            trace: trace.then(String::new),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.elapsed_ms()
    }

    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    pub(crate) fn note(&mut self, what: Arguments<'_>) {
        if let Some(trace) = &mut self.trace {
            use std::fmt::Write;
            let at = self.clock.elapsed_ms();
            writeln!(trace, "{:>4}.{:03} {what}", at / 1000, at % 1000).expect("a string takes everything");
        }
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    pub(crate) fn take_trace(&mut self) -> String {
        self.trace.take().unwrap_or_default()
    }

    pub(crate) fn member(&self, process: ProcessId) -> Option<usize> {
        self.members.iter().position(|member| member.process == process)
    }

    /// A holder as traces show it.
    pub(crate) fn short(&self, holder: HolderId) -> String {
        match self.member(holder.process) {
            Some(member) => format!("p{member}.{}", holder.serial),
            None => holder.to_string(),
        }
    }

    /// Lets `what` use the store, with its eyes and its voice.
    pub(crate) fn at_store<T>(
        &mut self,
        name: &Name,
        what: impl FnOnce(&mut Store, &mut Eyes<'_>) -> T,
    ) -> T {
        let (members, now_ms) = (&self.members, self.clock.elapsed_ms());
        let Swarm { near, deaf_look_alive, .. } = self.swarm;
        let member = |process| members.iter().find(|member| member.process == process);
        let sees = |process| {
            let alive = member(process).is_some_and(|member| member.alive);
            if near && !alive { Sight::Gone } else { Sight::Unknown }
        };
        let hears = |process| {
            member(process).is_some_and(|member| {
                member.ear.is_some() && (deaf_look_alive || (member.alive && member.cut_until_ms <= now_ms))
            })
        };
        let mut eyes = Eyes { name, sees: &sees, hears: &hears, letters: Vec::new() };
        let done = what(&mut self.store, &mut eyes);
        self.letters.append(&mut eyes.letters);
        done
    }
}
