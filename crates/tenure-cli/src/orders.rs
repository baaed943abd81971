//! What is run under a lock, from the grant to the release. The lock is given back on every way out of here.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::process::WaitStatus;
use tenure::{Lost, Moment, ReleaseError, span};
use tenure_core::lease;
use tenure_engine::boottime;

use crate::failure::Failure;
use crate::files::lock_alone;
use crate::job::{Job, Recipe, Surroundings};
use crate::locks::{Held, Locks};
use crate::plan::{Cause, Plan, Rules};
use crate::signals::Signals;
use crate::store::URL_VARIABLE;
use crate::supervise::{Stop, Told, Verdict, supervise};
use crate::text::{Voice, alarming, command_line, say};
use crate::{around, duration, exit_codes};

/// Shortest lease of a job: below it, no time would be left for TERM before KILL.
const TTL_MIN: Duration = Duration::from_secs(2);

/// How long the release of a lock may take that was lost, or under which nothing has run.
const LATE_RELEASE: Duration = Duration::from_secs(1);

/// How long a job may hold its lock, and how it is stopped.
#[derive(clap::Args, Clone, PartialEq, Eq, Debug)]
#[command(next_help_heading = "How long it may hold the lock")]
pub(crate) struct Limits {
    /// The length of the lease, 2s to 24h. It is renewed while the command runs: it is how long others wait after
    /// this host died
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s")]
    pub(crate) ttl: Duration,
    /// The time between TERM and KILL when the command has to stop; a sixth of the ttl, a third at most
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) kill_after: Option<Duration>,
    /// Stop the command when it has held the lock for this long: TERM, then KILL after --kill-after. Exit 124
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,
}

impl Limits {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.ttl < TTL_MIN || self.ttl.as_millis() as u64 > lease::TTL_MS_MAX {
            return Err(format!("--ttl {:?} is outside 2s to 24h", self.ttl));
        }
        if let Some(kill_after) = self.kill_after
            && kill_after > self.ttl / 3
        {
            return Err(format!(
                "--kill-after {kill_after:?} is more than a third of --ttl {:?}: too little would be left for renewals",
                self.ttl
            ));
        }
        if self.max_hold == Some(Duration::ZERO) {
            return Err(
                "--max-hold 0 would stop the command before it begins; leave it out to set no limit".into()
            );
        }
        Ok(())
    }

    fn kill_after_ms(&self) -> u64 {
        self.kill_after.unwrap_or(self.ttl / 6).as_millis() as u64
    }

    /// When it has held a lock for as long as it may that was granted then.
    fn end_of(&self, granted: Moment) -> Moment {
        self.max_hold.map_or(Moment::NEVER, |max_hold| granted.plus(max_hold.as_millis() as u64))
    }
}

/// What is to be run under a lock, and how.
pub(crate) struct Orders<'a> {
    /// The command and its arguments.
    pub(crate) words: &'a [OsString],
    /// How long it may hold the lock.
    pub(crate) limits: &'a Limits,
    /// Where it runs; `None`: here, as this process does.
    pub(crate) surroundings: Option<&'a Surroundings>,
    /// How much is said about it.
    pub(crate) voice: Voice,
}

/// How it went.
pub(crate) struct Outcome {
    /// The exit code, as `tenure run` ends with it.
    pub(crate) code: u8,
    /// Whether a signal asks us to end.
    pub(crate) told: Option<Told>,
    /// The command was at work to its end or its limit. False: the code says nothing about it, as it was not begun, or
    /// lost its lock.
    pub(crate) by_itself: bool,
}

