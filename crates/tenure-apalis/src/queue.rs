use std::marker::PhantomData;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use apalis::prelude::{Task, TaskBuilder, TaskId};
use apalis_redis::queries::push_tasks;
use apalis_redis::{Config, ConnectionManager};
use redis::RedisError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure::{Deferrer, JobId};
use ulid::Ulid;

/// The longest name of a queue, in bytes.
const NAME_MAX: usize = 200;

/// The largest job, in bytes of JSON with the name of its lock.
const JOB_MAX: usize = 64 * 1024;

/// apalis stands still when 8,000 jobs become due at once; some room is left for those who push at the same time.
const CAPACITY_MAX: usize = 7_000;

/// How many heartbeats a worker may miss. apalis counts whole seconds, so that two could be a late one.
const MISSED_HEARTBEATS: usize = 3;

/// Jobs that each need a lock, in a queue on Redis. Clones are the same queue.
///
/// Its keys begin with its name and a colon: on a server that has locks as well, don't name it like one of them.
#[derive(Debug)]
pub struct Queue<J> {
    pub(crate) redis: ConnectionManager,
    pub(crate) config: Config,
    pub(crate) attempts: usize,
    pub(crate) concurrency: usize,
    pub(crate) pause_max: Duration,
    capacity: usize,
    jobs: PhantomData<fn() -> J>,
}

impl<J> Clone for Queue<J> {
    fn clone(&self) -> Self {
        Self { redis: self.redis.clone(), config: self.config.clone(), ..*self }
    }
}

/// A job as it lies in the queue.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The same however often it is put back.
    pub(crate) id: String,
    pub(crate) put_back: u32,
    pub(crate) lock: String,
    pub(crate) job: Value,
}

impl Entry {
    /// What apalis calls it. Every time it is put back it is a new task for apalis; if that is done twice, because its
    /// worker was killed in between, it is the same one.
    fn task(&self) -> String {
        match self.put_back {
            0 => self.id.clone(),
            times => format!("{}.{times}", self.id),
        }
    }
}

/// A job that was given up.
#[derive(Clone, PartialEq, Debug)]
pub struct DeadJob {
    /// For [`Queue::forget`]: what it was called when it was pushed, and how often it was put back behind a dot.
    pub id: JobId,
    /// The job and the name of its lock, in JSON.
    pub entry: String,
    /// Why it was given up.
    pub error: String,
}

/// No connection to a queue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The name of the queue.
    #[error("{0:?} can't be the name of a queue; use 1 to 200 bytes without control characters")]
    BadName(String),
    /// The server is out of reach or refuses.
    #[error("no connection to the queue's Redis server ({0}); see that it runs and that the URL is right")]
    Redis(#[from] RedisError),
}

/// A job was not put into the queue, or it is not known whether it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The queue has as many jobs as it may have. Nothing was pushed.
    #[error("the queue has {capacity} jobs and takes no more; push it again later, or start more workers")]
    Full {
        /// How many it may have.
        capacity: usize,
    },
    /// The job is too large. Nothing was pushed.
    #[error("the job has {bytes} bytes of JSON, and {JOB_MAX} are allowed; push where its data is instead")]
    TooLarge {
        /// How large it is.
        bytes: usize,
    },
    /// The job can't be written as JSON. Nothing was pushed.
    #[error("the job can't be written as JSON ({0}); keys of maps have to be texts")]
    Json(#[from] serde_json::Error),
    /// The server is out of reach or refuses.
    #[error(
        "the queue's Redis server failed ({0}); whether it has the job is not known: push it again, it may run twice"
    )]
    Redis(#[from] apalis_redis::Error),
}

