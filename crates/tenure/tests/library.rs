//! The library over a store that is asked through a lossy engine: what it does when answers fail, when futures are
//! dropped, and when it is used wrongly.
#![cfg(feature = "embedded")]

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure::{
    AcquireError, BadInput, Client, DeferError, Deferrer, Fault, JobId, Lost, LostAtWork, OnBusy, OnLoss,
    ReleaseError, Retry, WithError,
};
use tenure_core::{HolderId, Moment, Name, ProcessId, Reply, Request, Token};
use tenure_embedded::MemoryEngine;
use tenure_engine::{Answer, BoxFuture, Card, Ear, Engine, Look};

/// What becomes of one request.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    Pass,
    /// It never arrives.
    LoseRequest,
    /// It is carried out; nobody learns of it.
    LoseReply,
    NotRun,
    Refuse,
    /// Carried out, and answered after this many milliseconds.
    Slow(u64),
}

/// Gives each request the next of its fates, then the last one for ever.
#[derive(Debug)]
struct Lossy {
    store: Arc<MemoryEngine>,
    fates: Mutex<VecDeque<Fate>>,
    calls: AtomicUsize,
    /// How far the clock of the store is ahead, and what it adds to a lease.
    ahead: Duration,
    guard_ms: u64,
    /// The process stops for an hour after each grant, at the first look at the wall clock.
    sleeper: bool,
    slept_ms: AtomicU64,
}

impl Lossy {
    fn new(fates: &[Fate]) -> Arc<Self> {
        let fates = Mutex::new(fates.iter().copied().collect());
        let (store, calls) = (MemoryEngine::new(), AtomicUsize::new(0));
        let (ahead, guard_ms, sleeper, slept_ms) = (Duration::ZERO, 0, false, AtomicU64::new(0));
        Arc::new(Self { store, fates, calls, ahead, guard_ms, sleeper, slept_ms })
    }

    fn ahead(ahead: Duration, guard_ms: u64) -> Arc<Self> {
        Arc::new(Self { ahead, guard_ms, ..Arc::into_inner(Self::new(&[])).unwrap() })
    }

    /// Nothing can be read while nothing arrives.
    fn fault(&self) -> Result<(), Fault> {
        match self.fates.lock().unwrap().front() {
            Some(Fate::NotRun) => Err(Fault::not_run("connection refused")),
            _ => Ok(()),
        }
    }

    fn overslept() -> Arc<Self> {
        Arc::new(Self { sleeper: true, ..Arc::into_inner(Self::new(&[])).unwrap() })
    }

    fn now(&self, fates: &[Fate]) {
        *self.fates.lock().unwrap() = fates.iter().copied().collect();
    }

    fn next(&self) -> Fate {
        self.calls.fetch_add(1, SeqCst);
        let mut fates = self.fates.lock().unwrap();
        match fates.len() {
            0 => Fate::Pass,
            1 => fates[0],
            _ => fates.pop_front().unwrap(),
        }
    }
}

impl Engine for Lossy {
    fn call<'a>(&'a self, name: &'a Name, request: &'a Request, limit: Duration) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let fate = self.next();
            if !matches!(fate, Fate::Pass | Fate::LoseReply | Fate::Slow(_)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            match fate {
                Fate::Pass => self.store.call(name, request, limit).await.map(|reply| match reply {
                    Reply::Granted { token } => {
                        Reply::Granted { token: Token(token.0 + self.ahead.as_micros() as u64) }
                    }
                    other => other,
                }),
                Fate::Slow(ms) => {
                    let answer = self.store.call(name, request, limit).await;
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    answer
                }
                Fate::LoseReply => {
                    let _ = self.store.call(name, request, limit).await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    Err(Fault::unknown("the reply was lost"))
                }
                Fate::LoseRequest => Err(Fault::unknown("the request was lost")),
                Fate::NotRun => Err(Fault::not_run("connection refused")),
                Fate::Refuse => Err(Fault::refused("wrong password").hint("set the right one")),
            }
        })
    }

    fn call_many<'a>(&'a self, calls: &'a [(Name, Request)], limit: Duration) -> BoxFuture<'a, Vec<Answer>> {
        Box::pin(async move {
            let mut answers = Vec::new();
            for (name, request) in calls {
                answers.push(self.call(name, request, limit).await);
            }
            answers
        })
    }

    fn listen(&self, ear: Ear) {
        self.store.listen(ear);
    }

    fn process(&self) -> ProcessId {
        self.store.process()
    }

    fn guard_ms(&self, ttl_ms: u64) -> u64 {
        self.guard_ms.max(self.store.guard_ms(ttl_ms))
    }

    fn now(&self) -> Moment {
        tenure_engine::boottime().plus(self.slept_ms.load(SeqCst))
    }

    fn unix_ms(&self) -> u64 {
        if self.sleeper {
            self.slept_ms.store(3_600_000, SeqCst);
        }
        tenure_engine::unix_ms()
    }

    fn scope(&self) -> String {
        "lossy".to_owned()
    }

    fn look<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Look, Fault>> {
        Box::pin(async move {
            self.fault()?;
            self.store.look(name).await
        })
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Fault>> {
        self.store.names()
    }

    fn card(&self, process: ProcessId) -> BoxFuture<'_, Result<Option<Card>, Fault>> {
        self.store.card(process)
    }

    fn post<'a>(&'a self, card: &'a Card) -> BoxFuture<'a, Result<(), Fault>> {
        self.store.post(card)
    }

    fn job_file(&self, holder: HolderId) -> Result<Option<OwnedFd>, Fault> {
        self.store.job_file(holder)
    }
}

