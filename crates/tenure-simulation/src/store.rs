//! The store: one ledger for each lock, and what it can be made to do wrong so that the oracle has something to find.

use std::collections::BTreeMap;

use tenure_core::{
    Ledger, Message, Moment, Name, Now, Occupant, Owner, Place, ProcessId, Reply, Request, Sight, Token,
    Witness,
};
use tenure_engine::{Letter, Look};

use crate::clock::WALL_MS;

/// A bug that a simulation is given on purpose: each rule of the oracle must be able to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// A lock is granted although somebody holds it.
    GrantTwice,
    /// Holds end before their leases.
    EndEarly,
    /// Holds are forgotten, and nobody says so.
    ForgetSecretly,
    /// Tokens are given out again.
    RepeatTokens,
    /// Who renews is told that it does not hold.
    DenyRenewals,
    /// A release is answered and not done.
    LeakHolds,
    /// A free lock is never given to anybody.
    GrantNothing,
    /// A process is stopped, and nobody says so.
    StopSecretly,
    /// The release of a dropped guard is never answered, and its time is never over.
    NeverAnswer,
    /// The engine panics in the driver's own task.
    Panic,
    /// The same request takes one time today and another tomorrow.
    OwnRandomness,
}

/// How many waiters a look shows.
const WAITERS_SHOWN: usize = 100;

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) locks: BTreeMap<Name, Ledger<Vec<Place>>>,
    pub(crate) last: Token,
    pub(crate) sabotage: Option<Sabotage>,
    /// How often it was asked.
    pub(crate) asked: u64,
}

/// The store's eyes and voice, in one request.
pub(crate) struct Eyes<'a> {
    pub(crate) name: &'a Name,
    pub(crate) sees: &'a dyn Fn(ProcessId) -> Sight,
    pub(crate) hears: &'a dyn Fn(ProcessId) -> bool,
    pub(crate) letters: Vec<Letter>,
}

impl Witness for Eyes<'_> {
    fn sees(&mut self, owner: &Owner) -> Sight {
        (self.sees)(owner.holder.process)
    }

    fn tell(&mut self, owner: &Owner, message: Message) -> bool {
        let hears = (self.hears)(owner.holder.process);
        if hears {
            self.letters.push(Letter { name: self.name.clone(), owner: *owner, message });
        }
        hears
    }
}

fn now(at_ms: u64) -> Now {
    Now { lease: Moment(at_ms), wall_us: (WALL_MS + at_ms) * 1000 }
}

impl Store {
    pub(crate) fn apply(&mut self, at_ms: u64, request: &Request, eyes: &mut Eyes<'_>) -> Reply {
        let mut ledger = self.locks.remove(eyes.name).unwrap_or_default();
        ledger.last = self.last;
        let mut now = now(at_ms);
        self.asked += 1;
        let often = self.asked.is_multiple_of(5);
        let held_by_asker = |ledger: &Ledger<Vec<Place>>, owner: &Owner| matches!(&ledger.occupant, Some(Occupant::Ours(hold)) if hold.owner == *owner);
        let reply = match (self.sabotage, request) {
            (Some(Sabotage::GrantTwice), Request::Ask { owner, .. })
                if often && !held_by_asker(&ledger, owner) =>
            {
                ledger.occupant = None;
                None
            }
            (Some(Sabotage::EndEarly), _) => {
                if let Some(Occupant::Ours(hold)) = &ledger.occupant
                    && hold.ends.since(now.lease) < hold.guard_ms + hold.ttl_ms / 2
                {
                    ledger.occupant = None;
                }
                None
            }
            (Some(Sabotage::ForgetSecretly), _) if often => {
                ledger.occupant = None;
                None
            }
            (Some(Sabotage::RepeatTokens), _) => {
                (now.wall_us, ledger.last) = (1, Token(0));
                None
            }
            (Some(Sabotage::DenyRenewals), Request::Renew { .. }) if often => Some(Reply::NotHeld),
            (Some(Sabotage::LeakHolds), Request::Release { owner }) if held_by_asker(&ledger, owner) => {
                Some(Reply::Released)
            }
            (Some(Sabotage::GrantNothing), Request::Ask { .. }) => {
                Some(Reply::Queued { head: true, standing: None })
            }
            _ => None,
        };
        let reply = reply.unwrap_or_else(|| ledger.apply(now, request, eyes));
        if self.sabotage.is_none() {
            ledger.check();
        }
        self.last = ledger.last;
        self.locks.insert(eyes.name.clone(), ledger);
        reply
    }

    pub(crate) fn occupant(&self, name: &Name) -> Option<(Owner, Token, Moment)> {
        match &self.locks.get(name)?.occupant {
            Some(Occupant::Ours(hold)) => Some((hold.owner, hold.token, hold.ends)),
            _ => None,
        }
    }

    pub(crate) fn look(&self, at_ms: u64, eyes: &mut Eyes<'_>) -> Look {
        let ledger = self.locks.get(eyes.name);
        let snapshot =
            ledger.map(|ledger| ledger.snapshot(now(at_ms), WAITERS_SHOWN, eyes)).unwrap_or_default();
        Look { snapshot, ..Look::default() }
    }

    /// Everything is gone, even the tokens: the wall clock is left.
    pub(crate) fn forget(&mut self) {
        self.locks.clear();
        self.last = Token(0);
    }
}
