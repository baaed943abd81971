use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use apalis::prelude::{
    AbortError, Attempt, BackendExt, BoxDynError, DeferredError, WorkerBuilder, WorkerBuilderExt,
    WorkerContext, WorkerError,
};
use apalis_redis::RedisStorage;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure::{AcquireError, Lease, Lock, WithError};
use tokio::time::{MissedTickBehavior, interval, sleep};
use ulid::Ulid;

use crate::queue::{Entry, Queue};

/// How often an idle worker looks for jobs.
const LOOK: Duration = Duration::from_millis(200);

/// How long after a failure a worker begins anew.
const RESTART: Duration = Duration::from_secs(1);

/// The shortest pause: apalis counts seconds.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// How many done jobs are forgotten at once, and how often.
const SWEEP: usize = 1_000;
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// How long the description of a worker outlives it.
const WORKER_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// What becomes of a job that was tried.
#[derive(Debug)]
enum Fate {
    Done,
    /// It did not begin.
    PutBack(Duration),
    /// It began, and did not end well.
    Failed(BoxDynError),
    /// No other try can go better.
    Hopeless(BoxDynError),
}

impl<J> Queue<J>
where
    J: DeserializeOwned + Send + 'static,
{
    /// Does jobs until `stop` resolves, then ends those that have begun, and returns. `lock` makes the lock for a name:
    /// its [`Lock::ttl`], and with [`Lock::wait`] how long a worker stays in line before it puts the job back. `work` is
    /// run under that lock; it may not block its thread, or the worker looks dead to others.
    ///
    /// Failures of the server are logged (`tracing`), and tried again every second.
    ///
    /// # Cancel safety
    /// Dropping the future drops the jobs that have begun and gives their locks back. Another worker does them when this
    /// one counts as dead ([`Queue::heartbeat`]).
    pub async fn work<L, W, Fut, E>(&self, lock: L, work: W, stop: impl Future<Output = ()>)
    where
        L: Fn(&str) -> Lock + Clone + Send + Sync + 'static,
        W: Fn(Lease, J) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxDynError> + Send + 'static,
    {
        let mut stop = pin!(stop);
        loop {
            // A new name each time: under the old one apalis would take it for its own dead predecessor.
            let worker = WorkerContext::new(&Ulid::generate().to_string());
            let mut running = self.run(worker.clone(), lock.clone(), work.clone());
            let ended = tokio::select! {
                biased;
                ended = &mut running => ended,
                never = self.sweep(&worker) => match never {},
                () = &mut stop => {
                    let _ = worker.stop();
                    if let Err(error) = running.await {
                        tracing::warn!(%error, "a worker did not end well; others do its jobs");
                    }
                    return;
                }
            };
            tracing::warn!(
                error = ended.err().map(tracing::field::display),
                "a worker failed; it begins anew"
            );
            tokio::select! {
                () = &mut stop => return,
                () = sleep(RESTART) => {}
            }
        }
    }

    /// A worker of apalis. Boxed, because the compiler cannot tell of its bare future that it may go to another thread.
    fn run<L, W, Fut, E>(
        &self,
        worker: WorkerContext,
        lock: L,
        work: W,
    ) -> BoxFuture<'static, Result<(), WorkerError>>
    where
        L: Fn(&str) -> Lock + Clone + Send + Sync + 'static,
        W: Fn(Lease, J) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxDynError> + Send + 'static,
    {
        let queue = self.clone();
        let storage = RedisStorage::<Value>::new(self.redis.clone()).with_config(self.config.clone());
        WorkerBuilder::new(worker)
            .backend(storage.poll_with_interval(LOOK))
            .concurrency(self.concurrency)
            .build(move |entry: Value, attempt: Attempt| {
                let (queue, lock, work) = (queue.clone(), lock.clone(), work.clone());
                async move { queue.handle(entry, attempt.current(), lock, work).await }
            })
            .run()
            .boxed()
    }

    /// Tries one job, and tells apalis what became of it.
    async fn handle<L, W, Fut, E>(
        &self,
        entry: Value,
        attempt: usize,
        lock: L,
        work: W,
    ) -> Result<(), BoxDynError>
    where
        L: Fn(&str) -> Lock,
        W: Fn(Lease, J) -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: Into<BoxDynError>,
    {
        let (entry, job) = match read(entry) {
            Ok(read) => read,
            Err(error) => return Err(AbortError::new(error).into()),
        };
        if attempt > self.attempts {
            let error = format!("its worker died at it, or was killed; it was tried {} times", attempt - 1);
            return Err(AbortError::new(error).into());
        }
        let trying = async {
            let lock = lock(&entry.lock);
            lock.with(async |lease| {
                self.note(&entry, attempt).await?;
                work(lease, job).await.map_err(Into::into)
            })
            .await
        };
        match fate(AssertUnwindSafe(trying).catch_unwind().await, self.pause_max) {
            Fate::Done => Ok(()),
            Fate::PutBack(pause) => {
                let again = Entry { put_back: entry.put_back.saturating_add(1), ..entry };
                // If that fails it counts as an attempt, which is better than to lose it.
                let put = self.put(&again, attempt - 1, pause).await;
                put.map(|_| ()).map_err(|error| DeferredError::new(error).into())
            }
            Fate::Failed(error) if attempt < self.attempts => Err(DeferredError::new(error).into()),
            Fate::Failed(error) | Fate::Hopeless(error) => Err(AbortError::new(error).into()),
        }
    }

    /// Forgets what is done, again and again.
    async fn sweep(&self, worker: &WorkerContext) -> Infallible {
        let script = redis::Script::new(include_str!("../scripts/sweep.lua"));
        let config = &self.config;
        let mut sweep = script.key(config.done_jobs_set());
        sweep.key(config.job_data_hash()).key(config.job_meta_hash()).key(config.worker_metadata_key(worker));
        sweep.arg(SWEEP).arg(WORKER_KEPT.as_secs());
        let mut every = interval(SWEEP_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            if let Err(error) = sweep.invoke_async::<usize>(&mut self.redis.clone()).await {
                tracing::warn!(%error, "done jobs could not be forgotten; tried again");
            }
        }
    }
}

