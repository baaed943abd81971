//! The jobs that this process runs in, and the locks that they hold.

use std::ffi::OsString;
use std::process::Command;

use rustix::process::{Pid, getpid};
use tenure::State;

use crate::failure::Failure;
use crate::locks::{Held, Locks};
use crate::store::{SCOPE_VARIABLE, URL_VARIABLE, not_seen};
use crate::trampoline;

/// In a job's environment: the jobs around it, outermost first, as [`Around`] writes them. Whoever reads it does not
/// believe it: an environment is easily copied out of its job, and outlives it.
const HOLDERS_VARIABLE: &str = "TENURE_HOLDERS";

/// In a job's environment: the fencing token and the public id of its hold. Not those of a job around it where there
/// are none.
pub(crate) const FENCE_VARIABLE: &str = "TENURE_FENCE";
pub(crate) const HOLDER_VARIABLE: &str = "TENURE_HOLDER";

/// Stands for the id of a hold that has none.
const NO_HOLDER: &str = "-";

/// How far up the line of its parents a process is looked for.
const GENERATIONS_MAX: usize = 1000;

/// A job around us: `HOLDER:WRAPPER:GROUP`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Around {
    /// The public id of its hold.
    holder: String,
    /// The process that watches over it.
    wrapper: i32,
    /// Its process group, which is what the wrapper stops.
    group: i32,
}

impl Around {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (holder, wrapper, group) = (parts.next()?.to_owned(), parts.next()?, parts.next()?);
        Some(Self { holder, wrapper: wrapper.parse().ok()?, group: group.parse().ok()? })
    }

    /// All of them, outermost first; none if some make no sense.
    fn all(text: &str) -> Vec<Self> {
        text.split(' ').map(Self::read).collect::<Option<_>>().unwrap_or_default()
    }
}

/// What the kernel says of a process.
#[derive(Clone, Copy)]
struct Kin {
    parent: i32,
    group: i32,
}

impl Kin {
    fn of(process: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name of the program comes before, and may be anything.
        let (_, numbers) = stat.rsplit_once(") ")?;
        let mut numbers = numbers.split(' ').skip(1).map(str::parse);
        Some(Self { parent: numbers.next()?.ok()?, group: numbers.next()?.ok()? })
    }
}

/// How a process stands to the outermost of some jobs, each inside the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Its wrapper does not wait for us.
    Outside,
    /// Its wrapper waits for us, but what it stops does not include us.
    Strayed,
    /// Whatever stops the job stops us: we are in its process group, or a wrapper is that stops us then.
    Inside,
}

fn standing(process: i32, jobs: &[Around], kin: impl Fn(i32) -> Option<Kin>) -> Standing {
    let (mut at, mut in_group) = (process, true);
    for job in jobs.iter().rev() {
        in_group &= kin(at).is_some_and(|kin| kin.group == job.group);
        let mut generations = 0;
        while generations == 0 || at != job.wrapper {
            generations += 1;
            match kin(at) {
                Some(Kin { parent, .. }) if parent > 0 && generations <= GENERATIONS_MAX => at = parent,
                _ => return Standing::Outside,
            }
        }
    }
    if in_group { Standing::Inside } else { Standing::Strayed }
}

/// A hold of a job around us.
pub(crate) struct Hold {
    name: String,
    /// Locks of other programs have none.
    fence: Option<u64>,
    /// Its public id.
    pub(crate) holder: String,
    /// It does not end under us in silence.
    covers_us: bool,
}

impl Hold {
    /// The hold of a job around us, if one of them has this lock. That job waits for us, so that whoever waited for the
    /// lock here would wait for ever.
    pub(crate) async fn around_us(locks: &Locks, name: &str) -> Result<Option<Self>, Failure> {
        let Ok(around) = std::env::var(HOLDERS_VARIABLE) else { return Ok(None) };
        let lock = locks.inspect(name).await.map_err(|error| not_seen(&error))?;
        // One that is about to end by the clock waits for nobody, and no command can begin under it.
        let (false, Some(holder)) = (lock.state == State::Ending, lock.holder) else { return Ok(None) };
        let jobs = Around::all(&around);
        let Some(outermost) = jobs.iter().position(|job| job.holder == holder.id) else { return Ok(None) };
        let us = getpid().as_raw_nonzero().get();
        let covers_us = match standing(us, &jobs[outermost..], Kin::of) {
            Standing::Outside => return Ok(None),
            // On one host it is not the group that keeps the lock.
            _ if locks.scope().starts_with("file:") => has_job_file(&holder.id),
            standing => standing == Standing::Inside,
        };
        Ok(Some(Self { name: name.to_owned(), fence: lock.fence, holder: holder.id, covers_us }))
    }

