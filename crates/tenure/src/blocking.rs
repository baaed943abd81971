//! Locks for programs without async.
//!
//! The same locks, words and errors; each call waits on its thread for its end. A [`Client`] has a thread of its own,
//! which renews leases while the program works, sleeps or computes, until the client and the last of its guards are
//! gone.
//!
//! ```
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tenure = tenure::blocking::Client::connect("memory:")?;
//! let lock = tenure.lock("orders:42").wait(Duration::from_secs(10));
//! let guard = lock.acquire()?;
//! println!("write with fencing token {}", guard.fence());
//! guard.release()?;
//!
//! let sum = lock.with(|lease| if lease.holds() { 1 } else { 0 })?;
//! # assert_eq!(sum, 1);
//! tenure.close(Duration::from_secs(1));
//! # Ok(()) }
//! ```
//!
//! On a thread of a tokio runtime (`spawn_blocking` included) nothing here waits for others: [`Client::connect`] and
//! every acquire fail with [`InsideRuntime`], which says why and what to do instead.
//!
//! Not here, because what blocks can't watch: [`crate::Lease::watch`], and [`crate::OnLoss`], since work that blocks
//! always runs to its end. [`crate::Lease::job_file`], [`crate::Guard::leave`] and [`crate::Client::over`] are for
//! programs that supervise others, such as `tenure` itself, and those are async.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tenure_core::{HolderId, Lost, Moment};
use tenure_engine::Fault;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::client::InspectError;
use crate::defer::{DeferError, Deferrer, RanOrDeferred};
use crate::error::{
    AcquireError, ConnectError, ExtendError, Forked, InsideRuntime, LostAtWork, ReleaseError, Released,
    StopError, WithError,
};
use crate::inspect::Inspection;
use crate::retry::Retry;
use crate::work::{OnBusy, Ran, caught, finished};

/// How long the thread goes on after its last user is gone, to send the releases that dropped guards still owe.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A thread that does what is async here, as long as somebody has a part of it.
struct Worker {
    runtime: Handle,
    /// Fork makes a copy of this process without its threads.
    pid: u32,
    /// Dropped with this: then the thread ends.
    _stop: oneshot::Sender<()>,
}

impl Worker {
    fn start(builder: crate::Builder) -> Result<(Arc<Self>, crate::Client), ConnectError> {
        let no_thread = |error: std::io::Error| Fault::refused(format!("no thread for the client: {error}"));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let handle = runtime.handle().clone();
        let client = runtime.block_on(builder.connect())?;
        let (stop, stopped) = oneshot::channel::<()>();
        let last = client.clone();
        let life = async move {
            let _ = stopped.await;
            last.close(LAST_WORDS).await;
        };
        let thread = std::thread::Builder::new().name("tenure".to_owned());
        thread.spawn(move || runtime.block_on(life)).map_err(no_thread)?;
        Ok((Arc::new(Self { runtime: handle, pid: std::process::id(), _stop: stop }), client))
    }

    /// Runs a future on the thread, and waits for its end here.
    fn wait<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Result<T, Forked> {
        if std::process::id() != self.pid {
            return Err(Forked);
        }
        let (done, end) = mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            let _ = done.send(caught(future).await);
        });
        match end.recv().expect("the thread lives as long as its users") {
            Ok(value) => Ok(value),
            // A bug on that thread is told where somebody waits for it.
            Err(panic) => resume_unwind(panic),
        }
    }
}

fn may_wait() -> Result<(), InsideRuntime> {
    if Handle::try_current().is_ok() { Err(InsideRuntime) } else { Ok(()) }
}

/// A connection to the store that keeps the locks, as [`crate::Client`]. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    client: crate::Client,
    worker: Arc<Worker>,
}

