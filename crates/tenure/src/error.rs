//! One small error type for each operation. Each says what happened, why, and what to do next.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{BadName, Lost, Moment};
use tenure_engine::Fault;

use crate::inspect::Holder;

/// No connection to a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is not one that this build understands.
    #[error(
        "{0:?} is no address of a lock store; use file:, file:/path, memory:, redis://host:port/db, rediss://.. or unix:/path"
    )]
    BadUrl(String),
    /// The build lacks the engine for this URL.
    #[error("this build has no engine for {scheme}; build the `tenure` crate with feature `{feature}`")]
    NotBuilt {
        /// The scheme of the URL.
        scheme: String,
        /// The feature of the `tenure` crate that brings it.
        feature: &'static str,
    },
    /// Locks of other programs are on Redis.
    #[error("{protocol} locks are on Redis, and {scheme}: has none; name the server by a redis:// URL")]
    NotOnRedis {
        /// The scheme of the URL.
        scheme: String,
        /// What was to be spoken.
        protocol: &'static str,
    },
    /// There is no tokio runtime here.
    #[error("there is no tokio runtime here; call this from within one (for example under #[tokio::main])")]
    NoRuntime,
    /// [`crate::blocking`] was called on a thread of an async runtime.
    #[error(transparent)]
    InsideRuntime(#[from] InsideRuntime),
    /// The store is out of reach or refuses.
    #[error(transparent)]
    Backend(#[from] Fault),
}

/// What the caller asked for is impossible; nothing was sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadInput {
    /// The name of the lock.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The length of the lease.
    #[error("a ttl of {0:?} is outside 100 ms to 24 h")]
    Ttl(Duration),
    /// The length of a lock that counts in seconds.
    #[error("a ttl of {0:?} is no whole number of seconds from 1 s to 24 h, in which this protocol counts")]
    TtlSeconds(Duration),
    /// How long to wait.
    #[error(
        "a wait of {0:?} is longer than 365 days; without a limit it is wait_forever(), or a Retry without within()"
    )]
    Wait(Duration),
    /// How long to pause between tries.
    #[error("a pause of {0:?} between tries is outside 1 ms to 24 h")]
    Pause(Duration),
    /// Pauses that grow downwards.
    #[error("a pause can't grow from {first:?} to {max:?}; give the shorter one first")]
    Backoff {
        /// The first pause.
        first: Duration,
        /// The longest.
        max: Duration,
    },
    /// What a session is called.
    #[error("{0:?} as the label of a session is longer than 120 bytes or has control characters")]
    Label(String),
    /// Who asks a holder to stop.
    #[error("{0:?} as the name of who asks is longer than 120 bytes or has control characters")]
    By(String),
}

