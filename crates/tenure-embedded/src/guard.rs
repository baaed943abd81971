//! One transaction at a time, in all processes: a mutex among the tasks of this one, `flock` among processes.
//!
//! LMDB's own mutex would block a thread for as long as another process is stopped inside it, and nobody could say
//! who that is. The kernel frees this one with its process, and waiting has a limit and ends in a name.
//!
//! A child that was forked without exec shares this very lock: if the parent dies inside a transaction while such a
//! child lives, the guard stays shut until the child ends, and the fault names it.

use std::fmt::Write;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock, fstat, major, minor, openat};
use rustix::io::Errno;
use tenure_engine::Fault;
use tokio::sync::{Mutex, MutexGuard};

use crate::directory::{Directory, PRIVATE_FILE, cannot};

/// The longest wait for other processes: a transaction takes microseconds.
pub(crate) const LIMIT: Duration = Duration::from_secs(1);
/// How long a transaction of somebody else is waited for without letting other tasks run.
const SPIN: Duration = Duration::from_micros(30);
const FIRST_NAP: Duration = Duration::from_millis(1);
const LONGEST_NAP: Duration = Duration::from_millis(8);

#[derive(Debug)]
pub(crate) struct Guard {
    /// Of async code.
    tasks: Door,
    /// Of other code, which must not wait for a task that cannot go on before this thread does.
    threads: Door,
    store: PathBuf,
}

#[derive(Debug)]
struct Door {
    /// Fair: tasks enter in the order in which they came.
    turn: Mutex<()>,
    /// Opened for this door alone, so that the two exclude each other as two processes do.
    file: OwnedFd,
}

/// Proof of being inside the guard; leaves when dropped.
pub(crate) struct Entered<'a> {
    file: &'a OwnedFd,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Said aloud rather than left to a close: a forked child may share the descriptor.
        let unlocked = flock(self.file, FlockOperation::Unlock);
        debug_assert!(unlocked.is_ok(), "a lock that is held can be given back");
    }
}

impl Guard {
    pub(crate) fn open(directory: &Directory) -> Result<Self, Fault> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let door = || {
            let file = openat(&directory.boot, "guard", flags, PRIVATE_FILE)
                .map_err(|error| cannot("open", &directory.boot_path.join("guard"), error.into()))?;
            Ok::<_, Fault>(Door { turn: Mutex::new(()), file })
        };
        Ok(Self { tasks: door()?, threads: door()?, store: directory.boot_path.clone() })
    }

    /// Enters, waiting for at most `limit` without blocking the thread.
    pub(crate) async fn enter(&self, limit: Duration) -> Result<Entered<'_>, Fault> {
        let limit = limit.min(LIMIT);
        let door = &self.tasks;
        if let Ok(turn) = door.turn.try_lock()
            && let Some(entered) = self.try_enter(door, turn)?.ok()
        {
            return Ok(entered);
        }
        let entered = tokio::time::timeout(limit, async {
            let mut turn = door.turn.lock().await;
            let mut nap = FIRST_NAP;
            loop {
                match self.spin(door, turn)? {
                    Ok(entered) => return Ok(entered),
                    Err(still_mine) => turn = still_mine,
                }
                tokio::time::sleep(nap).await;
                nap = (nap * 2).min(LONGEST_NAP);
            }
        });
        entered.await.unwrap_or_else(|_| Err(self.blame(limit)))
    }

    /// Enters from outside of async code.
    pub(crate) fn enter_blocking(&self) -> Result<Entered<'_>, Fault> {
        let begun = Instant::now();
        loop {
            if let Ok(turn) = self.threads.turn.try_lock()
                && let Some(entered) = self.spin(&self.threads, turn)?.ok()
            {
                return Ok(entered);
            }
            if begun.elapsed() >= LIMIT {
                return Err(self.blame(LIMIT));
            }
            thread::sleep(FIRST_NAP);
        }
    }

    fn spin<'a>(
        &'a self,
        door: &'a Door,
        mut turn: MutexGuard<'a, ()>,
    ) -> Result<Result<Entered<'a>, MutexGuard<'a, ()>>, Fault> {
        let begun = Instant::now();
        loop {
            turn = match self.try_enter(door, turn)? {
                Err(turn) if begun.elapsed() < SPIN => turn,
                result => return Ok(result),
            };
            std::hint::spin_loop();
        }
    }

    /// One try; the turn comes back if another process is inside.
    fn try_enter<'a>(
        &'a self,
        door: &'a Door,
        turn: MutexGuard<'a, ()>,
    ) -> Result<Result<Entered<'a>, MutexGuard<'a, ()>>, Fault> {
        match flock(&door.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Ok(Entered { file: &door.file, _turn: turn })),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(Err(turn)),
            Err(error) => Err(Fault::not_run(format!("cannot lock the store {}", self.store.display()))
                .source(std::io::Error::from(error))),
        }
    }

    /// Why nobody could enter for so long.
    fn blame(&self, waited: Duration) -> Fault {
        let store = self.store.display();
        let Some(pid) = self.holder() else {
            return Fault::not_run(format!("the store {store} was busy for {} ms", waited.as_millis()))
                .hint("if this stays so, look for a stopped process of another container that uses it");
        };
        let command = command_of(pid);
        if is_stopped(pid) {
            return Fault::not_run(format!(
                "process {pid} ({command}) is stopped inside a transaction of the store {store}"
            ))
            .hint("continue or end it");
        }
        Fault::not_run(format!(
            "process {pid} ({command}) has been inside a transaction of the store {store} for {} ms",
            waited.as_millis()
        ))
        .hint("if this stays so, end it")
    }

    /// Who holds the flock, as the kernel lists it: `1: FLOCK  ADVISORY  WRITE 4121 fe:00:1234 0 EOF`.
    fn holder(&self) -> Option<u32> {
        let stat = fstat(&self.tasks.file).ok()?;
        let exact = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
        let inode = format!(":{}", stat.st_ino);
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let holders = |matches: &dyn Fn(&str) -> bool| {
            let mut found = None;
            for line in locks.lines() {
                let words: Vec<_> = line.split_whitespace().collect();
                if let [_, "FLOCK", _, "WRITE", pid, place, ..] = words[..]
                    && matches(place)
                {
                    found = pid.parse().ok().filter(|&pid| pid > 0);
                }
            }
            found
        };
        // File systems on several devices list another device than stat tells.
        holders(&|place| place == exact).or_else(|| holders(&|place| place.ends_with(&inode)))
    }
}

/// At most 80 printable characters of a command line.
fn command_of(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut text = String::new();
    for word in line.split(|&byte| byte == 0).filter(|word| !word.is_empty()) {
        let gap = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{gap}{}", String::from_utf8_lossy(word));
    }
    let text: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
    if text.is_empty() { "unknown command".to_owned() } else { text }
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command may hold blanks and brackets; the state follows its last one.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}
