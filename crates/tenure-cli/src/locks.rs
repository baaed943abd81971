//! Locks as commands take them: Tenure's own, or those that other programs take (`--protocol`).

use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::compat::{self, Listing, Protocol};
use tenure::{
    AcquireError, Client, Fault, Guard, InspectError, Inspection, LeaseWatch, Moment, ReleaseError, Released,
};

use crate::busy::Policy;

/// Whose locks.
#[derive(clap::Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Which lock")]
pub(crate) struct Spoken {
    /// Take the lock as other programs on Redis do that don't know Tenure. There is no fencing token and no queue then;
    /// with getset and pid-lock the lock is not renewed either, and --ttl must cover the command
    #[arg(long, value_name = "PROTOCOL", value_enum)]
    pub(crate) protocol: Option<Kind>,
    /// With getset and pid-lock: as their listings were meant where they don't do what they say. The default
    #[arg(long, requires = "protocol")]
    as_meant: bool,
    /// With getset and pid-lock: as their listings are written, slips included. For comparison, never for work
    #[arg(long, requires = "protocol", conflicts_with = "as_meant")]
    as_written: bool,
}

/// The locks of other programs.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// SET key token NX PX, compare and delete; renewed while the command runs
    Classic,
    /// SETNX and GETSET of the second at which the lock ends; --ttl in whole seconds
    Getset,
    /// The same in milliseconds, with a release that does not look whose lock it is
    PidLock,
}

impl Spoken {
    /// `None`: Tenure's own.
    pub(crate) fn protocol(self) -> Option<Protocol> {
        let listing = if self.as_written { Listing::AsWritten } else { Listing::AsMeant };
        self.protocol.map(|kind| kind.protocol(listing))
    }

