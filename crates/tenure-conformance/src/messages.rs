//! Hand-over messages may be lost, late or doubled without harm.

use std::time::{Duration, Instant};

use crate::exclusion::all_visit;
use crate::faulty::HandOvers;
use crate::lease::{TTL, take, take_elsewhere};
use crate::subject::Store;

/// The first in line looks every two seconds at the latest.
pub(crate) const LOOKS_WITHIN: Duration = Duration::from_millis(2000 + 500);

pub(crate) async fn a_lost_hand_over_costs_two_seconds(store: &Store) {
    let ((client, faults), other) = (store.faulty_client().await, store.client().await);
    let guard = take(&other, "x", TTL).await;
    let waiting = take_elsewhere(&client, "x");
    store.until_waiting(&other, "x", 1).await;
    faults.hand_overs(HandOvers::Lose);
    let begun = Instant::now();
    guard.release().await.expect("it is held");
    let (next, at) = waiting.await.expect("no panic");
    assert_eq!(faults.struck(), 1, "there was a message to lose");
    assert!(at - begun < LOOKS_WITHIN, "it took {:?}", at - begun);
    assert!(next.release().await.expect("it is held").is_confirmed());
}

pub(crate) async fn a_doubled_hand_over_does_no_harm(store: &Store) {
    for fault in [HandOvers::Double, HandOvers::Echo(Duration::from_millis(50))] {
        let ((client, faults), other) = (store.faulty_client().await, store.client().await);
        faults.hand_overs(fault);
        all_visit(&[client, other], 10, 5).await;
        assert!(faults.struck() > 0, "there were messages to double");
    }
}

pub(crate) async fn a_late_hand_over_does_no_harm(store: &Store) {
    let ((client, faults), other) = (store.faulty_client().await, store.client().await);
    faults.hand_overs(HandOvers::Late(Duration::from_millis(100)));
    all_visit(&[client, other], 10, 3).await;
    assert!(faults.struck() > 0, "there were messages to delay");
}
