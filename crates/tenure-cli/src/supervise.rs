//! Watches over a job for as long as it runs: the lease may end, signals come in, the job stops or ends.

use nix::sys::signal::Signal as Sent;
use rustix::process::{Signal, WaitStatus};
use tenure::{LeaseWatch, Moment, span};
use tenure_engine::boottime;

use crate::alarm::Alarm;
use crate::exit_codes;
use crate::files::awaitable;
use crate::job::Job;
use crate::plan::{Cause, Plan, Rules};
use crate::signals::{Event, Signals, ends, stop_ourselves};
use crate::text::Voice;

/// How often the rest of a job is looked at when its command has ended.
const LOOK_AGAIN_MS: u64 = 10;

/// How long a job may survive SIGKILL (a process in the kernel's hands, or of another account) before we give up.
const UNKILLABLE_AFTER_MS: u64 = 5_000;

/// How it went.
pub(crate) struct Verdict {
    /// How the command ended; `None`: it could not be killed.
    pub(crate) ended: Option<WaitStatus>,
    /// Why the job was stopped, if it did not end by itself.
    pub(crate) stopped: Option<Stop>,
    /// Whether a signal asked us, and with us the job, to end.
    pub(crate) told: Option<Told>,
    /// Nobody of the job is left, as far as its process group tells.
    pub(crate) gone: bool,
}

/// When a signal asked us to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// While the command ran. It was passed on, so that the command may have been cut short, whatever its exit code.
    Meanwhile,
    /// When the command had ended.
    Afterwards,
}

/// The job had to be stopped.
pub(crate) struct Stop {
    pub(crate) cause: Cause,
    /// The command had ended: it was what it had left behind.
    pub(crate) leftovers: bool,
    /// When it was told to stop.
    pub(crate) at: Moment,
    /// TERM was not enough.
    pub(crate) killed: bool,
    /// It was the keeper who killed it: we did not run at that time.
    pub(crate) by_keeper: bool,
    /// When it was dead.
    pub(crate) dead_at: Moment,
}

impl Stop {
    /// The exit code that says so.
    pub(crate) fn code(&self) -> u8 {
        match self.cause {
            Cause::Lost(_) => exit_codes::LOST,
            Cause::MaxHold => exit_codes::MAX_HOLD,
        }
    }
}

/// TERM was sent; KILL follows.
struct Ending {
    kill: Moment,
    killed_at: Option<Moment>,
}

