//! What one store does with one lock. The embedded engine runs this code; the scripts of the Redis engine must
//! agree with it, request by request.

use crate::ident::{Attempt, HolderId, Moment, Owner, Token};
use crate::request::{Message, Reply, Request, Standing};

/// The most waiters that one lock has; an ask beyond is answered [`Reply::Full`].
pub const WAITERS_MAX: usize = 10_000;

/// The most waiters whom one request tries to reach before it leaves the lock free for the next request.
pub const PASSED_OVER_MAX: usize = 8;

/// The most places that one request looks at; dead ones beyond are left to the next request.
pub const LOOKED_AT_MAX: usize = 128;

/// How soon a waiter should look again at a hold whose end nobody can foretell.
pub const LOOK_AGAIN_MS: u64 = 50;

/// The two clocks of a store. They are never mixed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Now {
    /// Decides what has expired.
    pub lease: Moment,
    /// Microseconds since 1970: the floor of tokens, and nothing else.
    pub wall_us: u64,
}

/// What a store knows of an owner besides its lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sight {
    /// Nothing: the clock alone decides.
    Unknown,
    /// Its process and its job are gone: whatever it held or waited for is free.
    Gone,
    /// Its job still runs: the hold does not end, whatever the clock says.
    Working,
    /// Its job still runs, but nobody is left who would release: the hold ends with the job, without a message.
    Orphaned,
}

/// The store's eyes and voice.
pub trait Witness {
    /// What is known of this owner?
    fn sees(&mut self, owner: &Owner) -> Sight;

    /// Sends a message to this owner. False: there is nobody to receive it. True promises nothing.
    fn tell(&mut self, owner: &Owner, message: Message) -> bool;
}

/// A hold by somebody who speaks Tenure.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Hold {
    /// Who.
    pub owner: Owner,
    /// Its fencing token.
    pub token: Token,
    /// The lease, counted from the request that set it; 0 after a hand-over, until the first renewal: what is left
    /// of the place is the lease then.
    pub ttl_ms: u64,
    /// How much longer the store keeps it.
    pub guard_ms: u64,
    /// The last moment of lease and guard.
    pub ends: Moment,
    /// Somebody asked it to stop: no renewals any more.
    pub stop: Option<String>,
}

/// Who occupies a lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Occupant {
    /// An owner of ours.
    Ours(Hold),
    /// Somebody who does not speak Tenure. Never overwritten, never deleted.
    Foreign {
        /// When it goes away by itself, if ever.
        ends: Option<Moment>,
    },
}

/// A place in the queue. It is a lease too: it ends unless its owner asks again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// Order of arrival: smaller comes first.
    pub seq: u64,
    /// Who waits.
    pub owner: Owner,
    /// The last moment of this place.
    pub until: Moment,
    /// The ask that last refreshed it.
    pub attempt: Attempt,
    /// The guard that its hold will have.
    pub guard_ms: u64,
}

/// The queue, wherever it is kept. No method may cost more than a search.
pub trait Places {
    /// The first place whose `seq` is larger than this.
    fn after(&self, seq: u64) -> Option<Place>;
    /// The last place.
    fn last(&self) -> Option<Place>;
    /// The place of this owner.
    fn find(&self, owner: &Owner) -> Option<Place>;
    /// Adds a place, or replaces the one of the same `seq`.
    fn put(&mut self, place: Place);
    /// Takes a place away.
    fn remove(&mut self, place: &Place);
    /// How many there are.
    fn len(&self) -> usize;
    /// Nobody waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Places for Vec<Place> {
    fn after(&self, seq: u64) -> Option<Place> {
        self.get(self.partition_point(|place| place.seq <= seq)).copied()
    }

    fn last(&self) -> Option<Place> {
        <[Place]>::last(self).copied()
    }

    fn find(&self, owner: &Owner) -> Option<Place> {
        self.iter().find(|place| place.owner == *owner).copied()
    }

