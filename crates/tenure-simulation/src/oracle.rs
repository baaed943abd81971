//! What must be true, asked at every step: of the store, which knows who holds, and of the leases that the workload
//! has, which know who believes so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use tenure::Lease;
use tenure_core::{HolderId, Lost, Moment, Name, Occupant, Owner, Reply, Request, Token};

use crate::store::Sabotage;
use crate::world::World;

/// What must be true.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// At most one guard of a lock holds at any moment, unless the store has forgotten one.
    Exclusion,
    /// Who believes to hold, holds: the store outlives the belief.
    Belief,
    /// The holder was told of its loss before somebody else is granted the lock.
    Told,
    /// Fences rise in the order of grants, and every guard has that of a grant.
    Fences,
    /// There is no alarm without a cause: who is told that its hold was gone had lost it in the store.
    Cause,
    /// A release that is confirmed was done.
    Confirmed,
    /// When all is given back and faults are over, a living process has nothing left in the store.
    LeftBehind,
    /// … and its driver has nothing left to do.
    Idle,
    /// When faults are over, whoever waits gets the lock.
    Progress,
    /// Nothing panics.
    Panic,
}

/// A lease that the workload has.
struct Watched {
    id: u64,
    name: Name,
    member: usize,
    lease: Lease,
    /// The workload has given it back.
    done: bool,
}

#[derive(Default)]
pub(crate) struct Oracle {
    watched: Vec<Watched>,
    last_fence: BTreeMap<Name, Token>,
    granted: BTreeMap<HolderId, BTreeSet<Token>>,
    /// Whose hold has run out, and whose was forgotten.
    ran_out: BTreeSet<HolderId>,
    forgotten: BTreeSet<HolderId>,
    /// Whose release has arrived at the store at least once.
    released: BTreeSet<HolderId>,
    /// Whose ask was carried out after its release: until the release is repeated, it holds or waits for nobody.
    ghosts: BTreeSet<HolderId>,
    /// Who was refused a release: it sends no more, and what it had ends by itself.
    pub(crate) refused: BTreeSet<HolderId>,
    pub(crate) failure: Option<(Rule, String)>,
}

impl Oracle {
    /// The store has ended a hold without being asked to.
    fn has_lost(&self, holder: HolderId) -> bool {
        self.ran_out.contains(&holder) || self.forgotten.contains(&holder)
    }
}

impl World {
    pub(crate) fn fail(&mut self, rule: Rule, what: String) {
        if self.oracle.failure.is_none() {
            self.note(format_args!("BROKEN {rule:?}: {what}"));
            self.oracle.failure = Some((rule, what));
        }
    }

    /// Looks at what a request has done in the store.
    pub(crate) fn judge(
        &mut self,
        name: &Name,
        request: &Request,
        reply: &Reply,
        before: Option<(Owner, Token, Moment)>,
    ) {
        match request {
            Request::Release { owner } => {
                self.oracle.released.insert(owner.holder);
            }
            Request::Ask { owner, .. } => {
                let late = self.oracle.released.contains(&owner.holder);
                if late && matches!(reply, Reply::Granted { .. } | Reply::Queued { .. }) {
                    self.oracle.ghosts.insert(owner.holder);
                }
            }
            _ => {}
        }
        let who = |at: &Option<(Owner, Token, Moment)>| at.map(|(owner, token, _)| (owner.holder, token));
        let after = self.store.occupant(name);
        if who(&before) != who(&after) {
            if let Some((holder, _)) = who(&before) {
                let own = matches!(request, Request::Release { owner } if owner.holder == holder);
                if !own || *reply != Reply::Released {
                    self.oracle.ran_out.insert(holder);
                }
            }
            if let Some((holder, token)) = who(&after) {
                self.granted(name, holder, token);
            }
        }
        self.check();
    }

    fn granted(&mut self, name: &Name, holder: HolderId, token: Token) {
        let last = self.oracle.last_fence.insert(name.clone(), token);
        if last.is_some_and(|last| last >= token) {
            self.fail(Rule::Fences, format!("{name}: fence {token} after {last:?}"));
        }
        self.oracle.granted.entry(holder).or_default().insert(token);
        self.truth.store(true, Relaxed);
        let mut broken = None;
        for other in self.oracle.watched.iter().filter(|other| other.name == *name) {
            let loser = other.lease.holder();
            if loser == holder || self.oracle.forgotten.contains(&loser) {
                continue;
            }
            let late = self.members[other.member].clock.is_late()
                && self.store.sabotage != Some(Sabotage::StopSecretly);
            if other.lease.holds() {
                broken = Some((Rule::Exclusion, loser, "which still believes"));
            } else if !other.done && !late && other.lease.watch().state().lost.is_none() {
                broken = Some((Rule::Told, loser, "which was not told of its loss"));
            }
        }
        self.truth.store(false, Relaxed);
        if let Some((rule, loser, why)) = broken {
            let (winner, loser) = (self.short(holder), self.short(loser));
            self.fail(rule, format!("{name}: granted to {winner} over {loser}, {why}"));
        }
    }

