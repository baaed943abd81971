use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::{HolderId, Name, ProcessId, Reply, Request};
use tenure_engine::{Answer, BoxFuture, Card, Ear, Engine, Fault, FaultKind, Look};
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::guard::LIMIT;
use crate::location::Location;
use crate::member::Member;
use crate::processes::{locked, write_card};
use crate::store::Store;

/// The most requests in one transaction, which keeps everybody else out.
const CALLS_AT_ONCE: usize = 128;

/// How many waiters [`Engine::look`] shows.
const WAITERS_SHOWN: usize = 100;

/// How often a listening engine clears up after the dead.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How soon the mailbox is opened again when the store was busy.
const MAIL_AGAIN: Duration = Duration::from_millis(20);

/// The engine for one host: a file that all processes of one user share, and no server.
///
/// It lives as a process does: when the value is dropped, whatever its owners held or waited for is free, except
/// holds whose job still runs. Two values in one process are two processes to each other.
///
/// In a child forked without exec the engines of its parent do nothing: requests are refused, and a drop leaves the
/// parent's locks alone.
#[derive(Debug)]
pub struct EmbeddedEngine {
    store: Arc<Store>,
    me: Arc<Member>,
    /// Taken by the listener.
    bell: Mutex<Option<UnixDatagram>>,
}

impl EmbeddedEngine {
    /// Opens the store, and creates it if there is none. Blocks for a moment, a second at most.
    pub fn open(place: &Location) -> Result<Arc<Self>, Fault> {
        let store = Store::open(place)?;
        let (me, bell) = store.join()?;
        Ok(Arc::new(Self { store, me, bell: Mutex::new(Some(bell)) }))
    }

    async fn one(&self, name: &Name, request: &Request, limit: Duration) -> Answer {
        let (mut replies, post) = {
            let entered = self.store.enter(limit).await?;
            self.store.apply(&entered, [(name, request)])?
        };
        self.store.send(post);
        let reply = replies.pop().expect("one reply to one request");
        self.note(name, request, &reply);
        Ok(reply)
    }

    async fn some(&self, calls: &[(Name, Request)], limit: Duration) -> Result<Vec<Reply>, Fault> {
        let (replies, post) = {
            let entered = self.store.enter(limit).await?;
            self.store.apply(&entered, calls.iter().map(|(name, request)| (name, request)))?
        };
        self.store.send(post);
        for ((name, request), reply) in calls.iter().zip(&replies) {
            self.note(name, request, reply);
        }
        Ok(replies)
    }

    /// Whoever is the first in line watches the holder's process.
    fn note(&self, name: &Name, request: &Request, reply: &Reply) {
        match (request, reply) {
            (Request::Ask { owner, place_ms, .. }, Reply::Queued { head: true, standing }) => {
                self.me.is_head(&self.store, name, *owner, standing.as_ref(), *place_ms);
            }
            (Request::Ask { owner, .. }, _) => self.me.is_no_head(owner),
            (Request::Release { owner }, reply) => {
                self.me.is_no_head(owner);
                if *reply == Reply::Released {
                    self.store.processes().end_job(owner.holder);
                }
            }
            (Request::Renew { .. } | Request::Stop { .. }, _) => {}
        }
    }
}

impl Engine for EmbeddedEngine {
    fn call<'a>(&'a self, name: &'a Name, request: &'a Request, limit: Duration) -> BoxFuture<'a, Answer> {
        Box::pin(self.one(name, request, limit))
    }

    fn call_many<'a>(&'a self, calls: &'a [(Name, Request)], limit: Duration) -> BoxFuture<'a, Vec<Answer>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(calls.len());
            for calls in calls.chunks(CALLS_AT_ONCE) {
                match self.some(calls, limit).await {
                    Ok(replies) => answers.extend(replies.into_iter().map(Ok)),
                    // One that finds no room must not take the others with it.
                    Err(_) => {
                        for (name, request) in calls {
                            answers.push(self.one(name, request, limit).await);
                        }
                    }
                }
            }
            answers
        })
    }

    /// # Panics
    /// Outside of a tokio runtime, or when called twice.
    fn listen(&self, ear: Ear) {
        self.me.set_voice(ear, Handle::current());
        let bell = locked(&self.bell).take().expect("an engine is listened to once");
        self.me.spawn(listen(self.store.clone(), self.me.clone(), bell));
    }

    fn process(&self) -> ProcessId {
        self.me.id()
    }

    fn guard_ms(&self, _ttl_ms: u64) -> u64 {
        0
    }

    fn scope(&self) -> String {
        format!("file:{} (this host only)", self.store.path().display())
    }

    fn look<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Look, Fault>> {
        Box::pin(async move {
            let (look, post) = {
                let entered = self.store.enter(LIMIT).await?;
                self.store.look(&entered, name, WAITERS_SHOWN)?
            };
            self.store.send(post);
            Ok(look)
        })
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Fault>> {
        Box::pin(async move {
            let (mut names, mut last) = (Vec::new(), None);
            loop {
                let entered = self.store.enter(LIMIT).await?;
                let (some, next) = self.store.names_after(&entered, last)?;
                names.extend(some);
                last = next;
                if last.is_none() {
                    return Ok(names);
                }
            }
        })
    }

    fn card(&self, process: ProcessId) -> BoxFuture<'_, Result<Option<Card>, Fault>> {
        Box::pin(async move {
            // Inside the guard, so that no card is read half written.
            let _entered = self.store.enter(LIMIT).await?;
            if let Some(member) = self.store.processes().here(process) {
                return Ok(member.card());
            }
            self.store.processes().read_card(process).map_err(|error| {
                Fault::not_run(format!("cannot read the card of process {process}: {error}")).source(error)
            })
        })
    }

    fn post<'a>(&'a self, card: &'a Card) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            self.store.check_process()?;
            if self.me.has_card(card) {
                return Ok(());
            }
            let _entered = self.store.enter(LIMIT).await?;
            write_card(self.me.file(), card).map_err(|error| {
                Fault::not_run(format!("cannot write the card of this process: {error}")).source(error)
            })?;
            self.me.keep_card(card);
            Ok(())
        })
    }

    /// The descriptor is closed on exec, like every other: clear that in the child which is to keep the hold alive.
    fn job_file(&self, holder: HolderId) -> Result<Option<OwnedFd>, Fault> {
        self.store.check_process()?;
        let path = self.store.path();
        let file = self.store.processes().create_job(holder).map_err(|error| {
            Fault::not_run(format!("cannot create the file of job {holder} in {}: {error}", path.display()))
                .source(error)
        })?;
        // The file keeps a hold, but brings none back: it may have ended until the file was locked.
        let fault = match self.store.holds(holder) {
            Ok(true) => return Ok(Some(file)),
            Ok(false) => Fault::refused(format!("the lock of {holder} is not held any more")),
            Err(fault) => fault,
        };
        self.store.processes().end_job(holder);
        Err(fault)
    }
}