    fn put(&mut self, place: Place) {
        match self.binary_search_by_key(&place.seq, |known| known.seq) {
            Ok(at) => self[at] = place,
            Err(at) => self.insert(at, place),
        }
    }

    fn remove(&mut self, place: &Place) {
        self.retain(|known| known.seq != place.seq);
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// One waiter, for people to look at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Waiter {
    /// Who.
    pub holder: HolderId,
    /// Milliseconds until its place ends unless it asks again.
    pub place_ends_in_ms: u64,
}

/// One lock, for people to look at.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Snapshot {
    /// Who holds; `None`: free.
    pub standing: Option<Standing>,
    /// Who asked the holder to stop.
    pub stop: Option<String>,
    /// The first waiters, in order.
    pub waiters: Vec<Waiter>,
    /// How many wait in all.
    pub waiting: usize,
}

/// One lock in one store.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ledger<P> {
    /// Who holds.
    pub occupant: Option<Occupant>,
    /// Who waits.
    pub places: P,
    /// The largest token that this store has given out, for any lock.
    pub last: Token,
}

impl<P: Places> Ledger<P> {
    /// The only transition. Total: every request is legal at any time and answered.
    pub fn apply(&mut self, now: Now, request: &Request, witness: &mut impl Witness) -> Reply {
        if let Request::Ask { not_after: Some(latest), .. } = request
            && now.lease > *latest
        {
            return Reply::Stale;
        }
        self.drop_ended_hold(now, witness);
        let reply = match request {
            Request::Ask { owner, ttl_ms, guard_ms, place_ms, attempt, .. } => {
                let place = Place {
                    seq: 0,
                    owner: *owner,
                    until: now.lease.plus(*place_ms),
                    attempt: *attempt,
                    guard_ms: *guard_ms,
                };
                return self.ask(now, place, *ttl_ms, *place_ms, witness);
            }
            Request::Renew { owner, ttl_ms, guard_ms } => match self.hold_of(owner) {
                Some(Hold { stop: Some(by), .. }) => Reply::Stopping { by: by.clone() },
                Some(hold) => {
                    hold.renew(now, *ttl_ms, *guard_ms);
                    Reply::Renewed
                }
                None => Reply::NotHeld,
            },
            Request::Release { owner } => self.release(now, owner, witness),
            Request::Stop { holder, by } => match &mut self.occupant {
                Some(Occupant::Ours(hold)) if hold.owner.holder == *holder => {
                    hold.stop = Some(by.clone());
                    Reply::Told { reached: witness.tell(&hold.owner, Message::Stop { by: by.clone() }) }
                }
                _ => Reply::NotHeld,
            },
        };
        if self.occupant.is_none() {
            self.hand_over(now, None, witness);
        }
        reply
    }

    fn ask(
        &mut self,
        now: Now,
        asker: Place,
        ttl_ms: u64,
        place_ms: u64,
        witness: &mut impl Witness,
    ) -> Reply {
        if let Some(hold) = self.hold_of(&asker.owner) {
            hold.prolong(now, ttl_ms, asker.guard_ms);
            return Reply::Granted { token: hold.token };
        }
        if self.occupant.is_none() && self.hand_over(now, Some(&asker.owner), witness) {
            let token = self.hold(&asker, ttl_ms, now.lease.plus(ttl_ms), now);
            return Reply::Granted { token };
        }
        let mine = self.places.find(&asker.owner);
        if place_ms == 0 {
            if let Some(place) = mine {
                self.places.remove(&place);
            }
            return Reply::Busy { standing: self.standing(now, witness) };
        }
        if mine.is_none() && self.places.len() >= WAITERS_MAX {
            return Reply::Full;
        }
        let seq = mine.or_else(|| self.places.last().map(|last| Place { seq: last.seq + 1, ..last }));
        self.places.put(Place { seq: seq.map_or(1, |place| place.seq), ..asker });
        let head = self.next_live(now, 0, None, witness).is_some_and(|first| first.owner == asker.owner);
        Reply::Queued { head, standing: self.standing(now, witness) }
    }

