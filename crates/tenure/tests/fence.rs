//! A gate refuses writers whose lock has passed on.
#![cfg(feature = "embedded")]

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread::{scope, sleep};
use std::time::Duration;

use tenure::fence::{Gate, Refused};
use tenure::{Client, Guard};
use tokio::runtime::{Builder, Runtime};

#[test]
fn the_same_hold_writes_again_and_an_earlier_one_is_refused() {
    let gate = Gate::new(1);
    for _ in 0..2 {
        assert_eq!(gate.write("x", 7, || "written"), Ok("written"));
    }
    gate.install("x", 8).unwrap();
    assert_eq!(gate.install("x", 7), Err(Refused::Stale { fence: 7, seen: 8 }));
    assert_eq!(gate.write("x", 7, || panic!("it must not run")), Err(Refused::Stale { fence: 7, seen: 8 }));
    assert_eq!(gate.write("x", u64::MAX, || ()), Ok(()));
}

#[test]
fn a_full_gate_refuses_what_it_does_not_know_until_something_is_forgotten() {
    let gate = Gate::new(2);
    gate.install("x", 7).unwrap();
    gate.install("y", 1).unwrap();
    let full = gate.install("z", 9).unwrap_err();
    assert_eq!(full, Refused::Full { capacity: 2 });
    assert!(full.to_string().starts_with("the gate knows 2 resources"), "{full}");
    gate.install("x", 8).unwrap();
    gate.forget("y");
    gate.install("z", 9).unwrap();
    assert_eq!(gate.install("z", 8), Err(Refused::Stale { fence: 8, seen: 9 }), "each has its own token");
}

#[test]
fn a_write_that_panics_leaves_the_gate_in_use_and_its_token_installed() {
    let gate = Gate::new(1);
    let panicked = scope(|s| s.spawn(|| gate.write("x", 7, || panic!("on purpose"))).join());
    assert!(panicked.is_err());
    assert_eq!(gate.install("x", 6), Err(Refused::Stale { fence: 6, seen: 7 }));
    gate.install("x", 7).unwrap();
}

#[test]
fn of_many_writers_at_once_none_writes_after_a_later_one() {
    const WRITERS: u64 = 8;
    let (gate, written) = (Gate::new(1), Mutex::new(Vec::new()));
    scope(|s| {
        for first in 0..WRITERS {
            let (gate, written) = (&gate, &written);
            s.spawn(move || {
                for fence in (first..2000).step_by(WRITERS as usize) {
                    let _ = gate.write("x", fence, || written.lock().unwrap().push(fence));
                }
            });
        }
    });
    let written = written.into_inner().unwrap();
    assert!(written.is_sorted(), "a later holder was overtaken");
    assert_eq!(written.last(), Some(&1999));
}

/// A thread with a runtime of its own: what it holds is renewed only while it runs.
fn take(runtime: &Runtime, ttl: Duration) -> (Client, Guard) {
    runtime.block_on(async {
        let client = Client::connect("memory:overrun").await.unwrap();
        let guard = client.lock("x").ttl(ttl).acquire().await.unwrap();
        (client, guard)
    })
}

#[test]
fn a_holder_that_was_blocked_past_its_lease_is_refused() {
    const TTL: Duration = Duration::from_millis(100);
    let (gate, record) = (&Gate::new(1), &Mutex::new("nobody"));
    let write = |who, fence| gate.write("x", fence, || *record.lock().unwrap() = who);
    let (a_has, wait_for_a) = channel();
    let (b_wrote, wait_for_b) = channel();
    scope(|s| {
        s.spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let (_client, guard) = take(&runtime, TTL);
            gate.install("x", guard.fence()).unwrap();
            assert!(guard.holds());
            a_has.send(()).unwrap();
            // The whole thread is blocked: nothing renews the lease.
            wait_for_b.recv().unwrap();
            assert!(!guard.holds(), "it could know, but does not look");
            let refused = write("A", guard.fence()).unwrap_err();
            assert!(matches!(refused, Refused::Stale { fence, .. } if fence == guard.fence()), "{refused}");
        });
        wait_for_a.recv().unwrap();
        sleep(TTL);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (_client, guard) = take(&runtime, Duration::from_secs(9));
        write("B", guard.fence()).unwrap();
        b_wrote.send(()).unwrap();
    });
    assert_eq!(*record.lock().unwrap(), "B");
}
