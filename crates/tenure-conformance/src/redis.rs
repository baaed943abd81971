//! What a Redis server can do to its clients, and other clients of the server to its keys.

use std::time::{Duration, Instant};

use tenure::{AcquireError, Client, ConnectError, Lost, ReleaseError, State};
use tenure_core::lease::ASK_WINDOW_MS;
use tokio::time::{sleep, timeout};

use crate::lease::{AT_ONCE, TTL, take, take_elsewhere};
use crate::server::RedisServer;
use crate::subject::{Store, look, until};

/// A store that is gone is given up within three seconds, and the last try takes a while.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(5);

pub(crate) async fn scripts_are_flushed_during_use(store: &mut Store) {
    let (client, other) = (store.client().await, store.client().await);
    for _ in 0..5 {
        let server = store.server();
        server.command(&["SCRIPT", "FLUSH"]);
        let guard = take(&client, "x", TTL).await;
        server.command(&["SCRIPT", "FLUSH"]);
        guard.extend(TTL).await.expect("it is held");
        server.command(&["SCRIPT", "FLUSH"]);
        let waiting = take_elsewhere(&other, "x");
        store.until_waiting(&client, "x", 1).await;
        store.server().command(&["SCRIPT", "FLUSH"]);
        assert!(guard.release().await.expect("it is held").is_confirmed());
        let (next, _) = timeout(AT_ONCE, waiting).await.expect("it is handed over").expect("no panic");
        assert!(next.release().await.expect("it is held").is_confirmed());
    }
}

/// Values that others keep under the name of a lock, and how they read.
const FOREIGN: [(&[&str], &str); 7] = [
    (&["SET", "x", "somebody"], "string"),
    (&["SET", "x", ""], "string"),
    (&["SET", "x", "9999999999999-no-owner:1:1:1:1"], "string"),
    (&["RPUSH", "x", "a"], "list"),
    (&["HSET", "x", "client:1", "1"], "hash"),
    (&["ZADD", "x", "1", "a"], "zset"),
    (&["SADD", "x", "a"], "set"),
];

pub(crate) async fn foreign_values_are_left_alone(store: &mut Store) {
    let client = store.client().await;
    let server = store.server();
    for (words, kind) in FOREIGN {
        server.command(words);
        let before = server.command(&["DUMP", "x"]);
        assert!(client.lock("x").try_acquire().await.expect("busy is no error").is_none(), "{words:?}");
        let error = client.lock("x").acquire_now().await.expect_err("it is taken");
        let AcquireError::Busy(holder) = &error else { panic!("{words:?}: {error}") };
        assert!(holder.id.is_none(), "{words:?}");
        assert!(holder.foreign.as_ref().is_some_and(|told| told.contains(kind)), "{words:?}: {error}");
        let wait = Duration::from_millis(200);
        let error = client.lock("x").wait(wait).acquire().await.expect_err("it is taken");
        assert!(matches!(error, AcquireError::WaitElapsed { .. }), "{words:?}: {error}");
        assert_eq!(look(&client, "x").await.state, State::Foreign, "{words:?}");
        assert_eq!(server.command(&["DUMP", "x"]), before, "{words:?} was touched");
        assert_eq!(server.command(&["PTTL", "x"]), ":-1\r\n", "{words:?} was touched");
        server.command(&["DEL", "x"]);
    }
}

pub(crate) async fn a_foreign_lock_is_taken_over_once_it_goes_away(store: &mut Store) {
    let client = store.client().await;
    let mut took = Vec::new();
    for (words, _) in FOREIGN {
        store.server().command(words);
        let waiting = take_elsewhere(&client, "x");
        store.until_waiting(&client, "x", 1).await;
        sleep(Duration::from_millis(100)).await;
        store.server().command(&["DEL", "x"]);
        let begun = Instant::now();
        let (guard, at) = waiting.await.expect("no panic");
        took.push(at - begun);
        assert!(guard.release().await.expect("it is held").is_confirmed());
    }
    // The head looks every 250 ms. A busy machine may miss that now and then.
    took.sort_unstable();
    assert!(took[took.len() / 2] < Duration::from_millis(300), "it took {took:?}");
    // One that ends by itself is awaited to the moment.
    store.server().command(&["SET", "x", "somebody", "PX", "700"]);
    let begun = Instant::now();
    let guard = take(&client, "x", TTL).await;
    assert!(begun.elapsed() < Duration::from_millis(700) + AT_ONCE / 2, "it took {:?}", begun.elapsed());
    // Others that speak the plain form are kept out by ours, and can tell.
    let server = store.server();
    assert_eq!(server.command(&["SET", "x", "somebody", "NX", "PX", "1000"]), "$-1\r\n");
    guard.release().await.expect("it is held");
    assert_eq!(server.command(&["SET", "x", "somebody", "NX", "PX", "1000"]), "+OK\r\n");
    server.command(&["DEL", "x"]);
}