impl Client {
    /// Connects to a store and starts the client's thread. The URLs are those of [`crate::Client::connect`].
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect()
    }

    /// A client with settings of its own, as [`crate::Client::builder`].
    pub fn builder(url: &str) -> Builder {
        Builder { builder: crate::Client::builder(url) }
    }

    /// The lock of this name, as [`crate::Client::lock`].
    pub fn lock(&self, name: &str) -> Lock {
        Lock { lock: self.client.lock(name), worker: self.worker.clone() }
    }

    /// A new identity to take locks under, as [`crate::Client::session`].
    pub fn session(&self) -> Session {
        Session { session: self.client.session(), worker: self.worker.clone() }
    }

    /// The store in words, without secrets.
    pub fn scope(&self) -> String {
        self.client.scope()
    }

    /// One lock: who holds it, who waits. [`crate::Client::inspect`]
    pub fn inspect(&self, name: &str) -> Result<Inspection, InspectError> {
        let (client, name) = (self.client.clone(), name.to_owned());
        self.worker.wait(async move { client.inspect(&name).await })?
    }

    /// The locks that are held or waited for, sorted by name: [`crate::Client::list`].
    pub fn list(&self) -> Result<Vec<Inspection>, InspectError> {
        let client = self.client.clone();
        self.worker.wait(async move { client.list().await })?
    }

    /// Asks a holder to stop: [`crate::Client::ask_to_stop`]. True: it was told by a message as well.
    pub fn ask_to_stop(&self, name: &str, holder: HolderId, by: &str) -> Result<bool, StopError> {
        let (client, name, by) = (self.client.clone(), name.to_owned(), by.to_owned());
        self.worker.wait(async move { client.ask_to_stop(&name, holder, &by).await })?
    }

    /// Gives back whatever this client still holds, as [`crate::Client::close`]: for the end of a program.
    pub fn close(self, limit: Duration) -> bool {
        self.worker.wait(self.client.close(limit)).unwrap_or(false)
    }
}

/// Settings of a [`Client`], as [`crate::Builder`]. Made by [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct Builder {
    builder: crate::Builder,
}

impl Builder {
    /// What this process is called on its card; its command line otherwise.
    pub fn label(self, label: &str) -> Self {
        Self { builder: self.builder.label(label) }
    }

    /// Tell of holds and waits as soon as they begin, and not only when they are older than a second.
    pub fn announce_at_once(self) -> Self {
        Self { builder: self.builder.announce_at_once() }
    }

    /// Connects and starts the client's thread.
    pub fn connect(self) -> Result<Client, ConnectError> {
        may_wait()?;
        let (worker, client) = Worker::start(self.builder)?;
        Ok(Client { client, worker })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client.fmt(f)
    }
}

/// An identity under which locks are taken, as [`crate::Session`].
#[derive(Clone)]
pub struct Session {
    session: crate::Session,
    worker: Arc<Worker>,
}

impl Session {
    /// What people see of it, as [`crate::Session::label`].
    #[must_use = "it is the session that has the label"]
    pub fn label(self, label: &str) -> Self {
        Self { session: self.session.label(label), ..self }
    }

    /// The lock of this name, taken by this session.
    pub fn lock(&self, name: &str) -> Lock {
        Lock { lock: self.session.lock(name), worker: self.worker.clone() }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.session.fmt(f)
    }
}

/// A lock by name, and how to take it, as [`crate::Lock`].
#[derive(Clone)]
#[must_use = "a lock is taken by `acquire`, `try_acquire` or `with`"]
pub struct Lock {
    lock: crate::Lock,
    worker: Arc<Worker>,
}

