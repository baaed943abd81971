//! The port between Tenure's library (above) and its engines (below): what an engine has to do, and no more.
//!
//! An engine carries a [`Request`] about a lock to a store and brings the [`Reply`] back, or says honestly what it
//! knows about a request without a reply ([`FaultKind`]). It decides nothing about locks.
#![forbid(unsafe_code)]

mod card;
mod clock;
mod fault;
mod random;

use std::fmt::Debug;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{HolderId, Message, Moment, Name, Owner, ProcessId, Reply, Request, Snapshot};

pub use card::{Card, CardHold, CardWait};
pub use clock::{boottime, unix_ms};
pub use fault::{Fault, FaultKind};
pub use random::{random_owner, random_process, random_secrets};

/// A boxed future, so that engines are trait objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What became of one request.
pub type Answer = Result<Reply, Fault>;

/// Something that a store said unasked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Letter {
    /// Which lock.
    pub name: Name,
    /// To whom.
    pub owner: Owner,
    /// What.
    pub message: Message,
}

/// Where an engine delivers letters. Never blocks; may be called from any thread.
pub type Ear = Arc<dyn Fn(Letter) + Send + Sync>;

/// One lock as a store shows it to people.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// Holder and waiters.
    pub snapshot: Snapshot,
    /// What lies under the name if it isn't ours: the type and, of a string, its first bytes.
    pub foreign: Option<String>,
    /// The holder's job runs on, but nobody is left who would release.
    pub orphaned: bool,
}

/// A store that keeps locks.
///
/// Cancel safety of every method: a dropped future may have been carried out or not, as if it had ended in
/// [`FaultKind::Unknown`]. A request never overtakes an earlier one of the same owner whose future was answered or
/// dropped: what of it has not run by then never will, or runs first. Requests that are under way at the same time
/// arrive in any order.
pub trait Engine: Send + Sync + Debug + 'static {
    /// Carries one request. Answers within `limit`; what took longer is [`FaultKind::Unknown`].
    fn call<'a>(&'a self, name: &'a Name, request: &'a Request, limit: Duration) -> BoxFuture<'a, Answer>;

    /// Carries many requests at once: one answer each, in their order.
    fn call_many<'a>(&'a self, calls: &'a [(Name, Request)], limit: Duration) -> BoxFuture<'a, Vec<Answer>>;

    /// From now on letters go to `ear`. Called once, before the first request.
    fn listen(&self, ear: Ear);

    /// Who this process is: part of every owner made for this engine.
    fn process(&self) -> ProcessId;

    /// What the store adds to a lease of `ttl_ms` ([`tenure_core::lease::guard_ms`]; 0 where both use one clock).
    fn guard_ms(&self, ttl_ms: u64) -> u64;

    /// The store in words, without secrets: `redis://127.0.0.1:6379/0`, `file:/var/lib/x (this host only)`.
    fn scope(&self) -> String;

    /// One lock, for people: with its first 100 waiters.
    fn look<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Look, Fault>>;

    /// The names that are held or waited for, sorted, as far as processes have told of them.
    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Fault>>;

    /// The card of a process, if it has left one.
    fn card(&self, process: ProcessId) -> BoxFuture<'_, Result<Option<Card>, Fault>>;

    /// Leaves or refreshes the card of this process. Costs nothing where it has not changed and need not be fresh.
    fn post<'a>(&'a self, card: &'a Card) -> BoxFuture<'a, Result<(), Fault>>;

    /// A file that a job inherits: as long as anybody has it open, the hold of `holder` does not end. `None`: this
    /// store cannot see processes, so a lease can end under a living job.
    fn job_file(&self, holder: HolderId) -> Result<Option<OwnedFd>, Fault>;

    /// Carries one plain command about the key of this name, for locks that programs without Tenure take: see
    /// `tenure::compat`. What lies there and is no text (another type, bytes that are not UTF-8) answers
    /// [`tenure_forms::Reply::No`]: it is somebody's, and stays as it is.
    ///
    /// Unlike a [`Request`], a command must not be repeated after [`FaultKind::Unknown`] without thought.
    fn plain<'a>(
        &'a self,
        _name: &'a Name,
        _command: &'a tenure_forms::Command,
        _limit: Duration,
    ) -> BoxFuture<'a, Result<tenure_forms::Reply, Fault>> {
        Box::pin(async {
            Err(Fault::refused("this store speaks Tenure's own protocol only")
                .hint("locks of other programs are on Redis: name it by a redis:// URL"))
        })
    }

    /// The clock of leases. Another one only where time itself is simulated, like the two below.
    fn now(&self) -> Moment {
        boottime()
    }

    /// The wall clock, in milliseconds since 1970.
    fn unix_ms(&self) -> u64 {
        unix_ms()
    }

    /// Randomness for the owners to come.
    fn secrets(&self) -> Vec<u128> {
        random_secrets()
    }
}