pub(crate) async fn a_replica_is_refused(store: &mut Store) {
    let replica = RedisServer::start();
    let port = store.server().port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]);
    let error = Client::connect(&replica.url()).await.expect_err("a replica holds no locks");
    let ConnectError::Backend(fault) = &error else { panic!("{error}") };
    assert!(fault.hint.contains("primary"), "{error}");
}

pub(crate) async fn a_demoted_server_keeps_nobody_waiting_in_vain(store: &mut Store) {
    let client = store.client().await;
    let guard = take(&client, "x", TTL).await;
    let fence = guard.fence();
    let primary = RedisServer::start();
    let server = store.server();
    server.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    let begun = Instant::now();
    let error = client.lock("y").acquire().await.expect_err("it can't write any more");
    assert!(matches!(&error, AcquireError::Backend(_)), "{error}");
    assert!(error.to_string().contains("primary"), "{error}");
    assert!(begun.elapsed() < GIVEN_UP_WITHIN, "it took {:?}", begun.elapsed());
    guard.lost().await;
    assert!(!guard.holds());
    server.command(&["REPLICAOF", "NO", "ONE"]);
    drop(guard);
    let next = timeout(GIVEN_UP_WITHIN, take(&client, "x", TTL)).await.expect("it can write again");
    assert!(next.fence() > fence);
    next.release().await.expect("it is held");
}

pub(crate) async fn a_full_memory_stops_acquires_only(store: &mut Store) {
    let client = store.client().await;
    let guard = take(&client, "x", TTL).await;
    let waiting = take_elsewhere(&client, "x");
    store.until_waiting(&client, "x", 1).await;
    let server = store.server();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let begun = Instant::now();
    let error = client.lock("y").acquire().await.expect_err("there is no room");
    assert!(matches!(&error, AcquireError::Backend(_)), "{error}");
    assert!(error.to_string().contains("memory"), "{error}");
    assert!(begun.elapsed() < GIVEN_UP_WITHIN, "it took {:?}", begun.elapsed());
    sleep(TTL).await;
    assert!(guard.holds(), "leases are renewed without new memory");
    guard.extend(TTL).await.expect("so are they with another length");
    assert!(guard.release().await.expect("it is held").is_confirmed(), "what is held can be given back");
    let (next, _) = timeout(AT_ONCE, waiting).await.expect("even to the next in line").expect("no panic");
    assert!(next.release().await.expect("it is held").is_confirmed());
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    take(&client, "y", TTL).await.release().await.expect("it is held");
}

