//! At most one holder at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use tenure::{AcquireError, BadInput, Client};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::subject::Store;

/// A room for one.
#[derive(Default)]
pub(crate) struct Room {
    inside: AtomicU32,
    visits: AtomicU32,
}

impl Room {
    pub(crate) async fn visit(&self) {
        assert_eq!(self.inside.fetch_add(1, SeqCst), 0, "two hold at the same time");
        sleep(Duration::from_micros(200)).await;
        self.inside.fetch_sub(1, SeqCst);
        self.visits.fetch_add(1, SeqCst);
    }

    pub(crate) fn visits(&self) -> u32 {
        self.visits.load(SeqCst)
    }
}

/// Everybody visits the same room `times` times, all at once.
pub(crate) async fn all_visit(clients: &[Client], tasks: usize, times: u32) {
    let room = Arc::<Room>::default();
    let mut crowd = JoinSet::new();
    for client in clients.iter().cycle().take(tasks) {
        let (lock, room) = (client.lock("room").wait_forever(), room.clone());
        crowd.spawn(async move {
            for _ in 0..times {
                let guard = lock.acquire().await.expect("a lock for ever waited for");
                room.visit().await;
                assert!(guard.holds(), "a holder holds until it releases");
                guard.release().await.expect("what is held can be released");
            }
        });
    }
    crowd.join_all().await;
    assert_eq!(room.visits(), tasks as u32 * times);
}

pub(crate) async fn tasks_of_one_client_take_turns(store: &Store) {
    all_visit(&[store.client().await], 40, 5).await;
}

pub(crate) async fn clients_take_turns(store: &Store) {
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(store.client().await);
    }
    all_visit(&clients, 24, 5).await;
}

pub(crate) async fn processes_share_a_counter_in_a_file(store: &Store) {
    const TIMES: u32 = 20;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("counter");
    std::fs::write(&file, "0").expect("it can be written");
    let mut takers = Vec::new();
    for _ in 0..4 {
        takers.push(store.taker().await);
    }
    for taker in &mut takers {
        for tag in ["a", "b"] {
            taker.say(&format!("{tag} count 10000 {TIMES} {} counter", file.display())).await;
        }
    }
    for taker in &mut takers {
        for tag in ["a", "b"] {
            assert_eq!(taker.hears(tag).await, "counted");
        }
    }
    let count = std::fs::read_to_string(&file).expect("it can be read");
    assert_eq!(count, (4 * 2 * TIMES).to_string(), "a step was lost: two counted at the same time");
}

pub(crate) async fn two_guards_of_one_process_exclude_each_other(store: &Store) {
    let (one, other) = (store.client().await, store.client().await);
    let guard = one.lock("x").acquire().await.expect("it is free");
    for client in [&one, &other] {
        assert!(client.lock("x").try_acquire().await.expect("busy is no error").is_none());
        let error = client.lock("x").acquire_now().await.expect_err("it is taken");
        assert!(matches!(&error, AcquireError::Busy(holder) if holder.id == Some(guard.holder())), "{error}");
    }
    guard.release().await.expect("it is held");
}

pub(crate) async fn try_acquire_finds_it_free_or_busy(store: &Store) {
    let (one, other) = (store.client().await, store.client().await);
    for _ in 0..20 {
        let guard = one.lock("x").try_acquire().await.expect("the store answers").expect("it is free");
        assert!(other.lock("x").try_acquire().await.expect("the store answers").is_none());
        assert!(guard.release().await.expect("it is held").is_confirmed());
    }
}

/// Names that mean something to stores, shells or people, or did not fit somewhere once.
fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "x",
        "X",
        " ",
        " x",
        "x ",
        "two words",
        "orders:42",
        "a/b",
        "../x",
        ".",
        "*",
        "?",
        "%s",
        "\"",
        "'",
        "{a}",
        "{a}b",
        "a{a}",
        "{",
        "}",
        "{}",
        "a}b{c}",
        "foo{}bar",
        "{{a}}",
        "a{b",
        "tenure",
        "tenure ",
        "schlo\u{df}",
        "\u{65e5}\u{672c}",
        "\u{1f512}",
        "e\u{301}",
        "\u{e9}",
        "a\u{202e}b",
        "-",
        "--help",
        "0",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("n".repeat(480));
    names.push("n".repeat(479));
    names.push("\u{1f512}".repeat(120));
    names.push("}".repeat(480));
    names
}

pub(crate) async fn names_of_every_kind_are_locks_of_their_own(store: &Store) {
    let (one, other) = (store.client().await, store.client().await);
    let mut held = Vec::new();
    for name in odd_names() {
        let guard = one.lock(&name).try_acquire().await.expect("a good name");
        held.push((guard.unwrap_or_else(|| panic!("{name:?} is the same lock as an earlier one")), name));
    }
    for (guard, name) in held {
        let waiter = tokio::spawn({
            let lock = other.lock(&name);
            async move { lock.acquire().await.expect("its turn comes") }
        });
        store.until_waiting(&one, &name, 1).await;
        assert!(guard.holds(), "{name:?}");
        guard.release().await.expect("it is held");
        let next = waiter.await.expect("no panic");
        assert_eq!(next.name(), name);
        next.release().await.expect("it is held");
    }
    for bad in ["", "a\nb", "a\0b", "tenure:x", &"n".repeat(481)] {
        let error = one.lock(bad).acquire().await.expect_err("no lock has this name");
        assert!(matches!(error, AcquireError::BadInput(BadInput::Name(_))), "{bad:?}: {error}");
    }
}

pub(crate) async fn a_thousand_names_at_once(store: &Store) {
    let ttl = Duration::from_secs(3);
    let (client, other) = (store.client().await, store.client().await);
    let mut takes = JoinSet::new();
    for number in 0..1000 {
        let lock = client.lock(&format!("name-{number}")).ttl(ttl);
        takes.spawn(async move { lock.acquire().await.expect("it is free") });
    }
    let guards = takes.join_all().await;
    // Longer than the lease: they are all renewed.
    sleep(ttl + ttl / 3).await;
    assert_eq!(guards.iter().filter(|guard| guard.holds()).count(), 1000);
    assert!(other.lock("name-500").try_acquire().await.expect("the store answers").is_none());
    let mut releases = JoinSet::new();
    for guard in guards {
        releases.spawn(async move { guard.release().await.expect("it is held").is_confirmed() });
    }
    assert!(releases.join_all().await.iter().all(|confirmed| *confirmed));
}
