//! How a hold is kept, prolonged, and given back; and that nobody else can do it.

use std::time::{Duration, Instant};

use tenure::{AcquireError, Client, ExtendError, Guard, Lost, ReleaseError, State, StopError};
use tenure_core::{Owner, Reply, Request};
use tenure_engine::boottime;
use tokio::time::{sleep, timeout};

use crate::order::LIMIT;
use crate::subject::{Store, look, name, until};

/// Long enough that a busy machine does not lose it by accident.
pub(crate) const TTL: Duration = Duration::from_secs(2);

/// What takes no longer than this happens at once.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(1);

/// Nobody holds `name` and nobody waits for it, soon: and the next one gets it.
pub(crate) async fn comes_free(client: &Client, name: &str) {
    until(format!("{name} comes free"), AT_ONCE, async || look(client, name).await.is_free()).await;
    let guard = client.lock(name).try_acquire().await.expect("the store answers").expect("it is free");
    guard.release().await.expect("it is held");
}

pub(crate) async fn take(client: &Client, name: &str, ttl: Duration) -> Guard {
    client.lock(name).ttl(ttl).acquire().await.expect("it is free, or its turn comes")
}

pub(crate) async fn the_wrong_owner_changes_nothing(store: &Store) {
    let (client, engine, x) = (store.client().await, store.engine().await, name("x"));
    let guard = take(&client, "x", Duration::from_secs(10)).await;
    let lock = client.lock("x");
    let waiter = tokio::spawn(async move { lock.acquire().await.expect("its turn comes") });
    store.until_waiting(&client, "x", 1).await;
    let before = look(&client, "x").await;
    // The public ids of both are known; their secrets are not.
    let waiting = before.waiters[0].id.parse().expect("an id");
    for holder in [guard.holder(), waiting] {
        for secret in [0, 1, u128::MAX] {
            let owner = Owner { holder, secret };
            for request in
                [Request::Release { owner }, Request::Renew { owner, ttl_ms: 60_000, guard_ms: 60_000 }]
            {
                let reply = engine.call(&x, &request, LIMIT).await.expect("the store answers");
                assert_eq!(reply, Reply::NotHeld, "{request:?}");
            }
        }
    }
    let after = look(&client, "x").await;
    assert_eq!((after.state, after.fence, after.waiting), (State::Held, Some(guard.fence()), 1));
    assert!(after.free_in_ms <= before.free_in_ms, "the lease was not prolonged");
    assert!(guard.release().await.expect("it is held").is_confirmed());
    waiter.await.expect("no panic").release().await.expect("it is held");
}

pub(crate) async fn a_lease_without_renewal_ends(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let guard = client.lock("x").ttl(TTL).without_renewal().acquire().await.expect("it is free");
    let begun = Instant::now();
    let waiting = take_elsewhere(&other, "x");
    assert_eq!(guard.lost().await, Lost::Expired);
    assert!(begun.elapsed() < TTL, "the holder learns of the end before it comes");
    assert!(!guard.holds());
    let (next, at) = waiting.await.expect("no panic");
    assert!(at - begun > TTL * 9 / 10, "the next one came {:?} after the first", at - begun);
    assert!(at - begun < TTL + store.guard(TTL).await + AT_ONCE, "it took {:?}", at - begun);
    assert!(next.fence() > guard.fence());
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
    assert!(next.holds(), "the late release changed nothing");
    next.release().await.expect("it is held");
}

/// Waits for a lock in a task; the guard and when it came.
pub(crate) fn take_elsewhere(client: &Client, name: &str) -> tokio::task::JoinHandle<(Guard, Instant)> {
    let lock = client.lock(name).wait_forever();
    tokio::spawn(async move {
        let guard = lock.acquire().await.expect("its turn comes");
        (guard, Instant::now())
    })
}