impl Lock {
    /// The length of the lease: [`crate::Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { lock: self.lock.ttl(ttl), ..self }
    }

    /// How long [`Lock::acquire`] waits in the queue: [`crate::Lock::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self { lock: self.lock.wait(wait), ..self }
    }

    /// [`Lock::acquire`] waits until the lock is free, however long.
    pub fn wait_forever(self) -> Self {
        Self { lock: self.lock.wait_forever(), ..self }
    }

    /// Don't renew: [`crate::Lock::without_renewal`].
    pub fn without_renewal(self) -> Self {
        Self { lock: self.lock.without_renewal(), ..self }
    }

    /// What is done under the lock, for people who inspect it.
    pub fn note(self, note: &str) -> Self {
        Self { lock: self.lock.note(note), ..self }
    }

    /// Waits for the lock, first come first served, and takes it: [`crate::Lock::acquire`].
    pub fn acquire(&self) -> Result<Guard, AcquireError> {
        let lock = self.lock.clone();
        Ok(self.guard(self.ask(async move { lock.acquire().await })?))
    }

    /// Takes the lock if it is free and nobody waits for it: [`crate::Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Guard>, AcquireError> {
        let lock = self.lock.clone();
        Ok(self.ask(async move { lock.try_acquire().await })?.map(|guard| self.guard(guard)))
    }

    /// Takes the lock if it is free and nobody waits for it; otherwise the error says who holds it:
    /// [`crate::Lock::acquire_now`].
    pub fn acquire_now(&self) -> Result<Guard, AcquireError> {
        let lock = self.lock.clone();
        Ok(self.guard(self.ask(async move { lock.acquire_now().await })?))
    }

    /// Tries until it has the lock or `retry` says to give up: [`crate::Lock::acquire_retrying`].
    pub fn acquire_retrying(&self, retry: Retry) -> Result<Guard, AcquireError> {
        let lock = self.lock.clone();
        Ok(self.guard(self.ask(async move { lock.acquire_retrying(retry).await })?))
    }

    /// Runs `work` under the lock: waits for it, takes it, and gives it back on return, on error (what `work` returns is
    /// returned as it is) and on panic, which goes on. What blocks can't be stopped from outside: long work asks
    /// [`Lease::holds`] or [`Lease::loss`] between its steps. If the lock was lost meanwhile, the error says so, and
    /// brings what the work returned. That, and a panic as well, may come up to five seconds late, if the store does not
    /// answer the release.
    pub fn with<T>(&self, work: impl FnOnce(&Lease) -> T) -> Result<T, WithError<T>> {
        let lock = self.lock.clone();
        let guard = self.ask(async move { lock.acquire().await?.fit_for_work().await })?;
        Ok(self.guard(guard).under(work)?)
    }

    /// As [`Lock::with`], and `on_busy` says what to do if somebody else holds the lock.
    pub fn run<T>(&self, on_busy: OnBusy, work: impl FnOnce(&Lease) -> T) -> Result<Ran<T>, WithError<T>> {
        Ok(match self.take_or_skip(on_busy)? {
            Ran::Done(guard) => Ran::Done(guard.under(work)?),
            Ran::Skipped(holder) => Ran::Skipped(holder),
        })
    }

    /// Runs `work` on `job` under the lock if it is free, and hands the job to the deferrer if somebody else holds it:
    /// [`crate::Lock::run_or_defer`]. What the deferrer awaits runs on this thread, over the client's runtime.
    pub fn run_or_defer<J, D, T>(
        &self,
        job: J,
        deferrer: &D,
        work: impl FnOnce(&Lease, J) -> T,
    ) -> Result<RanOrDeferred<T>, DeferError<T, J, D::Error>>
    where
        D: Deferrer<J>,
    {
        match self.take_or_skip(OnBusy::Skip) {
            Ok(Ran::Done(guard)) => {
                let done = guard.under(|lease| work(lease, job));
                done.map(RanOrDeferred::Done).map_err(DeferError::Lost)
            }
            Ok(Ran::Skipped(holder)) => self.worker.runtime.block_on(self.lock.defer(job, deferrer, holder)),
            Err(error) => Err(DeferError::Acquire { error, job }),
        }
    }

    fn take_or_skip(&self, on_busy: OnBusy) -> Result<Ran<Guard>, AcquireError> {
        let lock = self.lock.clone();
        Ok(match self.ask(async move { lock.take_or_skip(on_busy).await })? {
            Ran::Done(guard) => Ran::Done(self.guard(guard)),
            Ran::Skipped(holder) => Ran::Skipped(holder),
        })
    }

    fn ask<T: Send + 'static>(
        &self,
        answer: impl Future<Output = Result<T, AcquireError>> + Send + 'static,
    ) -> Result<T, AcquireError> {
        may_wait()?;
        self.worker.wait(answer)?
    }

    fn guard(&self, guard: crate::Guard) -> Guard {
        let lease = Lease { lease: guard.lease().clone(), worker: self.worker.clone() };
        Guard { guard, lease }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// A lock that is held, as the work under it sees it, as [`crate::Lease`]. Clones look at the same lease.
#[derive(Clone)]
pub struct Lease {
    lease: crate::Lease,
    worker: Arc<Worker>,
}

impl Lease {
    /// The name of the lock.
    pub fn name(&self) -> &str {
        self.lease.name()
    }

    /// The fencing token: [`crate::Lease::fence`].
    pub fn fence(&self) -> u64 {
        self.lease.fence()
    }

    /// The public id of this acquisition.
    pub fn holder(&self) -> HolderId {
        self.lease.holder()
    }

    /// May the caller act as holder at this moment? [`crate::Lease::holds`]
    pub fn holds(&self) -> bool {
        self.lease.holds()
    }

    /// The moment until which [`Lease::holds`] is true, unless a renewal moves it: [`crate::Lease::deadline`].
    pub fn deadline(&self) -> Moment {
        self.lease.deadline()
    }

    /// How much is left until [`Lease::deadline`].
    pub fn remaining(&self) -> Duration {
        self.lease.remaining()
    }

    /// The reason, if the holder must stop by now. Does not wait.
    pub fn loss(&self) -> Option<Lost> {
        self.lease.loss()
    }

    /// Waits until the holder must stop, but no longer than `limit`: for work that would pause anyway, and should be
    /// told of a loss meanwhile. `None`: it may go on.
    pub fn lost_within(&self, limit: Duration) -> Option<Lost> {
        let lease = self.lease.clone();
        let lost = async move { tokio::time::timeout(limit, lease.lost()).await.ok() };
        self.worker.wait(lost).ok().flatten()
    }

    /// Begins the lease anew with another length: [`crate::Lease::extend`].
    pub fn extend(&self, ttl: Duration) -> Result<Moment, ExtendError> {
        let lease = self.lease.clone();
        self.worker.wait(async move { lease.extend(ttl).await })?
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lease.fmt(f)
    }
}

/// A held lock, as [`crate::Guard`]. Released by [`Guard::release`], or in the background when dropped.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct Guard {
    guard: crate::Guard,
    lease: Lease,
}

