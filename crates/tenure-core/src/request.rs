//! What can be asked of a store, what it can answer, and what it can say unasked.

use crate::ident::{Attempt, HolderId, Moment, Owner, Token};

/// One request about one lock. Each is safe to repeat: the same request of the same owner, however late or often
/// it arrives, never makes a second holder and never touches what another owner holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Request {
    /// Give me the lock, or a place in its queue.
    Ask {
        /// Who asks.
        owner: Owner,
        /// Length of the lease that is asked for.
        ttl_ms: u64,
        /// How much longer than the lease the store keeps the hold.
        guard_ms: u64,
        /// Lease of the place in the queue; 0: don't queue, answer busy.
        place_ms: u64,
        /// Which ask of this claim it is. A hand-over names it.
        attempt: Attempt,
        /// On the store's clock: carried out later than this, the ask does nothing. The engine fills it in.
        not_after: Option<Moment>,
    },
    /// Start my lease anew.
    Renew {
        /// Who holds.
        owner: Owner,
        /// Length of the lease from now on.
        ttl_ms: u64,
        /// As in [`Request::Ask`].
        guard_ms: u64,
    },
    /// I don't want the lock any more, whether I hold it or wait for it.
    Release {
        /// Who held or waited.
        owner: Owner,
    },
    /// Ask a holder to stop: its lease is not renewed any more.
    Stop {
        /// Whom; anybody else who holds by now is left alone.
        holder: HolderId,
        /// Who asks, for people to read: at most [`BY_BYTES_MAX`] bytes without control characters.
        by: String,
    },
}

/// Longest `by` of a [`Request::Stop`], in bytes.
pub const BY_BYTES_MAX: usize = 120;

/// Who stands on a lock, as far as a store can tell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Standing {
    /// The holder; `None`: somebody who does not speak Tenure (a plain `SET NX`, another library's lock).
    pub holder: Option<HolderId>,
    /// The holder's fencing token, where it has one.
    pub token: Option<Token>,
    /// Milliseconds until the lease ends unless renewed; `None`: it has no end of its own.
    pub lease_ends_in_ms: Option<u64>,
    /// Milliseconds until the lock is free at the latest unless renewed.
    pub free_in_ms: Option<u64>,
    /// Nobody will send a message when this hold ends: the store has to be looked at again and again.
    pub quiet: bool,
}

/// What a store answers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Reply {
    /// To an ask: you hold. The same token, however often you ask.
    Granted {
        /// The fencing token of this hold.
        token: Token,
    },
    /// To an ask: you have a place in the queue.
    Queued {
        /// Nobody is before you: you watch the holder.
        head: bool,
        /// Who holds; `None`: free at the moment, but somebody before you has to be given a chance.
        standing: Option<Standing>,
    },
    /// To an ask without a place: somebody else holds or comes first.
    Busy {
        /// Who holds.
        standing: Option<Standing>,
    },
    /// To an ask: the queue is full ([`crate::WAITERS_MAX`]).
    Full,
    /// To an ask: it came after its `not_after` and did nothing.
    Stale,
    /// To a renewal: the lease began anew when this was carried out.
    Renewed,
    /// To a renewal: it did nothing, because somebody asked you to stop.
    Stopping {
        /// Who asked.
        by: String,
    },
    /// To a release: you held it, or had a place; now you don't.
    Released,
    /// To a stop: the mark is set; the holder ends at its lease's end at the latest.
    Told {
        /// It was reached by a message as well.
        reached: bool,
    },
    /// To a renewal, release or stop: that owner neither holds nor waits. Nothing was done.
    NotHeld,
}

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It ran, and this is the answer.
    Answered(Reply),
    /// It may have run, may run later, or never.
    Unknown,
    /// It did not run and never will; another try may.
    NotRun,
    /// It did not run, and no other try will (wrong password, forbidden, unknown format).
    Refused,
}

/// What a store says unasked, to one owner. May be lost, late or repeated without harm.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Message {
    /// The lock was handed to you.
    Granted {
        /// Your fencing token.
        token: Token,
        /// The ask that last refreshed your place: your lease counts from its send.
        attempt: Attempt,
    },
    /// You are the first in line now: watch the holder.
    Head {
        /// Who holds.
        standing: Standing,
    },
    /// Somebody asks you to stop.
    Stop {
        /// Who.
        by: String,
    },
    /// Something changed: ask again.
    Look,
}
