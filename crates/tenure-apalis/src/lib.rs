//! Jobs under a lock, kept in [apalis](https://docs.rs/apalis)' queue on Redis.
//!
//! A [`Queue`] is a [`tenure::Deferrer`]: [`tenure::Lock::run_or_defer`] puts a job there if its lock is busy, and
//! [`Queue::push`] puts one there in any case. [`Queue::work`] takes jobs out again, in as many processes as you like, and
//! does each of them under its lock.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use serde::{Deserialize, Serialize};
//! use tenure::{Client, RanOrDeferred};
//! use tenure_apalis::Queue;
//!
//! #[derive(Debug, Serialize, Deserialize)]
//! struct Mail {
//!     to: String,
//! }
//!
//! async fn send(mail: Mail, fence: u64) -> Result<(), std::io::Error> {
//!     println!("to {}, fence {fence}", mail.to); // and have the mailbox refuse smaller tokens
//!     Ok(())
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let tenure = Client::connect("redis://127.0.0.1").await?;
//! let queue: Queue<Mail> = Queue::connect("redis://127.0.0.1", "jobs:mail").await?;
//!
//! // Now if the lock is free, otherwise later.
//! let lock = tenure.lock("mailbox:ann");
//! match lock.run_or_defer(Mail { to: "ann".into() }, &queue, |lease, mail| send(mail, lease.fence())).await? {
//!     RanOrDeferred::Done(sent) => sent?,
//!     RanOrDeferred::Deferred { id, holder } => println!("deferred as {id}: {holder}"),
//! }
//!
//! // Elsewhere: a worker. Waits in line for a lock for a second, then goes on with another job.
//! let lock = move |name: &str| tenure.lock(name).wait(Duration::from_secs(1));
//! let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
//! queue.work(lock, |lease, mail| send(mail, lease.fence()), stop).await;
//! # Ok(()) }
//! ```
//!
//! # What becomes of a job
//!
//! | | |
//! |---|---|
//! | it returns `Ok` | done, and forgotten |
//! | its lock is busy for as long as [`tenure::Lock::wait`] says, or can't be asked for | put back: tried again after a pause ([`Queue::pause`]), as often as it takes |
//! | it returns an error or panics, or the lock is lost | tried again, after as many seconds as it was tried; after [`Queue::attempts`] it is dead |
//! | it can't be read, or its lock has an impossible name | dead |
//! | its worker is killed | tried again after three times [`Queue::heartbeat`], by another worker; dead if that was the last attempt |
//!
//! A dead job stays until somebody has looked at it: [`Queue::dead`], [`Queue::forget`].
//!
//! **At least once.** A job may run twice: its worker was killed before it could say that the job is done. Never two at a
//! time under one lock, as far as `tenure` promises that. For effects that happen once, have the resource remember the id
//! of the job, and refuse stale fencing tokens ([`tenure::fence`]) in the same step: `examples/worker.rs`.
//!
//! **Not in order.** Jobs that are put back or tried again fall behind others.
//!
//! # What to know about apalis-redis 1.0
//!
//! This crate sets it up so that none of these does harm; whoever works on the same queue by other means should know.
//!
//! - Times are whole seconds, by the clocks of the processes that push and work.
//! - All jobs that are due are moved with one `unpack` in Lua: with 8,000 of them the queue stands still. So a
//!   [`Queue`] takes no more than [`Queue::capacity`] jobs.
//! - A job that cannot be decoded ends the worker, and the next one, and so on. So apalis sees any JSON here, and it is this
//!   crate that decodes.
//! - `max_attempts` is not looked at, 25 is built in; a retry that the job asks for counts as an attempt.
//! - What is known of a done job stays for ever, and `vacuum` would delete jobs that wait to be tried again. So
//!   [`Queue::work`] sweeps up itself.
//! - While fetched jobs wait for a free place in a worker it sends no heartbeat. So one is fetched at a time.
//! - A worker that is stopping sends no heartbeat: a job that takes it longer than three of them is done again by another.
//! - A killed worker counts no attempt. So it is noted when a job begins.
#![forbid(unsafe_code)]

mod queue;
mod work;

pub use queue::{ConnectError, DeadJob, PushError, Queue, StoreError};