impl Guard {
    /// Gives the lock back: [`crate::Guard::release`]. Waits up to five seconds for an answer.
    pub fn release(self) -> Result<Released, ReleaseError> {
        let guard = self.guard;
        self.lease.worker.wait(async move { guard.release().await })?
    }

    /// Runs work under this guard, and gives the lock back.
    fn under<T>(self, work: impl FnOnce(&Lease) -> T) -> Result<T, LostAtWork<T>> {
        let Self { guard, lease } = self;
        match catch_unwind(AssertUnwindSafe(|| work(&lease))) {
            // In a forked copy nothing is released and nothing was lost.
            Ok(value) => {
                finished(value, lease.worker.wait(async move { guard.settle().await }).unwrap_or_default())
            }
            // The panic may be the end of the program.
            Err(panic) => {
                let _ = lease.worker.wait(guard.give_back());
                resume_unwind(panic)
            }
        }
    }
}

impl Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use super::*;

    #[test]
    fn a_panic_on_the_thread_goes_on_in_the_caller_and_the_thread_lives() {
        let client = Client::connect("memory:").unwrap();
        let call = || -> Result<(), Forked> { client.worker.wait(async { panic!("a bug") }) };
        let panic: Box<dyn std::any::Any + Send> = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"a bug"));
        client.lock("x").acquire().unwrap().release().unwrap();
    }
}
