//! An acquire whose future is dropped, whenever that is, leaves nothing behind.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use tokio::time::{sleep, timeout};

use crate::lease::{TTL, comes_free, take};
use crate::subject::Store;

/// Polls at most so many times, then drops the future.
async fn polled<T>(times: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut left = times;
    poll_fn(|context| {
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

pub(crate) async fn an_acquire_dropped_at_any_poll_leaves_nothing_behind(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    for polls in 1..=8 {
        let lock = client.lock("x").ttl(TTL);
        // A guard that came first is dropped here, too.
        drop(polled(polls, lock.acquire()).await);
        comes_free(&other, "x").await;
        drop(polled(polls, lock.try_acquire()).await);
        comes_free(&other, "x").await;
    }
}

pub(crate) async fn a_wait_dropped_at_any_poll_leaves_nothing_behind(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    for polls in 1..=8 {
        // While another one holds: the place in the queue goes away.
        let guard = take(&other, "x", Duration::from_secs(10)).await;
        let waiting = client.lock("x");
        let _ = timeout(Duration::from_millis(30), polled(polls, waiting.acquire())).await;
        store.until_waiting(&other, "x", 0).await;
        assert!(guard.holds(), "the holder is not concerned");
        // While it is handed over.
        let lock = client.lock("x");
        let waiter = tokio::spawn(async move {
            drop(timeout(Duration::from_millis(50), polled(polls, lock.acquire())).await);
        });
        sleep(Duration::from_millis(10)).await;
        guard.release().await.expect("it is held");
        waiter.await.expect("no panic");
        comes_free(&other, "x").await;
    }
}

pub(crate) async fn an_acquire_dropped_at_any_time_leaves_nothing_behind(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").subsec_nanos();
    let mut random = seed | 1;
    let mut within_us = |most: u64| {
        // xorshift, Marsaglia 2003
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        Duration::from_micros(u64::from(random) % most)
    };
    for round in 0..60 {
        let name = format!("x{round}");
        let guard = take(&other, &name, TTL).await;
        let (hold, wait) = (within_us(3000), within_us(6000));
        let lock = client.lock(&name);
        let waiter = tokio::spawn(async move {
            drop(timeout(wait, lock.acquire()).await);
        });
        sleep(hold).await;
        guard.release().await.unwrap_or_else(|error| panic!("{error} (seed {seed}, round {round})"));
        waiter.await.expect("no panic");
        comes_free(&other, &name).await;
    }
}
