//! The trampoline: what the job's process runs before it becomes the job.
//!
//! Whatever a process has to arrange about itself between its birth and its command, it arranges here, as an
//! ordinary program: that it dies with the wrapper, that it does not begin before everything stands ready, and where it
//! runs.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::SigSet;
use rustix::fs::Mode;
use rustix::process::{Pid, Signal, chdir, getpid, getppid, set_parent_process_death_signal, setsid, umask};

use crate::job::Surroundings;
use crate::text::say;
use crate::{around, exit_codes};

/// What the process is called with: `tenure __exec WRAPPER GO PLACE COMMAND ARGUMENTS..`, where `WRAPPER` is the process
/// number of its parent, `GO` the number of an open pipe that says when to begin, and `PLACE` is [`HERE`] or comes from
/// [`place`].
pub(crate) const COMMAND: &str = "__exec";

/// It runs where its wrapper does.
pub(crate) const HERE: &str = "-";

/// It runs in surroundings of its own: its mask and its directory, as one word.
pub(crate) fn place(surroundings: &Surroundings) -> OsString {
    let mut place = OsString::from(format!("{:o}:", surroundings.umask));
    place.push(&surroundings.directory);
    place
}

/// The byte on the pipe that means: begin.
pub(crate) const GO: &[u8] = b".";

/// The whole program. Returns only if the command cannot be run.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let mut number = || arguments.next()?.to_str()?.parse::<i32>().ok();
    let (wrapper, go) = (number().and_then(Pid::from_raw), number());
    let (Some(wrapper), Some(go), Some(place), Some(command)) =
        (wrapper, go, arguments.next(), arguments.next())
    else {
        return exit_codes::USAGE;
    };
    // In this order: a wrapper that died before the first line is seen by the second.
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    if let Err(error) = tied {
        say(&format!("cannot tie the job to its wrapper: {error}. Nothing was run"));
        return exit_codes::SYSTEM;
    }
    let apart = place != HERE;
    // Its own session: it has no terminal that could stop it or that it could ask.
    if getppid() != Some(wrapper) || apart && setsid().is_err() || !may_begin(go) {
        return exit_codes::SYSTEM;
    }
    if apart && let Err(code) = go_to(&place) {
        return code;
    }
    let (name, value) = around::with_this_job(wrapper, getpid());
    exec(Command::new(command).args(arguments).env(name, value))
}

/// Goes where the job runs, or returns the exit code that says that it cannot be.
fn go_to(place: &OsStr) -> Result<(), u8> {
    let (mask, directory) =
        place.to_str().and_then(|place| place.split_once(':')).ok_or(exit_codes::USAGE)?;
    umask(Mode::from_bits_truncate(u32::from_str_radix(mask, 8).map_err(|_| exit_codes::USAGE)?));
    chdir(directory).map_err(|error| {
        let (shown, code) = (tenure::printable(directory), exit_codes::NOT_EXECUTABLE);
        say(&format!("cannot run in the directory '{shown}': {}. Exit {code}", io::Error::from(error)));
        code
    })
}

/// Becomes the command. Returns only if it cannot be run, with the exit code that says so.
pub(crate) fn exec(command: &mut Command) -> u8 {
    // What came while signals were blocked, as the wrapper had them, arrives now.
    let _ = SigSet::empty().thread_set_mask();
    let error = command.exec();
    let shown = tenure::printable(&command.get_program().to_string_lossy());
    if error.kind() == ErrorKind::NotFound {
        say(&format!("cannot run '{shown}': not found. Exit {}", exit_codes::NOT_FOUND));
        exit_codes::NOT_FOUND
    } else {
        say(&format!("cannot run '{shown}': {error}. Exit {}", exit_codes::NOT_EXECUTABLE));
        exit_codes::NOT_EXECUTABLE
    }
}

/// Waits for the go. False: the wrapper is gone.
fn may_begin(go: i32) -> bool {
    // The descriptor came by number; opened by its path it is ours, and the job inherits neither of the two.
    let pipe = std::fs::File::open(format!("/proc/self/fd/{go}"));
    let _ = nix::unistd::close(go);
    let mut begin = [0; GO.len()];
    pipe.and_then(|mut pipe| std::io::Read::read_exact(&mut pipe, &mut begin)).is_ok() && begin == GO
}
