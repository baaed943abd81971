//! Who is alive, asked of the kernel.
//!
//! Every engine value has a file `processes/<id>` with a POSIX write lock that it keeps for life: it ends with the
//! process, even when a forked child lives on. Everybody else asks for it by `F_GETLK`. Such a lock is dropped as soon
//! as *any* descriptor of its file is closed in its process, so files of this process are never opened again here.
//!
//! A job has a file `jobs/<holder>` with a flock, which belongs to the descriptor that the job inherits: it ends with
//! the last process that has it open. Testers take a shared flock, so that they don't disturb each other.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, fcntl_lock, flock, fstat, ftruncate, openat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, Pid, fcntl_getlk};
use tenure_core::{HolderId, ProcessId};
use tenure_engine::{Card, Fault};

use crate::directory::{Directory, PRIVATE_FILE, cannot};
use crate::member::Member;

/// The most files that one sweep looks at.
const SWEPT_MAX: usize = 256;

/// The most bytes of a card that are read.
const CARD_BYTES_MAX: usize = 1 << 20;

/// What the kernel says of a process.
#[derive(Clone)]
pub(crate) enum Pulse {
    /// An engine value of this very process.
    Here(Arc<Member>),
    /// Alive; its number, unless it is in another pid namespace.
    Alive(Option<Pid>),
    /// Gone, and whether its file is still there.
    Gone { file: bool },
    /// It could not be asked (too many open files).
    Unknown,
}

#[derive(Debug)]
pub(crate) struct Processes {
    boot: OwnedFd,
    /// The directory of their files.
    files: OwnedFd,
    jobs: OwnedFd,
    here: Mutex<HashMap<ProcessId, Arc<Member>>>,
    /// The jobs whose holder is in this process.
    jobs_here: Mutex<HashSet<HolderId>>,
}

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here(_) => "Here",
            Self::Alive(_) => "Alive",
            Self::Gone { .. } => "Gone",
            Self::Unknown => "Unknown",
        })
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
const CREATE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

impl Processes {
    pub(crate) fn open(directory: &Directory) -> Result<Self, Fault> {
        let copy =
            |fd: &OwnedFd| fd.try_clone().map_err(|error| cannot("open again", &directory.boot_path, error));
        Ok(Self {
            files: copy(&directory.processes)?,
            jobs: copy(&directory.jobs)?,
            boot: copy(&directory.boot)?,
            here: Mutex::default(),
            jobs_here: Mutex::default(),
        })
    }

    /// Creates the file of a new engine value and locks it. Inside the guard, so that nobody sees it unlocked.
    pub(crate) fn create(&self, id: ProcessId) -> io::Result<OwnedFd> {
        let file = openat(&self.files, id.to_string(), CREATE | OFlags::EXCL, PRIVATE_FILE)?;
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    }

    pub(crate) fn join(&self, member: Arc<Member>) {
        locked(&self.here).insert(member.id(), member);
    }

    /// The member's process counts as gone from now on.
    pub(crate) fn leave(&self, id: ProcessId) {
        locked(&self.here).remove(&id);
        self.forget(id);
    }

    pub(crate) fn here(&self, id: ProcessId) -> Option<Arc<Member>> {
        locked(&self.here).get(&id).cloned()
    }