const MS: Duration = Duration::from_millis(1);

async fn becomes_free(client: &Client, name: &str) {
    let free = async {
        while !client.inspect(name).await.unwrap().is_free() {
            tokio::time::sleep(MS).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), free).await.expect("the lock becomes free");
}

#[tokio::test]
async fn bad_input_is_refused_before_anything_is_sent() {
    let engine = Lossy::new(&[]);
    let client = Client::over(engine.clone()).unwrap();
    let bad = [
        client.lock(""),
        client.lock("a\u{0}"),
        client.lock(&"x".repeat(481)),
        client.lock("tenure:x"),
        client.lock("x").ttl(99 * MS),
        client.lock("x").ttl(Duration::from_secs(24 * 60 * 60 + 1)),
        client.lock("x").ttl(Duration::MAX),
        client.lock("x").wait(Duration::MAX),
    ];
    for lock in bad {
        let error = lock.acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::BadInput(_)), "{error}");
    }
    let error = client.lock("x").ttl(99 * MS).acquire().await.unwrap_err();
    assert_eq!(error.to_string(), "a ttl of 99ms is outside 100 ms to 24 h");
    assert_eq!(engine.calls.load(SeqCst), 0);
}

#[tokio::test]
async fn a_wait_of_nothing_asks_once() {
    let client = Client::connect("memory:").await.unwrap();
    let lock = client.lock("x").wait(Duration::ZERO);
    let guard = lock.acquire().await.unwrap();
    assert!(matches!(lock.acquire().await.unwrap_err(), AcquireError::Busy(_)));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_short_wait_is_long_enough_for_the_first_answer() {
    let client = Client::over(Lossy::new(&[Fate::Slow(50), Fate::Pass])).unwrap();
    client.lock("x").wait(MS).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_token_from_the_far_future_is_given_back_and_reported() {
    let client = Client::over(Lossy::ahead(Duration::from_secs(120), 1000)).unwrap();
    let error = client.lock("x").acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::ClockAhead { .. }), "{error}");
    assert!(error.to_string().ends_with("set the clocks right"), "{error}");
    becomes_free(&client, "x").await;
    for engine in [Lossy::ahead(Duration::from_secs(50), 1000), Lossy::ahead(Duration::from_secs(120), 0)] {
        let client = Client::over(engine).unwrap();
        drop(client.lock("x").acquire().await.expect("within a minute, or one clock for all"));
    }
}

#[tokio::test]
async fn a_lost_answer_to_an_ask_costs_a_second_question() {
    let client = Client::over(Lossy::new(&[Fate::LoseReply, Fate::Pass])).unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert!(guard.holds());
    assert_eq!(client.inspect("x").await.unwrap().fence, Some(guard.fence()));
    assert!(guard.release().await.unwrap().is_confirmed());
}

#[tokio::test]
async fn a_lost_answer_to_a_release_raises_no_alarm() {
    let client = Client::over(Lossy::new(&[Fate::Pass, Fate::LoseReply, Fate::Pass])).unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert!(!guard.release().await.unwrap().is_confirmed(), "the second copy found nothing");
    becomes_free(&client, "x").await;
}

