//! A program that dies with us: whatever ends the lab, even a kill -9, leaves no server behind.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// What the process is called with: `__tied PARENT PROGRAM ARGUMENTS..`.
pub(crate) const COMMAND: &str = "__tied";

/// The words to put before a program's own.
pub(crate) fn words() -> Vec<OsString> {
    ["/proc/self/exe", COMMAND, &getpid().as_raw_nonzero().to_string()].into_iter().map(Into::into).collect()
}

/// The whole program. Returns only if it fails.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let parent = arguments.next().and_then(|word| word.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let (Some(parent), Some(program)) = (parent, arguments.next()) else { return 64 };
    // In this order: a parent that died before the first line is seen by the second.
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() || getppid() != Some(parent) {
        return 71;
    }
    let _ = Command::new(program).args(arguments).exec();
    127
}
