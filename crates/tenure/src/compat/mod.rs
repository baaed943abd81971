//! Locks that other programs take already, on the same Redis key: for the time in which a fleet moves to Tenure.
//!
//! A [`Client`] speaks one [`Protocol`], and excludes whoever speaks the same one under the same name. What the
//! protocol lacks stays lacking:
//!
//! | | [`Classic`](Protocol::Classic) | [`GetSet`](Protocol::GetSet) | [`PidLock`](Protocol::PidLock) |
//! |---|---|---|---|
//! | under the key | the owner's token | the second at which it ends | the millisecond at which it ends |
//! | renewed | yes, as any lease | no: the ttl must cover the work | no: the ttl must cover the work |
//! | told of its end | before anybody else can hold | the same, if all clocks agree | the same, if all clocks agree |
//! | who is next | whoever asks first after the release | the same | the same |
//! | a fencing token | no | no | no |
//! | a foreign release | compares the token | compares the stamp, then deletes | deletes what is there |
//!
//! Without a fencing token nothing can refuse what a holder writes that overslept: use these only where a second run
//! costs time and no more. Tenure's own locks ([`crate::Client`]) and those of classic clients exclude each other on the
//! same key as they are; [`Protocol::Classic`] is for servers where nothing but the key may be written, or no script
//! may run. `docs/compat.md` has the commands.
//!
//! ```no_run
//! use std::time::Duration;
//! use tenure::compat::{Client, Listing, Protocol};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let fleet = Client::connect("redis://127.0.0.1", Protocol::GetSet(Listing::AsMeant)).await?;
//! let guard = fleet.lock("report").ttl(Duration::from_secs(60)).acquire().await?;
//! assert!(guard.holds());                      // asks the clock; never renewed
//! guard.release().await?;
//! # Ok(()) }
//! ```

mod guard;
mod lock;
mod stamps;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::Name;
use tenure_engine::Engine;
use tenure_forms::{Form, getset, pid_lock};
use tenure_redis::{ClassicEngine, RedisEngine};

pub use guard::Guard;
pub use lock::Lock;

use crate::client::{InspectError, without_password};
use crate::error::{BadInput, ConnectError};
use crate::inspect::{self, Inspection, State};
use crate::retry::Retry;
use stamps::Stamper;

/// Which lock the other programs take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Protocol {
    /// `SET key token NX PX ms`, and a script that compares and deletes. The lease is renewed, and a loss is told, as
    /// with every lock of Tenure. Nothing lies beside the key.
    Classic,
    /// `SETNX key second`; who finds the second past takes over by `GETSET`; `EXPIRE` for the winner. The ttl has whole
    /// seconds and is not renewed. All clocks of the fleet must agree, within less than a second.
    GetSet(Listing),
    /// The same with milliseconds and without `EXPIRE`. The releases of its clients do not look whose lock they delete:
    /// one that is late deletes the next one's.
    PidLock(Listing),
}

/// Which reading of a protocol's listing is followed where the listing does not do what it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Listing {
    /// What its author meant: `getset` waits for 10 s, `pid-lock` sleeps for 0.2 s between tries and leaves a lock alone
    /// that has 3 ms left. A value that is no stamp is never taken over, and a release deletes its own stamp only, and
    /// only while its own lease lasts: after that the key may be somebody else's.
    #[default]
    AsMeant,
    /// What it does: `getset` gives up after 11 tries in 0.1 s, `pid-lock` does not sleep (here: 1 ms) and deletes a lock
    /// to its last moment, whoever has it. A value counts as the number that it begins with, whatever comes then.
    /// Releases also when it is too late. For comparison, never for work.
    AsWritten,
}