/// The lock was not acquired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Nothing was sent.
    #[error(transparent)]
    BadInput(#[from] BadInput),
    /// Somebody else holds the lock, and the call does not wait.
    #[error("{0}; {again}", again = .0.again())]
    Busy(Box<Holder>),
    /// The caller's wait is over.
    #[error("waited {waited:?}; {holder}; {again}", again = .holder.again())]
    WaitElapsed {
        /// Who holds at the end of it.
        holder: Box<Holder>,
        /// How long the caller was ready to wait.
        waited: Duration,
    },
    /// All tries found the lock busy.
    #[error("gave up after {} in {waited:?}; {holder}; {again}", counted(*.tries), again = .holder.again())]
    GaveUp {
        /// Who holds at the end of it.
        holder: Box<Holder>,
        /// How many tries were made.
        tries: u32,
        /// How long they took in all.
        waited: Duration,
    },
    /// The session has guards of this lock already, but their hold is lost, or was asked to stop. A new hold beside
    /// them would be taken for theirs. This is said at once, whatever was said about a busy lock: the caller itself
    /// has to drop its guards, and neither waiting, nor trying again, nor deferring does that.
    #[error(
        "this session still has guards of '{name}' from a hold that is lost; drop them, then acquire again"
    )]
    OldGuards {
        /// The lock.
        name: String,
    },
    /// The lock was acquired, and lost before the work could begin. Nothing ran.
    #[error("the lock was lost before the work began ({}), so nothing ran; try again", why(.0))]
    LostAtOnce(Lost),
    /// Too many wait already.
    #[error("10000 others wait for this lock already; try again later")]
    Full,
    /// The store is out of reach, or refuses. Nothing is held; whatever was asked is taken back in the background.
    #[error(transparent)]
    Backend(Arc<Fault>),
    /// The grant's fencing token is more than a minute ahead of this machine's clock, so either clock is badly
    /// wrong. The lock was given back.
    #[error(
        "the store granted fencing token {token}, {ahead:?} ahead of this machine's clock; set the clocks right"
    )]
    ClockAhead {
        /// The token, in microseconds since 1970.
        token: u64,
        /// How far ahead.
        ahead: Duration,
    },
    /// This process is a forked copy of the one that connected.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// [`crate::blocking`] was called on a thread of an async runtime.
    #[error(transparent)]
    InsideRuntime(#[from] InsideRuntime),
}

fn counted(tries: u32) -> String {
    if tries == 1 { "1 try".to_owned() } else { format!("{tries} tries") }
}

impl AcquireError {
    /// When it makes sense to try again, if the lock is busy and has an end that is known: see
    /// [`Holder::try_again_in`].
    pub fn try_again_in(&self) -> Option<Duration> {
        match self {
            Self::Busy(holder) | Self::WaitElapsed { holder, .. } | Self::GaveUp { holder, .. } => {
                holder.try_again_in()
            }
            _ => None,
        }
    }
}

/// This process is a copy, made by fork without exec, of the one that connected: it shares sockets with it and must
/// not use them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this process is a forked copy of the one that connected; connect anew after a fork")]
pub struct Forked;

/// A call that blocks was made on a thread of a tokio runtime. Some of those may block and some must not, because a task
/// of their own could be what they wait for; which of them this is can't be told, so all are refused.
///
/// The way out: [`crate::Client`], which a thread of `spawn_blocking` can drive with `Handle::block_on`; or a thread of
/// `std`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "this call blocks, and whether this thread of a tokio runtime may block can't be told; use tenure::Client here, or \
     make the call on a thread of std"
)]
pub struct InsideRuntime;

/// How a release went well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Released {
    /// The store has freed the lock.
    Confirmed,
    /// The lock was somebody else's or nobody's when the store answered, because an earlier copy of the release had
    /// been carried out or it travelled for longer than the lease. It had left before the lease's end, so nobody
    /// overlapped if the store kept its word.
    Unconfirmed,
    /// The [`crate::Session`] has other guards of this hold, so the lock is still held: nothing was sent.
    StillHeld,
}

impl Released {
    /// The store has freed the lock.
    pub fn is_confirmed(self) -> bool {
        self == Self::Confirmed
    }
}

