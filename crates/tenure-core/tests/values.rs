//! What stories can't show: values that only programs read.

use tenure_core::lease::{TTL_MS_MAX, call_limit_ms, over_by};
use tenure_core::{
    Attempt, BadName, Claim, HolderId, Input, Ledger, Moment, Name, Outcome, Owner, Phase, Place, Places,
    ProcessId, Reply, Terms, Token,
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
