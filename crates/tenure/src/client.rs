use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{BY_BYTES_MAX, HolderId, Name, Reply, Request};
use tenure_engine::{Card, Engine, Fault, unix_ms};

use crate::driver::Driver;
use crate::error::{BadInput, ConnectError, Forked, StopError};
use crate::inspect::{self, Inspection};
use crate::lock::Lock;
use crate::session::Session;

/// A connection to the store that keeps the locks. Cheap to clone; one for each process and store is enough.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let tenure = tenure::Client::connect("memory:").await?;
/// let guard = tenure.lock("orders:42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) driver: Arc<Driver>,
}

/// Settings of a [`Client`]. Made by [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct Builder {
    url: String,
    label: Option<String>,
    announce_at_once: bool,
}

impl Client {
    /// Connects to a store: `file:` (this host, the account's own store), `file:/dir`, `memory:` (a store of its own; `memory:name` shares one within this process),
    /// `redis://[user:password@]host:port/db`, `rediss://..`, `unix:/path`.
    ///
    /// Cancel safe: nothing is left behind.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// A client with settings of its own.
    pub fn builder(url: &str) -> Builder {
        Builder { url: url.to_owned(), label: None, announce_at_once: false }
    }

    /// A client over an engine that is connected already. `engine` must not be shared with another client.
    pub fn over(engine: Arc<dyn Engine>) -> Result<Self, ConnectError> {
        Builder { url: String::new(), label: None, announce_at_once: false }.over(engine)
    }

    /// The lock of this name. Costs nothing; a name that no lock may have is reported by the acquire.
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(self.clone(), name)
    }

    /// A new identity to take locks under: it gets again what it holds already.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// The store in words, without secrets.
    pub fn scope(&self) -> String {
        self.driver.engine.scope()
    }

    /// One lock: who holds it, who waits.
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self, name: &str) -> Result<Inspection, InspectError> {
        let name = Name::new(name).map_err(BadInput::Name)?;
        self.not_forked()?;
        Ok(inspect::inspect(&*self.driver.engine, &name).await?)
    }

    /// The locks that are held or waited for, sorted by name, as far as processes have told of them (about a second
    /// after they began).
    ///
    /// Cancel safe: it only reads.
    pub async fn list(&self) -> Result<Vec<Inspection>, InspectError> {
        self.not_forked()?;
        let names = self.driver.engine.names().await?;
        let mut locks = Vec::with_capacity(names.len());
        for name in names {
            let lock = inspect::inspect(&*self.driver.engine, &name).await?;
            if !lock.is_free() {
                locks.push(lock);
            }
        }
        Ok(locks)
    }

    /// Asks a holder to stop: its `lost` resolves with [`crate::Lost::Asked`], and its lease is not renewed any
    /// more. The lock passes on when the holder has released it, or at its lease's end. True: it was told by a
    /// message as well; false: it learns by its next renewal.
    ///
    /// Cancel safe: the holder was asked or not.
    pub async fn ask_to_stop(&self, name: &str, holder: HolderId, by: &str) -> Result<bool, StopError> {
        let name = Name::new(name).map_err(BadInput::Name)?;
        if by.len() > BY_BYTES_MAX || by.chars().any(char::is_control) {
            return Err(BadInput::By(by.to_owned()).into());
        }
        self.not_forked()?;
        let request = Request::Stop { holder, by: by.to_owned() };
        match self.driver.engine.call(&name, &request, Duration::from_secs(2)).await? {
            Reply::Told { reached } => Ok(reached),
            _ => Err(StopError::NotHolder(holder)),
        }
    }

    fn not_forked(&self) -> Result<(), Forked> {
        if self.driver.forked() { Err(Forked) } else { Ok(()) }
    }

    /// Gives back whatever this client still holds or waits for, and waits up to `limit` until the store has learnt
    /// it. False: the time was too short; leases end by themselves. For the end of a program, where dropped guards
    /// would have no time to be released.
    ///
    /// An ask that was never answered may be carried out for some seconds more. As long as the client lives it gives
    /// back what that brings, so `close` may take up to six seconds after such an ask; a program that does not wait for
    /// that leaves, at worst, a lock that is idle for one lease.
    ///
    /// Cancel safe: what was given back stays given back.
    pub async fn close(self, limit: Duration) -> bool {
        if self.driver.forked() {
            return false;
        }
        self.driver.release_all();
        let end = self.driver.now().plus(limit.as_millis() as u64);
        while !self.driver.is_idle() {
            if self.driver.now() >= end {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        true
    }
}

impl Builder {
    /// What this process is called on its card; its command line otherwise.
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(label.to_owned());
        self
    }

    /// Tell of holds and waits as soon as they begin, and not only when they are older than a second.
    pub fn announce_at_once(mut self) -> Self {
        self.announce_at_once = true;
        self
    }

    /// Connects.
    ///
    /// Cancel safe: nothing is left behind.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(ConnectError::NoRuntime);
        }
        let engine = open(&self.url).await?;
        self.over(engine)
    }

    fn over(self, engine: Arc<dyn Engine>) -> Result<Client, ConnectError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(ConnectError::NoRuntime);
        }
        let about = about(self.label);
        Ok(Client { driver: Driver::start(engine, about, self.announce_at_once) })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.scope()).finish()
    }
}