    /// Is it alive?
    pub(crate) fn pulse(&self, id: ProcessId) -> Pulse {
        if let Some(member) = self.here(id) {
            return Pulse::Here(member);
        }
        let file = match openat(&self.files, id.to_string(), READ, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Pulse::Gone { file: false },
            Err(_) => return Pulse::Unknown,
        };
        match fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)) {
            Ok(Some(lock)) => Pulse::Alive(lock.pid),
            Ok(None) => Pulse::Gone { file: true },
            Err(_) => Pulse::Unknown,
        }
    }

    /// Removes what a dead process left in the directory.
    pub(crate) fn forget(&self, id: ProcessId) {
        let _ = unlinkat(&self.boot, format!("bells/{id}"), AtFlags::empty());
        let _ = unlinkat(&self.files, id.to_string(), AtFlags::empty());
    }

    /// Reads the card of a process elsewhere.
    pub(crate) fn read_card(&self, id: ProcessId) -> io::Result<Option<Card>> {
        let file = match openat(&self.files, id.to_string(), READ, Mode::empty()) {
            Ok(file) => std::fs::File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let length = (file.metadata()?.len() as usize).min(CARD_BYTES_MAX);
        let mut text = vec![0; length];
        file.read_exact_at(&mut text, 0)?;
        Ok(serde_json::from_slice(&text).ok())
    }

    /// Creates the file of a job, locked as long as the descriptor or a copy of it is open.
    pub(crate) fn create_job(&self, holder: HolderId) -> io::Result<OwnedFd> {
        // A tester's shared lock lasts a microsecond; a sweeper removes the file between our two steps.
        for _ in 0..1000 {
            let file = openat(&self.jobs, holder.to_string(), CREATE, PRIVATE_FILE)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if fstat(&file)?.st_nlink > 0 => {
                    locked(&self.jobs_here).insert(holder);
                    return Ok(file);
                }
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::WOULDBLOCK.into())
    }

    /// Does a job of this holder run? `None`: it could not be asked.
    pub(crate) fn job_runs(&self, holder: HolderId) -> Option<bool> {
        let file = match openat(&self.jobs, holder.to_string(), READ, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Some(false),
            Err(_) => return None,
        };
        Self::test(&file, || {})
    }

    /// May a job of this holder run? Saves a look at the directory for holders of this process without one.
    pub(crate) fn has_job_here(&self, holder: HolderId) -> bool {
        locked(&self.jobs_here).contains(&holder)
    }

    /// The hold of this job has ended: its file means nothing any more.
    pub(crate) fn end_job(&self, holder: HolderId) {
        if locked(&self.jobs_here).remove(&holder) {
            let _ = unlinkat(&self.jobs, holder.to_string(), AtFlags::empty());
        }
    }

    fn test(file: &OwnedFd, if_free: impl FnOnce()) -> Option<bool> {
        match flock(file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                if_free();
                // Said aloud rather than left to the close: a forked child may share the descriptor.
                let _ = flock(file, FlockOperation::Unlock);
                Some(false)
            }
            Err(Errno::WOULDBLOCK) => Some(true),
            Err(_) => None,
        }
    }

    /// Removes files of jobs that have ended and of processes that are gone; these are returned.
    pub(crate) fn sweep(&self) -> Vec<ProcessId> {
        for name in some_names(&self.jobs) {
            let Ok(holder) = name.parse::<HolderId>() else { continue };
            let Ok(file) = openat(&self.jobs, &*name, READ, Mode::empty()) else { continue };
            // Removed while we hold the lock: whoever creates the file at this moment sees that it is gone.
            Self::test(&file, || {
                let _ = unlinkat(&self.jobs, &*name, AtFlags::empty());
                locked(&self.jobs_here).remove(&holder);
            });
        }
        let dead = some_names(&self.files).into_iter().filter_map(|name| name.parse().ok());
        let dead: Vec<_> = dead.filter(|&id| matches!(self.pulse(id), Pulse::Gone { .. })).collect();
        for &id in &dead {
            self.forget(id);
        }
        dead
    }
}

/// Up to [`SWEPT_MAX`] names of a directory, beginning anywhere, so that many living ones don't hide the dead.
fn some_names(directory: &OwnedFd) -> Vec<String> {
    let Ok(entries) = Dir::read_from(directory) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned)).collect();
    if names.len() > SWEPT_MAX {
        let start = tenure_engine::random_process().0 as usize % names.len();
        names.rotate_left(start);
        names.truncate(SWEPT_MAX);
    }
    names
}

/// Writes a card over the older one in the same file, whose lock must not be lost.
pub(crate) fn write_card(file: &OwnedFd, card: &Card) -> io::Result<()> {
    let text = serde_json::to_vec(card)?;
    let mut written = 0;
    while written < text.len() {
        written += rustix::io::pwrite(file, &text[written..], written as u64)?;
    }
    Ok(ftruncate(file, text.len() as u64)?)
}