impl Orders<'_> {
    /// Runs the job under the lock that was just granted, stops it if it has to be stopped, and gives the lock back.
    ///
    /// # Errors
    /// The job can't be watched. It may run, and dies with this process, which has to end now.
    pub(crate) async fn carry_out(
        &self,
        hold: Held,
        locks: &Locks,
        signals: &mut Signals,
    ) -> Result<Outcome, Failure> {
        let granted = boottime();
        let file = match hold.job_file() {
            Ok(file) => file,
            Err(fault) => return Ok(not_begun(hold, exit_codes::BACKEND, &fault.to_string()).await),
        };
        let rules = Rules {
            kept: file.is_some(),
            kill_after_ms: self.limits.kill_after_ms(),
            limit: self.limits.end_of(granted),
            ends_with_us: self.surroundings.is_some(),
        };
        let recipe = Recipe {
            words: self.words,
            surroundings: self.surroundings,
            set: around::variables(&hold, locks),
            unset: &[URL_VARIABLE, around::FENCE_VARIABLE, around::HOLDER_VARIABLE],
            file: file.as_ref(),
            last_moment: Plan::of(&hold.watch().state(), rules, granted).kill,
        };
        let mut job = match Job::start(&recipe) {
            Ok(job) => job,
            Err(error) => {
                let why = format!("the command could not be started: {error}");
                return Ok(not_begun(hold, exit_codes::SYSTEM, &why).await);
            }
        };
        let verdict = supervise(&mut job, &mut hold.watch(), signals, rules, self.voice).await?;
        job.close(verdict.gone);
        Ok(self.conclude(hold, file, verdict, signals).await)
    }

    /// Gives the lock back and says how it went.
    async fn conclude(
        &self,
        hold: Held,
        file: Option<OwnedFd>,
        verdict: Verdict,
        signals: &mut Signals,
    ) -> Outcome {
        let Verdict { ended, stopped, told, gone } = verdict;
        let name = hold.name().to_owned();
        let code = match &stopped {
            Some(stop) => {
                self.voice.say(&self.why_stopped(&hold, stop, gone));
                stop.code()
            }
            None => ended.map_or(exit_codes::LOST, code_of),
        };
        let mut end = Outcome { code, told, by_itself: true };
        if let Some(Stop { cause: Cause::Lost(lost), .. }) = stopped {
            // A lease that is not renewed was too short for the command, and will be the next time.
            end.by_itself = lost == Lost::Expired && !hold.is_renewed();
            if gone {
                // Whether it arrives or not: the lease is over, or as good as over.
                let _ = tokio::time::timeout(LATE_RELEASE, hold.release()).await;
            } else {
                hold.leave();
            }
            return end;
        }
        if file.is_none() && !gone {
            self.voice.say(&format!(
                "'{name}': the command ended, but processes that it started could not be killed. The lock is not \
                 released, and ends with its lease"
            ));
            hold.leave();
            return end;
        }
        // Kept until the lock is released: without it, a lease that ran out meanwhile would count.
        let _file = match file.map(for_us_alone) {
            Some(None) => {
                let why = "the command ended, but processes that it started still run and keep the lock";
                match self.limits.max_hold {
                    Some(_) => self.voice.say(&format!("'{name}': {why}: --max-hold does not reach them")),
                    None => self.voice.detail(why),
                }
                // Not released, not even by its drop: the lock is theirs now.
                hold.leave();
                return end;
            }
            file => file,
        };
        let is_renewed = hold.is_renewed();
        let released = tokio::select! {
            biased;
            released = hold.release() => released,
            // Somebody is in a hurry: what is not released now ends with its lease.
            _ = signals.ending() => return Outcome { told: told.or(Some(Told::Afterwards)), ..end },
        };
        match released {
            Ok(released) => {
                // A lock that is renewed would have been told of its loss. A stamp is judged by everybody's clock.
                if !is_renewed && !released.is_confirmed() {
                    self.voice.say(&format!(
                        "'{name}': the command ended, but the key does not hold its stamp any more, and was left \
                         as it is. Somebody tried to take the lock over, or did, by a clock that is fast: then both worked \
                         at the same time"
                    ));
                }
                end
            }
            Err(ReleaseError::NotHeld) => {
                self.voice.say(&format!(
                    "{} '{name}': the command ended (exit {code}), but the lock was not held any more by then. Somebody \
                     else may have worked at the same time. Exit {}",
                    alarming("LOST"),
                    exit_codes::LOST
                ));
                Outcome { code: exit_codes::LOST, by_itself: false, ..end }
            }
            Err(error) => {
                self.voice.say(&format!("'{name}': {error}"));
                end
            }
        }
    }

    fn why_stopped(&self, hold: &Held, stop: &Stop, gone: bool) -> String {
        let (name, valid_until) = (hold.name(), hold.deadline());
        let ttl_ms = self.limits.ttl.as_millis() as u64;
        let (title, why) = match &stop.cause {
            Cause::MaxHold => {
                let limit = self.limits.max_hold.unwrap_or_default();
                ("STOPPED", format!("held for {}, its --max-hold", span(limit.as_millis() as u64)))
            }
            Cause::Lost(Lost::Expired) if !hold.is_renewed() => {
                let ttl = span(ttl_ms);
                ("LOST", format!("it lasts for {ttl} and is not renewed: --ttl must cover the command"))
            }
            Cause::Lost(Lost::Expired) => {
                let renewed = valid_until.minus(lease::valid_until(Moment(0), ttl_ms).0);
                ("LOST", format!("no renewal was answered for {}", span(stop.at.since(renewed))))
            }
            Cause::Lost(Lost::Taken) => {
                ("LOST", "the store says that it is held by somebody else or nobody".to_owned())
            }
            Cause::Lost(Lost::Asked { by }) => {
                ("LOST", format!("asked to stop by {}", tenure::printable(by)))
            }
        };
        let how = if stop.killed {
            format!("TERM, {}, KILL", span(self.limits.kill_after_ms()))
        } else {
            "TERM".to_owned()
        };
        let end = valid_until.plus(lease::margin_ms(ttl_ms));
        let when = match (&stop.cause, gone) {
            (_, false) => ", but some of it could not be killed".to_owned(),
            (Cause::Lost(Lost::Expired), true) if stop.by_keeper => {
                "; this process did not run meanwhile, and its keeper killed the job before the lease ended"
                    .to_owned()
            }
            (Cause::Lost(Lost::Expired), true) if stop.dead_at <= end => {
                format!(" {} before its lease ended", span(end.since(stop.dead_at)))
            }
            (Cause::Lost(Lost::Expired), true) => {
                format!(" {} after its lease ended", span(stop.dead_at.since(end)))
            }
            _ => String::new(),
        };
        let what = if stop.leftovers { "what the command left behind" } else { "the job" };
        format!("{} '{name}': {why}. Stopped {what} ({how}){when}. Exit {}", alarming(title), stop.code())
    }
}

