//! What happens to connections: cuts, delays, doubles, black holes.

use std::time::{Duration, Instant};

use tenure::{AcquireError, Client, ConnectError, Lost, ReleaseError};
use tokio::time::{sleep, timeout};

use crate::lease::{AT_ONCE, TTL, comes_free, take, take_elsewhere};
use crate::messages::LOOKS_WITHIN;
use crate::proxy::{FaultProxy, Once, Way};
use crate::subject::Store;

/// Requests are told apart by how many words they have: EVALSHA, the hash, the number of keys, four keys, and what
/// the script takes.
const ASK: usize = 7 + 7;
const RENEW: usize = 7 + 3;
const RELEASE: usize = 7 + 1;

/// A client behind a proxy, and one that is not.
async fn set_up(store: &mut Store) -> (FaultProxy, Client, Client) {
    let proxy = FaultProxy::start(store.server().port()).await.expect("there is a free port");
    let client = Client::connect(&proxy.url()).await.expect("the server is there");
    (proxy, client, store.client().await)
}

/// The lock is held through all of the next `span`.
async fn stays_held(guard: &tenure::Guard, span: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < span {
        assert!(guard.holds(), "lost after {:?}", begun.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn a_cut_before_an_ask_costs_one_more_try(store: &mut Store) {
    let (proxy, client, other) = set_up(store).await;
    proxy.next(ASK, Once::CutBefore);
    let guard = timeout(AT_ONCE, take(&client, "x", TTL)).await.expect("a new connection is made at once");
    assert_eq!((proxy.counters().struck, proxy.counters().connections), (1, 2));
    assert!(other.lock("x").try_acquire().await.expect("the store answers").is_none());
    assert!(guard.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn a_lost_reply_to_an_ask_makes_no_orphan(store: &mut Store) {
    let (proxy, client, other) = set_up(store).await;
    proxy.next(ASK, Once::CutAfter);
    let guard = timeout(AT_ONCE, take(&client, "x", TTL)).await.expect("asking again shows the grant");
    assert_eq!(proxy.counters().struck, 1);
    assert!(other.lock("x").try_acquire().await.expect("the store answers").is_none());
    assert!(guard.release().await.expect("it is held").is_confirmed());
    comes_free(&other, "x").await;
    // Without a way back the store still holds what nobody knows of. It is cleared away once there is one.
    proxy.next(ASK, Once::CutAfter);
    let lock = client.lock("x").ttl(Duration::from_secs(20));
    let ask = tokio::spawn(async move { lock.acquire().await });
    while proxy.counters().struck < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    proxy.refuse(true);
    proxy.cut();
    ask.abort();
    sleep(AT_ONCE).await;
    proxy.refuse(false);
    let waiting = take_elsewhere(&other, "x");
    let (guard, _) = timeout(2 * AT_ONCE, waiting).await.expect("it is cleared away").expect("no panic");
    guard.release().await.expect("it is held");
}

pub(crate) async fn a_lost_reply_to_a_renewal_is_made_up_for(store: &mut Store) {
    let (proxy, client, other) = set_up(store).await;
    let guard = take(&client, "x", TTL).await;
    for once in [Once::CutAfter, Once::CutBefore] {
        proxy.next(RENEW, once);
        stays_held(&guard, TTL + TTL / 2).await;
        assert!(other.lock("x").try_acquire().await.expect("the store answers").is_none());
    }
    assert_eq!(proxy.counters().struck, 2);
    assert!(guard.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn a_lost_reply_to_a_release_is_no_alarm(store: &mut Store) {
    let (proxy, client, other) = set_up(store).await;
    let guard = take(&client, "x", TTL).await;
    let waiting = take_elsewhere(&other, "x");
    store.until_waiting(&other, "x", 1).await;
    proxy.next(RELEASE, Once::CutAfter);
    let released = guard.release().await.expect("its first copy left in time: nobody overlapped");
    assert!(!released.is_confirmed(), "the next one holds by now");
    assert_eq!(proxy.counters().struck, 1);
    let (next, _) = waiting.await.expect("no panic");
    assert!(next.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn doubled_requests_do_no_harm(store: &mut Store) {
    let (proxy, client, other) = set_up(store).await;
    each_is_doubled(store, &proxy, &client, &other, Once::DoubleRequest).await;
}

pub(crate) async fn doubled_replies_do_no_harm(store: &mut Store) {
    let (proxy, client, other) = set_up(store).await;
    each_is_doubled(store, &proxy, &client, &other, Once::DoubleReply).await;
}

async fn each_is_doubled(store: &Store, proxy: &FaultProxy, client: &Client, other: &Client, once: Once) {
    proxy.next(ASK, once);
    let guard = take(client, "x", TTL).await;
    assert!(other.lock("x").try_acquire().await.expect("the store answers").is_none());
    proxy.next(RENEW, once);
    guard.extend(TTL).await.expect("it is held");
    stays_held(&guard, TTL + TTL / 2).await;
    // A waiter, whose ask is doubled, too.
    proxy.next(ASK, once);
    let waiting = take_elsewhere(client, "x");
    store.until_waiting(other, "x", 1).await;
    proxy.next(RELEASE, once);
    assert!(guard.release().await.expect("it is held").is_confirmed());
    let (next, _) = waiting.await.expect("no panic");
    assert_eq!(proxy.counters().struck, 4);
    // Nothing is out of step afterwards.
    for round in 0..20 {
        let guard = client.lock("y").acquire().await.expect("it is free");
        assert!(guard.fence() > next.fence(), "round {round}");
        assert!(client.lock("x").try_acquire().await.expect("the store answers").is_none());
        assert!(guard.release().await.expect("it is held").is_confirmed(), "round {round}");
    }
    assert!(next.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn a_slow_network_only_costs_time(store: &mut Store) {
    let (proxy, client, other) = set_up(store).await;
    let slow = Duration::from_millis(60);
    proxy.up(Way::Slow(slow));
    proxy.down(Way::Slow(slow));
    let begun = Instant::now();
    let guard = take(&client, "x", TTL).await;
    assert!(begun.elapsed() >= 2 * slow);
    stays_held(&guard, 2 * TTL).await;
    let waiting = take_elsewhere(&client, "x");
    store.until_waiting(&other, "x", 1).await;
    assert!(guard.release().await.expect("it is held").is_confirmed());
    let (next, _) = timeout(AT_ONCE, waiting).await.expect("a message is slow, too").expect("no panic");
    assert!(next.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn a_waiter_whose_connection_is_cut_is_still_served(store: &mut Store) {
    let (proxy, client, other) = set_up(store).await;
    let guard = take(&other, "x", Duration::from_secs(10)).await;
    let waiting = take_elsewhere(&client, "x");
    store.until_waiting(&other, "x", 1).await;
    proxy.cut();
    sleep(Duration::from_millis(300)).await;
    let begun = Instant::now();
    guard.release().await.expect("it is held");
    let (guard, at) = waiting.await.expect("no panic");
    assert!(at - begun < LOOKS_WITHIN, "it took {:?}", at - begun);
    // Released while the next one is away: it asks when it is back.
    let away = take_elsewhere(&client, "y");
    let (on_y, _) = away.await.expect("no panic");
    on_y.release().await.expect("it is held");
    guard.release().await.expect("it is held");
    let guard = take(&other, "x", Duration::from_secs(10)).await;
    let waiting = take_elsewhere(&client, "x");
    store.until_waiting(&other, "x", 1).await;
    proxy.refuse(true);
    proxy.cut();
    sleep(Duration::from_millis(300)).await;
    guard.release().await.expect("it is held");
    sleep(AT_ONCE).await;
    proxy.refuse(false);
    let begun = Instant::now();
    let (guard, at) = waiting.await.expect("no panic");
    assert!(at - begun < LOOKS_WITHIN, "it took {:?}", at - begun);
    guard.release().await.expect("it is held");
}

pub(crate) async fn a_waiter_that_hears_no_pushes_is_still_served(store: &mut Store) {
    let (proxy, client, other) = set_up(store).await;
    let guard = take(&other, "x", Duration::from_secs(10)).await;
    let waiting = take_elsewhere(&client, "x");
    store.until_waiting(&other, "x", 1).await;
    proxy.drop_pushes(true);
    let begun = Instant::now();
    guard.release().await.expect("it is held");
    let (next, at) = waiting.await.expect("no panic");
    assert!(proxy.counters().swallowed > 0, "there was a message to lose");
    assert!(at - begun < LOOKS_WITHIN, "it took {:?}", at - begun);
    assert!(next.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn a_holder_behind_a_black_hole_learns_it_before_anybody_else_holds(store: &mut Store) {
    for (up, down) in [(Way::Blackhole, Way::Open), (Way::Open, Way::Blackhole)] {
        let (proxy, client, other) = set_up(store).await;
        let guard = take(&client, "x", TTL).await;
        let waiting = take_elsewhere(&other, "x");
        store.until_waiting(&other, "x", 1).await;
        proxy.up(up);
        proxy.down(down);
        assert_eq!(guard.lost().await, Lost::Expired);
        let told = Instant::now();
        assert!(!guard.holds());
        if up == Way::Open {
            // Its renewals still arrive: the store keeps the hold until the holder goes away.
            proxy.up(Way::Blackhole);
        }
        let (next, at) = waiting.await.expect("no panic");
        assert!(told < at, "the next one held before the holder was told");
        proxy.up(Way::Open);
        proxy.down(Way::Open);
        assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
        assert!(next.release().await.expect("it is held").is_confirmed());
    }
}

pub(crate) async fn a_store_out_of_reach_is_a_typed_error(store: &mut Store) {
    let (proxy, client, _) = set_up(store).await;
    proxy.refuse(true);
    proxy.cut();
    let begun = Instant::now();
    let error = client.lock("x").acquire().await.expect_err("nobody answers");
    assert!(matches!(error, AcquireError::Backend(_)), "{error}");
    let error = client.lock("x").try_acquire().await.expect_err("nobody answers");
    assert!(matches!(error, AcquireError::Backend(_)), "{error}");
    let error = Client::connect(&proxy.url()).await.expect_err("nobody answers");
    assert!(matches!(error, ConnectError::Backend(_)), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(12), "it took {:?}", begun.elapsed());
}
