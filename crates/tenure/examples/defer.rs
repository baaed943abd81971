//! Defer the job if somebody else holds the lock, and do it later. The queue is in memory here; a table or a message
//! queue outlives the process.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use tenure::{Deferrer, JobId, RanOrDeferred};

/// A job is data: what to do, not how.
#[derive(Clone, PartialEq, Debug)]
struct SendMail {
    to: String,
}

struct Deferred {
    lock: String,
    job: SendMail,
    not_before: Duration,
}

#[derive(Default)]
struct Queue(Mutex<VecDeque<Deferred>>);

impl Deferrer<SendMail> for Queue {
    type Error = Infallible;

    async fn defer(&self, lock: &str, job: &SendMail, not_before: Duration) -> Result<JobId, Infallible> {
        let mut queue = self.0.lock().expect("no panic");
        queue.push_back(Deferred { lock: lock.to_owned(), job: job.clone(), not_before });
        Ok(JobId::new(format!("mail-{}", queue.len())))
    }
}

fn send(mail: &SendMail) -> String {
    format!("sent to {}", mail.to)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let tenure = tenure::Client::connect(&url).await?;
    let (lock, queue) = (tenure.lock("example:defer"), Queue::default());
    let job = SendMail { to: "ann".to_owned() };

    let held = lock.acquire().await?;
    match lock.run_or_defer(job, &queue, async |_, job| send(&job)).await? {
        RanOrDeferred::Deferred { id, holder } => println!("deferred as {id}: {holder}"),
        RanOrDeferred::Done(_) => panic!("it is held"),
    }
    held.release().await?;

    // The worker, some time later. It takes the lock as well.
    let Deferred { lock, job, not_before } = queue.0.lock().expect("no panic").pop_front().expect("a job");
    assert!(not_before <= Duration::from_secs(60), "a hint when the lock is free at the latest");
    let sent = tenure.lock(&lock).with(async |_| send(&job)).await?;
    assert_eq!(sent, "sent to ann");
    Ok(())
}