/// The job was not begun: gives the lock back and says why.
async fn not_begun(hold: Held, code: u8, why: &str) -> Outcome {
    let _ = tokio::time::timeout(LATE_RELEASE, hold.release()).await;
    say(&format!("{why}. Nothing was run"));
    Outcome { code, told: None, by_itself: false }
}

/// What others see of a command.
pub(crate) fn label(words: &[OsString], no_cmdline: bool) -> String {
    let shown = if no_cmdline { 1 } else { words.len() };
    command_line(words.iter().take(shown).map(|word| word.to_string_lossy()))
}

fn code_of(ended: WaitStatus) -> u8 {
    match (ended.exit_status(), ended.terminating_signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => exit_codes::of_signal(signal),
        (None, None) => exit_codes::SYSTEM,
    }
}

/// The job's file, locked by us alone; `None`: others have it open.
fn for_us_alone(file: OwnedFd) -> Option<File> {
    // The lock on it belongs to what all of the job inherited. One that is opened anew can be locked when the last of
    // them is gone; we go first.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = File::options().read(true).write(true).open(path);
    drop(file);
    again.ok().filter(lock_alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_leave_no_time_are_refused() {
        let good = Limits { ttl: Duration::from_secs(30), kill_after: None, max_hold: None };
        assert_eq!(good.check(), Ok(()));
        let none = Limits { max_hold: Some(Duration::ZERO), ..good.clone() };
        assert!(none.check().unwrap_err().contains("before it begins"));
        let late = Limits { kill_after: Some(Duration::from_secs(11)), ..good };
        assert!(late.check().unwrap_err().contains("more than a third"));
    }
}
