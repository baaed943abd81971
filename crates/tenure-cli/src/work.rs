//! `tenure work`: runs deferred jobs when their locks are free.

use std::collections::HashSet;
use std::ffi::OsString;
use std::pin::Pin;
use std::time::Duration;

use tenure::{AcquireError, span};
use tenure_engine::unix_ms;

use crate::around::Hold;
use crate::busy::Policy;
use crate::exit_codes;
use crate::failure::Failure;
use crate::job::reap_strays;
use crate::locks::{Held, Kind, Lock, Locks};
use crate::orders::{Orders, label};
use crate::queue::{Deferred, Entry, Id, Queue, QueueError, Taken, Unreadable};
use crate::run::LEAVING;
use crate::signals::Signals;
use crate::store::Store;
use crate::supervise::Told;
use crate::text::Voice;

/// How often the queue is looked at for jobs that could run.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// In a job's environment: its ID.
const JOB_VARIABLE: &str = "TENURE_JOB";

/// Run deferred jobs when their locks are free
///
/// Runs the jobs that `tenure run --on-busy defer` has put into the queue of this account on this host, one at a time,
/// each under its lock as `tenure run` does: in the directory and with the variables with which it was deferred, and
/// TENURE_JOB, its ID. Its output goes where the worker's goes; it has no input and no terminal.
///
/// A job runs at least once. It leaves the queue when it has ended with 0; if the worker or the host dies before that,
/// it is begun again. After a failure it is begun again in 1s, 2s, 4s, up to 5m; after --max-attempts it is dead, and
/// waits for `tenure jobs --retry ID`. Several workers share the queue.
///
/// Only jobs whose lock is on the store of --url or TENURE_URL are run. A job whose lock is busy does not keep others
/// from running.
///
/// TERM, INT, HUP and QUIT go to the job that runs, if any, and then the worker ends with 0. A job that did not end
/// well by then is begun again, and that attempt does not count.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only jobs of these locks
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Run one job that is due and end, at once if there is none
    #[arg(long, conflicts_with = "drain")]
    once: bool,
    /// End when no job is due; what failed and is paused is not waited for
    #[arg(long)]
    drain: bool,
    /// How often a job is begun before it counts as dead
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: u32,
    /// Only jobs that were deferred with this --protocol; without it, those that were deferred without
    #[arg(long, value_name = "PROTOCOL", value_enum)]
    protocol: Option<Kind>,
    /// Say nothing about jobs that begin, end and fail
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    store: Store,
}

pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    let mut signals = Signals::take()?;
    let worker = Worker { queue: Queue::open()?, voice: Voice { quiet: args.quiet, verbose: false }, args };
    let mut told = String::new();
    loop {
        match worker.next_job(&mut signals).await {
            Ok(true) => told.clear(),
            Ok(false) => return Ok(0),
            // A store that is away may come back, and the jobs are safe meanwhile.
            Err(failure) if failure.code == exit_codes::BACKEND && !worker.ends() => {
                if told != failure.text {
                    worker.voice.say(&failure.text);
                    told = failure.text;
                }
                tokio::select! {
                    _ = signals.ending() => return Ok(0),
                    () = tokio::time::sleep(LOOKS_EVERY) => {}
                }
            }
            Err(failure) => return Err(failure),
        }
    }
}

struct Worker {
    queue: Queue,
    voice: Voice,
    args: Args,
}

/// A job in the line for its lock.
struct Waiting<'q> {
    taken: Taken<'q>,
    acquire: Pin<Box<dyn Future<Output = Result<Held, AcquireError>>>>,
}

impl Worker {
    /// Does it end when there is nothing to do?
    fn ends(&self) -> bool {
        self.args.once || self.args.drain
    }

    /// Waits for a job and runs it. False: that was all.
    async fn next_job(&self, signals: &mut Signals) -> Result<bool, Failure> {
        // A client for each job: what a job leaves behind keeps its lock until the last process of it is gone, and no
        // longer, once the client that acquired it is gone.
        let locks = tokio::select! {
            biased;
            _ = signals.ending() => return Ok(false),
            locks = self.args.store.connect_to(self.args.protocol.map(Kind::as_meant), "tenure work") => locks?,
        };
        let ready = tokio::select! {
            biased;
            _ = signals.ending() => Ok(None),
            ready = self.ready(&locks) => ready,
        };
        match ready {
            Ok(Some((taken, hold))) => self.carry_out(taken, hold, &locks, signals).await,
            none => {
                locks.close(LEAVING).await;
                none.map(|_| false)
            }
        }
    }