    fn release(&mut self, now: Now, owner: &Owner, witness: &mut impl Witness) -> Reply {
        if self.hold_of(owner).is_some() {
            self.occupant = None;
            return Reply::Released;
        }
        let Some(place) = self.places.find(owner) else { return Reply::NotHeld };
        let was_head =
            self.next_live(now, 0, Some(owner), witness).is_some_and(|first| first.seq == place.seq);
        self.places.remove(&place);
        if was_head {
            self.tell_head(now, witness);
        }
        Reply::Released
    }

    /// Gives a free lock to the first in line who can be told. True: that is the asker, who is told by the reply.
    fn hand_over(&mut self, now: Now, asker: Option<&Owner>, witness: &mut impl Witness) -> bool {
        let mut seq = 0;
        for _ in 0..PASSED_OVER_MAX {
            let Some(place) = self.next_live(now, seq, asker, witness) else {
                return asker.is_some() && self.places.after(seq).is_none();
            };
            if asker == Some(&place.owner) {
                self.places.remove(&place);
                return true;
            }
            let token = self.next_token(now);
            if witness.tell(&place.owner, Message::Granted { token, attempt: place.attempt }) {
                self.places.remove(&place);
                self.hold(&place, 0, place.until, now);
                self.tell_head(now, witness);
                return false;
            }
            seq = place.seq;
        }
        // None of those in front can be told, and there may be many more: whoever is here gets it, rather than nobody.
        let Some(asker) = asker else { return false };
        if let Some(place) = self.places.find(asker) {
            self.places.remove(&place);
        }
        true
    }

    /// Tells the first in line who can be told that it watches the holder now.
    fn tell_head(&mut self, now: Now, witness: &mut impl Witness) {
        let Some(standing) = self.standing(now, witness) else { return };
        let mut seq = 0;
        for _ in 0..PASSED_OVER_MAX {
            let Some(place) = self.next_live(now, seq, None, witness) else { return };
            if witness.tell(&place.owner, Message::Head { standing }) {
                return;
            }
            seq = place.seq;
        }
    }

    /// The first live place after `seq`; dead ones on the way are taken away. Whoever asks just now is alive.
    fn next_live(
        &mut self,
        now: Now,
        seq: u64,
        asker: Option<&Owner>,
        witness: &mut impl Witness,
    ) -> Option<Place> {
        for _ in 0..LOOKED_AT_MAX {
            let place = self.places.after(seq)?;
            let alive = asker == Some(&place.owner)
                || (now.lease <= place.until && witness.sees(&place.owner) != Sight::Gone);
            if alive {
                return Some(place);
            }
            self.places.remove(&place);
        }
        None
    }

    fn hold(&mut self, place: &Place, ttl_ms: u64, lease_ends: Moment, now: Now) -> Token {
        let token = self.next_token(now);
        self.last = token;
        let Place { owner, guard_ms, .. } = *place;
        let ends = lease_ends.plus(guard_ms);
        self.occupant = Some(Occupant::Ours(Hold { owner, token, ttl_ms, guard_ms, ends, stop: None }));
        token
    }

    /// Strictly growing if either the counter survived or the wall clock is sane.
    fn next_token(&self, now: Now) -> Token {
        Token(now.wall_us.max(self.last.0 + 1))
    }

    fn hold_of(&mut self, owner: &Owner) -> Option<&mut Hold> {
        match &mut self.occupant {
            Some(Occupant::Ours(hold)) if hold.owner == *owner => Some(hold),
            _ => None,
        }
    }

    fn drop_ended_hold(&mut self, now: Now, witness: &mut impl Witness) {
        let ended = match &self.occupant {
            None => false,
            Some(Occupant::Foreign { ends }) => ends.is_some_and(|ends| now.lease > ends),
            Some(Occupant::Ours(hold)) => match witness.sees(&hold.owner) {
                Sight::Gone => true,
                Sight::Working | Sight::Orphaned => false,
                Sight::Unknown => now.lease > hold.ends,
            },
        };
        if ended {
            self.occupant = None;
        }
    }

