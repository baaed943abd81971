//! Jobs that are deferred while their lock is busy.
#![cfg(feature = "embedded")]

use std::sync::Mutex;
use std::time::Duration;

use tenure::{AcquireError, Client, DeferError, Deferrer, JobId, RanOrDeferred};

/// A queue in memory; full when it holds one job.
#[derive(Default)]
struct OnePlace(Mutex<Option<(String, Job, Duration)>>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Job(u32);

impl Deferrer<Job> for OnePlace {
    type Error = &'static str;

    async fn defer(&self, lock: &str, job: &Job, not_before: Duration) -> Result<JobId, Self::Error> {
        let mut place = self.0.lock().unwrap();
        if place.is_some() {
            return Err("the queue is full");
        }
        *place = Some((lock.to_owned(), job.clone(), not_before));
        Ok(JobId::new("1"))
    }
}

#[tokio::test]
async fn a_job_runs_if_its_lock_is_free() {
    let client = Client::connect("memory:").await.unwrap();
    let queue = OnePlace::default();
    let ran = client.lock("x").run_or_defer(Job(7), &queue, async |lease, job| (lease.holds(), job)).await;
    assert_eq!(ran.unwrap(), RanOrDeferred::Done((true, Job(7))));
    assert_eq!(*queue.0.lock().unwrap(), None);
    assert!(client.inspect("x").await.unwrap().is_free());
}

#[tokio::test]
async fn a_job_is_deferred_if_its_lock_is_busy_with_a_hint_when_to_try_again() {
    let client = Client::connect("memory:").await.unwrap();
    let queue = OnePlace::default();
    let guard = client.lock("x").ttl(Duration::from_secs(9)).acquire().await.unwrap();
    let ran = client
        .lock("x")
        .run_or_defer(Job(7), &queue, async |_, _| -> u32 { panic!("it must not run") })
        .await;
    let RanOrDeferred::Deferred { id, holder } = ran.unwrap() else { panic!("it ran") };
    assert_eq!((id.to_string(), holder.id), ("1".to_owned(), Some(guard.holder())));
    let (lock, job, not_before) = queue.0.lock().unwrap().clone().unwrap();
    assert_eq!((&*lock, job), ("x", Job(7)));
    assert!((Duration::from_secs(8)..=Duration::from_secs(9)).contains(&not_before), "{not_before:?}");
}

#[tokio::test]
async fn a_job_that_cannot_be_deferred_comes_back() {
    let client = Client::connect("memory:").await.unwrap();
    let queue = OnePlace::default();
    let _guard = client.lock("x").acquire().await.unwrap();
    let lock = client.lock("x");
    let _ = lock.run_or_defer(Job(7), &queue, async |_, _| ()).await.unwrap();
    let error = lock.run_or_defer(Job(8), &queue, async |_, _| ()).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("'x' is held by ") && text.ends_with("deferred: the queue is full"), "{text}");
    assert!(matches!(error, DeferError::Defer { job: Job(8), .. }), "{error}");
}

#[tokio::test]
async fn a_job_whose_lock_cannot_be_asked_for_comes_back_and_is_not_deferred() {
    let client = Client::connect("memory:").await.unwrap();
    let queue = OnePlace::default();
    let error = client.lock("").run_or_defer(Job(7), &queue, async |_, _| ()).await.unwrap_err();
    assert!(
        matches!(error, DeferError::Acquire { error: AcquireError::BadInput(_), job: Job(7) }),
        "{error}"
    );
    assert_eq!(*queue.0.lock().unwrap(), None);
}
