//! `tenure work`: runs deferred jobs when their locks are free.

use std::collections::HashSet;
use std::ffi::OsString;
use std::pin::Pin;
use std::time::Duration;

use tenure::{AcquireError, FaultKind, span};
use tenure_engine::unix_ms;

use crate::around::Hold;
use crate::busy::Policy;
use crate::failure::Failure;
use crate::job::reap_strays;
use crate::locks::{Held, Kind, Lock, Locks};
use crate::orders::{Orders, Outcome, label};
use crate::queue::{Deferred, Entry, Id, PAUSE_MAX, Queue, QueueError, Retries, Shelf, Taken, Unreadable};
use crate::run::LEAVING;
use crate::signals::Signals;
use crate::store::Store;
use crate::supervise::Told;
use crate::text::{Voice, say};
use crate::{duration, exit_codes};

/// How often the queue is looked at for jobs that could run.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// So many others are run before the oldest job whose lock is busy; then the worker stands in its line and does nothing
/// else for a while. Each job that is run costs the place in line.
const PASSED_OVER_MAX: u32 = 10;
const ALONE_IN_LINE: Duration = Duration::from_secs(60);

/// In a job's environment: its ID.
const JOB_VARIABLE: &str = "TENURE_JOB";

/// Run deferred jobs when their locks are free
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP, after_long_help = AFTER_LONG_HELP)]
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
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: u32,
    /// The pause after a job's first failure. It doubles after each further one (exponential backoff, without
    /// jitter), up to 10m
    #[arg(long, value_name = "DURATION", value_parser = pause, default_value = "10s")]
    pause: Duration,
    /// Only jobs that were deferred with this --protocol; without it, those that were deferred without
    #[arg(long, value_name = "PROTOCOL", value_enum)]
    protocol: Option<Kind>,
    /// Say nothing about jobs that begin, end and fail; only what needs somebody
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    store: Store,
}

const AFTER_HELP: &str = "\
Example:
  tenure work --drain    from cron: everything that is due, then end

Exit code: 0; 1 a job failed (--once, --drain); 69 store out of reach; 71 no queue; 64 usage. More: tenure work --help";

const AFTER_LONG_HELP: &str = "\
Examples:
  tenure work                          as a service: all jobs, until it is told to end
  tenure work --drain                  from cron: everything that is due, then end
  tenure work --url redis://h reindex  jobs of one lock on that server

It runs the jobs that `tenure run --on-busy defer` has put into the queue of this account on this host, one at a time,
each under its lock as `tenure run` does: in the directory, with the mask and with the variables with which it was
deferred, and TENURE_JOB, its ID. Its output goes where the worker's goes; it has no input and no terminal. Several
workers share the queue.

A job runs at least once. It leaves the queue when it has ended with 0; if the worker or the host dies before that, it
is begun again. After a failure it is begun again in 10s, 20s, 40s, up to 10m (--pause); after --max-attempts, which
takes about an hour, it is dead, and waits for `tenure jobs --retry ID`. That it lost its lock or could not be begun
does not count as an attempt.

Only jobs whose lock is on the store of --url or TENURE_URL are run. A job whose lock is busy lets others go first, ten
of them; then it is waited for alone, for a minute.

TERM, INT, HUP and QUIT go to the job that runs, if any, followed by KILL after its --kill-after, and then the worker
ends with 0. The job is begun again, and that attempt does not count.

Exit codes:
    0  told to end; with --once and --drain: what was run ended with 0
    1  with --once and --drain: a job failed
   64  usage
   69  the store is out of reach or refuses; without --once and --drain the worker waits for it
   71  the operating system refused something, likewise";

/// A first pause: not none, as a job that fails at once would use up its attempts in a moment.
fn pause(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        pause if pause < Duration::from_millis(1) || pause > PAUSE_MAX => {
            Err("outside 1ms to 10m".to_owned())
        }
        pause => Ok(pause),
    }
}

pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    let mut signals = Signals::take()?;
    let mut worker = Worker::new(args);
    loop {
        match worker.next_job(&mut signals).await {
            Ok(true) => {}
            Ok(false) if worker.ends() && worker.any_failed => return Ok(exit_codes::JOB_FAILED),
            Ok(false) => return Ok(0),
            // It may pass, and the jobs are safe meanwhile.
            Err(Trouble::Passing(failure)) if !worker.ends() => {
                worker.notices.tell(failure.text);
                tokio::select! {
                    _ = signals.ending() => return Ok(0),
                    () = tokio::time::sleep(LOOKS_EVERY) => {}
                }
            }
            Err(Trouble::Passing(failure) | Trouble::Lasting(failure)) => return Err(failure),
        }
    }
}

/// Why the worker could not go on.
enum Trouble {
    /// It may be over the next time.
    Passing(Failure),
    /// The worker has to end.
    Lasting(Failure),
}

impl From<QueueError> for Trouble {
    fn from(error: QueueError) -> Self {
        Self::Passing(error.into())
    }
}

/// What was said already, and is not said again for as long as it stays so.
#[derive(Default)]
struct Notices {
    /// In the look at the queue before this one, and in this one.
    before: HashSet<String>,
    now: HashSet<String>,
}

impl Notices {
    fn tell(&mut self, text: String) {
        if !self.before.contains(&text) && !self.now.contains(&text) {
            say(&text);
        }
        self.now.insert(text);
    }

    /// The queue is looked at again.
    fn turn(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}

struct Worker {
    args: Args,
    voice: Voice,
    retries: Retries,
    notices: Notices,
    /// The job that stood in line last, and how many have been run before it meanwhile.
    passed_over: Option<(Id, u32)>,
    introduced: bool,
    any_failed: bool,
}

/// A job in the line for its lock.
struct Waiting<'q> {
    taken: Taken<'q>,
    acquire: Pin<Box<dyn Future<Output = Result<Held, AcquireError>>>>,
}

impl Worker {
    fn new(args: Args) -> Self {
        Self {
            voice: Voice { quiet: args.quiet, verbose: false },
            retries: Retries { max_attempts: args.max_attempts, first_pause: args.pause },
            notices: Notices::default(),
            passed_over: None,
            introduced: false,
            any_failed: false,
            args,
        }
    }

    /// Does it end when there is nothing to do?
    fn ends(&self) -> bool {
        self.args.once || self.args.drain
    }

    /// Waits for a job and runs it. False: that was all.
    async fn next_job(&mut self, signals: &mut Signals) -> Result<bool, Trouble> {
        let queue = Queue::open()?;
        // A client for each job: what a job leaves behind keeps its lock until the last process of it is gone, and no
        // longer, once the client that acquired it is gone.
        let locks = tokio::select! {
            biased;
            _ = signals.ending() => return Ok(false),
            locks = self.args.store.connect_to(self.args.protocol.map(Kind::as_meant), "tenure work") => locks,
        };
        let locks = locks.map_err(|failure| match failure.code {
            exit_codes::USAGE => Trouble::Lasting(failure),
            _ => Trouble::Passing(failure),
        })?;
        self.introduce(&queue, &locks)?;
        let ready = tokio::select! {
            biased;
            _ = signals.ending() => Ok(None),
            ready = self.ready(&queue, &locks) => ready,
        };
        match ready {
            Ok(Some((taken, hold))) => self.carry_out(taken, hold, &locks, signals).await,
            none => {
                locks.close(LEAVING).await;
                none.map(|_| false)
            }
        }
    }

    /// Says once what it works on: a worker that finds nothing of its own is silent from then on.
    fn introduce(&mut self, queue: &Queue, locks: &Locks) -> Result<(), QueueError> {
        if self.introduced || self.voice.quiet {
            return Ok(());
        }
        let jobs = queue.list(&[Shelf::Live])?.filter_map(|entry| entry.job.ok());
        let others = jobs.filter(|job| !self.is_for_us(job, &locks.scope())).count();
        let path = queue.path().display();
        say(&format!(
            "works on {path} for locks on {}; jobs there for other workers: {others}",
            locks.scope()
        ));
        self.introduced = true;
        Ok(())
    }