fn read<J: DeserializeOwned>(entry: Value) -> Result<(Entry, J), serde_json::Error> {
    let entry: Entry = serde_json::from_value(entry)?;
    let job = J::deserialize(&entry.job)?;
    Ok((entry, job))
}

/// How a try ended: with a panic, without the lock, or with what the job returned.
type Tried = std::thread::Result<Result<Result<(), BoxDynError>, WithError<Result<(), BoxDynError>>>>;

/// What becomes of a job, by how the try ended.
fn fate(tried: Tried, pause_max: Duration) -> Fate {
    match tried {
        Ok(Ok(Ok(()))) => Fate::Done,
        Ok(Ok(Err(error))) => Fate::Failed(error),
        Ok(Err(WithError::Acquire(error @ AcquireError::BadInput(_)))) => Fate::Hopeless(error.into()),
        Ok(Err(WithError::Acquire(error))) => Fate::PutBack(pause(error.try_again_in(), pause_max)),
        Ok(Err(error)) => Fate::Failed(error.to_string().into()),
        Err(_) => Fate::Failed("the job panicked; standard error has the message".into()),
    }
}

/// How long to wait before a busy lock is tried again: until it is free at the latest, in bounds.
fn pause(free_in: Option<Duration>, pause_max: Duration) -> Duration {
    free_in.unwrap_or(pause_max).clamp(PAUSE_MIN, pause_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_lasts_until_the_lock_is_free_but_no_longer_than_it_may() {
        let s = Duration::from_secs;
        let of = |free_in| pause(free_in, s(5));
        assert_eq!([Some(s(3)), Some(s(9)), Some(s(0)), None].map(of), [s(3), s(5), s(1), s(5)]);
    }

    #[test]
    fn what_is_no_entry_or_no_job_is_not_read() {
        let entry = serde_json::json!({ "id": "A", "put_back": 1, "lock": "x", "job": 7 });
        let (read_entry, job) = read::<u32>(entry.clone()).unwrap();
        assert_eq!((&*read_entry.lock, read_entry.put_back, job), ("x", 1, 7));
        read::<String>(entry).unwrap_err();
        read::<u32>(serde_json::json!(7)).unwrap_err();
    }
}