#[tokio::test]
async fn a_store_that_refuses_is_believed_at_once() {
    let client = Client::over(Lossy::new(&[Fate::Refuse])).unwrap();
    let error = client.lock("x").wait_forever().acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Backend(_)));
    assert_eq!(error.to_string(), "wrong password; set the right one");
}

#[tokio::test]
async fn a_store_that_refuses_is_neither_busy_nor_tried_again() {
    let engine = Lossy::new(&[Fate::Refuse]);
    let client = Client::over(engine.clone()).unwrap();
    let retry = Retry::forever().every(MS);
    for on_busy in [OnBusy::Retry(retry), OnBusy::Fail, OnBusy::Skip] {
        let error = client.lock("x").run(on_busy, async |_| ()).await.unwrap_err();
        assert!(matches!(error, WithError::Acquire(AcquireError::Backend(_))), "{error}");
    }
    assert_eq!(engine.calls.load(SeqCst), 3);
}

#[tokio::test]
async fn a_store_out_of_reach_is_given_up_after_three_seconds() {
    let client = Client::over(Lossy::new(&[Fate::NotRun])).unwrap();
    let started = std::time::Instant::now();
    let error = client.lock("x").wait_forever().acquire().await.unwrap_err();
    assert_eq!(error.to_string(), "connection refused");
    assert!((2900..4500).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_holder_that_cannot_renew_is_warned_then_told_before_the_end() {
    let engine = Lossy::new(&[]);
    let client = Client::over(engine.clone()).unwrap();
    let asked = tenure_engine::boottime();
    let guard = client.lock("x").ttl(900 * MS).acquire().await.unwrap();
    engine.now(&[Fate::LoseRequest]);
    let mut view = guard.watch();
    while !view.state().at_risk {
        view.changed().await;
    }
    assert!(guard.holds(), "at risk is not lost");
    assert_eq!(guard.lost().await, Lost::Expired);
    assert!(!guard.holds());
    let told = tenure_engine::boottime().since(asked);
    assert!((800..900).contains(&told), "told after {told} ms of a lease of 900");
    engine.now(&[Fate::Pass]);
    // The store has freed the lock by itself, or does so now.
    tokio::time::sleep(100 * MS).await;
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
}

#[tokio::test]
async fn renewals_keep_a_lease_alive_over_single_failures() {
    let engine = Lossy::new(&[]);
    let client = Client::over(engine.clone()).unwrap();
    let guard = client.lock("x").ttl(300 * MS).acquire().await.unwrap();
    for fate in [Fate::LoseReply, Fate::NotRun, Fate::LoseRequest] {
        engine.now(&[fate, Fate::Pass]);
        tokio::time::sleep(250 * MS).await;
        assert!(guard.holds(), "after one {fate:?}");
    }
    assert!(guard.release().await.unwrap().is_confirmed());
}

#[tokio::test]
async fn an_acquire_can_be_dropped_at_any_poll() {
    for fate in [Fate::Pass, Fate::Slow(3), Fate::LoseReply, Fate::NotRun] {
        for polls in 0..12 {
            let engine = Lossy::new(&[fate, Fate::Pass]);
            let client = Client::over(engine.clone()).unwrap();
            {
                let lock = client.lock("x");
                let mut acquire = pin!(lock.acquire());
                let mut context = Context::from_waker(Waker::noop());
                for _ in 0..polls {
                    if let Poll::Ready(guard) = acquire.as_mut().poll(&mut context) {
                        drop(guard);
                        break;
                    }
                    tokio::time::sleep(MS).await;
                }
            }
            // Free for others, soon; and the client has forgotten it.
            let guard = client.lock("x").wait(Duration::from_secs(1)).acquire().await;
            let guard =
                guard.unwrap_or_else(|error| panic!("{fate:?}, dropped after {polls} polls: {error}"));
            guard.release().await.unwrap();
            becomes_free(&client, "x").await;
        }
    }
}

#[tokio::test]
async fn of_two_acquires_of_a_session_each_can_be_dropped_at_any_poll() {
    let (mut dropped, mut polled_to_the_end) = (0, 0);
    for held in [false, true] {
        for polls in 0..12 {
            let client = Client::over(Lossy::new(&[Fate::Slow(3), Fate::Pass])).unwrap();
            let session = client.session();
            let outer = if held { Some(session.lock("x").acquire().await.unwrap()) } else { None };
            {
                let lock = session.lock("x");
                let mut acquires = [Box::pin(lock.acquire()), Box::pin(lock.acquire())];
                let mut context = Context::from_waker(Waker::noop());
                let mut guards = [None, None];
                for poll in 0..polls {
                    let at = poll % 2;
                    if guards[at].is_none()
                        && let Poll::Ready(guard) = acquires[at].as_mut().poll(&mut context)
                    {
                        guards[at] = Some(guard.unwrap());
                    }
                    tokio::time::sleep(MS).await;
                }
                let pending = guards.iter().filter(|guard| guard.is_none()).count();
                dropped += usize::from(polls > 1) * pending;
                polled_to_the_end += 2 - pending;
            }
            if let Some(outer) = outer {
                assert!(outer.holds(), "after {polls} polls");
                assert!(outer.release().await.unwrap().is_confirmed());
            }
            becomes_free(&client, "x").await;
            session.lock("x").acquire().await.unwrap().release().await.unwrap();
        }
    }
    assert!(dropped > 1 && polled_to_the_end > 1, "{dropped} dropped, {polled_to_the_end} not");
}

#[tokio::test]
async fn a_release_can_be_dropped_at_any_poll() {
    for polls in 0..6 {
        let engine = Lossy::new(&[Fate::Pass, Fate::Slow(3), Fate::Pass]);
        let client = Client::over(engine.clone()).unwrap();
        let guard = client.lock("x").acquire().await.unwrap();
        {
            let mut release = pin!(guard.release());
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                if release.as_mut().poll(&mut context).is_ready() {
                    break;
                }
                tokio::time::sleep(MS).await;
            }
        }
        becomes_free(&client, "x").await;
        let idle = async {
            while !client.clone().close(Duration::ZERO).await {
                tokio::time::sleep(MS).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(2), idle).await.expect("the client forgets the claim");
    }
}

#[tokio::test]
async fn a_guard_can_be_dropped_where_there_is_no_runtime() {
    let client = Client::connect("memory:").await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    becomes_free(&client, "x").await;
}

#[tokio::test]
async fn two_guards_of_one_client_exclude_each_other() {
    let client = Client::connect("memory:").await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    let error = client.lock("x").acquire_now().await.unwrap_err();
    let AcquireError::Busy(holder) = error else { panic!("{error}") };
    assert_eq!(holder.id, Some(guard.holder()));
    guard.release().await.unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn what_was_given_up_just_now_is_not_busy() {
    let client = Client::connect("memory:").await.unwrap();
    let session = client.session();
    for lock in [client.lock("x"), session.lock("x")] {
        drop(lock.acquire().await.unwrap());
        drop(lock.try_acquire().await.unwrap().expect("nobody else wants it"));
        drop(lock.acquire_now().await.unwrap());
        let ran = lock.run(OnBusy::Skip, async |_| 7).await.unwrap();
        assert_eq!(ran.done(), Some(7));
    }
}

#[tokio::test]
async fn a_session_that_cannot_reach_its_store_is_not_busy() {
    let engine = Lossy::new(&[Fate::NotRun]);
    let session = Client::over(engine.clone()).unwrap().session();
    let lock = session.lock("x").wait(50 * MS);
    let first = tokio::spawn(async move { session.lock("x").wait_forever().acquire().await });
    tokio::task::yield_now().await;
    for error in [
        lock.try_acquire().await.unwrap_err(),
        lock.acquire_now().await.unwrap_err(),
        lock.acquire().await.unwrap_err(),
        lock.acquire_retrying(Retry::forever().every(MS)).await.unwrap_err(),
    ] {
        assert!(matches!(error, AcquireError::Backend(_)), "{error}");
        assert_eq!(error.to_string(), "connection refused");
    }
    let error = lock.run(OnBusy::Skip, async |_| ()).await.unwrap_err();
    assert!(matches!(error, WithError::Acquire(AcquireError::Backend(_))), "{error}");
    first.abort();
}

#[tokio::test]
async fn who_comes_second_in_a_session_learns_that_the_first_is_still_acquiring() {
    let session = Client::over(Lossy::new(&[Fate::LoseRequest])).unwrap().session();
    let lock = session.lock("x").wait(50 * MS);
    let first = tokio::spawn(async move { session.lock("x").wait_forever().acquire().await });
    tokio::task::yield_now().await;
    assert!(lock.try_acquire().await.unwrap().is_none());
    let error = lock.acquire_now().await.unwrap_err();
    let expected = "'x' is being acquired by another task of this session; try again when that is over";
    assert_eq!(error.to_string(), expected);
    assert!(matches!(error, AcquireError::Busy(_)) && error.try_again_in().is_none(), "{error}");
    let error = lock.acquire().await.unwrap_err();
    assert_eq!(error.to_string(), format!("waited 50ms; {expected}"));
    first.abort();
}

#[tokio::test]
async fn a_wait_that_ends_names_the_holder() {
    let client = Client::builder("memory:").label("reports").announce_at_once().connect().await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let started = std::time::Instant::now();
    let error = client.lock("x").wait(50 * MS).acquire().await.unwrap_err();
    assert!(started.elapsed() >= 50 * MS, "{:?}", started.elapsed());
    let text = error.to_string();
    assert!(text.starts_with("waited 50ms; 'x' is held by "), "{text}");
    assert!(matches!(error, AcquireError::WaitElapsed { holder, .. } if holder.id == Some(guard.holder())));
}

#[tokio::test]
async fn work_under_a_lock_returns_its_value_and_frees_on_return_and_error() {
    let client = Client::connect("memory:").await.unwrap();
    let lock = client.lock("x");
    let fence = lock.with(async |lease| lease.fence()).await.unwrap();
    assert!(fence > 0);
    let failed: Result<u32, &str> = lock.with(async |_| Err("no paper")).await.unwrap();
    assert_eq!(failed, Err("no paper"));
    becomes_free(&client, "x").await;
}

#[tokio::test]
async fn work_that_panics_frees_the_lock_and_the_panic_goes_on() {
    let client = Client::connect("memory:").await.unwrap();
    let lock = client.lock("x");
    for on_loss in [OnLoss::Cancel, OnLoss::Finish] {
        let lock = lock.clone().on_loss(on_loss);
        let at_once = lock.clone();
        let panicked = tokio::spawn(async move { lock.with(async |_| panic!("out of paper")).await }).await;
        assert!(panicked.unwrap_err().is_panic());
        assert!(client.inspect("x").await.unwrap().is_free(), "before the panic goes on");
        let not_yet_async = |_| -> std::future::Ready<()> { panic!("out of ink") };
        let panicked = tokio::spawn(async move { at_once.with(not_yet_async).await }).await;
        assert!(panicked.unwrap_err().is_panic());
        assert!(client.inspect("x").await.unwrap().is_free(), "before the panic goes on");
    }
}

async fn ask_to_stop(client: &Client, holder: HolderId) {
    assert!(client.ask_to_stop("x", holder, "ops@desk").await.unwrap());
}

#[tokio::test]
async fn work_is_dropped_when_the_lock_is_lost_and_the_lock_is_given_back_at_once() {
    let client = Client::connect("memory:").await.unwrap();
    let lock = client.lock("x");
    let work = async |lease: tenure::Lease| {
        ask_to_stop(&client, lease.holder()).await;
        std::future::pending::<()>().await;
    };
    let error = lock.with(work).await.unwrap_err();
    assert!(client.inspect("x").await.unwrap().is_free());
    assert!(
        matches!(&error, WithError::Lost(LostAtWork { why: Lost::Asked { by }, value: None, .. }) if by == "ops@desk"),
        "{error}"
    );
}

#[tokio::test]
async fn work_that_was_asked_to_stop_and_ends_while_it_holds_has_lost_nothing() {
    for answers in [Fate::Pass, Fate::LoseReply] {
        let engine = Lossy::new(&[]);
        let client = Client::over(engine.clone()).unwrap();
        let work = async |lease: tenure::Lease| {
            ask_to_stop(&client, lease.holder()).await;
            assert!(matches!(lease.lost().await, Lost::Asked { .. }));
            engine.now(&[answers, Fate::Pass]);
            "sums"
        };
        let lock = client.lock("x").on_loss(OnLoss::Finish);
        assert_eq!(lock.with(work).await.unwrap(), "sums", "{answers:?}");
        assert!(client.inspect("x").await.unwrap().is_free());
    }
}

#[tokio::test]
async fn work_does_not_begin_without_its_lock_and_its_job_comes_back() {
    /// No job should come here.
    struct Nowhere;

    impl Deferrer<u32> for Nowhere {
        type Error = std::convert::Infallible;

        async fn defer(&self, _: &str, job: &u32, _: Duration) -> Result<JobId, Self::Error> {
            panic!("{job} is deferred")
        }
    }

    let client = Client::over(Lossy::overslept()).unwrap();
    let error = client.lock("x").with(async |_| panic!("it must not run")).await.unwrap_err();
    assert!(matches!(error, WithError::Acquire(AcquireError::LostAtOnce(Lost::Expired))), "{error}");
    assert!(error.to_string().ends_with("so nothing ran; try again"), "{error}");
    becomes_free(&client, "x").await;

    let client = Client::over(Lossy::overslept()).unwrap();
    let work = async |_, job| panic!("{job} must not run");
    let error = client.lock("x").run_or_defer(7, &Nowhere, work).await.unwrap_err();
    assert!(matches!(error, DeferError::Acquire { error: AcquireError::LostAtOnce(_), job: 7 }), "{error}");
}

#[tokio::test]
async fn work_that_finishes_without_its_lock_brings_its_result_and_the_reason() {
    let engine = Lossy::new(&[]);
    let client = Client::over(engine.clone()).unwrap();
    let lock = client.lock("x").ttl(150 * MS).on_loss(OnLoss::Finish);
    let work = async |lease: tenure::Lease| {
        engine.now(&[Fate::LoseRequest]);
        lease.lost().await;
        tokio::time::sleep(MS).await;
        engine.now(&[Fate::Pass]);
        "sums"
    };
    let error = lock.with(work).await.unwrap_err();
    let WithError::Lost(LostAtWork { why: Lost::Expired, value: Some("sums"), .. }) = error else {
        panic!("{error}")
    };
    assert_eq!(
        error.to_string(),
        "the lock was lost while the work ran (no renewal was answered before the lease ended); it ran to its end, \
         and somebody else may have worked at the same time: look at what it wrote"
    );
}

#[tokio::test]
async fn an_error_of_work_can_be_passed_on_whatever_the_work_returns() {
    /// Shows nothing of itself.
    struct Secret;

    async fn boxed(lock: &tenure::Lock) -> Result<Secret, Box<dyn std::error::Error>> {
        Ok(lock.with(async |_| Secret).await?)
    }

    async fn boxed_without(lock: &tenure::Lock) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        // Goes to no other thread, so the box can't have it.
        let returned = lock.with(async |_| std::rc::Rc::new(Secret)).await.map(drop);
        Ok(returned.map_err(WithError::without_value)?)
    }

    let client = Client::over(Lossy::new(&[Fate::Refuse])).unwrap();
    let told = "wrong password; set the right one";
    assert_eq!(boxed(&client.lock("x")).await.err().unwrap().to_string(), told);
    assert_eq!(boxed_without(&client.lock("x")).await.unwrap_err().to_string(), told);
    let error: DeferError<Secret, Secret, &str> =
        DeferError::Acquire { error: client.lock("x").acquire().await.unwrap_err(), job: Secret };
    assert!(format!("{error:?}").contains("wrong password") && !format!("{error:?}").contains("Secret"));
    let error: Box<dyn std::error::Error> = error.into();
    assert_eq!(error.to_string(), told);

    let client = Client::connect("memory:").await.unwrap();
    let lock = client.lock("x").ttl(100 * MS).without_renewal().on_loss(OnLoss::Finish);
    let overstays = async |lease: tenure::Lease| {
        lease.lost().await;
        Secret
    };
    let error = lock.with(overstays).await.err().unwrap();
    assert!(format!("{error:?}").ends_with("why: Expired, value: Some(\"..\") })"), "{error:?}");
    assert_eq!(error.to_string(), error.without_value().to_string());
}

#[tokio::test]
async fn work_that_finishes_with_its_lock_returns_its_value() {
    let client = Client::connect("memory:").await.unwrap();
    let lock = client.lock("x").on_loss(OnLoss::Finish);
    assert_eq!(lock.with(async |_| 7).await.unwrap(), 7);
    becomes_free(&client, "x").await;
}

#[tokio::test]
async fn who_does_not_hold_cannot_be_asked_to_stop() {
    let client = Client::connect("memory:").await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let other = HolderId { serial: guard.holder().serial + 1, ..guard.holder() };
    let error = client.ask_to_stop("x", other, "ops").await.unwrap_err();
    assert!(error.to_string().ends_with("does not hold this lock; see who does with `tenure inspect NAME`"));
    let error = client.ask_to_stop("x", guard.holder(), "o\nps").await.unwrap_err();
    assert!(matches!(error, tenure::StopError::BadInput(BadInput::By(_))), "{error}");
    assert!(guard.holds());
}

#[tokio::test]
async fn an_extension_takes_effect_at_once() {
    let client = Client::connect("memory:").await.unwrap();
    let guard = client.lock("x").ttl(200 * MS).without_renewal().acquire().await.unwrap();
    let before = guard.deadline();
    let after = guard.extend(Duration::from_secs(10)).await.unwrap();
    assert!(after.since(before) > 9_000 && guard.deadline() == after);
    tokio::time::sleep(250 * MS).await;
    assert!(guard.holds(), "past the first lease");
    guard.extend(100 * MS).await.unwrap();
    assert_eq!(guard.lost().await, Lost::Expired);
    let error = guard.extend(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the lock is not held any more (no renewal was answered before the lease ended)"
    );
}

#[tokio::test]
async fn fifty_tasks_take_turns_in_the_order_in_which_they_came() {
    let client = Client::connect("memory:").await.unwrap();
    let first = client.lock("x").acquire().await.unwrap();
    let turns = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..50 {
        let (lock, turns) = (client.lock("x").wait_forever(), turns.clone());
        tasks.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            turns.lock().unwrap().push((number, guard.fence()));
            guard.release().await.unwrap();
        });
        tokio::task::yield_now().await;
    }
    first.release().await.unwrap();
    tasks.join_all().await;
    let turns = turns.lock().unwrap();
    assert!(turns.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{turns:?}");
}

#[tokio::test]
async fn a_client_that_closes_gives_everything_back() {
    let client = Client::connect("memory:close").await.unwrap();
    let witness = Client::connect("memory:close").await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert!(client.close(Duration::from_secs(1)).await);
    assert!(witness.inspect("x").await.unwrap().is_free());
    assert!(!guard.holds());
}

#[test]
fn connecting_without_a_runtime_says_so() {
    let mut connect = pin!(Client::connect("memory:"));
    let Poll::Ready(Err(error)) = connect.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it can't have connected")
    };
    assert!(error.to_string().contains("no tokio runtime"), "{error}");
}

