//! The keeper: a process of its own that kills the job when the wrapper cannot.
//!
//! Where a lease can end under a living job (any store that cannot see processes), a wrapper that was killed or
//! stopped must not leave a job behind that works on while somebody else holds the lock. The keeper has the job's
//! process group, a pipe to the wrapper and a timer, and kills the group when the pipe closes without a goodbye, or
//! when the last moment comes that it was told. It knows nothing else.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process_group, setsid};
use rustix::stdio::{stdin, stdout};
use tenure::Moment;

use crate::alarm::Alarm;
use crate::exit_codes;

/// What the process is called with: `tenure __keeper GROUP`.
pub(crate) const COMMAND: &str = "__keeper";

/// The job is over: nobody has to be killed any more. No lease ends at this moment.
const GOODBYE: Moment = Moment(0);

/// How long a new keeper may take to say that it is ready.
const READY_WITHIN: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// The wrapper's side.
pub(crate) struct Keeper {
    pipe: OwnedFd,
    told: Moment,
}

impl Keeper {
    /// Starts one for a process group; when this returns it is on guard.
    pub(crate) fn start(group: Pid, last_moment: Moment) -> std::io::Result<Self> {
        let (orders, pipe) = pipe_with(PipeFlags::CLOEXEC)?;
        let (ready, ready_writer) = pipe_with(PipeFlags::CLOEXEC)?;
        // Blocking is out of the question: if the keeper does not read, it is stopped, and an old moment is safe.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        // Never waited for: it ends by the goodbye, and whatever the wrapper reaps is not asked for its status.
        Command::new("/proc/self/exe")
            .arg0("tenure")
            .arg(COMMAND)
            .arg(group.as_raw_nonzero().to_string())
            .stdin(orders)
            .stdout(ready_writer)
            .stderr(Stdio::null())
            .spawn()?;
        let mut keeper = Self { pipe, told: Moment::NEVER };
        keeper.tell(last_moment);
        let mut readable = [PollFd::new(&ready, PollFlags::IN)];
        retry_on_intr(|| poll(&mut readable, Some(&READY_WITHIN)))?;
        rustix::io::ioctl_fionbio(&ready, true)?;
        match rustix::io::read(&ready, &mut [0; 1]) {
            Ok(1) => Ok(keeper),
            Ok(_) => Err(std::io::Error::other("it ended at once")),
            Err(_) => Err(std::io::Error::other("it was not ready within 2 s")),
        }
    }

    /// The job has to be dead by `last_moment`.
    pub(crate) fn tell(&mut self, last_moment: Moment) {
        if last_moment != self.told && self.write(last_moment) {
            self.told = last_moment;
        }
    }

    /// The job is over.
    pub(crate) fn dismiss(self) {
        self.write(GOODBYE);
    }

    fn write(&self, moment: Moment) -> bool {
        // Eight bytes into a pipe go whole or not at all. If they don't, the keeper is gone or stopped; the
        // wrapper's own timers are still there, and the next change tries again.
        retry_on_intr(|| rustix::io::write(&self.pipe, &moment.0.to_le_bytes())).is_ok()
    }
}

/// The keeper's side: the whole program.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> u8 {
    let group = arguments.last().and_then(|group| group.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let (Some(group), Ok(alarm)) = (group, Alarm::new()) else { return exit_codes::USAGE };
    // Whatever is sent to the wrapper's group, session or terminal must not reach us: blocked on the only thread
    // there is, no signal is ever delivered.
    if SigSet::all().thread_block().is_err() || setsid().is_err() {
        return exit_codes::SYSTEM;
    }
    let _ = std::env::set_current_dir("/");
    guard(group, &alarm);
    0
}

fn guard(group: Pid, alarm: &Alarm) {
    let (orders, ready) = (stdin(), stdout());
    let mut first = true;
    loop {
        let mut events = [PollFd::new(&orders, PollFlags::IN), PollFd::new(alarm, PollFlags::IN)];
        if retry_on_intr(|| poll(&mut events, None)).is_err() {
            break;
        }
        let [ordered, rung] = events.map(|event| !event.revents().is_empty());
        if rung {
            alarm.silence();
            kill(group);
        }
        if ordered {
            let mut order = [0; 8];
            if retry_on_intr(|| rustix::io::read(orders, &mut order)) != Ok(order.len()) {
                break;
            }
            match Moment(u64::from_le_bytes(order)) {
                GOODBYE => return,
                last_moment if alarm.set(last_moment).is_err() => break,
                _ => {}
            }
            if std::mem::take(&mut first) && rustix::io::write(ready, b".").is_err() {
                break;
            }
        }
    }
    kill(group);
}

fn kill(group: Pid) {
    // It fails when nobody is left, or when somebody in the group may not be killed by us: nothing to be done.
    let _ = kill_process_group(group, Signal::KILL);
}