    /// Says which options don't go together.
    pub(crate) fn check(self, policy: Policy) -> Result<(), String> {
        match self.protocol {
            Some(Kind::Classic) if self.as_written || self.as_meant => {
                Err("--as-meant and --as-written go with --protocol getset or pid-lock".to_owned())
            }
            Some(_) if self.as_written && policy == Policy::Defer => {
                Err("--as-written is for comparison; it does not go with --on-busy defer".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl Kind {
    pub(crate) fn as_meant(self) -> Protocol {
        self.protocol(Listing::AsMeant)
    }

    fn protocol(self, listing: Listing) -> Protocol {
        match self {
            Self::Classic => Protocol::Classic,
            Self::Getset => Protocol::GetSet(listing),
            Self::PidLock => Protocol::PidLock(listing),
        }
    }
}

/// The way to the locks of a store.
pub(crate) enum Locks {
    Own(Client),
    Others(compat::Client),
}

impl Locks {
    /// A lock with this lease. `label` is what others see of the command, where they can.
    pub(crate) fn lock(&self, name: &str, ttl: Duration, label: &str) -> Lock {
        match self {
            Self::Own(client) => Lock::Own(client.lock(name).ttl(ttl).note(label)),
            Self::Others(client) => Lock::Others(client.lock(name).ttl(ttl), client.protocol()),
        }
    }

    /// The store in words, without secrets.
    pub(crate) fn scope(&self) -> String {
        match self {
            Self::Own(client) => client.scope(),
            Self::Others(client) => client.scope(),
        }
    }

    pub(crate) async fn inspect(&self, name: &str) -> Result<Inspection, InspectError> {
        match self {
            Self::Own(client) => client.inspect(name).await,
            Self::Others(client) => client.inspect(name).await,
        }
    }

    /// Sends what is still owed to the store, as far as that is possible within `limit`.
    pub(crate) async fn close(self, limit: Duration) {
        match self {
            Self::Own(client) => client.close(limit).await,
            Self::Others(client) => client.close(limit).await,
        };
    }
}

/// A lock, and how to take it.
#[derive(Clone)]
pub(crate) enum Lock {
    Own(tenure::Lock),
    Others(compat::Lock, Protocol),
}

impl Lock {
    pub(crate) async fn try_acquire(&self) -> Result<Option<Held>, AcquireError> {
        Ok(match self {
            Self::Own(lock) => lock.try_acquire().await?.map(Held::Own),
            Self::Others(lock, _) => lock.try_acquire().await?.map(Held::Others),
        })
    }

    pub(crate) async fn acquire(self, policy: Policy) -> Result<Held, AcquireError> {
        match self {
            Self::Own(lock) => match policy {
                Policy::Wait(None) => lock.wait_forever().acquire().await,
                Policy::Wait(Some(wait)) => lock.wait(wait).acquire().await,
                Policy::Retry(retry) => lock.acquire_retrying(retry).await,
                Policy::Fail | Policy::Skip | Policy::Defer => lock.acquire_now().await,
            }
            .map(Held::Own),
            Self::Others(lock, protocol) => match (policy, protocol) {
                // How long it waits is in the listing.
                (
                    Policy::Wait(None),
                    Protocol::GetSet(Listing::AsWritten) | Protocol::PidLock(Listing::AsWritten),
                ) => lock.acquire().await,
                (Policy::Wait(None), _) => lock.wait_forever().acquire().await,
                (Policy::Wait(Some(wait)), _) => lock.wait(wait).acquire().await,
                (Policy::Retry(retry), _) => lock.retry(retry).acquire().await,
                (Policy::Fail | Policy::Skip | Policy::Defer, _) => lock.acquire_now().await,
            }
            .map(Held::Others),
        }
    }

    /// What waiting means, if it does not mean a queue.
    pub(crate) fn waits_by(&self) -> Option<String> {
        match self {
            Self::Own(_) => None,
            Self::Others(_, protocol) => {
                Some(format!("{protocol} locks have no queue: it is tried again and again"))
            }
        }
    }
}

/// A lock that is held.
pub(crate) enum Held {
    Own(Guard),
    Others(compat::Guard),
}

impl Held {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Own(guard) => guard.name(),
            Self::Others(guard) => guard.name(),
        }
    }

    /// The fencing token, where there is one.
    pub(crate) fn fence(&self) -> Option<u64> {
        match self {
            Self::Own(guard) => Some(guard.fence()),
            Self::Others(_) => None,
        }
    }

    /// The public id of the hold, where others can see it.
    pub(crate) fn holder(&self) -> Option<String> {
        match self {
            Self::Own(guard) => Some(guard.holder().to_string()),
            Self::Others(guard) => guard.holder().map(|holder| holder.to_string()),
        }
    }

    /// False: it lasts for its ttl and no longer.
    pub(crate) fn is_renewed(&self) -> bool {
        match self {
            Self::Own(_) => true,
            Self::Others(guard) => guard.is_renewed(),
        }
    }

    pub(crate) fn watch(&self) -> LeaseWatch {
        match self {
            Self::Own(guard) => guard.watch(),
            Self::Others(guard) => guard.watch(),
        }
    }

    pub(crate) fn deadline(&self) -> Moment {
        match self {
            Self::Own(guard) => guard.deadline(),
            Self::Others(guard) => guard.deadline(),
        }
    }

    /// As [`tenure::Lease::job_file`]; locks of other programs have none.
    pub(crate) fn job_file(&self) -> Result<Option<OwnedFd>, Fault> {
        match self {
            Self::Own(guard) => guard.job_file(),
            Self::Others(_) => Ok(None),
        }
    }

    pub(crate) async fn release(self) -> Result<Released, ReleaseError> {
        match self {
            Self::Own(guard) => guard.release().await,
            Self::Others(guard) => guard.release().await,
        }
    }

    pub(crate) fn leave(self) {
        match self {
            Self::Own(guard) => guard.leave(),
            Self::Others(guard) => guard.leave(),
        }
    }
}