impl Drop for EmbeddedEngine {
    fn drop(&mut self) {
        // A forked copy is not the process whose end this would be.
        if self.store.is_ours() {
            self.me.stop();
            self.store.processes().leave(self.me.id());
        }
    }
}

/// The bell, on the listener's runtime.
struct Bell {
    store: Arc<Store>,
    socket: Option<tokio::net::UnixDatagram>,
}

impl Drop for Bell {
    fn drop(&mut self) {
        // A forked copy shares the list of what its parent's runtime waits for, and would take the bell off it.
        if !self.store.is_ours() {
            std::mem::forget(self.socket.take());
        }
    }
}

/// Takes the letters whenever the bell rings, and clears up now and then.
async fn listen(store: Arc<Store>, me: Arc<Member>, bell: UnixDatagram) {
    let bell = match tokio::net::UnixDatagram::from_std(bell) {
        Ok(bell) => Bell { store: store.clone(), socket: Some(bell) },
        Err(error) => {
            tracing::warn!(%error, "cannot wait for messages of other processes: locks are looked at instead");
            return;
        }
    };
    let Some(socket) = &bell.socket else { return };
    let mut sweeps = interval(SWEEP_EVERY);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    sweeps.reset();
    loop {
        tokio::select! {
            rung = socket.readable() => {
                if let Err(error) = rung {
                    tracing::debug!(%error, "the bell cannot be waited for");
                    sleep(SWEEP_EVERY).await;
                }
                while socket.try_recv(&mut [0]).is_ok() {}
                take_letters(&store, &me).await;
            }
            _ = sweeps.tick() => sweep(&store).await,
        }
    }
}

async fn take_letters(store: &Arc<Store>, me: &Arc<Member>) {
    loop {
        let letters = match store.enter(LIMIT).await {
            Ok(entered) => store.collect(&entered, me.id()),
            Err(fault) => Err(fault),
        };
        match letters {
            Ok(letters) => return letters.into_iter().for_each(|letter| me.deliver(store, letter)),
            Err(fault) if fault.kind == FaultKind::NotRun => sleep(MAIL_AGAIN).await,
            Err(fault) => return tracing::warn!(%fault, "cannot read messages of other processes"),
        }
    }
}

async fn sweep(store: &Arc<Store>) {
    let swept = match store.enter(LIMIT).await {
        Ok(entered) => store.sweep(&entered),
        Err(fault) => Err(fault),
    };
    match swept {
        Ok(post) => store.send(post),
        Err(fault) => tracing::debug!(%fault, "cannot clear up after dead processes"),
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::Attempt;
    use tenure_engine::random_owner;

    use super::*;

    /// What a forked copy has: all of the engine, and another process number.
    #[tokio::test]
    async fn a_forked_copy_is_refused_and_its_drop_frees_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::Directory(folder.path().into());
        let store = Store::open(&location).unwrap();
        let (me, bell) = store.join().unwrap();
        let path = store.path().to_owned();
        let copied = Arc::new(Arc::try_unwrap(store).unwrap().into_a_copy());
        let copy = EmbeddedEngine { store: copied.clone(), me: me.clone(), bell: Mutex::new(Some(bell)) };

        let name = Name::new("x").unwrap();
        let owner = random_owner(HolderId { process: me.id(), serial: 1 });
        let (ttl_ms, place_ms) = (30_000, 30_000);
        let ask = Request::Ask { owner, ttl_ms, guard_ms: 0, place_ms, attempt: Attempt(1), not_after: None };
        let faults = [
            copy.call(&name, &ask, LIMIT).await.unwrap_err(),
            copy.call_many(&[(name.clone(), ask)], LIMIT).await.remove(0).unwrap_err(),
            copy.look(&name).await.unwrap_err(),
            copy.names().await.unwrap_err(),
            copy.card(me.id()).await.unwrap_err(),
            copy.post(&Card::default()).await.unwrap_err(),
            copy.job_file(owner.holder).unwrap_err(),
        ];
        for fault in faults {
            assert_eq!(fault.kind, FaultKind::Refused);
            assert!(fault.to_string().contains("this process is a forked copy"), "{fault}");
        }
        drop(copy);
        assert!(copied.processes().here(me.id()).is_some());
        let boot = std::fs::read_dir(path).unwrap().flatten().find(|entry| entry.path().is_dir()).unwrap();
        for (folder, files) in [("processes", 1), ("bells", 1), ("jobs", 0)] {
            let found = std::fs::read_dir(boot.path().join(folder)).unwrap().count();
            assert_eq!(found, files, "{folder}");
        }
    }
}