/// The queue could not be asked.
#[derive(Debug, thiserror::Error)]
#[error("the queue's Redis server failed ({0}); try again")]
pub struct StoreError(#[from] RedisError);

impl<J> Queue<J> {
    /// Connects to the queue of this name. Nothing has to be made before.
    ///
    /// # Errors
    /// The server is out of reach or refuses, or the name is impossible.
    ///
    /// # Cancel safety
    /// Nothing was done.
    pub async fn connect(url: &str, name: &str) -> Result<Self, ConnectError> {
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            return Err(ConnectError::BadName(name.to_owned()));
        }
        // The connection that is kept would try for long before it says that nobody answers.
        redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        let config = Config::default()
            .queue(name)
            // A worker sends no heartbeat while fetched jobs wait.
            .batch_size(1)
            .missed_heartbeats(MISSED_HEARTBEATS)
            // Two who do one job at the same time exclude each other by its lock already.
            .lock_tasks(false)
            .emit_events(false);
        let queue = Self {
            redis: apalis_redis::connect(url).await?,
            config,
            attempts: 5,
            concurrency: 4,
            pause_max: Duration::from_secs(5),
            capacity: CAPACITY_MAX,
            jobs: PhantomData,
        };
        Ok(queue.heartbeat(Duration::from_secs(10)))
    }

    /// How often a worker says that it lives, 10 s otherwise; at least one second. A worker that was not heard of for three
    /// times as long counts as dead, and others do its jobs. The same for all workers of a queue.
    #[must_use]
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.config = self.config.heartbeat_interval(every.max(Duration::from_secs(1)));
        self
    }

    /// How often a job is tried that fails or kills its worker, 5 times otherwise; 1 to 25.
    #[must_use]
    pub fn attempts(mut self, attempts: usize) -> Self {
        self.attempts = attempts.clamp(1, 25);
        self
    }

    /// How many jobs one worker does at the same time, 4 otherwise; at least 1. Jobs that wait for their lock count.
    #[must_use]
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.concurrency = jobs.max(1);
        self
    }

    /// A job whose lock is busy is tried again when that is free at the latest, but after this time in any case; 5 s
    /// otherwise, at least one second.
    #[must_use]
    pub fn pause(mut self, longest: Duration) -> Self {
        self.pause_max = longest.max(Duration::from_secs(1));
        self
    }

    /// The queue takes no more jobs than this, 7,000 otherwise, which is the most.
    #[must_use]
    pub fn capacity(mut self, jobs: usize) -> Self {
        self.capacity = jobs.min(CAPACITY_MAX);
        self
    }

    /// Puts an entry that was tried so many times into the queue, to be taken out `not_before` from now.
    pub(crate) async fn put(
        &self,
        entry: &Entry,
        tries: usize,
        not_before: Duration,
    ) -> Result<JobId, PushError> {
        let name = entry.task();
        let task: Task<Vec<u8>> = TaskBuilder::new(serde_json::to_vec(entry)?)
            .task_id(TaskId::from_string(&*name))
            .attempt(tries)
            .run_at_timestamp(due(SystemTime::now(), not_before))
            .build();
        push_tasks(&mut self.redis.clone(), &self.config, &[task]).await?;
        Ok(JobId::new(name))
    }

    /// How many jobs wait.
    ///
    /// # Errors
    /// The server is out of reach or refuses.
    pub async fn waiting(&self) -> Result<usize, StoreError> {
        Ok(self.count().await?)
    }

    async fn count(&self) -> Result<usize, RedisError> {
        let mut both = redis::pipe();
        both.zcard(self.config.scheduled_jobs_set()).llen(self.config.active_jobs_list());
        let (scheduled, due): (usize, usize) = both.query_async(&mut self.redis.clone()).await?;
        Ok(scheduled + due)
    }

    /// Jobs that were given up, at most so many of them, in no order.
    ///
    /// # Errors
    /// The server is out of reach or refuses.
    pub async fn dead(&self, at_most: usize) -> Result<Vec<DeadJob>, StoreError> {
        let mut redis = self.redis.clone();
        let mut sample = redis::cmd("SRANDMEMBER");
        sample.arg(self.config.dead_jobs_set()).arg(at_most.min(CAPACITY_MAX));
        let ids: Vec<String> = sample.query_async(&mut redis).await?;
        let mut each = redis::pipe();
        for id in &ids {
            each.hget(self.config.job_data_hash(), id).hget(self.meta(id), "result");
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let known: Vec<Option<String>> = each.query_async(&mut redis).await?;
        let mut known = known.into_iter().map(Option::unwrap_or_default);
        let mut next = || known.next().unwrap_or_default();
        Ok(ids
            .into_iter()
            .map(|id| DeadJob { id: JobId::new(id), entry: next(), error: error_in(&next()) })
            .collect())
    }

    /// Forgets a dead job. To have it done after all, push it again first.
    ///
    /// # Errors
    /// The server is out of reach or refuses.
    pub async fn forget(&self, dead: &JobId) -> Result<(), StoreError> {
        let mut all = redis::pipe();
        all.atomic().srem(self.config.dead_jobs_set(), dead.as_str()).ignore();
        all.hdel(self.config.job_data_hash(), dead.as_str()).ignore().del(self.meta(dead.as_str())).ignore();
        Ok(all.query_async(&mut self.redis.clone()).await?)
    }

    /// Notes that an entry is tried for this time, in case its worker does not live to tell.
    pub(crate) async fn note(&self, entry: &Entry, attempt: usize) -> Result<(), RedisError> {
        let mut note = redis::cmd("HSET");
        note.arg(self.meta(&entry.task())).arg("attempts").arg(attempt);
        note.query_async(&mut self.redis.clone()).await
    }

    fn meta(&self, task: &str) -> String {
        format!("{}:{task}", self.config.job_meta_hash())
    }
}