/// A lock could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// Nothing was sent.
    #[error(transparent)]
    BadInput(#[from] BadInput),
    /// This process is a forked copy.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The store is out of reach or refuses.
    #[error(transparent)]
    Backend(#[from] Fault),
}

#[cfg_attr(not(feature = "redis"), expect(clippy::unused_async))]
async fn open(url: &str) -> Result<Arc<dyn Engine>, ConnectError> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        #[cfg(feature = "embedded")]
        "file" => {
            let location = tenure_embedded::Location::from_url(url)?;
            Ok(tenure_embedded::EmbeddedEngine::open(&location)?)
        }
        #[cfg(feature = "embedded")]
        "memory" => Ok(match url.trim_start_matches("memory:") {
            "" => tenure_embedded::MemoryEngine::new(),
            name => tenure_embedded::MemoryEngine::named(name),
        }),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "unix" | "redis+unix" => Ok(tenure_redis::RedisEngine::connect(url).await?),
        #[cfg(not(feature = "embedded"))]
        "file" | "memory" => Err(ConnectError::NotBuilt { scheme: scheme.to_owned(), feature: "embedded" }),
        #[cfg(not(feature = "redis"))]
        "redis" | "rediss" | "unix" | "redis+unix" => {
            Err(ConnectError::NotBuilt { scheme: scheme.to_owned(), feature: "redis" })
        }
        _ => Err(ConnectError::BadUrl(without_password(url))),
    }
}

/// The URL as it may be shown.
pub(crate) fn without_password(url: &str) -> String {
    // Options may hold secrets as well.
    let url = url.split('?').next().unwrap_or_default();
    match url.rsplit_once('@') {
        Some((before, host)) => {
            let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
            format!("{scheme}://***@{host}")
        }
        None => url.to_owned(),
    }
}

fn about(label: Option<String>) -> Card {
    let command_line = || {
        let mut words = std::env::args();
        // The first word alone: arguments hold secrets.
        words.next().unwrap_or_default()
    };
    let uid = rustix::process::getuid();
    let user = nix::unistd::User::from_uid(uid.as_raw().into()).ok().flatten();
    Card {
        v: 1,
        user: user.map_or_else(|| uid.as_raw().to_string(), |user| user.name),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        cmd: label.unwrap_or_else(command_line),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_ms: unix_ms(),
        ..Card::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_url_is_shown_without_its_password() {
        assert_eq!(without_password("rediz://u:p@h:1/0"), "rediz://***@h:1/0");
        assert_eq!(without_password("rediz://u:p@x@h"), "rediz://***@h");
        assert_eq!(without_password("rediz://h?password=x"), "rediz://h");
        assert_eq!(without_password("nothing"), "nothing");
    }
}