    /// Why no command can run under it; `None`: it can.
    pub(crate) fn why_not_reentered(&self) -> Option<&'static str> {
        match self {
            // A command must find its fencing token.
            Self { fence: None, .. } => Some("a lock without a fencing token cannot be entered again"),
            Self { covers_us: false, .. } => Some(
                "this process has left that job (its process group, or the open file that keeps the lock): a command \
                 would run on when the lock is lost",
            ),
            _ => None,
        }
    }

    /// Becomes a command under it, which the wrapper of that job watches over. Returns only if it cannot be run, with
    /// the exit code that says so.
    pub(crate) fn reenter(&self, words: &[OsString], locks: &Locks) -> u8 {
        let (command, arguments) = words.split_first().expect("there is a command");
        trampoline::exec(
            Command::new(command)
                .args(arguments)
                .envs(of_hold(&self.name, self.fence, Some(self.holder.clone()), locks))
                .env_remove(URL_VARIABLE),
        )
    }
}

/// Do we have the file open that keeps this hold for as long as somebody has it open?
fn has_job_file(holder: &str) -> bool {
    let end = format!("/jobs/{holder}");
    let Ok(files) = std::fs::read_dir("/proc/self/fd") else { return false };
    files
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok())
        .any(|path| path.to_str().is_some_and(|path| path.ends_with(&end)))
}

/// What a job that begins under `held` finds in its environment.
pub(crate) fn variables(held: &Held, locks: &Locks) -> Vec<(&'static str, String)> {
    let mut variables = of_hold(held.name(), held.fence(), held.holder(), locks);
    variables.extend(std::env::var(HOLDERS_VARIABLE).map(|around| (HOLDERS_VARIABLE, around)));
    variables
}

/// What a job finds there besides, as nobody knows it before it is born: itself. To be asked in its own process, in the
/// environment of [`variables`].
pub(crate) fn with_this_job(wrapper: Pid, group: Pid) -> (&'static str, String) {
    let holder = std::env::var(HOLDER_VARIABLE).unwrap_or_else(|_| NO_HOLDER.to_owned());
    let this = format!("{holder}:{wrapper}:{group}");
    let around = std::env::var(HOLDERS_VARIABLE).map(|around| format!("{around} {this}"));
    (HOLDERS_VARIABLE, around.unwrap_or(this))
}

/// What a command finds in its environment about the hold that it runs under.
fn of_hold(
    name: &str,
    fence: Option<u64>,
    holder: Option<String>,
    locks: &Locks,
) -> Vec<(&'static str, String)> {
    let mut variables = vec![("TENURE_NAME", name.to_owned()), (SCOPE_VARIABLE, locks.scope())];
    variables.extend(fence.map(|fence| (FENCE_VARIABLE, fence.to_string())));
    variables.extend(holder.map(|holder| (HOLDER_VARIABLE, holder)));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Process, parent, group: a wrapper 10 with the job 11, in it a wrapper 20 with the job 21, which has a child 22 that
    /// has left its group; and a stranger 30.
    const FAMILY: [(i32, i32, i32); 7] =
        [(1, 0, 1), (10, 1, 10), (11, 10, 11), (20, 11, 11), (21, 20, 21), (22, 21, 22), (30, 1, 30)];

    fn standing_to(process: i32, around: &str) -> Standing {
        standing(process, &Around::all(around), |process| {
            let &(_, parent, group) = FAMILY.iter().find(|(known, ..)| *known == process)?;
            Some(Kin { parent, group })
        })
    }

    #[test]
    fn a_process_is_inside_a_job_whose_end_is_its_own() {
        assert_eq!(standing_to(11, "a:10:11"), Standing::Inside);
        assert_eq!(standing_to(21, "a:10:11 b:20:21"), Standing::Inside);
        assert_eq!(standing_to(22, "a:10:11 b:20:21"), Standing::Strayed);
        assert_eq!(standing_to(21, "a:10:11"), Standing::Strayed, "nobody stops 21 when 11 is stopped");
    }

    #[test]
    fn an_environment_that_was_carried_out_of_its_job_proves_nothing() {
        assert_eq!(standing_to(30, "a:10:11"), Standing::Outside);
        assert_eq!(standing_to(11, "a:99:11"), Standing::Outside);
        assert_eq!(standing_to(10, "a:10:11"), Standing::Outside, "the wrapper is not in its own job");
        assert_eq!(standing_to(99, "a:10:11"), Standing::Outside);
        assert_eq!(Around::all("a b:1:2"), []);
    }

    #[test]
    fn the_kernel_tells_parent_and_group() {
        let us = Kin::of(getpid().as_raw_nonzero().get()).expect("/proc");
        assert_eq!(us.parent, rustix::process::getppid().unwrap().as_raw_nonzero().get());
        assert_eq!(us.group, rustix::process::getpgrp().as_raw_nonzero().get());
    }
}
