//! LMDB, opened the one way that is sound here. The only module with unsafe code: heed marks the opening of a
//! memory-mapped file and the choice of these flags as unsafe, because the compiler cannot see what keeps them right:
//!
//! - *The file changes only through LMDB.* It lies in a directory that only this user can write, is created under
//!   another name, and is never truncated, grown or replaced afterwards.
//! - *`NO_LOCK`: no two transactions at a time, in any process.* Every method that begins one takes an [`Entered`],
//!   the proof of being inside the guard; so do opening and creating. There are no read transactions.
//! - *`WRITE_MAP`: no write to the mapping can fail.* Every block is allocated before the first write.
//! - *`NO_SYNC`: what is not on disk is lost when the machine stops.* A store belongs to one boot.
//! - *No environment is opened twice in one process*: the registry of stores sees to it, and heed checks.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::path::Path;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, MdbError, RwTxn};

use crate::guard::Entered;

/// Why a transaction did not take place. Nothing of it has remained.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// There is no room left.
    Full,
    /// LMDB refused.
    Lmdb(heed::Error),
    /// A record is not what this version writes.
    Unreadable(postcard::Error),
    /// Something beside the database failed.
    Fault(tenure_engine::Fault),
}

impl From<heed::Error> for Trouble {
    fn from(error: heed::Error) -> Self {
        match error {
            heed::Error::Mdb(MdbError::MapFull) => Self::Full,
            error => Self::Lmdb(error),
        }
    }
}

impl From<postcard::Error> for Trouble {
    fn from(error: postcard::Error) -> Self {
        Self::Unreadable(error)
    }
}

/// One file with one sorted map of bytes to bytes.
#[derive(Debug)]
pub(crate) struct Tree {
    env: Env,
}

impl Tree {
    /// Opens the file at `path`; if there is none, creates one that is as large as `bytes` but not yet allocated:
    /// it must not be written to until it is. An existing file has to be opened at its own size.
    pub(crate) fn open(_inside: &Entered<'_>, path: &Path, bytes: u64) -> Result<Self, heed::Error> {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let flags = EnvFlags::NO_SUB_DIR | EnvFlags::WRITE_MAP | EnvFlags::NO_SYNC | EnvFlags::NO_LOCK;
        let open = || {
            // SAFETY: see the top of this file.
            unsafe { EnvOpenOptions::new().map_size(size).flags(flags).open(path) }
        };
        let env = match open() {
            // The last user in this process is just closing it.
            Err(heed::Error::EnvAlreadyOpened) => {
                if let Some(closing) = heed::env_closing_event(path) {
                    closing.wait_timeout(std::time::Duration::from_secs(1));
                }
                open()
            }
            other => other,
        }?;
        keep_from_children(path)?;
        Ok(Self { env })
    }

    /// Does `work` in one transaction: all of it, or on an error nothing.
    pub(crate) fn write<R>(
        &self,
        _inside: &Entered<'_>,
        work: impl FnOnce(&mut Txn<'_, '_>) -> Result<R, Trouble>,
    ) -> Result<R, Trouble> {
        let mut result = None;
        // A database borrows its environment, so none is kept: opening the unnamed one costs nothing.
        self.env.create_databases_and_commit(self.env.write_txn()?, |opener, rw| {
            let db = opener.create_database(rw, None)?;
            result = Some(work(&mut Txn { db, rw })?);
            Ok::<_, Trouble>(CommitOrAbort::<(), ()>::Commit(()))
        })?;
        Ok(result.expect("the work was done"))
    }

    /// Pages in use or free for use again; the file's end cannot be passed.
    #[cfg(test)]
    pub(crate) fn pages(&self) -> usize {
        self.env.info().last_page_number
    }
}

/// LMDB leaves the descriptor of its file to programs that this one executes: a job would inherit the whole store,
/// open for writing.
fn keep_from_children(path: &Path) -> std::io::Result<()> {
    let path = path.canonicalize()?;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|number| number.parse().ok());
        if let (Ok(target), Some(number)) = (std::fs::read_link(entry.path()), number)
            && target == path
        {
            // SAFETY: the number was just read as that of an open file of this process, and this file is only ever
            // opened by LMDB, inside the guard that the caller holds. At worst the call fails or marks another
            // file, too, as one that children don't inherit.
            let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
            rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC)?;
        }
    }
    Ok(())
}

/// A key and its value.
pub(crate) type Record<'a> = (&'a [u8], &'a [u8]);

/// An open transaction.
pub(crate) struct Txn<'t, 'e> {
    db: Database<'e, Bytes, Bytes>,
    rw: &'t mut RwTxn<'e>,
}

impl Txn<'_, '_> {
    /// The value under this key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<&[u8]>, Trouble> {
        Ok(self.db.get(self.rw, key)?)
    }

    /// The first record whose key is larger.
    pub(crate) fn after(&self, key: &[u8]) -> Result<Option<Record<'_>>, Trouble> {
        Ok(self.db.get_greater_than(self.rw, key)?)
    }

    /// The last record whose key is not larger.
    pub(crate) fn up_to(&self, key: &[u8]) -> Result<Option<Record<'_>>, Trouble> {
        Ok(self.db.get_lower_than_or_equal_to(self.rw, key)?)
    }

    /// Writes a record, over an older one if there is one.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Trouble> {
        Ok(self.db.put(self.rw, key, value)?)
    }

    /// Removes a record if it is there.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<(), Trouble> {
        self.db.delete(self.rw, key)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    #[tokio::test]
    async fn children_do_not_inherit_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let _engine = crate::EmbeddedEngine::open(&crate::Location::Directory(folder.path().into())).unwrap();
        let listed = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert!(!listed.contains(folder.path().to_str().unwrap()), "{listed}");
    }
}
