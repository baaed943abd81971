//! What a caller can do about a lock that is busy.
#![cfg(feature = "embedded")]

use std::time::{Duration, Instant};

use tenure::{AcquireError, BadInput, Client, OnBusy, Ran, Retry, WithError};

const MS: Duration = Duration::from_millis(1);

async fn client() -> Client {
    Client::connect("memory:").await.unwrap()
}

#[tokio::test]
async fn a_retry_takes_the_lock_when_it_comes_free() {
    let client = client().await;
    let guard = client.lock("x").acquire().await.unwrap();
    let free = async {
        tokio::time::sleep(30 * MS).await;
        guard.release().await.unwrap();
    };
    let (lock, retry) = (client.lock("x"), Retry::forever().backoff(MS, 10 * MS));
    let (taken, ()) = tokio::join!(lock.acquire_retrying(retry), free);
    assert!(taken.unwrap().holds());
}

#[tokio::test]
async fn who_retries_in_vain_learns_who_holds_and_when_to_come_back() {
    let client = client().await;
    let guard = client.lock("x").acquire().await.unwrap();
    let begun = Instant::now();
    let error = client.lock("x").acquire_retrying(Retry::times(3).every(10 * MS)).await.unwrap_err();
    assert!(begun.elapsed() >= 30 * MS, "{:?}", begun.elapsed());
    let text = error.to_string();
    assert!(text.starts_with("gave up after 4 tries in ") && text.contains("; 'x' is held by "), "{text}");
    assert!(text.contains("; lease ends in 2") && text.contains("s unless renewed; try again in "), "{text}");
    let again = error.try_again_in().unwrap();
    assert!((20_000 * MS..=30_000 * MS).contains(&again), "{again:?}");
    let AcquireError::GaveUp { holder, tries, .. } = error else { panic!("{error}") };
    assert_eq!((holder.id, tries), (Some(guard.holder()), 4));
    assert_eq!(client.inspect("x").await.unwrap().waiting, 0);
    let error = client.lock("x").acquire_retrying(Retry::times(0)).await.unwrap_err();
    assert!(error.to_string().starts_with("gave up after 1 try in "), "{error}");
}

#[tokio::test]
async fn a_retry_ends_at_its_limit() {
    let client = client().await;
    let _guard = client.lock("x").acquire().await.unwrap();
    let begun = Instant::now();
    let retry = Retry::forever().every(Duration::from_secs(3600)).within(50 * MS);
    let error = client.lock("x").acquire_retrying(retry).await.unwrap_err();
    assert!(begun.elapsed() >= 50 * MS, "{:?}", begun.elapsed());
    assert!(matches!(error, AcquireError::GaveUp { tries: 2, .. }), "{error}");
}

#[tokio::test]
async fn a_retry_that_makes_no_sense_is_refused_before_the_first_try() {
    let client = client().await;
    let error = client.lock("x").acquire_retrying(Retry::forever().every(Duration::ZERO)).await.unwrap_err();
    assert!(matches!(error, AcquireError::BadInput(BadInput::Pause(_))), "{error}");
}

#[tokio::test]
async fn a_retry_can_be_dropped_and_leaves_nothing_behind() {
    let client = client().await;
    let guard = client.lock("x").acquire().await.unwrap();
    let (lock, retry) = (client.lock("x"), Retry::forever().every(MS));
    tokio::time::timeout(20 * MS, lock.acquire_retrying(retry)).await.unwrap_err();
    guard.release().await.unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn who_runs_work_says_what_to_do_about_a_busy_lock() {
    use AcquireError::{Busy, GaveUp, WaitElapsed};

    let client = client().await;
    let lock = client.lock("x").wait(10 * MS);
    let retry = OnBusy::Retry(Retry::times(1).every(MS));
    let all = [OnBusy::Wait, retry, OnBusy::Fail, OnBusy::Skip];
    for on_busy in all {
        assert_eq!(lock.run(on_busy, async |_| 7).await.unwrap().done(), Some(7), "free, and {on_busy:?}");
    }
    let guard = lock.acquire().await.unwrap();
    let mut ends = Vec::new();
    for on_busy in all {
        ends.push(lock.run(on_busy, async |_| panic!("it must not run")).await);
    }
    assert!(matches!(ends[0], Err(WithError::Acquire(WaitElapsed { .. }))), "{:?}", ends[0]);
    assert!(matches!(ends[1], Err(WithError::Acquire(GaveUp { tries: 2, .. }))), "{:?}", ends[1]);
    assert!(matches!(ends[2], Err(WithError::Acquire(Busy(_)))), "{:?}", ends[2]);
    assert!(
        matches!(&ends[3], Ok(Ran::Skipped(holder)) if holder.id == Some(guard.holder())),
        "{:?}",
        ends[3]
    );
}

#[tokio::test]
async fn what_can_not_be_acquired_is_not_skipped() {
    let error = client().await.lock("").run(OnBusy::Skip, async |_| ()).await.unwrap_err();
    assert!(matches!(error, WithError::Acquire(AcquireError::BadInput(_))), "{error}");
}