impl<J: Serialize + Sync> Queue<J> {
    /// Puts a job into the queue: to be done under `lock`, soon.
    ///
    /// # Errors
    /// The queue may not have it.
    ///
    /// # Cancel safety
    /// The queue has it or not.
    pub async fn push(&self, lock: &str, job: &J) -> Result<JobId, PushError> {
        self.defer(lock, job, Duration::ZERO).await
    }
}

impl<J: Serialize + Sync> Deferrer<J> for Queue<J> {
    type Error = PushError;

    async fn defer(&self, lock: &str, job: &J, not_before: Duration) -> Result<JobId, PushError> {
        let job = serde_json::to_value(job)?;
        let entry = Entry { id: Ulid::generate().to_string(), put_back: 0, lock: lock.to_owned(), job };
        let bytes = serde_json::to_vec(&entry)?.len();
        if bytes > JOB_MAX {
            return Err(PushError::TooLarge { bytes });
        }
        if self.count().await.map_err(apalis_redis::Error::from)? >= self.capacity {
            return Err(PushError::Full { capacity: self.capacity });
        }
        self.put(&entry, 0, not_before).await
    }
}

/// The second since 1970 in which a job is due that has to wait for so long: never too early. 0 is now.
fn due(now: SystemTime, not_before: Duration) -> u64 {
    if not_before.is_zero() {
        return 0;
    }
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_add(not_before);
    since.as_secs().saturating_add(u64::from(since.subsec_nanos() > 0))
}

/// The words of an error in the result that apalis keeps.
fn error_in(result: &str) -> String {
    let result: Result<Result<Value, String>, _> = serde_json::from_str(result);
    result.ok().and_then(Result::err).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_never_due_too_early() {
        let ms = Duration::from_millis;
        let at = |since| UNIX_EPOCH + ms(since);
        assert_eq!(due(at(5_200), Duration::ZERO), 0);
        assert_eq!([799, 800, 801].map(|wait| due(at(5_200), ms(wait))), [6, 6, 7]);
        assert_eq!(due(at(5_000), Duration::MAX), u64::MAX);
    }

    #[test]
    fn an_entry_that_is_put_back_keeps_its_id_and_is_a_new_task() {
        let entry = Entry { id: "A".into(), put_back: 0, lock: "x".into(), job: Value::Null };
        let again = Entry { put_back: 2, ..entry.clone() };
        assert_eq!([entry.task(), again.task()], ["A", "A.2"]);
    }
}
