//! An engine between the library and another engine that loses and delays what passes.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{HolderId, Message, Name, ProcessId, Reply, Request};
use tenure_engine::{Answer, BoxFuture, Card, Ear, Engine, Fault, Look};

/// What happens to requests.
#[derive(Clone, Copy, Debug, Default)]
pub enum Calls {
    /// They are carried.
    #[default]
    Pass,
    /// They are carried, but no reply comes back.
    LoseReplies,
    /// As before for the next request of this kind, then all is well again.
    LoseOneReply(Verb),
    /// They are not carried, and the caller learns nothing until its time is over.
    CutOff,
    /// They are carried, and the reply is changed: an engine with a bug.
    Twist(fn(Reply) -> Reply),
}

/// Kinds of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs)]
pub enum Verb {
    Ask,
    Renew,
    Release,
    Stop,
}

/// What happens to hand-over messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HandOvers {
    /// They arrive.
    #[default]
    Pass,
    /// They are lost.
    Lose,
    /// They arrive twice.
    Double,
    /// They arrive at once, and once more after this time.
    Echo(Duration),
    /// They arrive after this time.
    Late(Duration),
}

/// Wraps an engine. Cards and looks pass untouched: locks do not depend on them.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Engine>,
    faults: Arc<Mutex<(Calls, HandOvers)>>,
    struck: Arc<AtomicU64>,
}

impl Faulty {
    /// Nothing is wrong yet.
    pub fn new(inner: Arc<dyn Engine>) -> Arc<Self> {
        Arc::new(Self { inner, faults: Arc::default(), struck: Arc::default() })
    }

    /// What happens to requests from now on.
    pub fn calls(&self, calls: Calls) {
        self.faults().0 = calls;
    }

    /// What happens to hand-over messages from now on.
    pub fn hand_overs(&self, hand_overs: HandOvers) {
        self.faults().1 = hand_overs;
    }

    /// How many requests and messages met a fault.
    pub fn struck(&self) -> u64 {
        self.struck.load(Relaxed)
    }

    fn faults(&self) -> MutexGuard<'_, (Calls, HandOvers)> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens to this request.
    fn fate(&self, request: &Request) -> Calls {
        let mut faults = self.faults();
        let fate = match faults.0 {
            Calls::LoseOneReply(verb) if verb == verb_of(request) => {
                faults.0 = Calls::Pass;
                Calls::LoseReplies
            }
            Calls::LoseOneReply(_) => Calls::Pass,
            standing => standing,
        };
        if !matches!(fate, Calls::Pass) {
            self.struck.fetch_add(1, Relaxed);
        }
        fate
    }

    async fn carry(&self, name: &Name, request: &Request, limit: Duration) -> Answer {
        match self.fate(request) {
            Calls::Pass => return self.inner.call(name, request, limit).await,
            Calls::Twist(twist) => return self.inner.call(name, request, limit).await.map(twist),
            Calls::LoseReplies | Calls::LoseOneReply(_) => {
                // Whatever became of it, nobody is told.
                let _ = self.inner.call(name, request, limit).await;
            }
            Calls::CutOff => {}
        }
        tokio::time::sleep(limit).await;
        Err(Fault::unknown("the suite lost the reply"))
    }
}

fn verb_of(request: &Request) -> Verb {
    match request {
        Request::Ask { .. } => Verb::Ask,
        Request::Renew { .. } => Verb::Renew,
        Request::Release { .. } => Verb::Release,
        Request::Stop { .. } => Verb::Stop,
    }
}

impl Engine for Faulty {
    fn call<'a>(&'a self, name: &'a Name, request: &'a Request, limit: Duration) -> BoxFuture<'a, Answer> {
        Box::pin(self.carry(name, request, limit))
    }

    fn call_many<'a>(&'a self, calls: &'a [(Name, Request)], limit: Duration) -> BoxFuture<'a, Vec<Answer>> {
        Box::pin(async move {
            if matches!(self.faults().0, Calls::Pass) {
                return self.inner.call_many(calls, limit).await;
            }
            let mut answers = Vec::with_capacity(calls.len());
            for (name, request) in calls {
                answers.push(self.carry(name, request, limit).await);
            }
            answers
        })
    }

    fn listen(&self, ear: Ear) {
        let runtime = tokio::runtime::Handle::current();
        let (faults, struck) = (self.faults.clone(), self.struck.clone());
        self.inner.listen(Arc::new(move |letter| {
            let (_, fate) = *faults.lock().unwrap_or_else(PoisonError::into_inner);
            if fate == HandOvers::Pass || !matches!(letter.message, Message::Granted { .. }) {
                return ear(letter);
            }
            struck.fetch_add(1, Relaxed);
            let later = match fate {
                HandOvers::Pass | HandOvers::Lose => None,
                HandOvers::Double => {
                    ear(letter.clone());
                    Some(Duration::ZERO)
                }
                HandOvers::Echo(later) => {
                    ear(letter.clone());
                    Some(later)
                }
                HandOvers::Late(later) => Some(later),
            };
            if let Some(later) = later {
                let ear = ear.clone();
                runtime.spawn(async move {
                    tokio::time::sleep(later).await;
                    ear(letter);
                });
            }
        }));
    }

    fn process(&self) -> ProcessId {
        self.inner.process()
    }

    fn guard_ms(&self, ttl_ms: u64) -> u64 {
        self.inner.guard_ms(ttl_ms)
    }

    fn scope(&self) -> String {
        self.inner.scope()
    }

    fn look<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Look, Fault>> {
        self.inner.look(name)
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Fault>> {
        self.inner.names()
    }

    fn card(&self, process: ProcessId) -> BoxFuture<'_, Result<Option<Card>, Fault>> {
        self.inner.card(process)
    }

    fn post<'a>(&'a self, card: &'a Card) -> BoxFuture<'a, Result<(), Fault>> {
        self.inner.post(card)
    }

    fn job_file(&self, holder: HolderId) -> Result<Option<OwnedFd>, Fault> {
        self.inner.job_file(holder)
    }
}