pub(crate) async fn renewal_keeps_it(store: &Store) {
    let ttl = Duration::from_secs(1);
    let (client, other) = (store.client().await, store.client().await);
    let guard = take(&client, "x", ttl).await;
    let begun = Instant::now();
    while begun.elapsed() < 3 * ttl + ttl / 2 {
        assert!(guard.holds(), "lost after {:?}", begun.elapsed());
        assert!(other.lock("x").try_acquire().await.expect("the store answers").is_none());
        sleep(Duration::from_millis(50)).await;
    }
    assert!(guard.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn an_extension_moves_the_end(store: &Store) {
    let ttl = Duration::from_secs(1);
    let (client, other) = (store.client().await, store.client().await);
    let guard = client.lock("x").ttl(ttl).without_renewal().acquire().await.expect("it is free");
    let before = guard.deadline();
    let after = guard.extend(2 * ttl).await.expect("it is held");
    assert!(after.since(before) > 700, "the end moved by {} ms", after.since(before));
    sleep(ttl + ttl / 4).await;
    assert!(guard.holds());
    assert!(other.lock("x").try_acquire().await.expect("the store answers").is_none());
    assert_eq!(guard.lost().await, Lost::Expired);
    let error = guard.extend(ttl).await.expect_err("it is over");
    assert!(matches!(error, ExtendError::Lost(Lost::Expired)), "{error}");
}

pub(crate) async fn a_wait_that_elapses_names_the_holder(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let guard = take(&client, "x", TTL).await;
    let wait = Duration::from_millis(300);
    let begun = Instant::now();
    let error = other.lock("x").wait(wait).acquire().await.expect_err("it is held");
    assert!((wait..wait + AT_ONCE).contains(&begun.elapsed()), "it took {:?}", begun.elapsed());
    let AcquireError::WaitElapsed { holder, waited } = &error else { panic!("{error}") };
    assert_eq!((holder.id, *waited), (Some(guard.holder()), wait));
    assert!(error.to_string().contains("'x' is held by "), "{error}");
    store.until_waiting(&client, "x", 0).await;
    guard.release().await.expect("it is held");
}

pub(crate) async fn a_dropped_guard_frees(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    drop(take(&client, "x", TTL).await);
    comes_free(&other, "x").await;
    let guard = take(&client, "x", TTL).await;
    std::thread::spawn(move || drop(guard)).join().expect("a guard may be dropped outside of the runtime");
    comes_free(&other, "x").await;
}

pub(crate) async fn work_that_returns_fails_or_panics_frees(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let lock = client.lock("x");
    assert!(lock.with(async |lease| lease.holds()).await.expect("it ran"));
    comes_free(&other, "x").await;
    assert_eq!(lock.with(async |_| Err::<(), _>("no")).await.expect("it ran"), Err("no"));
    comes_free(&other, "x").await;
    // A panic without the message of one.
    let panics =
        tokio::spawn(
            async move { lock.with(async |_| std::panic::resume_unwind(Box::new("on purpose"))).await },
        );
    assert!(panics.await.expect_err("it panicked").is_panic());
    comes_free(&other, "x").await;
}

pub(crate) async fn a_client_that_closes_gives_everything_back(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let held = [take(&client, "a", TTL).await, take(&client, "b", TTL).await];
    let theirs = take(&other, "c", TTL).await;
    let lock = client.lock("c");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    store.until_waiting(&other, "c", 1).await;
    assert!(client.close(AT_ONCE).await, "there was time enough");
    for name in ["a", "b"] {
        assert!(look(&other, name).await.is_free(), "{name}");
    }
    assert_eq!(look(&other, "c").await.waiting, 0);
    assert!(waiting.await.expect("no panic").is_err(), "the wish was given up");
    assert!(held.iter().all(|guard| !guard.holds()));
    theirs.release().await.expect("it is held");
}

pub(crate) async fn a_holder_can_be_asked_to_stop(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let guard = take(&client, "x", TTL).await;
    other.ask_to_stop("x", guard.holder(), "ops").await.expect("it holds");
    let lost = timeout(AT_ONCE, guard.lost()).await.expect("it is told at once");
    assert_eq!(lost, Lost::Asked { by: "ops".to_owned() });
    assert!(guard.holds(), "it may put things in order until its lease ends");
    assert!(guard.release().await.expect("it is held").is_confirmed());
    // One that does not listen is not renewed.
    let guard = take(&client, "x", TTL).await;
    other.ask_to_stop("x", guard.holder(), "ops").await.expect("it holds");
    let limit = TTL + store.guard(TTL).await + AT_ONCE;
    let next = timeout(limit, other.lock("x").acquire()).await.expect("the lease ends").expect("its turn");
    assert!(!guard.holds());
    next.release().await.expect("it is held");
}

pub(crate) async fn nobody_else_is_asked_to_stop(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let gone = take(&client, "x", TTL).await;
    let before = gone.holder();
    gone.release().await.expect("it is held");
    let guard = take(&client, "x", TTL).await;
    let error = other.ask_to_stop("x", before, "ops").await.expect_err("it does not hold any more");
    assert!(matches!(error, StopError::NotHolder(id) if id == before), "{error}");
    let until = boottime().plus(300);
    while boottime() < until {
        assert!(timeout(Duration::from_millis(20), guard.lost()).await.is_err(), "the wrong one was told");
    }
    let id = guard.holder();
    guard.release().await.expect("it is held");
    let error = other.ask_to_stop("x", id, "ops").await.expect_err("it is free");
    assert!(matches!(error, StopError::NotHolder(_)), "{error}");
}