    /// Asks every lease.
    pub(crate) fn check(&mut self) {
        let now_ms = self.now_ms();
        self.truth.store(true, Relaxed);
        let mut broken = None;
        let mut holding: Vec<(&Name, HolderId)> = Vec::new();
        for watched in &self.oracle.watched {
            let holder = watched.lease.holder();
            let taken = watched.lease.watch().state().lost == Some(Lost::Taken);
            if taken && !self.oracle.has_lost(holder) {
                broken = Some((Rule::Cause, watched, "was told that its lock was taken, and it was not"));
            }
            if self.oracle.forgotten.contains(&holder) || !watched.lease.holds() {
                continue;
            }
            let stands = self.store.occupant(&watched.name).is_some_and(|(owner, token, ends)| {
                (owner.holder, token.0) == (holder, watched.lease.fence()) && now_ms <= ends.0
            });
            // Guards of one session share a hold.
            if holding.iter().any(|(name, other)| **name == watched.name && *other != holder) {
                broken = Some((Rule::Exclusion, watched, "holds at the same time as another"));
            } else if !stands {
                broken = Some((Rule::Belief, watched, "believes in a hold that is not there"));
            }
            holding.push((&watched.name, holder));
        }
        self.truth.store(false, Relaxed);
        if let Some((rule, watched, why)) = broken {
            let what = format!("{}: {} {why}", watched.name, self.short(watched.lease.holder()));
            self.fail(rule, what);
        }
    }

    /// The workload has a lease.
    pub(crate) fn watch(&mut self, member: usize, lease: Lease) -> u64 {
        let name = Name::new(lease.name()).expect("a lock has a name");
        let (holder, fence) = (lease.holder(), Token(lease.fence()));
        if !self.oracle.granted.get(&holder).is_some_and(|tokens| tokens.contains(&fence)) {
            let what = format!("{name}: {} has fence {fence} of no grant", self.short(holder));
            self.fail(Rule::Fences, what);
        }
        if self.is_traced() {
            let who = self.short(holder);
            self.note(format_args!("{name}: {who} has a guard"));
        }
        let nests = self.oracle.watched.iter().any(|other| other.lease.holder() == holder);
        if nests && (!lease.holds() || lease.loss().is_some()) {
            self.fail(
                Rule::Belief,
                format!("{name}: a guard nests in the lost hold of {}", self.short(holder)),
            );
        }
        let id = self.fresh_id();
        if self.members[member].alive {
            // A close may have given it back before its task could see it.
            let done = !lease.holds();
            self.oracle.watched.push(Watched { id, name, member, lease, done });
        }
        self.check();
        id
    }

    /// The workload gives it back now.
    pub(crate) fn done(&mut self, id: u64) {
        for watched in &mut self.oracle.watched {
            watched.done |= watched.id == id;
        }
        // Whoever gives back believes no more; a few are kept, in case that is not so.
        let surplus = self.oracle.watched.iter().filter(|watched| watched.done).count().saturating_sub(8);
        let mut dropped = 0;
        self.oracle.watched.retain(|watched| {
            let drop = watched.done && dropped < surplus;
            dropped += usize::from(drop);
            !drop
        });
    }

    /// All that this process has is given back now.
    pub(crate) fn done_by(&mut self, member: usize) {
        for watched in &mut self.oracle.watched {
            watched.done |= watched.member == member;
        }
    }

    /// A process is gone: it believes nothing.
    pub(crate) fn gone(&mut self, member: usize) {
        self.oracle.watched.retain(|watched| watched.member != member);
    }

    /// The store has forgotten everything, and that is known.
    pub(crate) fn forget(&mut self) {
        for ledger in self.store.locks.values() {
            if let Some(Occupant::Ours(hold)) = &ledger.occupant {
                self.oracle.forgotten.insert(hold.owner.holder);
            }
        }
        self.store.forget();
    }

    /// A release said that the lock was not held any more.
    pub(crate) fn alarmed(&mut self, holder: HolderId, told_before: bool) {
        if !self.oracle.has_lost(holder) && !told_before {
            let what = format!("{} was told that it did not hold, and it did", self.short(holder));
            self.fail(Rule::Cause, what);
        }
    }

    /// A release said that it was done.
    pub(crate) fn confirmed(&mut self, name: &str, holder: HolderId) {
        let name = Name::new(name).expect("a lock has a name");
        let stands = self.store.occupant(&name).is_some_and(|(owner, _, _)| owner.holder == holder);
        if stands && !self.oracle.ghosts.contains(&holder) {
            let what =
                format!("{name}: the release of {} was confirmed, and it still holds", self.short(holder));
            self.fail(Rule::Confirmed, what);
        }
    }

    /// Nothing of a living process may be in the store.
    pub(crate) fn expect_nothing_left(&mut self) {
        let now = Moment(self.now_ms());
        let mut left = Vec::new();
        for (name, ledger) in &self.store.locks {
            if let Some(Occupant::Ours(hold)) = &ledger.occupant
                && now <= hold.ends
            {
                left.push((name, hold.owner.holder, "a hold"));
            }
            for place in ledger.places.iter().filter(|place| now <= place.until) {
                left.push((name, place.owner.holder, "a place"));
            }
        }
        let left = left.into_iter().find(|(_, holder, _)| {
            let Some(member) = self.member(holder.process).map(|member| &self.members[member]) else {
                return true;
            };
            let refused = self.oracle.refused.contains(holder);
            member.alive && !refused
        });
        if let Some((name, holder, what)) = left {
            let what = format!("{name}: {what} of {} is left behind", self.short(holder));
            self.fail(Rule::LeftBehind, what);
        }
    }
}
