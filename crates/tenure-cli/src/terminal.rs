use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, getpgrp};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal on stdin, if it is the one that controls us.
///
/// The job has a process group of its own, and only one group may read from a terminal and gets its Ctrl-C: the
/// foreground. We pass that on to the job and take it back.
pub(crate) struct Terminal {
    ours: Pid,
    given: bool,
}

impl Terminal {
    pub(crate) fn of_stdin() -> Option<Self> {
        // Fails for everything that isn't our controlling terminal.
        tcgetpgrp(stdin()).ok().map(|_| Self { ours: getpgrp(), given: false })
    }

    /// Passes the foreground on if it is ours to give. True: it was.
    pub(crate) fn give(&mut self, group: Pid) -> bool {
        let ours = tcgetpgrp(stdin()) == Ok(self.ours);
        if ours {
            self.given = set_foreground(group);
        }
        ours && self.given
    }

    /// Takes the foreground back if we gave it.
    pub(crate) fn take_back(&mut self) {
        if std::mem::take(&mut self.given) {
            set_foreground(self.ours);
        }
    }
}

/// Does our output go into a pipe? Then our own group has other members, like a pager, that need the foreground, and
/// the job gets it only when it asks for it.
pub(crate) fn piped_on() -> bool {
    fstat(stdout()).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}

fn set_foreground(group: Pid) -> bool {
    // Who does this from the background is stopped by SIGTTOU unless that is blocked.
    let mut ttou = SigSet::empty();
    ttou.add(Signal::SIGTTOU);
    let _ = ttou.thread_block();
    let set = tcsetpgrp(stdin(), group).is_ok();
    let _ = ttou.thread_unblock();
    set
}
