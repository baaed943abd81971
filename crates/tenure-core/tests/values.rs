//! What stories can't show: values that only programs read.

use tenure_core::lease::{TTL_MS_MAX, call_limit_ms, over_by};
use tenure_core::{
    Attempt, BadName, Claim, Hold, HolderId, Input, Ledger, Message, Moment, Name, Now, Occupant, Outcome,
    Output, Owner, Phase, Place, Places, ProcessId, Reply, Request, Sight, Terms, Token, Witness,
};

fn owner() -> Owner {
    Owner { holder: HolderId { process: ProcessId(1), serial: 1 }, secret: 7 }
}

#[test]
fn a_lock_that_somebody_waits_for_is_not_blank() {
    let mut ledger: Ledger<Vec<Place>> = Ledger::default();
    assert!(ledger.is_blank());
    let place = Place { seq: 1, owner: owner(), until: Moment(1), attempt: Attempt(1), guard_ms: 0 };
    ledger.places.put(place);
    assert!(!ledger.is_blank());
    Places::remove(&mut ledger.places, &place);
    assert!(ledger.is_blank());
}

#[test]
fn who_leaves_knows_by_when_the_lock_is_free() {
    let terms = Terms { ttl_ms: 30_000, guard_ms: 3_000, place_ms: 0, wait_ms: None, renew: true };
    let mut claim = Claim::new(owner(), terms);
    let mut out = Vec::new();
    claim.step(Moment(0), Input::Acquire, &mut out);
    let granted = Outcome::Answered(Reply::Granted { token: Token(1) });
    claim.step(Moment(1), Input::Reply { attempt: Attempt(1), outcome: granted }, &mut out);
    assert_eq!(claim.awaits(), None);
    claim.step(Moment(1_000), Input::Release, &mut out);
    assert_eq!(claim.awaits(), Some(Attempt(2)));
    let Phase::Leaving(leaving) = claim.phase() else { panic!("{claim:?}") };
    assert_eq!(leaving.gone_by(), over_by(Moment(1_000), 33_000));
    assert_eq!(
        leaving.gone_by(),
        Moment(1_000 + 33_001 + 330 + 2),
        "1 % and 2 ms more than the store keeps it"
    );
}

#[test]
fn an_extension_brings_its_own_guard_time_and_a_stop_ends_the_renewals() {
    let terms = Terms { ttl_ms: 3_000, guard_ms: 1_000, place_ms: 0, wait_ms: None, renew: true };
    let mut claim = Claim::new(owner(), terms);
    let mut out = Vec::new();
    claim.step(Moment(0), Input::Acquire, &mut out);
    let granted = Outcome::Answered(Reply::Granted { token: Token(1) });
    claim.step(Moment(1), Input::Reply { attempt: Attempt(1), outcome: granted }, &mut out);

    out.clear();
    claim.step(Moment(2), Input::Extend { ttl_ms: 60_000, guard_ms: 6_000 }, &mut out);
    let request = Request::Renew { owner: owner(), ttl_ms: 60_000, guard_ms: 6_000 };
    assert_eq!(out, [Output::Send { attempt: Attempt(2), request }]);
    assert_eq!((claim.terms().ttl_ms, claim.terms().guard_ms), (60_000, 6_000));

    let stopping = Outcome::Answered(Reply::Stopping { by: "ops".to_owned() });
    claim.step(Moment(3), Input::Reply { attempt: Attempt(2), outcome: stopping }, &mut out);
    assert_eq!(claim.awaits(), None);
    assert_eq!(
        claim.deadline(),
        claim.valid_until().map(|until| until.minus(150)),
        "the next thing is a warning"
    );
}

#[test]
fn a_call_takes_a_sixth_of_its_lease_at_most() {
    let limits = [100, 300, 306, 6_000, 12_000, 12_006, TTL_MS_MAX].map(call_limit_ms);
    assert_eq!(limits, [50, 50, 51, 1_000, 2_000, 2_000, 2_000]);
    assert_eq!(TTL_MS_MAX, 86_400_000, "a day");
}

#[test]
fn a_bad_name_says_what_is_wrong_and_what_the_limit_is() {
    let said = |text: &str| Name::new(text).unwrap_err().to_string();
    assert_eq!(said(""), "the lock name is empty; give it 1 to 480 bytes");
    assert_eq!(said(&"x".repeat(481)), "the lock name has 481 bytes; the limit is 480");
    assert_eq!(said("a\tb"), "the lock name has a control character at byte 1; use printable text");
    assert!(matches!(Name::new("tenure:x"), Err(BadName::Reserved(name)) if name == "tenure:x"));
    assert!(said("tenure:x").contains("kept for Tenure's own keys"));
}

/// Sees nothing and reaches nobody.
struct Blind;

impl Witness for Blind {
    fn sees(&mut self, _: &Owner) -> Sight {
        Sight::Unknown
    }

    fn tell(&mut self, _: &Owner, _: Message) -> bool {
        false
    }
}

#[test]
fn a_snapshot_shows_who_holds_who_waits_and_who_asked_to_stop() {
    let mut ledger: Ledger<Vec<Place>> = Ledger::default();
    let now = Now { lease: Moment(1_000), wall_us: 5 };
    let ask = |serial: u32| Request::Ask {
        owner: Owner { holder: HolderId { process: ProcessId(1), serial }, secret: 7 },
        ttl_ms: 2_000,
        guard_ms: 1_000,
        place_ms: 500,
        attempt: Attempt(1),
        not_after: None,
    };
    for serial in 1..=4 {
        ledger.apply(now, &ask(serial), &mut Blind);
    }
    let holder = HolderId { process: ProcessId(1), serial: 1 };
    ledger.apply(now, &Request::Stop { holder, by: "ops".to_owned() }, &mut Blind);

    let later = Now { lease: Moment(1_100), ..now };
    let snapshot = ledger.snapshot(later, 2, &mut Blind);
    let standing = snapshot.standing.unwrap();
    assert_eq!((standing.holder, standing.token), (Some(holder), Some(Token(5))));
    assert_eq!((standing.lease_ends_in_ms, standing.free_in_ms), (Some(1_900), Some(2_900)));
    assert_eq!(snapshot.stop.as_deref(), Some("ops"));
    let waiters: Vec<(u32, u64)> =
        snapshot.waiters.iter().map(|waiter| (waiter.holder.serial, waiter.place_ends_in_ms)).collect();
    assert_eq!((waiters, snapshot.waiting), (vec![(2, 400), (3, 400)], 3), "the first two of three");
}

#[test]
#[should_panic(expected = "who holds does not wait")]
fn a_ledger_notices_what_must_not_be() {
    let mut ledger: Ledger<Vec<Place>> = Ledger::default();
    let place = Place { seq: 1, owner: owner(), until: Moment(1), attempt: Attempt(1), guard_ms: 0 };
    ledger.places.put(place);
    let (token, ttl_ms, guard_ms, ends) = (Token(0), 100, 0, Moment(100));
    ledger.occupant =
        Some(Occupant::Ours(Hold { owner: owner(), token, ttl_ms, guard_ms, ends, stop: None }));
    ledger.check();
}