    fn standing(&self, now: Now, witness: &mut impl Witness) -> Option<Standing> {
        Some(match self.occupant.as_ref()? {
            Occupant::Foreign { ends } => {
                let free_in_ms = ends.map(|ends| ends.since(now.lease));
                Standing { holder: None, token: None, lease_ends_in_ms: free_in_ms, free_in_ms, quiet: true }
            }
            Occupant::Ours(hold) => {
                let mut free_in_ms = hold.ends.since(now.lease);
                let lease_ends_in_ms = free_in_ms.saturating_sub(hold.guard_ms);
                let quiet = match witness.sees(&hold.owner) {
                    Sight::Unknown | Sight::Gone => false,
                    Sight::Orphaned => true,
                    Sight::Working => {
                        free_in_ms = free_in_ms.max(LOOK_AGAIN_MS);
                        false
                    }
                };
                Standing {
                    holder: Some(hold.owner.holder),
                    token: Some(hold.token),
                    lease_ends_in_ms: Some(lease_ends_in_ms),
                    free_in_ms: Some(free_in_ms),
                    quiet,
                }
            }
        })
    }

    /// The lock as it stands, with its first `most` waiters. Changes nothing.
    pub fn snapshot(&self, now: Now, most: usize, witness: &mut impl Witness) -> Snapshot {
        let mut waiters = Vec::new();
        let mut seq = 0;
        while let Some(place) = self.places.after(seq)
            && waiters.len() < most
        {
            seq = place.seq;
            waiters
                .push(Waiter { holder: place.owner.holder, place_ends_in_ms: place.until.since(now.lease) });
        }
        let stop = match &self.occupant {
            Some(Occupant::Ours(hold)) => hold.stop.clone(),
            _ => None,
        };
        Snapshot { standing: self.standing(now, witness), stop, waiters, waiting: self.places.len() }
    }

    /// Nothing has to be kept for this lock: it is free and nobody waits.
    pub fn is_blank(&self) -> bool {
        self.occupant.is_none() && self.places.is_empty()
    }

    /// Asserts what must be true after every request.
    ///
    /// # Panics
    /// When an invariant is broken: a bug in this file or in the queue below it.
    pub fn check(&self) {
        assert!(self.places.len() <= WAITERS_MAX, "the queue is bounded");
        if let Some(Occupant::Ours(hold)) = &self.occupant {
            assert!(hold.token <= self.last, "the counter never runs behind a token that was given out");
            assert!(self.places.find(&hold.owner).is_none(), "who holds does not wait");
        }
        let (mut seq, mut count) = (0, 0);
        while let Some(place) = self.places.after(seq) {
            assert!(place.seq > seq, "the queue is in order");
            assert_eq!(self.places.find(&place.owner), Some(place), "an owner has one place");
            (seq, count) = (place.seq, count + 1);
        }
        assert_eq!(count, self.places.len(), "the queue counts its places");
    }
}

impl Hold {
    /// The lease begins anew, but never ends earlier than before: a renewal that was stuck on its way must not cut a
    /// lease that a later one has set. Only the first renewal after a hand-over may, because its sender believed in
    /// no more than the new length from the moment at which it was sent.
    fn renew(&mut self, now: Now, ttl_ms: u64, guard_ms: u64) {
        if self.ttl_ms == 0 {
            (self.ttl_ms, self.ends) = (ttl_ms, now.lease);
        }
        self.prolong(now, ttl_ms, guard_ms);
    }

    /// The owner asks again. Its lease may have been handed over, and it may believe in all of that: only ever longer.
    fn prolong(&mut self, now: Now, ttl_ms: u64, guard_ms: u64) {
        let ends = now.lease.plus(ttl_ms).plus(guard_ms);
        if ends > self.ends {
            (self.ends, self.guard_ms) = (ends, guard_ms);
            // A length of 0 says that no renewal has come since the hand-over.
            self.ttl_ms = if self.ttl_ms == 0 { 0 } else { ttl_ms };
        }
    }
}
