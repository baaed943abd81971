//! Processes that die, hang, or are copied.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::Reply;
use tokio::time::sleep;

use crate::lease::{AT_ONCE, TTL, take, take_elsewhere};
use crate::order::{LIMIT, ask, owner_of};
use crate::subject::{Store, name};

const PLACE_MS: u64 = 30_000;
const DEAD_PLACE: &str = "the place of a dead waiter that nobody was told of stays for its thirty seconds";

pub(crate) async fn an_engine_that_is_gone_is_passed_over_in_the_queue(store: &mut Store) {
    let (client, engine) = (store.client().await, store.engine().await);
    engine.listen(Arc::new(|_| {}));
    let guard = take(&client, "x", Duration::from_secs(10)).await;
    let place = ask(owner_of(&*engine, 1), PLACE_MS, 1);
    let reply = engine.call(&name("x"), &place, LIMIT).await.expect("the store answers");
    assert!(matches!(reply, Reply::Queued { head: true, .. }), "{reply:?}");
    let waiting = take_elsewhere(&client, "x");
    store.until_waiting(&client, "x", 2).await;
    drop(engine);
    sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    guard.release().await.expect("it is held");
    let (next, at) = waiting.await.expect("no panic");
    assert!(at - begun < AT_ONCE, "it took {:?}", at - begun);
    next.release().await.expect("it is held");
    if !store.sees_processes() {
        store.forgive_leftovers(DEAD_PLACE);
    }
}

pub(crate) async fn a_killed_holder_frees_the_lock(store: &Store) {
    let ttl = Duration::from_secs(1);
    let client = store.client().await;
    let mut took = Vec::new();
    // The bound is one of the mechanism; a busy machine may miss it now and then.
    for _ in 0..3 {
        let mut taker = store.taker().await;
        let (fence, _) = taker.takes("x", "x", ttl).await;
        let waiting = take_elsewhere(&client, "x");
        store.until_waiting(&client, "x", 1).await;
        let begun = Instant::now();
        taker.kill().await;
        let (guard, at) = waiting.await.expect("no panic");
        took.push(at - begun);
        assert!(guard.fence() > fence);
        guard.release().await.expect("it is held");
    }
    let best = took.iter().min().expect("three times");
    let bound = if store.sees_processes() {
        Duration::from_millis(100)
    } else {
        ttl + store.guard(ttl).await + Duration::from_millis(500)
    };
    assert!(*best < bound, "it took {took:?}");
}

pub(crate) async fn a_killed_waiter_is_passed_over(store: &mut Store) {
    let (client, mut taker) = (store.client().await, store.taker().await);
    let guard = take(&client, "x", Duration::from_secs(10)).await;
    taker.begins("x", "x", TTL).await;
    store.until_waiting(&client, "x", 1).await;
    let waiting = take_elsewhere(&client, "x");
    store.until_waiting(&client, "x", 2).await;
    taker.kill().await;
    sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    guard.release().await.expect("it is held");
    let (next, at) = waiting.await.expect("no panic");
    assert!(at - begun < AT_ONCE, "it took {:?}", at - begun);
    next.release().await.expect("it is held");
    if !store.sees_processes() {
        store.forgive_leftovers(DEAD_PLACE);
    }
}

pub(crate) async fn a_holder_that_was_stopped_for_too_long_has_lost(store: &Store) {
    let (client, mut taker) = (store.client().await, store.taker().await);
    taker.takes("x", "x", TTL).await;
    let waiting = take_elsewhere(&client, "x");
    store.until_waiting(&client, "x", 1).await;
    let begun = Instant::now();
    taker.stop();
    let (guard, at) = waiting.await.expect("no panic");
    assert!(at - begun < TTL + store.guard(TTL).await + AT_ONCE, "it took {:?}", at - begun);
    taker.cont();
    let lost = taker.hears_within("x", AT_ONCE).await;
    assert!(["lost Expired", "lost Taken"].contains(&&*lost), "{lost}");
    assert_eq!(taker.releases("x").await, "not_held");
    assert!(guard.holds(), "the late release changed nothing");
    assert!(guard.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn a_stopped_holder_that_wakes_in_time_still_holds(store: &Store) {
    let (client, mut taker) = (store.client().await, store.taker().await);
    let ttl = Duration::from_secs(6);
    taker.takes("x", "x", ttl).await;
    taker.stop();
    // Past the moment at which it should have renewed.
    sleep(ttl / 2).await;
    assert!(client.lock("x").try_acquire().await.expect("the store answers").is_none());
    taker.cont();
    sleep(ttl * 3 / 4).await;
    assert!(client.lock("x").try_acquire().await.expect("the store answers").is_none());
    assert_eq!(taker.releases("x").await, "released");
}

pub(crate) async fn a_forked_copy_does_nothing(store: &Store) {
    let (client, mut taker) = (store.client().await, store.taker().await);
    taker.takes("a", "a", TTL).await;
    taker.takes("b", "b", TTL).await;
    taker.say("copy fork").await;
    assert_eq!(taker.hears("copy").await, "forked Forked Forked false");
    // The copy has released and dropped what it could, and is gone; its parent goes on.
    sleep(TTL + TTL / 4).await;
    // Of this lock it has dropped everything, to the runtime.
    assert!(client.lock("whole").try_acquire().await.expect("the store answers").is_none(), "whole");
    for name in ["a", "b"] {
        assert!(client.lock(name).try_acquire().await.expect("the store answers").is_none(), "{name}");
        assert_eq!(taker.releases(name).await, "released");
    }
}

pub(crate) async fn another_process_can_be_asked_to_stop(store: &Store) {
    let (client, mut taker) = (store.client().await, store.taker().await);
    let (_, holder) = taker.takes("x", "x", TTL).await;
    client.ask_to_stop("x", holder, "ops").await.expect("it holds");
    assert_eq!(taker.hears_within("x", AT_ONCE).await, "lost Asked { by: \"ops\" }");
    assert_eq!(taker.releases("x").await, "released");
}