impl Protocol {
    /// `classic`, `getset` or `pid-lock`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::GetSet(_) => getset::FORM.name,
            Self::PidLock(_) => pid_lock::FORM.name,
        }
    }

    /// How it waits for a busy lock by itself.
    fn retry(self) -> Retry {
        match self {
            Self::Classic | Self::GetSet(Listing::AsMeant) => self.pauses().within(self.patience()),
            Self::GetSet(Listing::AsWritten) => {
                let tries = getset::tries(true).count() as u32;
                Retry::times(tries - 1).every(getset::SLEEP)
            }
            Self::PidLock(_) => Retry::times(pid_lock::RETRY_TIMES),
        }
    }

    fn patience(self) -> Duration {
        match self {
            Self::Classic => Duration::from_secs(30),
            Self::GetSet(_) | Self::PidLock(_) => Duration::from_secs(getset::WAIT_S),
        }
    }

    /// Tries without end, with the pauses of this protocol.
    fn pauses(self) -> Retry {
        match self {
            // Nobody tells when the key goes; random, so that a crowd does not move in step.
            Self::Classic => Retry::forever().backoff(Duration::from_millis(50), Duration::from_millis(250)),
            Self::GetSet(_) => Retry::forever().every(getset::SLEEP),
            Self::PidLock(listing) => {
                let pause = pid_lock::pause(listing == Listing::AsWritten);
                Retry::forever().every(pause.max(Duration::from_millis(1)))
            }
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A connection to the server that keeps the locks of other programs. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    protocol: Protocol,
    speaker: Speaker,
}

/// Who takes the locks.
#[derive(Clone)]
enum Speaker {
    Classic(crate::Client),
    Stamps(Arc<Stamper>),
}

impl Client {
    /// Connects to `redis://[user:password@]host:port/db`, `rediss://..`, `unix:/path`, as [`crate::Client::connect`].
    ///
    /// # Errors
    /// For [`Protocol::Classic`] also where the server, or the rights of the user, have no way to compare and delete a key
    /// in one step.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn connect(url: &str, protocol: Protocol) -> Result<Self, ConnectError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(ConnectError::NoRuntime);
        }
        match url.split_once(':').map_or("", |(scheme, _)| scheme) {
            "redis" | "rediss" | "unix" | "redis+unix" => {}
            scheme @ ("file" | "memory") => {
                return Err(ConnectError::NotOnRedis {
                    scheme: scheme.to_owned(),
                    protocol: protocol.name(),
                });
            }
            _ => return Err(ConnectError::BadUrl(without_password(url))),
        }
        let speaker = match protocol {
            Protocol::Classic => Speaker::Classic(crate::Client::over(ClassicEngine::connect(url).await?)?),
            Protocol::GetSet(listing) => {
                Self::stamps(RedisEngine::connect_plain(url).await?, &getset::FORM, listing)
            }
            Protocol::PidLock(listing) => {
                Self::stamps(RedisEngine::connect_plain(url).await?, &pid_lock::FORM, listing)
            }
        };
        Ok(Self { protocol, speaker })
    }

    fn stamps(engine: Arc<dyn Engine>, form: &'static Form, listing: Listing) -> Speaker {
        Speaker::Stamps(Arc::new(Stamper::new(engine, form, listing)))
    }

    /// The lock of this name: the key of this name, after the `prefix` of the URL. Costs nothing.
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(self.clone(), name)
    }

    /// What it speaks.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The server in words, without secrets.
    pub fn scope(&self) -> String {
        self.engine().scope()
    }

    /// What lies under a lock's key.
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self, name: &str) -> Result<Inspection, InspectError> {
        let name = Name::new(name).map_err(BadInput::Name)?;
        let mut lock = inspect::inspect(&**self.engine(), &name).await?;
        if let (Speaker::Stamps(stamper), State::Foreign, None) =
            (&self.speaker, lock.state, lock.expires_in_ms)
        {
            lock.expires_in_ms = stamper.ends_in_ms(&name).await?;
        }
        Ok(lock)
    }

    /// Waits up to `limit` until what dropped guards and futures owe to the server has been sent. False: the time was
    /// too short; locks end by themselves. For the end of a program.
    ///
    /// Cancel safe: what was sent stays sent.
    pub async fn close(self, limit: Duration) -> bool {
        match self.speaker {
            Speaker::Classic(client) => client.close(limit).await,
            Speaker::Stamps(stamper) => stamper.settle(limit).await,
        }
    }

    fn engine(&self) -> &Arc<dyn Engine> {
        match &self.speaker {
            Speaker::Classic(client) => &client.driver.engine,
            Speaker::Stamps(stamper) => &stamper.engine,
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.protocol).field(&self.scope()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(protocol: Protocol) -> (u32, Duration) {
        let (mut tries, mut elapsed) = (1, Duration::ZERO);
        while let Some(pause) = protocol.retry().next(tries, elapsed, u64::MAX) {
            (tries, elapsed) = (tries + 1, elapsed + pause);
        }
        (tries, elapsed)
    }

    #[test]
    fn each_protocol_waits_as_its_listing_says() {
        let ms = Duration::from_millis;
        assert_eq!(tries(Protocol::GetSet(Listing::AsMeant)), (1001, ms(10_000)));
        assert_eq!(tries(Protocol::GetSet(Listing::AsWritten)), (11, ms(100)));
        assert_eq!(tries(Protocol::PidLock(Listing::AsMeant)), (1, ms(0)));
        assert_eq!(tries(Protocol::Classic).1, ms(30_000));
    }

    #[test]
    fn a_sleep_that_does_not_sleep_still_has_a_pause() {
        for (listing, pause) in [(Listing::AsMeant, 200), (Listing::AsWritten, 1)] {
            let next = Protocol::PidLock(listing).pauses().next(1, Duration::ZERO, 0);
            assert_eq!(next, Some(Duration::from_millis(pause)));
        }
    }
}
