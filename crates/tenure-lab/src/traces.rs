//! What an experiment leaves behind if a signal ends it: processes, directories, keys on servers of others. A signal has
//! them wiped first; after a kill -9 the processes still die with us.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, kill_process};
use tempfile::TempDir;
use tenure_own_redis::RedisServer;

use crate::servers::connect;

static TRACES: Mutex<Traces> =
    Mutex::new(Traces { dir: None, processes: Vec::new(), keys: Vec::new(), wiped: false });

/// Held by whoever ends this program, the signal or the experiment: one of them does.
static END: Mutex<()> = Mutex::new(());

/// The list.
pub(crate) struct Traces {
    /// In which the servers of our own have theirs.
    dir: Option<TempDir>,
    processes: Vec<u32>,
    /// Where, and which.
    keys: Vec<(String, Vec<String>)>,
    /// Nothing new may begin.
    wiped: bool,
}

impl Traces {
    /// From now on signals that end a program wipe its traces first. To be called before other threads start: they
    /// inherit what is blocked.
    pub(crate) fn guard() -> std::io::Result<()> {
        let ending: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT].into_iter().collect();
        ending.thread_block()?;
        std::thread::Builder::new().name("traces".to_owned()).spawn(move || {
            if let Ok(signal) = ending.wait() {
                let _end = END.lock();
                Self::wipe();
                std::process::exit(128 + signal as i32);
            }
        })?;
        Ok(())
    }

    /// A directory for servers of our own.
    pub(crate) fn dir() -> std::io::Result<PathBuf> {
        Self::list(|traces| {
            if traces.dir.is_none() {
                traces.dir = Some(tempfile::Builder::new().prefix("tenure-lab-").tempdir()?);
            }
            Ok(traces.dir.as_ref().map(|dir| dir.path().to_owned()).unwrap_or_default())
        })
    }

    /// This server is ours.
    pub(crate) fn server(server: &RedisServer) {
        Self::list(|traces| traces.processes.push(server.pid()));
    }

    /// Starts a process of ours, unless everything is being ended.
    pub(crate) fn spawn(command: &mut Command) -> std::io::Result<Child> {
        Self::list(|traces| {
            if traces.wiped {
                return Err(ErrorKind::Interrupted.into());
            }
            let child = command.spawn()?;
            traces.processes.push(child.id());
            Ok(child)
        })
    }

    /// These keys are ours, on a server that is not.
    pub(crate) fn keys(url: &str, keys: &[&str]) {
        let keys = keys.iter().map(ToString::to_string).collect();
        Self::list(|traces| traces.keys.push((url.to_owned(), keys)));
    }

    /// The experiment is over; it may have failed because a signal is ending it, which then goes first.
    pub(crate) fn end() {
        let end = END.lock();
        Self::wipe();
        // No signal from now on: the program ends in a moment.
        std::mem::forget(end);
    }

    /// Leaves nothing behind.
    fn wipe() {
        let (dir, processes, keys) = Self::list(|traces| {
            traces.wiped = true;
            (traces.dir.take(), std::mem::take(&mut traces.processes), std::mem::take(&mut traces.keys))
        });
        // Some have ended in good order: their numbers may be somebody else's by now.
        let alive = |pid: &u32| {
            state(*pid).is_some_and(|(state, parent)| parent == std::process::id() && state != "Z")
        };
        for pid in
            processes.iter().filter(|pid| alive(pid)).filter_map(|pid| Pid::from_raw(pid.cast_signed()))
        {
            let _ = kill_process(pid, rustix::process::Signal::KILL);
        }
        // What they have sent is carried out before the keys are wiped.
        for _ in 0..100 {
            if !processes.iter().any(alive) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(dir);
        for (url, keys) in keys {
            if let Ok(mut connection) = connect(&url) {
                let _ = redis::cmd("DEL").arg(keys).query::<()>(&mut connection);
            }
        }
    }

    fn list<T>(change: impl FnOnce(&mut Self) -> T) -> T {
        change(&mut TRACES.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The state of a process, and its parent.
fn state(pid: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may hold anything.
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}
