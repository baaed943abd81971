//! Sessions: what is held is got again, and whatever way the guards go, the store's hold goes with the last.
#![cfg(feature = "embedded")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tenure::{
    AcquireError, BadInput, Client, Guard, Lost, LostAtWork, OnBusy, Ran, ReleaseError, Released, Retry,
    Session, WithError,
};

const MS: Duration = Duration::from_millis(1);

async fn session() -> (Client, Session) {
    let client = Client::connect("memory:").await.unwrap();
    let session = client.session();
    (client, session)
}

async fn take(session: &Session) -> Guard {
    session.lock("x").acquire().await.unwrap()
}

async fn is_free(client: &Client) -> bool {
    client.inspect("x").await.unwrap().is_free()
}

async fn becomes_free(client: &Client) {
    let free = async {
        while !is_free(client).await {
            tokio::time::sleep(MS).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), free).await.expect("the lock becomes free");
}

#[tokio::test]
async fn a_lock_that_is_taken_again_is_the_same_hold() {
    let (client, session) = session().await;
    let outer = take(&session).await;
    let lock = session.clone().lock("x");
    let inner = [
        lock.acquire().await.unwrap(),
        lock.acquire_now().await.unwrap(),
        lock.try_acquire().await.unwrap().unwrap(),
        lock.acquire_retrying(Retry::times(0)).await.unwrap(),
    ];
    for guard in inner {
        assert_eq!((guard.fence(), guard.holder()), (outer.fence(), outer.holder()));
        assert_eq!(guard.release().await, Ok(Released::StillHeld));
        assert!(outer.holds());
    }
    assert_eq!(outer.release().await, Ok(Released::Confirmed));
    assert!(is_free(&client).await);
    let next = take(&session).await;
    assert!(next.release().await.unwrap().is_confirmed(), "a new hold, after the last guard went");
}

