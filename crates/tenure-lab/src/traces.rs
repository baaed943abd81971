//! What an experiment leaves behind if a signal ends it: servers of its own with their directories, keys on servers of
//! others. A signal has them wiped first; a kill -9 can't be helped, but for the servers, which die with us.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, kill_process};
use tempfile::TempDir;
use tenure_own_redis::RedisServer;

use crate::servers::connect;

static TRACES: Mutex<Traces> = Mutex::new(Traces { dir: None, servers: Vec::new(), keys: Vec::new() });

/// Held by whoever ends this program, the signal or the experiment: one of them does.
static END: Mutex<()> = Mutex::new(());

/// The list.
pub(crate) struct Traces {
    /// In which the servers of our own have theirs.
    dir: Option<TempDir>,
    servers: Vec<u32>,
    /// Where, and which.
    keys: Vec<(String, Vec<String>)>,
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
        Self::list(|traces| traces.servers.push(server.pid()));
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
        let (dir, servers, keys) = Self::list(|traces| {
            (traces.dir.take(), std::mem::take(&mut traces.servers), std::mem::take(&mut traces.keys))
        });
        // Those that ended in good order have been waited for: their numbers may be somebody else's by now.
        let is_ours = |pid: &u32| parent_of(*pid) == Some(std::process::id());
        for pid in servers.into_iter().filter(is_ours).filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, rustix::process::Signal::KILL);
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

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may hold anything: the state, and the parent.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}
