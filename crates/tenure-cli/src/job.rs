use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, kill_process_group, set_child_subreaper,
    test_kill_process_group, wait,
};
use serde::{Deserialize, Serialize};
use tenure::Moment;
use tenure_engine::boottime;

use crate::keeper::Keeper;
use crate::terminal::{Terminal, piped_on};
use crate::trampoline;

/// The command that runs under the lock, with everything it starts: one process group.
pub(crate) struct Job {
    group: Pid,
    keeper: Option<Keeper>,
    terminal: Option<Terminal>,
    /// How it is waited for.
    watched: WaitOptions,
    ended: Option<WaitStatus>,
}

/// How long the process of a new job may take to lead its session.
const SESSION_WITHIN: Duration = Duration::from_secs(2);

/// Where a job runs that does not run here and now, as its wrapper does. It reads nothing, and its session has no
/// terminal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Surroundings {
    /// Its working directory.
    pub(crate) directory: PathBuf,
    /// Its mask of file modes.
    pub(crate) umask: u32,
    /// All of its environment, but for what its lock sets.
    pub(crate) variables: BTreeMap<String, String>,
}

/// What the job is made from.
pub(crate) struct Recipe<'a> {
    /// The command and its arguments.
    pub(crate) words: &'a [OsString],
    /// Where it runs; `None`: as its wrapper does.
    pub(crate) surroundings: Option<&'a Surroundings>,
    /// Set in its environment.
    pub(crate) set: Vec<(&'static str, String)>,
    /// Removed from it, unless it is set.
    pub(crate) unset: &'a [&'static str],
    /// The file that keeps the lock for as long as the job has it open; without one there is a keeper.
    pub(crate) file: Option<&'a OwnedFd>,
    /// By when the job has to be dead, as far as is known now.
    pub(crate) last_moment: Moment,
}

impl Job {
    /// Starts the job.
    ///
    /// There is no moment at which our death would leave a job alive that nobody watches: its process is tied to
    /// us before it is told to begin, and it is told so only when the keeper is on guard.
    pub(crate) fn start(recipe: &Recipe<'_>) -> io::Result<Self> {
        // What the job leaves behind becomes our child, so that we see it end; there may be no init to reap it.
        set_child_subreaper(Some(getpid()))?;
        let (go_reader, go) = pipe_with(PipeFlags::CLOEXEC)?;
        let inherited = [Some(go_reader.as_fd()), recipe.file.map(AsFd::as_fd)];
        for fd in inherited.into_iter().flatten() {
            fcntl_setfd(fd, FdFlags::empty())?;
        }
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("tenure")
            .arg(trampoline::COMMAND)
            .arg(std::process::id().to_string())
            .arg(go_reader.as_raw_fd().to_string());
        match recipe.surroundings {
            Some(apart) => {
                command.arg(trampoline::place(apart)).env_clear().envs(&apart.variables).stdin(Stdio::null())
            }
            None => command.arg(trampoline::HERE).process_group(0),
        };
        for name in recipe.unset {
            command.env_remove(name);
        }
        command.args(recipe.words).envs(recipe.set.iter().map(|(name, value)| (name, value)));
        let child = command.spawn()?;
        for fd in inherited.into_iter().flatten() {
            fcntl_setfd(fd, FdFlags::CLOEXEC)?;
        }
        drop(go_reader);
        let group = Pid::from_child(&child);
        if recipe.surroundings.is_some() {
            await_session(group)?;
        }
        let keeper = match recipe.file {
            Some(_) => None,
            None => Some(Keeper::start(group, recipe.last_moment).map_err(|error| {
                io::Error::other(format!("the process that guards the job did not start: {error}"))
            })?),
        };
        // We may have been stopped for any time since the lock was granted.
        if boottime() >= recipe.last_moment {
            return Err(io::Error::other("the lease ended before everything stood ready"));
        }
        let mut terminal = recipe.surroundings.map_or_else(Terminal::of_stdin, |_| None);
        if let Some(terminal) = terminal.as_mut().filter(|_| !piped_on()) {
            terminal.give(group);
        }
        // If that fails the trampoline is dead, and we shall see how it ended.
        let _ = rustix::io::write(&go, trampoline::GO);
        // Who has no terminal is stopped by nobody but by hand, and goes on by hand.
        let stops = recipe.surroundings.map_or(WaitOptions::UNTRACED, |_| WaitOptions::empty());
        Ok(Self { group, keeper, terminal, watched: WaitOptions::NOHANG | stops, ended: None })
    }

    /// How the command ended, once it has.
    pub(crate) fn ended(&self) -> Option<WaitStatus> {
        self.ended
    }

    /// Takes notice of children that ended. Returns the signal if the command was stopped by one.
    pub(crate) fn reap(&mut self) -> Option<i32> {
        let mut stopped = None;
        while let Ok(Some((pid, status))) = wait(self.watched) {
            if pid == self.group {
                stopped = status.stopping_signal();
                if stopped.is_none() {
                    self.ended = Some(status);
                }
            }
        }
        stopped
    }

    /// Sends a signal to everybody in the job.
    pub(crate) fn signal(&self, signal: Signal) {
        // Fails when nobody is left or nobody may be signalled: `is_gone` tells the two apart.
        let _ = kill_process_group(self.group, signal);
    }

    /// Is nobody left?
    pub(crate) fn is_gone(&self) -> bool {
        self.ended.is_some() && test_kill_process_group(self.group) == Err(Errno::SRCH)
    }

    /// Tells the keeper by when the job has to be dead.
    pub(crate) fn last_moment(&mut self, at: Moment) {
        if let Some(keeper) = &mut self.keeper {
            keeper.tell(at);
        }
    }

    /// Gives the terminal to a job that was stopped because it wanted it. False: there is none to give.
    pub(crate) fn give_terminal(&mut self) -> bool {
        self.terminal.as_mut().is_some_and(|terminal| terminal.give(self.group))
    }

    /// Takes the terminal back.
    pub(crate) fn take_terminal(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
        }
    }

    /// The end of the watch. `gone`: nobody is left; otherwise the keeper kills once more, as the pipe to it closes.
    pub(crate) fn close(mut self, gone: bool) {
        self.take_terminal();
        if let Some(keeper) = self.keeper.take().filter(|_| gone) {
            keeper.dismiss();
        }
    }
}

/// Waits until the process leads its own session: what is sent to its group before that does not arrive.
fn await_session(process: Pid) -> io::Result<()> {
    let begun = Instant::now();
    while getpgid(Some(process))? != process {
        if begun.elapsed() >= SESSION_WITHIN {
            return Err(io::Error::other("its process was not ready within 2 s"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Takes notice of what ended after its job: somebody has to, and it became our child. Not while a job runs.
pub(crate) fn reap_strays() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}
