//! First come, first served; and every holder's token is larger than the one before.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::{Attempt, HolderId, Owner, Reply, Request, Token};
use tenure_engine::{Engine, random_owner};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::subject::{Store, name};

/// How long one request may take here.
pub(crate) const LIMIT: Duration = Duration::from_secs(2);

const WAITERS: usize = 20;

/// An ask, as the library would send it; `place_ms` 0: without a place in the queue.
pub(crate) fn ask(owner: Owner, place_ms: u64, attempt: u32) -> Request {
    Request::Ask { owner, ttl_ms: 5000, guard_ms: 1000, place_ms, attempt: Attempt(attempt), not_after: None }
}

/// A new owner of this engine's process.
pub(crate) fn owner_of(engine: &dyn Engine, serial: u32) -> Owner {
    random_owner(HolderId { process: engine.process(), serial })
}

pub(crate) async fn waiters_are_served_in_the_order_of_their_arrival(store: &Store) {
    let clients = [store.client().await, store.client().await, store.client().await];
    let guard = clients[0].lock("x").acquire().await.expect("it is free");
    let served = Arc::<Mutex<Vec<usize>>>::default();
    let mut waiters = JoinSet::new();
    for number in 0..WAITERS {
        let (lock, served) = (clients[number % 3].lock("x"), served.clone());
        waiters.spawn(async move {
            let guard = lock.acquire().await.expect("its turn comes");
            served.lock().expect("no panic").push(number);
            guard.release().await.expect("it is held");
        });
        store.until_waiting(&clients[0], "x", number + 1).await;
    }
    guard.release().await.expect("it is held");
    waiters.join_all().await;
    assert_eq!(*served.lock().expect("no panic"), (0..WAITERS).collect::<Vec<_>>());
}

pub(crate) async fn waiters_of_many_processes_are_served_in_the_order_of_their_arrival(store: &Store) {
    let client = store.client().await;
    let mut takers = Vec::new();
    for _ in 0..5 {
        takers.push(store.taker().await);
    }
    let guard = client.lock("x").acquire().await.expect("it is free");
    let mut tasks = Vec::new();
    // Every other one is a task of this process.
    for number in 0..WAITERS / 2 {
        let lock = client.lock("x");
        tasks.push(tokio::spawn(async move { lock.acquire().await.expect("its turn comes") }));
        store.until_waiting(&client, "x", 2 * number + 1).await;
        takers[number % 5].begins(&format!("w{number}"), "x", Duration::from_secs(10)).await;
        store.until_waiting(&client, "x", 2 * number + 2).await;
    }
    let mut last = guard.fence();
    guard.release().await.expect("it is held");
    for (number, task) in tasks.into_iter().enumerate() {
        let guard = task.await.expect("no panic");
        assert!(guard.fence() > last, "tokens rise");
        guard.release().await.expect("it is held");
        let (taker, tag) = (&mut takers[number % 5], format!("w{number}"));
        (last, _) = taker.has(&tag).await;
        assert_eq!(taker.releases(&tag).await, "released");
    }
}

pub(crate) async fn a_newcomer_never_passes_a_queue(store: &Store) {
    let (client, newcomer) = (store.client().await, store.client().await);
    for _ in 0..10 {
        let guard = client.lock("x").acquire().await.expect("it is free");
        let lock = client.lock("x");
        let waiter = tokio::spawn(async move { lock.acquire().await.expect("its turn comes") });
        store.until_waiting(&client, "x", 1).await;
        let lock = newcomer.lock("x");
        let pushing = tokio::spawn(async move {
            loop {
                if let Some(guard) = lock.try_acquire().await.expect("the store answers") {
                    return guard;
                }
                sleep(Duration::from_micros(300)).await;
            }
        });
        guard.release().await.expect("it is held");
        let served = waiter.await.expect("no panic");
        let first = served.fence();
        served.release().await.expect("it is held");
        let pushed_in = pushing.await.expect("no panic");
        assert!(pushed_in.fence() > first, "a newcomer came before the waiter");
        pushed_in.release().await.expect("it is held");
    }
}

pub(crate) async fn tokens_rise_from_holder_to_holder(store: &Store) {
    let tokens = Arc::<Mutex<Vec<u64>>>::default();
    let mut crowd = JoinSet::new();
    for _ in 0..4 {
        let (client, tokens) = (store.client().await, tokens.clone());
        crowd.spawn(async move {
            for _ in 0..25 {
                let guard = client.lock("x").acquire().await.expect("its turn comes");
                tokens.lock().expect("no panic").push(guard.fence());
                guard.release().await.expect("it is held");
            }
        });
    }
    crowd.join_all().await;
    let tokens = tokens.lock().expect("no panic");
    assert_eq!(tokens.len(), 100);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

pub(crate) async fn asking_again_brings_the_same_token(store: &Store) {
    let (engine, x) = (store.engine().await, name("x"));
    let (one, other) = (owner_of(&*engine, 1), owner_of(&*engine, 2));
    let mut last = Token(0);
    for _ in 0..5 {
        let first = engine.call(&x, &ask(one, 0, 1), LIMIT).await.expect("the store answers");
        let again = engine.call(&x, &ask(one, 30_000, 2), LIMIT).await.expect("the store answers");
        assert_eq!(first, again, "an ask is safe to repeat");
        let Reply::Granted { token } = first else { panic!("it is free: {first:?}") };
        assert!(token > last);
        last = token;
        let busy = engine.call(&x, &ask(other, 0, 1), LIMIT).await.expect("the store answers");
        assert!(
            matches!(busy, Reply::Busy { standing: Some(standing) }
                if standing.holder == Some(one.holder) && standing.token == Some(token)),
            "{busy:?}"
        );
        let released = engine.call(&x, &Request::Release { owner: one }, LIMIT).await.expect("it answers");
        assert_eq!(released, Reply::Released);
    }
}