    /// Waits for a job that is due, and for its lock. `None`: there is none, and the worker ends then.
    ///
    /// Every job that is due has its lock tried. If all are busy, the oldest waits in line while the others, and those
    /// to come, are tried now and then; but not in the line of a lock that a job around us holds. Cancel safe: a place in
    /// line is given up.
    async fn ready<'q>(
        &mut self,
        queue: &'q Queue,
        locks: &Locks,
    ) -> Result<Option<(Taken<'q>, Held)>, Trouble> {
        let mut waiting: Option<Waiting<'q>> = None;
        loop {
            reap_strays();
            self.notices.turn();
            let mut busy: HashSet<String> =
                waiting.iter().map(|waiting| waiting.taken.job.name.clone()).collect();
            let mut refusal = None;
            for entry in queue.list(&[Shelf::Live])? {
                if self.is_next(waiting.as_ref()) {
                    break;
                }
                let Some(taken) = self.take(queue, &entry, &locks.scope(), &busy)? else { continue };
                busy.insert(taken.job.name.clone());
                let lock = lock(locks, &taken.job);
                match lock.try_acquire().await {
                    Ok(Some(hold)) => {
                        self.passes_over(waiting.as_ref());
                        return Ok(Some((taken, hold)));
                    }
                    Ok(None) => {}
                    Err(error) => {
                        refusal = Some(self.refused(&taken.job.name, &error)?);
                        continue;
                    }
                }
                if waiting.is_none() && !self.is_around_us(locks, &taken.job.name).await {
                    let acquire = Box::pin(lock.acquire(Policy::Wait(None)));
                    waiting = Some(Waiting { taken, acquire });
                }
            }
            let is_next = self.is_next(waiting.as_ref());
            let look_again = tokio::time::sleep(if is_next { ALONE_IN_LINE } else { LOOKS_EVERY });
            let Some(Waiting { taken, acquire }) = &mut waiting else {
                // Perhaps it is not the lock but the store that refuses: a new connection tells.
                if let Some(failure) = refusal {
                    return Err(Trouble::Passing(failure));
                }
                if self.ends() {
                    return Ok(None);
                }
                look_again.await;
                continue;
            };
            let answer = tokio::select! {
                biased;
                answer = acquire => answer,
                () = look_again => {
                    if is_next {
                        self.passed_over = None;
                    }
                    continue;
                }
            };
            match answer {
                Ok(hold) => return Ok(waiting.map(|waiting| (waiting.taken, hold))),
                Err(AcquireError::Full) => {}
                Err(error) => {
                    self.refused(&taken.job.name, &error)?;
                }
            }
            waiting = None;
            tokio::time::sleep(LOOKS_EVERY).await;
        }
    }

    /// Have so many been run before it that no other is now?
    fn is_next(&self, waiting: Option<&Waiting<'_>>) -> bool {
        let Some(waiting) = waiting else { return false };
        self.passed_over.is_some_and(|(id, times)| id == waiting.taken.id && times >= PASSED_OVER_MAX)
    }

    /// Another one is run before it.
    fn passes_over(&mut self, waiting: Option<&Waiting<'_>>) {
        self.passed_over = waiting.map(|waiting| match self.passed_over {
            Some((id, times)) if id == waiting.taken.id => (id, times + 1),
            _ => (waiting.taken.id, 1),
        });
    }

    /// Does a job around us hold this lock? It waits for us then, and nobody waits for it here.
    async fn is_around_us(&mut self, locks: &Locks, name: &str) -> bool {
        match Hold::around_us(locks, name).await {
            Ok(hold) => hold.is_some(),
            Err(failure) => {
                self.notices.tell(failure.text);
                true
            }
        }
    }

    /// A lock is refused: is it this one alone? Then the others go on.
    fn refused(&mut self, name: &str, error: &AcquireError) -> Result<Failure, Trouble> {
        let failure = Failure::backend(format!("'{name}': {error}"));
        match error {
            AcquireError::Backend(fault) if fault.kind != FaultKind::Refused => {
                Err(Trouble::Passing(failure))
            }
            _ => {
                self.notices.tell(failure.text.clone());
                Ok(failure)
            }
        }
    }

    /// Is it a job for this worker, whenever it is due?
    fn is_for_us(&self, job: &Deferred, scope: &str) -> bool {
        let named = self.args.names.is_empty() || self.args.names.contains(&job.name);
        named && job.scope == scope && job.protocol == self.args.protocol
    }

    /// Takes a job if it is one for this worker and may be begun now.
    fn take<'q>(
        &mut self,
        queue: &'q Queue,
        entry: &Entry,
        scope: &str,
        busy: &HashSet<String>,
    ) -> Result<Option<Taken<'q>>, QueueError> {
        let id = entry.id;
        let is_ours =
            |job: &Deferred| self.is_for_us(job, scope) && job.is_due(unix_ms()) && !busy.contains(&job.name);
        let taken = match &entry.job {
            Ok(job) if !is_ours(job) => return Ok(None),
            // Who ends when there is nothing to do had better be sure.
            Ok(_) => queue.take(id, self.ends()),
            Err(why) => Err(why.clone()),
        };
        let taken = match taken {
            // Somebody may have changed it since it was listed.
            Ok(taken) => taken.filter(|taken| is_ours(&taken.job)),
            Err(why @ Unreadable::Damaged(_)) => {
                if queue.set_aside(id)? {
                    say(&format!("job {id} is {why}. It was set aside: tenure jobs"));
                }
                None
            }
            Err(why) => {
                self.notices.tell(format!("job {id} is left alone: {why}"));
                None
            }
        };
        let Some(taken) = taken else { return Ok(None) };
        if !taken.job.is_exhausted(self.retries) {
            return Ok(Some(taken));
        }
        say(&format!("job {id}: begun {} already; {}", times(taken.job.attempts), dead(id)));
        self.any_failed = true;
        taken.bury()?;
        Ok(None)
    }

    /// Runs a job under its lock, and notes how that went. False: it was the last.
    async fn carry_out(
        &mut self,
        mut taken: Taken<'_>,
        hold: Held,
        locks: &Locks,
        signals: &mut Signals,
    ) -> Result<bool, Trouble> {
        let id = taken.id;
        // From here on it counts, whatever happens to us.
        if let Err(error) = taken.save(taken.job.clone().begun(self.retries, unix_ms())) {
            let _ = hold.release().await;
            return Err(error.into());
        }
        let job = &taken.job;
        let words = words(job);
        self.voice.say(&format!(
            "job {id}: '{}' begins, try {} of {} ({})",
            job.name,
            job.attempts,
            self.retries.max_attempts,
            label(&words, job.no_cmdline)
        ));
        let mut surroundings = job.surroundings.clone();
        surroundings.variables.insert(JOB_VARIABLE.to_owned(), id.to_string());
        let orders = Orders {
            words: &words,
            limits: &job.limits(),
            surroundings: Some(&surroundings),
            voice: self.voice,
        };
        // A job that cannot be watched ends with us.
        let outcome = orders.carry_out(hold, locks, signals).await.map_err(Trouble::Lasting)?;
        let noted = self.note(taken, &outcome);
        if outcome.told.is_some() {
            return noted.map(|()| false).map_err(|error| Trouble::Lasting(error.into()));
        }
        noted?;
        Ok(!self.args.once)
    }

    /// Notes how it went.
    fn note(&mut self, mut taken: Taken<'_>, outcome: &Outcome) -> Result<(), QueueError> {
        let &Outcome { code, told, by_itself } = outcome;
        let (id, job, now_ms) = (taken.id, taken.job.clone(), unix_ms());
        let pause = |job: &Deferred| span(job.not_before_ms.saturating_sub(now_ms));
        if told == Some(Told::Meanwhile) {
            taken.save(job.interrupted(code, now_ms))?;
            self.voice
                .say(&format!("job {id}: stopped with its worker (exit {code}); it will be begun again"));
            return Ok(());
        }
        if code == 0 {
            taken.remove()?;
            self.voice.say(&format!("job {id}: done"));
            return Ok(());
        }
        self.any_failed = true;
        if !by_itself {
            taken.save(job.put_off(code, self.retries, now_ms))?;
            let pause = pause(&taken.job);
            self.voice
                .say(&format!("job {id}: put off (exit {code}); again in {pause}, this try does not count"));
            return Ok(());
        }
        taken.save(job.failed(code, self.retries, now_ms))?;
        if taken.job.is_exhausted(self.retries) {
            say(&format!("job {id}: failed (exit {code}); {}", dead(id)));
            return taken.bury();
        }
        self.voice.say(&format!("job {id}: failed (exit {code}); again in {}", pause(&taken.job)));
        Ok(())
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

fn times(number: u32) -> String {
    if number == 1 { "once".to_owned() } else { format!("{number} times") }
}
