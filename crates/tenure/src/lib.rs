//! A distributed lock that tells the truth.
//!
//! A caller holds a lock for a *tenure*: a lease with an end that it can see, a fencing token that it can pass on,
//! and a signal before the end.
//!
//! ```
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // "file:" locks on this host, "redis://127.0.0.1" on many.
//! let tenure = tenure::Client::connect("memory:").await?;
//!
//! let lock = tenure.lock("orders:42").ttl(Duration::from_secs(30)).wait(Duration::from_secs(10));
//! let guard = lock.acquire().await?;           // first come, first served
//! assert!(guard.holds());                      // asks the clock, not the network
//! let fence = guard.fence();                   // larger than that of every earlier holder
//! # assert!(fence > 0);
//! guard.release().await?;
//!
//! // The template: released on return, error and panic; dropped when the lock is lost.
//! lock.with(async |lease| { /* work */ lease.fence() }).await?;
//! # Ok(()) }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # What it promises
//!
//! - At most one guard of a lock [`holds`](Lease::holds) at any moment, as long as the store keeps what it has
//!   answered and clocks run at rates that differ by less than 1 %.
//! - The holder learns of a loss ([`Lease::lost`]) before anybody else can hold.
//! - [`Lease::fence`] grows with every grant, even over a store that lost its data, so that the resource behind the
//!   lock can refuse a holder that was stopped for too long. No lock alone can protect it from that.
//! - Nobody frees or extends a lock that is not theirs. A dropped future or guard leaves nothing behind.
//! - Waiters are served in the order in which they came, with one message for each hand-over.
//!
//! # The map
//!
//! [`Client`] connects and makes [`Lock`]s; a [`Lock`] is taken as a [`Guard`], which derefs to its [`Lease`].
//! Errors are one small type for each operation. What is decided, and when, is in `tenure-core`; what each store
//! survives is in `docs/guarantees.md`.
//!
//! | If the lock is busy | take it | run work under it |
//! |---|---|---|
//! | wait in line | [`Lock::acquire`] | [`Lock::with`] |
//! | try again, with pauses: [`Retry`] | [`Lock::acquire_retrying`] | [`Lock::run`] with [`OnBusy::Retry`] |
//! | fail | [`Lock::acquire_now`] | [`OnBusy::Fail`] |
//! | do without | [`Lock::try_acquire`] | [`OnBusy::Skip`] |
//! | do it later: [`Deferrer`] | | [`Lock::run_or_defer`] |
//!
//! [`OnLoss`] says what becomes of work whose lock is lost. A [`Session`] gets again what it holds already.
//! [`fence`] has checks for what a lock protects. [`blocking`] has the same for programs without async. `examples/` has a
//! small program for each.
//!
//! # What it tells operators
//!
//! Through `tracing`: a span `acquire` with the name of the lock; events `acquired`, `ended`, *a renewal failed or is late*
//! (warning) and `lost` (error), with lock, holder, fencing token and times. With feature `metrics`, through that facade:
//! `tenure_waited_seconds`, `tenure_held_seconds` and `tenure_batch_seconds` (how long renewals and other requests of the
//! background take) as histograms; `tenure_ended_total`, `tenure_at_risk_total`, `tenure_lost_total` and
//! `tenure_faults_total` (`kind="unknown"`: it may have run) as counters. Names of locks are never labels.
//!
//! # Why not just `SET key token NX PX`?
//!
//! It excludes, and Tenure speaks it on the wire, but it leaves open: when the holder must stop, who is next, what a
//! lost answer means, and what happens to a write of a holder that overslept.
#![forbid(unsafe_code)]

pub mod blocking;
mod client;
#[cfg(feature = "redis")]
pub mod compat;
mod defer;
mod driver;
mod error;
pub mod fence;
mod guard;
mod inspect;
mod lock;
mod retry;
mod session;
mod telemetry;
mod view;
mod work;

pub use client::{Builder, Client, InspectError};
pub use defer::{DeferError, Deferrer, JobId, RanOrDeferred};
pub use error::{
    AcquireError, BadInput, ConnectError, ExtendError, Forked, InsideRuntime, LostAtWork, ReleaseError,
    Released, StopError, WithError,
};
pub use guard::{Guard, Lease};
pub use inspect::{Holder, HolderRow, Inspection, State, WaiterRow, printable, span};
pub use lock::Lock;
pub use retry::Retry;
pub use session::Session;
pub use tenure_core::{BadName, HolderId, Lost, Moment};
pub use tenure_engine::{Engine, Fault, FaultKind};
pub use view::{LeaseState, LeaseWatch};
pub use work::{OnBusy, OnLoss, Ran};
