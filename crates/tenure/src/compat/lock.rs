use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::lease::TTL_MS_MAX;
use tenure_core::{Name, Standing};

use super::guard::Guard;
use super::stamps::{Seen, Try};
use super::{Client, Protocol, Speaker};
use crate::error::{AcquireError, BadInput, LostAtWork, WithError, until};
use crate::guard::loss_of_work;
use crate::inspect::{self, Holder};
use crate::lock::{TTL_DEFAULT, checked_ttl};
use crate::retry::Retry;
use crate::work::{caught, finished};

/// A lock of other programs by name, and how to take it. Made by [`Client::lock`]; can be used many times.
#[derive(Clone, Debug)]
#[must_use = "a lock is taken by `acquire`, `try_acquire` or `with`"]
pub struct Lock {
    client: Client,
    name: String,
    ttl: Duration,
    retry: Retry,
}

/// Somebody else has the lock.
enum Busy {
    Classic,
    Stamp(Seen),
}

impl Lock {
    pub(super) fn new(client: Client, name: &str) -> Self {
        let retry = client.protocol.retry();
        Self { client, name: name.to_owned(), ttl: TTL_DEFAULT, retry }
    }

    /// How long the lock lasts, 100 ms to 24 h; 30 s otherwise. [`Protocol::Classic`]: the length of the lease, which is
    /// renewed. With a stamp (`ttl`, `lock_timeout`): all the time that there is for the work; [`Protocol::GetSet`] takes
    /// whole seconds.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long [`Lock::acquire`] tries, with the pauses of the protocol: 10 ms for [`Protocol::GetSet`], 0.2 s for
    /// [`Protocol::PidLock`], a random one of up to 0.25 s for [`Protocol::Classic`]. There is no queue in any of them.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.retry = self.client.protocol.pauses().within(wait);
        self
    }

    /// [`Lock::acquire`] tries until it has the lock.
    pub fn wait_forever(mut self) -> Self {
        self.retry = self.client.protocol.pauses();
        self
    }

    /// [`Lock::acquire`] tries as `retry` says: `Retry::times(3).every(Duration::from_millis(200))` is `retry_times` 3 and
    /// `sleep_time` 0.2 of `pid-lock`. Otherwise as the protocol does: 30 s, 10 s, or a single try.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Tries until it has the lock or its time or tries are over.
    ///
    /// An error that is a [`tenure_engine::Fault`] of the kind `Unknown` says, with a stamp, when the lock is free at the
    /// latest: the lock may have been taken, and nobody knows of it.
    ///
    /// # Cancel safety
    /// A lock that was won meanwhile is given back.
    pub async fn acquire(&self) -> Result<Guard, AcquireError> {
        self.retry.check()?;
        let engine = self.client.engine();
        let begun = engine.now();
        let mut tries: u32 = 0;
        loop {
            let busy = match self.attempt().await? {
                Ok(guard) => return Ok(guard),
                Err(busy) => busy,
            };
            tries = tries.saturating_add(1);
            let waited = until(begun, engine.now());
            let random = engine.secrets().first().map_or(0, |secret| *secret as u64);
            let Some(pause) = self.retry.next(tries, waited, random) else {
                let holder = self.holder(busy).await?;
                return Err(AcquireError::GaveUp { holder, tries, waited });
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Tries once. Busy is not an error.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    pub async fn try_acquire(&self) -> Result<Option<Guard>, AcquireError> {
        Ok(self.attempt().await?.ok())
    }

    /// Tries once; if the lock is busy, the error says as much of its holder as the key tells.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    pub async fn acquire_now(&self) -> Result<Guard, AcquireError> {
        match self.attempt().await? {
            Ok(guard) => Ok(guard),
            Err(busy) => Err(AcquireError::Busy(self.holder(busy).await?)),
        }
    }

    /// Runs `work` under the lock, as [`crate::Lock::with`] does: released on return, on error and on panic. If the lock
    /// is lost, or its time is over, the future of `work` is dropped at its next `await`.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::compat::{Client, Protocol};
    ///
    /// let fleet = Client::connect("redis://127.0.0.1", Protocol::Classic).await?;
    /// let left = fleet.lock("books").with(async |guard| guard.remaining()).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and gives the lock back.
    pub async fn with<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T, WithError<T>> {
        let guard = self.acquire().await?;
        let ended = tokio::select! {
            biased;
            why = guard.lost() => Err(why),
            ended = caught(async { work(&guard).await }) => Ok(ended),
        };
        match ended {
            Ok(Ok(value)) => {
                let (held, told) = (guard.holds(), guard.watch().state().lost);
                Ok(finished(value, loss_of_work(held, told, &guard.release().await))?)
            }
            Ok(Err(panic)) => {
                guard.give_back().await;
                resume_unwind(panic)
            }
            Err(why) => {
                guard.give_back().await;
                Err(LostAtWork { why, value: None }.into())
            }
        }
    }

    async fn attempt(&self) -> Result<Result<Guard, Busy>, AcquireError> {
        match &self.client.speaker {
            Speaker::Classic(client) => {
                let guard = client.lock(&self.name).ttl(self.ttl).try_acquire().await?;
                Ok(guard.map(Guard::classic).ok_or(Busy::Classic))
            }
            Speaker::Stamps(stamper) => {
                let name = Name::new(&self.name).map_err(BadInput::Name)?;
                match stamper.attempt(&name, self.ttl_ms()?).await? {
                    Try::Won(stamp) => Ok(Ok(Guard::stamp(stamp))),
                    Try::Busy(seen) => Ok(Err(Busy::Stamp(seen))),
                }
            }
        }
    }

    fn ttl_ms(&self) -> Result<u64, BadInput> {
        match self.client.protocol {
            Protocol::GetSet(_) => match u64::try_from(self.ttl.as_millis()) {
                Ok(ms @ 1000..=TTL_MS_MAX) if self.ttl.subsec_nanos() == 0 => Ok(ms),
                _ => Err(BadInput::TtlSeconds(self.ttl)),
            },
            Protocol::Classic | Protocol::PidLock(_) => checked_ttl(self.ttl),
        }
    }

    /// As much of the holder as can be known.
    async fn holder(&self, busy: Busy) -> Result<Box<Holder>, AcquireError> {
        let name = Name::new(&self.name).map_err(BadInput::Name)?;
        let engine = self.client.engine();
        let holder = match busy {
            Busy::Stamp(Seen::Stamp { text, past_in_ms }) => {
                Ok(Holder::foreign(&name, format!("stamp {text}"), Some(past_in_ms)))
            }
            Busy::Classic | Busy::Stamp(Seen::Something) => {
                let somebody = Standing {
                    holder: None,
                    token: None,
                    lease_ends_in_ms: None,
                    free_in_ms: None,
                    quiet: true,
                };
                inspect::holder(&**engine, &name, Some(somebody)).await
            }
        };
        holder.map(Box::new).map_err(|fault| AcquireError::Backend(Arc::new(fault)))
    }
}