#[tokio::test]
async fn the_hold_goes_with_the_last_guard_in_any_order() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        for dropped in 0..8 {
            let (client, session) = session().await;
            let mut guards = Vec::new();
            for _ in 0..3 {
                guards.push(Some(take(&session).await));
            }
            for (gone, at) in order.into_iter().enumerate() {
                assert!(!is_free(&client).await, "{gone} of {order:?} are gone");
                let guard = guards[at].take().unwrap();
                if dropped & (1 << at) > 0 {
                    drop(guard);
                } else {
                    let last = if gone == 2 { Released::Confirmed } else { Released::StillHeld };
                    assert_eq!(guard.release().await, Ok(last));
                }
            }
            becomes_free(&client).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_guards_that_are_released_at_once_one_is_the_last() {
    let (client, session) = session().await;
    let runtime = tokio::runtime::Handle::current();
    for round in 0..1000 {
        let ready = AtomicUsize::new(0);
        let release = |guard: Guard| {
            // At the same moment, as nearly as can be: no sleeping before it.
            ready.fetch_add(1, SeqCst);
            while ready.load(SeqCst) < 2 {
                std::thread::yield_now();
            }
            runtime.block_on(guard.release()).unwrap() == Released::StillHeld
        };
        let guards = [take(&session).await, take(&session).await];
        let mut held = std::thread::scope(|threads| {
            guards.map(|guard| threads.spawn(|| release(guard))).map(|thread| thread.join().unwrap())
        });
        held.sort_unstable();
        assert_eq!(held, [false, true], "round {round}");
    }
    assert!(is_free(&client).await);
}

#[tokio::test]
async fn others_are_excluded_as_ever() {
    let (client, session) = session().await;
    let guard = take(&session).await;
    assert!(client.session().lock("x").try_acquire().await.unwrap().is_none());
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    drop(guard);
    becomes_free(&client).await;
    let _other = client.lock("x").acquire().await.unwrap();
    assert!(session.lock("x").try_acquire().await.unwrap().is_none());
    assert!(session.lock("y").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_guard_outlives_its_session() {
    let (client, session) = session().await;
    let guard = take(&session).await;
    drop(session);
    assert!(guard.holds() && !is_free(&client).await);
    guard.release().await.unwrap();
    assert!(is_free(&client).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_acquire_at_once_share_one_hold() {
    let (client, session) = session().await;
    for _ in 0..20 {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let lock = session.lock("x");
            tasks.spawn(async move { lock.acquire().await.unwrap() });
        }
        let guards = tasks.join_all().await;
        assert!(guards.iter().all(|guard| guard.holds() && guard.fence() == guards[0].fence()));
        // Guards go anywhere: half of them to threads without a runtime.
        let mut threads = Vec::new();
        for (number, guard) in guards.into_iter().enumerate() {
            if number % 2 == 0 {
                threads.push(std::thread::spawn(move || drop(guard)));
            } else {
                tokio::spawn(async move { guard.release().await.unwrap() });
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        becomes_free(&client).await;
    }
}

#[tokio::test]
async fn the_second_waits_for_the_first_and_nests() {
    let (client, session) = session().await;
    let other = client.lock("x").acquire().await.unwrap();
    let free = async {
        tokio::time::sleep(20 * MS).await;
        assert_eq!(client.inspect("x").await.unwrap().waiting, 1, "one place in the queue for both");
        other.release().await.unwrap();
    };
    let (first, second, ()) = tokio::join!(take(&session), take(&session), free);
    assert_eq!(first.fence(), second.fence());
}

#[tokio::test]
async fn if_the_first_fails_or_is_dropped_the_second_acquires_by_itself() {
    let (client, session) = session().await;
    let other = client.lock("x").acquire().await.unwrap();
    let fails = session.lock("x").wait(20 * MS);
    let dropped = async { tokio::time::timeout(40 * MS, take(&session)).await.unwrap_err() };
    let first_two = async {
        let (failed, _) = tokio::join!(fails.acquire(), dropped);
        other.release().await.unwrap();
        failed
    };
    let (failed, third) = tokio::join!(first_two, take(&session));
    assert!(matches!(failed, Err(AcquireError::WaitElapsed { .. })), "{failed:?}");
    assert!(third.holds());
}

#[tokio::test]
async fn the_wait_for_a_mate_counts_as_wait() {
    let (client, session) = session().await;
    let _other = client.lock("x").acquire().await.unwrap();
    let (first, second) = (session.lock("x").wait(1000 * MS), session.lock("x").wait(1100 * MS));
    let begun = Instant::now();
    let (first, second) = tokio::join!(first.acquire(), second.acquire());
    assert!((1100 * MS..2000 * MS).contains(&begun.elapsed()), "not one wait after the other");
    assert!(matches!((first, second), (Err(_), Err(AcquireError::WaitElapsed { .. }))));
}

#[tokio::test]
async fn who_waits_for_a_mate_waits_no_longer_than_it_said() {
    let (client, session) = session().await;
    let _other = client.lock("x").acquire().await.unwrap();
    let (first, short, now) =
        (session.lock("x").wait_forever(), session.lock("x").wait(50 * MS), session.lock("x"));
    let begun = Instant::now();
    let others = async {
        let (short, now) = tokio::join!(short.acquire(), now.try_acquire());
        let error = short.unwrap_err();
        assert!(error.to_string().starts_with("waited 50ms; 'x' is held by "), "{error}");
        assert!(now.unwrap().is_none() && begun.elapsed() >= 100 * MS);
    };
    let others = tokio::time::timeout(Duration::from_secs(10), others);
    tokio::select! {
        biased;
        _ = first.acquire() => panic!("the lock is held by somebody else"),
        others = others => others.expect("neither waits for the first"),
    }
}

#[tokio::test]
async fn a_panic_in_nested_work_frees_the_lock_once_the_outer_is_gone() {
    let (client, session) = session().await;
    let outer = take(&session).await;
    let lock = session.lock("x");
    let panicked = tokio::spawn(async move { lock.with(async |_| panic!("out of paper")).await }).await;
    assert!(panicked.unwrap_err().is_panic());
    assert!(outer.holds());
    assert!(outer.release().await.unwrap().is_confirmed());
    assert!(is_free(&client).await);
}

#[tokio::test]
async fn nested_work_returns_its_value_and_leaves_the_lock_to_the_outer() {
    let (client, session) = session().await;
    let lock = session.lock("x");
    let work = async |outer: tenure::Lease| {
        let ran = lock.run(OnBusy::Skip, async |inner| inner.fence()).await.unwrap();
        assert_eq!(ran, Ran::Done(outer.fence()));
        assert!(outer.holds());
        7
    };
    assert_eq!(lock.with(work).await.unwrap(), 7);
    assert!(is_free(&client).await);
}

#[tokio::test]
async fn a_loss_is_told_to_every_guard_and_nothing_nests_in_what_is_lost() {
    let (client, session) = session().await;
    let lock = session.lock("x").ttl(1000 * MS).without_renewal();
    let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    let work = lock.with(async |_| std::future::pending::<()>().await);
    let error = work.await.unwrap_err();
    assert!(matches!(error, WithError::Lost(LostAtWork { why: Lost::Expired, value: None, .. })), "{error}");
    assert_eq!((outer.lost().await, inner.lost().await), (Lost::Expired, Lost::Expired));
    assert!(!outer.holds() && !inner.holds());
    let error = session.lock("x").acquire().await.unwrap_err();
    assert!(matches!(&error, AcquireError::OldGuards { name } if name == "x"), "{error}");
    assert!(error.to_string().ends_with("drop them, then acquire again"), "{error}");
    // Neither of them says that it went well.
    assert_eq!(outer.release().await, Err(ReleaseError::NotHeld));
    // The store has freed the lock by itself by then.
    becomes_free(&client).await;
    assert_eq!(inner.release().await, Err(ReleaseError::NotHeld));
    assert!(take(&session).await.holds());
}

#[tokio::test]
async fn nothing_nests_in_a_hold_that_was_asked_to_stop() {
    let (client, session) = session().await;
    let guard = take(&session).await;
    client.ask_to_stop("x", guard.holder(), "ops").await.unwrap();
    guard.lost().await;
    for error in [
        session.lock("x").acquire().await.unwrap_err(),
        session.lock("x").acquire_now().await.unwrap_err(),
        session.lock("x").try_acquire().await.unwrap_err(),
    ] {
        assert!(matches!(error, AcquireError::OldGuards { .. }), "{error}");
    }
    assert!(guard.holds(), "there is time to put things in order");
    guard.release().await.unwrap();
    assert!(take(&session).await.loss().is_none());
}

#[tokio::test]
async fn terms_are_those_of_the_first_acquire_and_an_extension_is_for_all() {
    let (client, session) = session().await;
    let outer = session.lock("x").ttl(Duration::from_secs(5)).acquire().await.unwrap();
    let inner = session.lock("x").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    assert!(inner.remaining() <= Duration::from_secs(5));
    let end = inner.extend(Duration::from_secs(20)).await.unwrap();
    assert_eq!(outer.deadline(), end);
    drop(outer);
    assert!(inner.holds() && !is_free(&client).await);
}

#[tokio::test]
async fn the_label_shows_where_people_look() {
    let client = Client::builder("memory:").announce_at_once().connect().await.unwrap();
    let _guard = take(&client.session().label("import-7")).await;
    let waiting = client.session().label("import-8").lock("x");
    tokio::spawn(async move { waiting.acquire().await });
    let shown = async {
        loop {
            let lock = client.inspect("x").await.unwrap();
            let holder = lock.holder.iter().find_map(|holder| holder.labels.get("session"));
            let waiter = lock.waiters.iter().find_map(|waiter| waiter.labels.get("session"));
            if let (Some(holder), Some(waiter)) = (holder, waiter) {
                break (holder.clone(), waiter.clone());
            }
            tokio::time::sleep(MS).await;
        }
    };
    let shown = tokio::time::timeout(Duration::from_secs(10), shown).await.unwrap();
    assert_eq!(shown, ("import-7".to_owned(), "import-8".to_owned()));
    let error = client.lock("x").acquire_now().await.unwrap_err();
    assert!(error.to_string().contains(", session import-7) since "), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_and_others_take_turns_however_its_guards_come_and_go() {
    let (client, session) = session().await;
    let inside = [const { AtomicUsize::new(0) }; 2];
    let inside = Arc::new(inside);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..6 {
        let of_session = number % 3 > 0;
        let lock = if of_session { session.lock("x") } else { client.lock("x") }.wait_forever();
        let inside = inside.clone();
        tasks.spawn(async move {
            for round in 0..100 {
                let guard = lock.acquire().await.unwrap();
                inside[usize::from(of_session)].fetch_add(1, SeqCst);
                assert_eq!(inside[usize::from(!of_session)].load(SeqCst), 0, "round {round}");
                tokio::task::yield_now().await;
                inside[usize::from(of_session)].fetch_sub(1, SeqCst);
                if (round + number) % 2 == 0 {
                    guard.release().await.unwrap();
                }
            }
        });
    }
    tasks.join_all().await;
    becomes_free(&client).await;
}

#[tokio::test]
async fn a_label_that_is_none_is_refused() {
    let (client, _) = session().await;
    for label in ["x".repeat(121), "a\nb".to_owned()] {
        let error = client.session().label(&label).lock("x").acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::BadInput(BadInput::Label(_))), "{error}");
    }
    client.session().label(&"x".repeat(120)).lock("x").acquire().await.unwrap().release().await.unwrap();
}
