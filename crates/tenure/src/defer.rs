use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::error::{AcquireError, LostAtWork};
use crate::guard::Lease;
use crate::inspect::Holder;
use crate::lock::Lock;
use crate::work::{OnBusy, Ran};

/// What a [`Deferrer`] calls a job that it keeps.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(String);

impl JobId {
    /// The id by which a deferrer finds the job again.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// The id, as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Keeps jobs for later: a queue, a table, a scheduler. A job is data, so that it outlives this process.
pub trait Deferrer<J>: Send + Sync {
    /// Why a job could not be kept.
    type Error;

    /// Keeps `job` to be done under `lock`, hardly before `not_before` from now: the lock is free then at the latest
    /// unless its holder renews. Whoever does it later takes the lock as well.
    ///
    /// # Errors
    /// The job may not be kept: the caller still has it.
    fn defer(
        &self,
        lock: &str,
        job: &J,
        not_before: Duration,
    ) -> impl Future<Output = Result<JobId, Self::Error>> + Send;
}

/// What became of a job that may be deferred.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the job may have been deferred"]
pub enum RanOrDeferred<T> {
    /// It ran under the lock, and returned this.
    Done(T),
    /// It did not run, and is kept for later.
    Deferred {
        /// What the deferrer calls it.
        id: JobId,
        /// Who holds the lock.
        holder: Box<Holder>,
    },
}

/// A job did not end well. What did not begin comes back, so that nothing is lost. `T` is what the work returns, `J`
/// the job: neither is shown. `E` is the deferrer's error.
///
/// An error whatever `T` and `J` are. To box it they have to be `'static`, and for most boxes `Send` and `Sync`; if they
/// aren't, see [`DeferError::without_values`].
#[non_exhaustive]
pub enum DeferError<T, J, E> {
    /// It neither ran nor was deferred. Whether the lock is busy is not known, because the store is out of reach; or it
    /// is not a matter of waiting: what was asked is impossible, the hold was lost at once, or the session has guards of
    /// an old one ([`AcquireError::OldGuards`]).
    Acquire {
        /// What went wrong.
        error: AcquireError,
        /// The job.
        job: J,
    },
    /// The lock is busy, and the deferrer failed.
    Defer {
        /// What went wrong.
        error: E,
        /// The job. Whether the deferrer keeps it nevertheless is for its error to say.
        job: J,
        /// Who holds the lock.
        holder: Box<Holder>,
    },
    /// It ran, but the lock was lost meanwhile.
    Lost(LostAtWork<T>),
}

impl<T, J, E> DeferError<T, J, E> {
    /// The same error, without the job and what the work returned.
    #[must_use]
    pub fn without_values(self) -> DeferError<(), (), E> {
        match self {
            Self::Acquire { error, .. } => DeferError::Acquire { error, job: () },
            Self::Defer { error, holder, .. } => DeferError::Defer { error, job: (), holder },
            Self::Lost(lost) => DeferError::Lost(lost.without_value()),
        }
    }
}

impl<T, J, E: fmt::Display> fmt::Display for DeferError<T, J, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire { error, .. } => error.fmt(f),
            Self::Defer { error, holder, .. } => {
                write!(f, "{holder}; the job could not be deferred: {error}")
            }
            Self::Lost(lost) => lost.fmt(f),
        }
    }
}

impl<T, J, E: fmt::Debug> fmt::Debug for DeferError<T, J, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire { error, .. } => {
                f.debug_struct("Acquire").field("error", error).finish_non_exhaustive()
            }
            Self::Defer { error, holder, .. } => {
                f.debug_struct("Defer").field("error", error).field("holder", holder).finish_non_exhaustive()
            }
            Self::Lost(lost) => f.debug_tuple("Lost").field(lost).finish(),
        }
    }
}

/// The text tells the first cause already; the source is what lies behind it.
impl<T, J, E: fmt::Debug + fmt::Display> std::error::Error for DeferError<T, J, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Acquire { error, .. } => error.source(),
            Self::Defer { .. } | Self::Lost(_) => None,
        }
    }
}

impl Lock {
    /// Runs `work` on `job` under the lock if it is free, as [`Lock::with`]. If somebody else holds the lock, hands the
    /// job to the deferrer, with a hint when to try again: when the lock is free at the latest unless renewed, or after
    /// the [`Lock::ttl`] of this one if that is not known. Any other failure to acquire is an error and defers nothing.
    ///
    /// `examples/defer.rs` has a deferrer and a worker that does its jobs.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and gives the lock back; a job that was about to be deferred is kept or not.
    pub async fn run_or_defer<J, D, F, Fut, T>(
        &self,
        job: J,
        deferrer: &D,
        work: F,
    ) -> Result<RanOrDeferred<T>, DeferError<T, J, D::Error>>
    where
        D: Deferrer<J>,
        F: FnOnce(Lease, J) -> Fut,
        Fut: Future<Output = T>,
    {
        match self.take_or_skip(OnBusy::Skip).await {
            Ok(Ran::Done(guard)) => {
                let done = self.under(guard, |lease| work(lease, job)).await;
                done.map(RanOrDeferred::Done).map_err(DeferError::Lost)
            }
            Ok(Ran::Skipped(holder)) => self.defer(job, deferrer, holder).await,
            Err(error) => Err(DeferError::Acquire { error, job }),
        }
    }

    /// Hands a job whose lock is busy to the deferrer.
    pub(crate) async fn defer<J, D, T>(
        &self,
        job: J,
        deferrer: &D,
        holder: Box<Holder>,
    ) -> Result<RanOrDeferred<T>, DeferError<T, J, D::Error>>
    where
        D: Deferrer<J>,
    {
        let not_before = holder.try_again_in().unwrap_or(self.ttl);
        match deferrer.defer(&self.name, &job, not_before).await {
            Ok(id) => Ok(RanOrDeferred::Deferred { id, holder }),
            Err(error) => Err(DeferError::Defer { error, job, holder }),
        }
    }
}
