use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::thread;

use tenure_core::Lost;

use crate::error::{AcquireError, LostAtWork, WithError};
use crate::guard::{Guard, Lease};
use crate::inspect::Holder;
use crate::lock::Lock;
use crate::retry::Retry;

/// What becomes of work whose lock is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum OnLoss {
    /// Its future is dropped at its next `await`. Whatever it spawned or has written already is beyond reach, which is
    /// what the fencing token is for.
    #[default]
    Cancel,
    /// It runs to its end, without the lock. The error that says so brings its result.
    Finish,
}

/// What to do about a lock that is busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OnBusy {
    /// Wait in the queue, as [`Lock::acquire`]: for as long as [`Lock::wait`] says.
    Wait,
    /// Try again, as [`Lock::acquire_retrying`].
    Retry(Retry),
    /// Fail with [`AcquireError::Busy`], as [`Lock::acquire_now`].
    Fail,
    /// Don't run the work, which is no error.
    Skip,
}

/// What became of work that may be skipped.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the work may have been skipped"]
pub enum Ran<T> {
    /// It ran under the lock, and returned this.
    Done(T),
    /// It did not run: this one holds the lock.
    Skipped(Box<Holder>),
}

impl<T> Ran<T> {
    /// What the work returned, if it ran.
    pub fn done(self) -> Option<T> {
        match self {
            Self::Done(value) => Some(value),
            Self::Skipped(_) => None,
        }
    }
}

impl Lock {
    /// Runs `work` under the lock: waits for it, takes it, and gives it back on return, on error (what `work`
    /// returns is returned as it is) and on panic, which goes on. A release without an answer is repeated in the
    /// background, and is no error here: the work was done under the lock. If the lock is lost meanwhile, the work is
    /// dropped, or goes on: [`Lock::on_loss`].
    ///
    /// What the work returned, and its panic as well, may come up to five seconds late, if the store does not answer
    /// the release.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let tenure = tenure::Client::connect("memory:").await?;
    /// let sum = tenure.lock("books").with(async |lease| lease.fence() % 2 + 1).await?;
    /// # assert!(sum > 0); Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and gives the lock back.
    pub async fn with<F, Fut, T>(&self, work: F) -> Result<T, WithError<T>>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = T>,
    {
        let guard = self.acquire().await?.fit_for_work().await?;
        Ok(self.under(guard, work).await?)
    }

    /// As [`Lock::with`], and `on_busy` says what to do if somebody else holds the lock.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::{OnBusy, Ran};
    /// # let tenure = tenure::Client::connect("memory:").await?;
    ///
    /// match tenure.lock("books").run(OnBusy::Skip, async |_| "sums").await? {
    ///     Ran::Done(sums) => println!("{sums}"),
    ///     Ran::Skipped(holder) => println!("not now: {holder}"),
    /// }
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`Lock::with`].
    pub async fn run<F, Fut, T>(&self, on_busy: OnBusy, work: F) -> Result<Ran<T>, WithError<T>>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = T>,
    {
        Ok(match self.take_or_skip(on_busy).await? {
            Ran::Done(guard) => Ran::Done(self.under(guard, work).await?),
            Ran::Skipped(holder) => Ran::Skipped(holder),
        })
    }

    pub(crate) async fn take_or_skip(&self, on_busy: OnBusy) -> Result<Ran<Guard>, AcquireError> {
        let guard = match on_busy {
            OnBusy::Wait => self.acquire().await,
            OnBusy::Retry(retry) => self.acquire_retrying(retry).await,
            OnBusy::Fail | OnBusy::Skip => self.acquire_now().await,
        };
        match guard {
            Ok(guard) => guard.fit_for_work().await.map(Ran::Done),
            Err(AcquireError::Busy(holder)) if on_busy == OnBusy::Skip => Ok(Ran::Skipped(holder)),
            Err(error) => Err(error),
        }
    }

    /// Runs work under a guard, and gives the lock back before anything goes on: a panic may be the end of the program.
    pub(crate) async fn under<F, Fut, T>(&self, guard: Guard, work: F) -> Result<T, LostAtWork<T>>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = T>,
    {
        let lease = guard.lease().clone();
        let work = caught(async { work(lease).await });
        // Whatever is left of the work is gone when the lock is given back.
        let ended = match self.on_loss {
            OnLoss::Finish => Ok(work.await),
            OnLoss::Cancel => tokio::select! {
                biased;
                why = guard.lost() => Err(why),
                ended = work => Ok(ended),
            },
        };
        match ended {
            Ok(Ok(value)) => finished(value, guard.settle().await),
            Ok(Err(panic)) => {
                guard.give_back().await;
                resume_unwind(panic)
            }
            Err(why) => {
                guard.give_back().await;
                Err(LostAtWork { why, value: None })
            }
        }
    }
}

/// Runs a future to its end, which may be a panic.
pub(crate) async fn caught<T>(work: impl Future<Output = T>) -> thread::Result<T> {
    let mut work = pin!(work);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// The result of work that ran to its end.
pub(crate) fn finished<T>(value: T, lost: Option<Lost>) -> Result<T, LostAtWork<T>> {
    match lost {
        None => Ok(value),
        Some(why) => Err(LostAtWork { why, value: Some(value) }),
    }
}