/// How a release did not go well.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lock was not ours any more. Somebody else may have worked at the same time: what was written under the
    /// lock without its fencing token has to be looked at.
    #[error(
        "the lock was not ours any more when it was released; somebody else may have held it at the same time"
    )]
    NotHeld,
    /// No answer yet. The release is repeated in the background; the lock is free after `free_in` at the latest.
    #[error(
        "no answer to the release yet; it is repeated in the background, and the lock is free in {free_in:?} at the latest"
    )]
    Unknown {
        /// How long it can take.
        free_in: Duration,
    },
    /// No answer, and nothing is repeated: by then the lock could be somebody else's. Only with a stamp
    /// (`tenure::compat`).
    #[error(
        "no answer to the release ({why}); it is not repeated, since that could delete the lock of whoever is next. The lock is free in {free_in:?} at the latest"
    )]
    Unanswered {
        /// Why there is no answer.
        why: String,
        /// How long the lock can last.
        free_in: Duration,
    },
    /// This process is a forked copy.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// A lease could not be given another length.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// Nothing was sent.
    #[error(transparent)]
    BadInput(#[from] BadInput),
    /// The lock is not held any more.
    #[error("the lock is not held any more ({})", why(.0))]
    Lost(Lost),
    /// No answer. The lease still ends when it did; automatic renewal goes on with the new length.
    #[error("the lease could not be extended: {0}")]
    Unknown(#[source] Arc<Fault>),
    /// This process is a forked copy.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Work under a lock did not end well. `T` is what the closure returned.
///
/// An error whatever `T` is. To box it, `T` has to be `'static`, and for most boxes `Send` and `Sync`; if it isn't, see
/// [`WithError::without_value`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum WithError<T> {
    /// The closure did not run.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The closure ran, but the lock was lost meanwhile.
    #[error("{0}")]
    Lost(LostAtWork<T>),
}

impl<T> WithError<T> {
    /// The same error, without what the work returned.
    #[must_use]
    pub fn without_value(self) -> WithError<()> {
        match self {
            Self::Acquire(error) => WithError::Acquire(error),
            Self::Lost(lost) => WithError::Lost(lost.without_value()),
        }
    }
}

impl<T> fmt::Debug for WithError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(error) => f.debug_tuple("Acquire").field(error).finish(),
            Self::Lost(lost) => f.debug_tuple("Lost").field(lost).finish(),
        }
    }
}

impl<T> From<LostAtWork<T>> for WithError<T> {
    fn from(lost: LostAtWork<T>) -> Self {
        Self::Lost(lost)
    }
}

/// The lock was lost while work ran under it. `T` is what the work returns; it is not shown.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("the lock was lost while the work ran ({}); {}", Why(.why), consequence(.value.is_some()))]
pub struct LostAtWork<T> {
    /// Why it was lost.
    pub why: Lost,
    /// What the work returned, if it ran to its end: somebody else may have worked at the same time. `None`: it was
    /// dropped at the moment of the loss.
    pub value: Option<T>,
}

impl<T> LostAtWork<T> {
    /// The same error, without what the work returned.
    #[must_use]
    pub fn without_value(self) -> LostAtWork<()> {
        LostAtWork { why: self.why, value: self.value.map(drop) }
    }
}

impl<T> fmt::Debug for LostAtWork<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.as_ref().map(|_| "..");
        f.debug_struct("LostAtWork").field("why", &self.why).field("value", &value).finish()
    }
}

fn consequence(finished: bool) -> &'static str {
    if finished {
        "it ran to its end, and somebody else may have worked at the same time: look at what it wrote"
    } else {
        "it was stopped in the middle: see what of it is done, and run it again"
    }
}

/// A holder could not be asked to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// Nothing was sent.
    #[error(transparent)]
    BadInput(#[from] BadInput),
    /// That holder does not hold the lock (any more).
    #[error("{0} does not hold this lock; see who does with `tenure inspect NAME`")]
    NotHolder(tenure_core::HolderId),
    /// This process is a forked copy.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The store is out of reach or refuses.
    #[error(transparent)]
    Backend(#[from] Fault),
}

fn why(lost: &Lost) -> Why<'_> {
    Why(lost)
}

/// Says in words why a lock was lost.
pub(crate) struct Why<'a>(pub(crate) &'a Lost);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Lost::Expired => f.write_str("no renewal was answered before the lease ended"),
            Lost::Taken => f.write_str("the store says that it belongs to somebody else or nobody"),
            Lost::Asked { by } => write!(f, "{by} asked to stop"),
        }
    }
}

/// Milliseconds from `now` to `at`.
pub(crate) fn until(now: Moment, at: Moment) -> Duration {
    Duration::from_millis(at.since(now))
}