#[tokio::test]
async fn an_unknown_url_is_named_without_its_password() {
    let error = Client::connect("mysql://root:secret@db/0").await.unwrap_err().to_string();
    assert!(error.starts_with("\"mysql://***@db/0\" is no address of a lock store"), "{error}");
}

#[test]
fn guards_go_anywhere() {
    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<tenure::Guard>();
    anywhere::<tenure::Lease>();
    anywhere::<Client>();
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn what_happens_is_counted() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let recorder = DebuggingRecorder::new();
    let _here = metrics::set_default_local_recorder(&recorder);
    let engine = Lossy::new(&[]);
    let client = Client::over(engine.clone()).unwrap();
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    let guard = client.lock("x").ttl(300 * MS).acquire().await.unwrap();
    tokio::time::sleep(150 * MS).await;
    engine.now(&[Fate::LoseRequest]);
    guard.lost().await;

    let seen: Vec<_> = recorder.snapshotter().snapshot().into_vec();
    let value = |name: &str, kind: &str| {
        let found = seen.iter().find(|(key, ..)| {
            let key = key.key();
            key.name() == name && key.labels().all(|label| label.value() == kind)
        });
        match &found.unwrap_or_else(|| panic!("{name} {kind} is missing in {seen:?}")).3 {
            DebugValue::Counter(count) => *count as usize,
            DebugValue::Histogram(values) => values.len(),
            DebugValue::Gauge(_) => unreachable!("there are none"),
        }
    };
    assert_eq!(value("tenure_waited_seconds", ""), 2);
    assert_eq!(value("tenure_held_seconds", ""), 1);
    assert_eq!(value("tenure_ended_total", "released"), 1);
    assert_eq!(value("tenure_lost_total", "expired"), 1);
    assert!(value("tenure_batch_seconds", "") >= 2, "renewals");
    assert!(value("tenure_faults_total", "unknown") >= 1);
}
