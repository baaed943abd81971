//! The mark above every token ever given out: what keeps tokens growing when the store of the last boot is gone and
//! the clock came up wrong.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{OFlags, fdatasync, fsync, openat, renameat};
use rustix::io::{Errno, pread, pwrite};
use tenure_core::Token;
use tenure_engine::Fault;

use crate::directory::{Directory, PRIVATE_FILE, cannot};

/// How far ahead of the clock the mark is set: 50 seconds, so the disk is asked about once a minute. Tokens of the next
/// boot begin there, and callers distrust tokens that are more than a minute ahead of their clocks.
const AHEAD_US: u64 = 50_000_000;

/// How far ahead of a token the mark is set at least. Where tokens run ahead of the clock, they count in ones.
const AHEAD_TOKENS: u64 = 1_000_000;

const MAGIC: &[u8; 8] = b"tenure-1";
const SLOT: usize = 24;
/// Each slot in a block of its own: a write that is cut off spoils one of them.
const SLOTS_AT: [u64; 2] = [0, 4096];

/// Two slots, each `magic, mark, !mark`; the larger valid one counts, and the other is overwritten, in place: that
/// needs no space, so grants go on when the disk is full. A slot torn by a crash is ignored: no token above the
/// mark in the other one has been given out. Two bad slots are not the work of a crash, and are refused.
#[derive(Debug)]
pub(crate) struct Fence {
    file: OwnedFd,
    path: PathBuf,
    /// What is known to be on disk; other processes may have put more there.
    mark: AtomicU64,
}

impl Fence {
    /// Opens or creates the file. The caller is inside the guard, as for everything here.
    pub(crate) fn open(directory: &Directory) -> Result<Self, Fault> {
        let path = directory.root_path.join("fence");
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match openat(&directory.root, "fence", flags, PRIVATE_FILE) {
            Err(Errno::NOENT) => create(directory),
            other => other,
        }
        .map_err(|error| cannot("open", &path, error.into()))?;
        let fence = Self { file, path, mark: AtomicU64::new(0) };
        fence.read()?;
        Ok(fence)
    }

    /// The mark: larger than every token before this boot.
    pub(crate) fn mark(&self) -> Token {
        Token(self.mark.load(Ordering::Relaxed))
    }

    /// Makes sure that `token` is below the mark on disk. Called before the token is given out.
    pub(crate) fn cover(&self, token: Token, wall_us: u64) -> Result<(), Fault> {
        if token <= self.mark() {
            return Ok(());
        }
        let older = self.read()?;
        if token <= self.mark() {
            return Ok(());
        }
        let mark = token.0.saturating_add(AHEAD_TOKENS).max(wall_us.saturating_add(AHEAD_US));
        let written = pwrite(&self.file, &encode(mark), SLOTS_AT[older])
            .and_then(|_| fdatasync(&self.file))
            .map_err(|error| {
                let error = std::io::Error::from(error);
                Fault::not_run(format!("cannot write the token mark {}: {error}", self.path.display()))
                    .hint("nothing was granted: make the file writable and its disk work")
                    .source(error)
            });
        written.map(|()| self.mark.store(mark, Ordering::Relaxed))
    }

    /// Reads the mark and says which slot to overwrite next.
    fn read(&self) -> Result<usize, Fault> {
        let [a, b] = SLOTS_AT.map(|at| {
            let mut slot = [0; SLOT];
            let read = pread(&self.file, &mut slot, at);
            read.ok().filter(|&length| length == SLOT).and_then(|_| decode(&slot))
        });
        let Some(mark) = a.max(b) else {
            return Err(Fault::refused(format!("the token mark {} is damaged", self.path.display())).hint(
                "if no resource compares fencing tokens, remove the file; otherwise write back a copy of it",
            ));
        };
        self.mark.store(mark, Ordering::Relaxed);
        Ok(usize::from(a > b))
    }
}

/// A file that appears whole or not at all.
fn create(directory: &Directory) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(&directory.root, "fence.new", flags, PRIVATE_FILE)?;
    for at in SLOTS_AT {
        pwrite(&file, &encode(0), at)?;
    }
    fsync(&file)?;
    renameat(&directory.root, "fence.new", &directory.root, "fence")?;
    fsync(&directory.root)?;
    Ok(file)
}

fn encode(mark: u64) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[..8].copy_from_slice(MAGIC);
    slot[8..16].copy_from_slice(&mark.to_le_bytes());
    slot[16..].copy_from_slice(&(!mark).to_le_bytes());
    slot
}

fn decode(slot: &[u8; SLOT]) -> Option<u64> {
    let number = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("eight bytes"));
    (slot[..8] == *MAGIC && number(8) == !number(16)).then(|| number(8))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::location::Location;

    fn directory() -> (tempfile::TempDir, Directory) {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::open(&Location::Directory(place.path().join("t"))).unwrap();
        (place, directory)
    }

    #[test]
    fn the_mark_runs_ahead_of_tokens_and_survives() {
        let (_place, directory) = directory();
        let fence = Fence::open(&directory).unwrap();
        assert_eq!(fence.mark(), Token(0));
        fence.cover(Token(1000), 1000).unwrap();
        fence.cover(Token(1001), 2000).unwrap();
        assert_eq!(Fence::open(&directory).unwrap().mark(), Token(1000 + AHEAD_US));
        // Tokens that ran ahead of the clock don't carry the mark further away from it.
        fence.cover(Token(1001 + AHEAD_US), 3000).unwrap();
        assert_eq!(Fence::open(&directory).unwrap().mark(), Token(1001 + AHEAD_US + AHEAD_TOKENS));
    }

    #[test]
    fn another_process_may_have_moved_the_mark() {
        let (_place, directory) = directory();
        let (one, two) = (Fence::open(&directory).unwrap(), Fence::open(&directory).unwrap());
        two.cover(Token(5), 5).unwrap();
        one.cover(Token(3), 3).unwrap();
        assert_eq!(Fence::open(&directory).unwrap().mark(), Token(5 + AHEAD_US));
    }

    #[test]
    fn a_torn_slot_is_ignored_and_two_are_refused() {
        let (_place, directory) = directory();
        let fence = Fence::open(&directory).unwrap();
        fence.cover(Token(1), 1).unwrap();
        let first = fence.mark();
        fence.cover(Token(first.0 + 1), first.0 + 1).unwrap();
        let file = fs::OpenOptions::new().write(true).open(directory.root_path.join("fence")).unwrap();
        let newer = usize::from(decode_at(&directory, 1) > decode_at(&directory, 0));
        file.write_all_at(&[0x55; 20], SLOTS_AT[newer]).unwrap();
        assert_eq!(Fence::open(&directory).unwrap().mark(), first);
        file.write_all_at(&[0x55; 20], SLOTS_AT[1 - newer]).unwrap();
        let fault = Fence::open(&directory).unwrap_err().to_string();
        assert!(fault.contains("damaged"), "{fault}");
    }

    fn decode_at(directory: &Directory, slot: usize) -> Option<u64> {
        let bytes = fs::read(directory.root_path.join("fence")).unwrap();
        let at = SLOTS_AT[slot] as usize;
        decode(bytes[at..at + SLOT].try_into().unwrap())
    }
}