pub(crate) async fn a_holder_learns_that_the_server_forgot(store: &mut Store) {
    let (client, other) = (store.client().await, store.client().await);
    let guard = take(&client, "x", TTL).await;
    store.server().restart_empty();
    let begun = Instant::now();
    let next = timeout(GIVEN_UP_WITHIN, take(&other, "x", TTL)).await.expect("the server is back");
    assert!(next.fence() > guard.fence(), "tokens rise although the counter is lost");
    assert_eq!(guard.lost().await, Lost::Taken);
    assert!(begun.elapsed() < TTL, "its next renewal told");
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
    assert!(next.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn a_holder_learns_that_the_key_was_deleted(store: &mut Store) {
    let (client, other) = (store.client().await, store.client().await);
    for words in [&["DEL", "x"][..], &["FLUSHALL"], &["SET", "x", "mine"]] {
        let guard = take(&client, "x", TTL).await;
        let begun = Instant::now();
        store.server().command(words);
        assert_eq!(guard.lost().await, Lost::Taken, "{words:?}");
        assert!(begun.elapsed() < TTL, "{words:?}: its next renewal told");
        assert!(!guard.holds());
        assert_eq!(guard.release().await, Err(ReleaseError::NotHeld), "{words:?}");
        store.server().command(&["DEL", "x"]);
        let next = take(&other, "x", TTL).await;
        next.release().await.expect("it is held");
    }
}

pub(crate) async fn a_server_that_sleeps_for_longer_than_the_lease(store: &mut Store) {
    let (client, other) = (store.client().await, store.client().await);
    let guard = take(&client, "x", TTL).await;
    let waiting = take_elsewhere(&other, "x");
    store.until_waiting(&other, "x", 1).await;
    let kept = TTL + store.guard(TTL).await;
    store.server().stop();
    let begun = Instant::now();
    assert_eq!(guard.lost().await, Lost::Expired);
    assert!(begun.elapsed() < TTL, "told by the clock, not by the server");
    assert!(!guard.holds());
    sleep(kept.saturating_sub(begun.elapsed()) + AT_ONCE / 2).await;
    store.server().cont();
    let (next, _) = timeout(GIVEN_UP_WITHIN, waiting).await.expect("the waiter is served").expect("no panic");
    assert!(next.fence() > guard.fence() && !guard.holds());
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
    assert!(next.holds());
    assert!(next.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn an_ask_that_is_carried_out_after_it_was_given_up(store: &mut Store) {
    let (client, other) = (store.client().await, store.client().await);
    // The second copy comes later than an ask may be carried out at all.
    for asleep in [Duration::from_millis(1500), Duration::from_millis(ASK_WINDOW_MS + 500)] {
        store.server().stop();
        let lock = client.lock("x").ttl(Duration::from_secs(60)).wait(Duration::from_millis(200));
        let error = lock.acquire().await.expect_err("nobody answers");
        assert!(matches!(error, AcquireError::Backend(_)), "{error}");
        sleep(asleep).await;
        store.server().cont();
        let limit = Duration::from_millis(ASK_WINDOW_MS) + AT_ONCE;
        until("what was granted is given back".to_owned(), limit, async || look(&other, "x").await.is_free())
            .await;
        let guard = timeout(AT_ONCE, take(&other, "x", TTL)).await.expect("it is free");
        sleep(AT_ONCE).await;
        assert!(guard.release().await.expect("it is held").is_confirmed());
    }
}

pub(crate) async fn a_killed_server_that_comes_back(store: &mut Store) {
    let (client, other) = (store.client().await, store.client().await);
    let guard = take(&client, "x", TTL).await;
    let waiting = take_elsewhere(&other, "x");
    store.until_waiting(&client, "x", 1).await;
    store.server().kill();
    let begun = Instant::now();
    assert_eq!(guard.lost().await, Lost::Expired);
    assert!(begun.elapsed() < TTL && !guard.holds());
    store.server().restart_empty();
    let (next, _) = timeout(GIVEN_UP_WITHIN, waiting).await.expect("the waiter is served").expect("no panic");
    assert!(next.fence() > guard.fence());
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
    assert!(next.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn tokens_rise_over_every_loss_of_data(store: &mut Store) {
    let client = store.client().await;
    let mut last = 0;
    for round in 0..6 {
        for words in [&["FLUSHALL"][..], &["SCRIPT", "FLUSH"], &["DEBUG", "RELOAD"]] {
            store.server().command(words);
            last = next_token(&client, last, &format!("{words:?}, round {round}")).await;
        }
        store.server().restart_empty();
        last = next_token(&client, last, &format!("restart, round {round}")).await;
    }
}

async fn next_token(client: &Client, last: u64, after: &str) -> u64 {
    // A connection may have to be made anew.
    let mut fence = 0;
    until(format!("a lock after {after}"), GIVEN_UP_WITHIN, async || {
        let Ok(guard) = client.lock("x").acquire().await else { return false };
        fence = guard.fence();
        guard.release().await.is_ok()
    })
    .await;
    assert!(fence > last, "{fence} after {last}, {after}");
    fence
}
