//! What a holder learns when its store is out of reach, and what becomes of requests whose replies are lost.

use std::time::{Duration, Instant};

use tenure::{AcquireError, Lost, LostAtWork, ReleaseError, WithError};
use tokio::time::sleep;

use crate::faulty::{Calls, Verb};
use crate::lease::{AT_ONCE, TTL, comes_free, take, take_elsewhere};
use crate::subject::{Store, look, until};

pub(crate) async fn a_holder_that_is_cut_off_learns_it_before_anybody_else_holds(store: &Store) {
    let ((client, faults), other) = (store.faulty_client().await, store.client().await);
    let guard = take(&client, "x", TTL).await;
    let waiting = take_elsewhere(&other, "x");
    store.until_waiting(&other, "x", 1).await;
    faults.calls(Calls::CutOff);
    assert_eq!(guard.lost().await, Lost::Expired);
    let told = Instant::now();
    assert!(guard.remaining().is_zero() && !guard.holds());
    let (next, at) = waiting.await.expect("no panic");
    assert!(told < at, "the next one held {:?} before the holder was told", told - at);
    assert!(!guard.holds() && next.holds());
    faults.calls(Calls::Pass);
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
    assert!(next.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn work_that_loses_its_lock_is_dropped(store: &Store) {
    let (client, faults) = store.faulty_client().await;
    let lock = client.lock("x").ttl(TTL);
    let error = lock
        .with(async |_| {
            faults.calls(Calls::CutOff);
            std::future::pending::<()>().await;
        })
        .await
        .expect_err("it never returns by itself");
    assert!(
        matches!(error, WithError::Lost(LostAtWork { why: Lost::Expired, value: None, .. })),
        "{error:?}"
    );
    faults.calls(Calls::Pass);
}

pub(crate) async fn a_lost_reply_to_an_ask_makes_no_orphan(store: &Store) {
    let ((client, faults), other) = (store.faulty_client().await, store.client().await);
    // Asked again by the same owner, the store answers as before.
    faults.calls(Calls::LoseOneReply(Verb::Ask));
    let guard = take(&client, "x", TTL).await;
    assert_eq!(faults.struck(), 1);
    assert!(other.lock("x").try_acquire().await.expect("the store answers").is_none());
    assert!(guard.release().await.expect("it is held").is_confirmed());
    comes_free(&other, "x").await;
    // Given up before the next try.
    faults.calls(Calls::LoseOneReply(Verb::Ask));
    let lock = client.lock("x").ttl(TTL).wait(Duration::from_millis(100));
    lock.acquire().await.expect_err("the wait is over before the reply is missed");
    comes_free(&other, "x").await;
}

pub(crate) async fn a_lost_reply_to_a_renewal_is_made_up_for(store: &Store) {
    let (client, faults) = store.faulty_client().await;
    let guard = take(&client, "x", TTL).await;
    faults.calls(Calls::LoseOneReply(Verb::Renew));
    let begun = Instant::now();
    while begun.elapsed() < 2 * TTL {
        assert!(guard.holds(), "lost after {:?}", begun.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(faults.struck(), 1);
    assert!(guard.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn a_lost_reply_to_a_release_is_no_alarm(store: &Store) {
    let ((client, faults), other) = (store.faulty_client().await, store.client().await);
    let guard = take(&client, "x", TTL).await;
    let waiting = take_elsewhere(&other, "x");
    store.until_waiting(&other, "x", 1).await;
    faults.calls(Calls::LoseOneReply(Verb::Release));
    let released = guard.release().await.expect("its first copy left in time: nobody overlapped");
    assert!(!released.is_confirmed(), "the next one holds by now");
    let (next, _) = waiting.await.expect("no panic");
    assert!(next.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn replies_that_stay_lost_leave_nothing_behind(store: &Store) {
    let ((client, faults), other) = (store.faulty_client().await, store.client().await);
    faults.calls(Calls::LoseReplies);
    let begun = Instant::now();
    let error = client.lock("x").ttl(TTL).acquire().await.expect_err("nothing is ever answered");
    assert!(matches!(error, AcquireError::Backend(_)), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5), "a store that is gone is soon given up");
    faults.calls(Calls::Pass);
    until("it comes free".to_owned(), 2 * AT_ONCE, async || look(&other, "x").await.is_free()).await;
    comes_free(&other, "x").await;
}