/// Returns when the command has ended and, where the lease is all that keeps the lock or the hold has a limit,
/// everybody it left behind.
pub(crate) async fn supervise(
    job: &mut Job,
    lease: &mut LeaseWatch,
    signals: &mut Signals,
    rules: Rules,
    voice: Voice,
) -> std::io::Result<Verdict> {
    let alarm = awaitable(Alarm::new()?)?;
    let mut ending: Option<Ending> = None;
    let mut stop: Option<Stop> = None;
    let mut told = None;
    // Where what the command leaves behind keeps the lock, it may do so until then.
    let until_limit = rules.kept && rules.limit != Moment::NEVER;
    let (mut resume, mut warned) = (false, false);
    loop {
        // Each round begins with the lease, by the clock: whatever happened before may have taken any time.
        let stopped = job.reap();
        let now = boottime();
        let state = lease.state();
        let plan = Plan::of(&state, rules, now);
        if state.at_risk && !warned && !rules.kept {
            voice.detail(&format!(
                "a renewal failed; without another one the command is stopped in {}",
                span(plan.terminate.since(now))
            ));
        }
        warned = state.at_risk;

        let leftovers = job.ended().is_some() && !job.is_gone();
        let must_stop = match job.ended() {
            None => now >= plan.terminate,
            Some(_) if leftovers && until_limit => now >= plan.terminate,
            // While we were stopped ourselves, the keeper was the one who killed it.
            Some(ended) => was_killed(ended) && now >= plan.kill,
        };
        if must_stop && stop.is_none() {
            stop = Some(Stop {
                cause: plan.cause,
                leftovers,
                at: now,
                killed: false,
                by_keeper: false,
                dead_at: now,
            });
        }
        if ending.is_none() && (must_stop || leftovers && !rules.kept) {
            let kill = plan.kill.min(now.plus(rules.kill_after_ms));
            ending = Some(Ending { kill, killed_at: None });
            job.signal(Signal::TERM);
            // A stopped process gets its TERM only when it goes on.
            if now < kill {
                job.signal(Signal::CONT);
            }
        }
        if let Some(ending) = &mut ending {
            ending.kill = ending.kill.min(plan.kill);
            if now >= ending.kill && !job.is_gone() {
                ending.killed_at.get_or_insert(now);
                job.signal(Signal::KILL);
            }
        }
        job.last_moment(ending.as_ref().map_or(plan.kill, |ending| ending.kill));

        let gone = job.is_gone();
        let given_up = ending
            .as_ref()
            .and_then(|ending| ending.killed_at)
            .is_some_and(|killed_at| now.since(killed_at) >= UNKILLABLE_AFTER_MS);
        if gone || given_up || job.ended().is_some() && ending.is_none() && !until_limit {
            if let Some(stop) = &mut stop {
                let by_us = ending.is_some_and(|ending| ending.killed_at.is_some());
                stop.by_keeper = !by_us && job.ended().is_some_and(was_killed);
                stop.killed = by_us || stop.by_keeper;
                stop.dead_at = now;
            }
            return Ok(Verdict { ended: job.ended(), stopped: stop, told, gone });
        }

        if let Some(signal) = stopped.filter(|_| ending.is_none()) {
            resume |= pause(job, signal);
        } else if std::mem::take(&mut resume) && ending.is_none() {
            job.give_terminal();
            job.signal(Signal::CONT);
        }

        let next = match &ending {
            None => plan.terminate,
            Some(ending) if job.ended().is_none() && now < ending.kill => ending.kill,
            Some(_) => now.plus(LOOK_AGAIN_MS),
        };
        if resume {
            continue;
        }
        alarm.get_ref().set(next)?;
        tokio::select! {
            biased;
            ready = alarm.readable() => {
                alarm.get_ref().silence();
                ready?.clear_ready();
            }
            () = lease.changed() => {}
            event = signals.next() => match event {
                Event::Child => {}
                // Not before the next look at the lease.
                Event::Sent(Sent::SIGCONT) => resume = true,
                Event::Sent(signal) => {
                    if let Some(signal) = Signal::from_named_raw(signal as i32) {
                        job.signal(signal);
                    }
                    if ends(signal) {
                        // Whoever is stopped gets it only when it goes on.
                        job.signal(Signal::CONT);
                        let running = job.ended().is_none();
                        told.get_or_insert(if running { Told::Meanwhile } else { Told::Afterwards });
                        if rules.ends_with_us && ending.is_none() {
                            let kill = boottime().plus(rules.kill_after_ms);
                            ending = Some(Ending { kill, killed_at: None });
                        }
                    }
                }
            },
        }
    }
}

fn was_killed(ended: WaitStatus) -> bool {
    ended.terminating_signal() == Some(Signal::KILL.as_raw())
}

/// The command was stopped. If it wanted the terminal, it gets it; if the terminal stopped it, we stop too, so that
/// the shell above us gets its turn. True: it should go on.
fn pause(job: &mut Job, signal: i32) -> bool {
    let wants_terminal = signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw();
    if wants_terminal && job.give_terminal() {
        return true;
    }
    if !wants_terminal && signal != Signal::TSTP.as_raw() {
        // Somebody stopped it by hand, and will wake it by hand.
        return false;
    }
    job.take_terminal();
    stop_ourselves();
    // If nobody could have woken us we did not stop. Then a Ctrl-Z has no effect, as everywhere else without a
    // shell; but whoever wants a terminal that cannot be had would be stopped again and again.
    !wants_terminal
}
