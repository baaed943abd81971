//! What the example programs share.
#![forbid(unsafe_code)]

use std::time::Duration;

use anyhow::Result;
use tenure::{Client, Guard};
use tokio::runtime::{Builder, Runtime};

/// Short, so that an example does not take long.
const TTL: Duration = Duration::from_millis(200);

/// What stands for a process of its own: its runtime runs only while it is asked for something. Between two calls it is
/// stopped, as by a debugger, a full disk or a machine that sleeps, and nothing renews its lease.
#[derive(Debug)]
pub struct Process {
    runtime: Runtime,
    client: Client,
}

impl Process {
    /// Connects to a store of locks.
    ///
    /// # Errors
    /// The store is out of reach.
    pub fn start(url: &str) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(Client::connect(url))?;
        Ok(Self { runtime, client })
    }

    /// Waits for the lock and takes it, with a lease of 200 ms.
    ///
    /// # Errors
    /// It is not free within 30 seconds.
    pub fn acquire(&self, name: &str) -> Result<Guard> {
        Ok(self.runtime.block_on(self.client.lock(name).ttl(TTL).acquire())?)
    }
}