    /// Waits for a job that is due, and for its lock. `None`: there is none, and the worker ends then.
    ///
    /// Every job that is due has its lock tried. If all are busy, the oldest waits in line while the others, and those
    /// to come, are tried now and then; but not in the line of a lock that a job around us holds. Cancel safe: a place in
    /// line is given up.
    async fn ready(&self, locks: &Locks) -> Result<Option<(Taken<'_>, Held)>, Failure> {
        let mut waiting: Option<Waiting<'_>> = None;
        loop {
            reap_strays();
            let mut busy: HashSet<String> =
                waiting.iter().map(|waiting| waiting.taken.job.name.clone()).collect();
            for entry in self.queue.list()? {
                let Some(taken) = self.take(&entry, &locks.scope(), &busy)? else { continue };
                let lock = lock(locks, &taken.job);
                if let Some(hold) = lock.try_acquire().await.map_err(|error| not_acquired(&error))? {
                    return Ok(Some((taken, hold)));
                }
                busy.insert(taken.job.name.clone());
                if waiting.is_none() && Hold::around_us(locks, &taken.job.name).await?.is_none() {
                    let acquire = Box::pin(lock.acquire(Policy::Wait(None)));
                    waiting = Some(Waiting { taken, acquire });
                }
            }
            let look_again = tokio::time::sleep(LOOKS_EVERY);
            let Some(Waiting { acquire, .. }) = &mut waiting else {
                if self.ends() {
                    return Ok(None);
                }
                look_again.await;
                continue;
            };
            let answer = tokio::select! {
                biased;
                answer = acquire => answer,
                () = look_again => continue,
            };
            let taken = waiting.take().map(|waiting| waiting.taken);
            match answer {
                Ok(hold) => return Ok(taken.map(|taken| (taken, hold))),
                Err(AcquireError::Full) => tokio::time::sleep(LOOKS_EVERY).await,
                Err(error) => return Err(not_acquired(&error)),
            }
        }
    }

    /// Takes a job if it is one for this worker and may be begun now.
    fn take(
        &self,
        entry: &Entry,
        scope: &str,
        busy: &HashSet<String>,
    ) -> Result<Option<Taken<'_>>, QueueError> {
        let is_ours = |job: &Deferred| {
            let named = self.args.names.is_empty() || self.args.names.contains(&job.name);
            named
                && job.scope == scope
                && job.protocol == self.args.protocol
                && job.is_due(unix_ms())
                && !busy.contains(&job.name)
        };
        match &entry.job {
            Ok(job) if is_ours(job) => {}
            Err(why @ Unreadable::Damaged(_)) if !entry.set_aside => {
                if self.queue.set_aside(entry.id)? {
                    self.voice.say(&format!("job {} is {why}. It was set aside: tenure jobs", entry.id));
                }
                return Ok(None);
            }
            _ => return Ok(None),
        }
        // Somebody may have changed it since it was listed.
        let Some(mut taken) = self.queue.take(entry.id)?.filter(|taken| is_ours(&taken.job)) else {
            return Ok(None);
        };
        if taken.job.is_exhausted(self.args.max_attempts) {
            taken.save(taken.job.clone().buried())?;
            let (id, times) = (taken.id, taken.job.attempts);
            self.voice.say(&format!("job {id}: begun {times} times already; {}", dead(id)));
            return Ok(None);
        }
        Ok(Some(taken))
    }

    /// Runs a job under its lock, and notes how that went. False: a signal says that it was the last.
    async fn carry_out(
        &self,
        mut taken: Taken<'_>,
        hold: Held,
        locks: &Locks,
        signals: &mut Signals,
    ) -> Result<bool, Failure> {
        let (id, max_attempts) = (taken.id, self.args.max_attempts);
        // From here on it counts, whatever happens to us.
        if let Err(error) = taken.save(taken.job.clone().begun(unix_ms())) {
            let _ = hold.release().await;
            return Err(error.into());
        }
        let job = taken.job.clone();
        let words = words(&job);
        self.voice.say(&format!(
            "job {id}: '{}' begins, try {} of {max_attempts} ({})",
            job.name,
            job.attempts,
            label(&words, false)
        ));
        let mut surroundings = job.surroundings.clone();
        surroundings.variables.insert(JOB_VARIABLE.to_owned(), id.to_string());
        let orders = Orders {
            words: &words,
            limits: &job.limits(),
            surroundings: Some(&surroundings),
            voice: self.voice,
        };
        let outcome = orders.carry_out(hold, locks, signals).await?;
        let (code, now_ms) = (outcome.code, unix_ms());
        if code == 0 && outcome.told != Some(Told::Meanwhile) {
            taken.remove()?;
            self.voice.say(&format!("job {id}: done"));
        } else if outcome.told.is_some() {
            taken.save(job.interrupted(code, now_ms))?;
            self.voice
                .say(&format!("job {id}: stopped with its worker (exit {code}); it will be begun again"));
        } else {
            taken.save(job.failed(code, max_attempts, now_ms))?;
            let next = match &taken.job {
                job if job.dead => dead(id),
                job => format!("again in {}", span(job.not_before_ms.saturating_sub(now_ms))),
            };
            self.voice.say(&format!("job {id}: failed (exit {code}); {next}"));
        }
        Ok(outcome.told.is_none() && !self.args.once)
    }
}

fn words(job: &Deferred) -> Vec<OsString> {
    job.words.iter().map(OsString::from).collect()
}

fn lock(locks: &Locks, job: &Deferred) -> Lock {
    locks.lock(&job.name, job.limits().ttl, &label(&words(job), job.no_cmdline))
}

/// What to do about a job that is not begun again by itself.
fn dead(id: Id) -> String {
    format!("dead until: tenure jobs --retry {id}")
}

fn not_acquired(error: &AcquireError) -> Failure {
    Failure::backend(error.to_string())
}
