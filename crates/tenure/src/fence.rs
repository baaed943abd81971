//! Checks for what a lock protects: a writer whose lock has passed on is refused.
//!
//! Work can outlive its lease: a process is stopped between its last look at [`Lease::holds`](crate::Lease::holds) and
//! its write, and wakes when somebody else holds the lock. No lock can prevent that; the resource can. It remembers the
//! largest fencing token ([`Lease::fence`](crate::Lease::fence)) that it has seen, and refuses smaller ones:
//!
//! 1. **Install** the token. From here on the resource refuses every earlier holder.
//! 2. **Read.** What is read stays true: nobody before this holder can change it any more.
//! 3. **Write**, and check the token in the same atomic step.
//!
//! Who reads first may base its write on what an earlier holder changes a moment later. An equal token passes, because it
//! is the same hold that writes again: each grant has a token of its own, larger than all before.
//!
//! | The resource is | Use |
//! |---|---|
//! | in this process | [`Gate`] |
//! | on Redis | [`REDIS`] |
//! | in a database | [`sql`] |
//!
//! Tokens compare within one lock, so a resource belongs to one lock. `docs/overrun.md` has the whole story, and what
//! to do about resources that can't check.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A script for `EVAL`, to be run on the server of the resource: checks the token and runs one command in the same step.
///
/// `KEYS[1]` is where the largest token is kept, the others are the keys of the command; on a cluster all of them belong
/// into one slot. `ARGV[1]` is the token, the others are the command and its arguments: without one the token is installed.
/// Answers `{"ok", what the command answered}` or `{"stale", the larger token}`. The key of the token must not expire, and
/// must not be evicted (`maxmemory-policy noeviction`).
///
/// ```text
/// EVAL script 1 balance:fence          1795268097354397
/// GET balance
/// EVAL script 2 balance:fence balance  1795268097354397 SET balance 120
/// ```
///
/// Tokens are compared as numbers, which are exact in Lua up to 2^53: microseconds until the year 2255.
pub const REDIS: &str = include_str!("../scripts/fence.lua");

/// Checks for databases that know `INSERT .. ON CONFLICT`: SQLite and PostgreSQL.
///
/// Run [`INSTALL`](sql::INSTALL) in the transaction of the write, before anything is read:
///
/// ```text
/// BEGIN;                    -- SQLite: BEGIN IMMEDIATE
/// INSTALL ('balance', 1795268097354397);     -- no row changed: ROLLBACK, a later holder has been here
/// SELECT ..;
/// UPDATE ..;
/// COMMIT;
/// ```
///
/// The row of the resource is locked until the end of the transaction. A later holder installs its token after that, or
/// has done so before, and then this one is refused. Work that takes long reads in a transaction of its own, and runs
/// INSTALL in both: `examples/src/bin/overrun_sqlite.rs`. Elsewhere `SELECT fence .. FOR UPDATE`, a comparison and an
/// `UPDATE` in the same transaction do the same.
pub mod sql {
    /// Makes the table, unless it is there.
    pub const TABLE: &str =
        "CREATE TABLE IF NOT EXISTS fences (resource TEXT PRIMARY KEY, fence BIGINT NOT NULL)";

    /// Installs token `$2` for resource `$1`. One row is changed if the token is as large as every one before; none if it
    /// is stale. A token fits into a `BIGINT`.
    pub const INSTALL: &str = "INSERT INTO fences (resource, fence) VALUES ($1, $2) \
         ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence WHERE excluded.fence >= fences.fence";
}

/// Remembers the largest token for each of a bounded number of resources in this process.
///
/// ```
/// use tenure::fence::{Gate, Refused};
///
/// let gate = Gate::new(1000);
/// gate.install("report", 7)?;                        // then read
/// gate.write("report", 7, || { /* write */ })?;
///
/// gate.install("report", 8)?;                        // somebody else holds the lock now
/// let late = gate.write("report", 7, || unreachable!("it does not run"));
/// assert_eq!(late, Err(Refused::Stale { fence: 7, seen: 8 }));
/// # Ok::<_, Refused>(())
/// ```
#[derive(Debug)]
pub struct Gate {
    capacity: usize,
    seen: Mutex<HashMap<String, u64>>,
}

/// A gate did not let a writer through.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The lock has passed on, and a later holder has been here.
    #[error(
        "token {fence} is stale: a later holder of the lock has been here with {seen}; drop this work, and acquire the lock \
         again if it is still to be done"
    )]
    Stale {
        /// The token of the writer.
        fence: u64,
        /// The larger one.
        seen: u64,
    },
    /// A new resource, and the gate has as many as it may have.
    #[error(
        "the gate knows {capacity} resources and takes no more; make it larger, or forget those that are gone"
    )]
    Full {
        /// How many it may have.
        capacity: usize,
    },
}

impl Gate {
    /// A gate for so many resources. More are refused: to forget one of them unasked could let a stale writer in.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, seen: Mutex::default() }
    }

    /// Installs the token of a holder, who reads after that.
    ///
    /// # Errors
    /// A later holder has been here, or the gate is full.
    pub fn install(&self, resource: &str, fence: u64) -> Result<(), Refused> {
        self.write(resource, fence, || ())
    }

    /// Installs the token and runs `write`, while no other token can be installed: keep it short. It must not use the
    /// gate itself.
    ///
    /// # Errors
    /// A later holder has been here, or the gate is full. `write` did not run.
    pub fn write<T>(&self, resource: &str, fence: u64, write: impl FnOnce() -> T) -> Result<T, Refused> {
        // A write that panicked has left a token, which is right.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let full = seen.len() >= self.capacity;
        match seen.get_mut(resource) {
            Some(&mut seen) if fence < seen => return Err(Refused::Stale { fence, seen }),
            Some(seen) => *seen = fence,
            None if full => return Err(Refused::Full { capacity: self.capacity }),
            None => {
                seen.insert(resource.to_owned(), fence);
            }
        }
        Ok(write())
    }

    /// Forgets a resource that is gone, and makes room for another. A stale writer of it would be let in.
    pub fn forget(&self, resource: &str) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(resource);
    }
}
