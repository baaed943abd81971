//! The scopes that are checked. Leases are short, so that a world that lasts for two of them is still small: what counts
//! is the order of things, and that is the same with long ones.

use std::borrow::Cow;

use crate::facts::Fact;
use crate::past::Chance;
use crate::promises::Promise;
use crate::protocol::Terms;
use crate::scope::{Scope, Size};

/// A lock as the library asks for it, on a store that adds no guard time: the hardest case.
const LOCK: Terms = Terms { ttl_ms: 300, guard_ms: 0, place_ms: 300, wait_ms: None, renew: true };
/// The same with a guard time.
const GUARDED: Terms = Terms { guard_ms: 100, ..LOCK };
/// Waits in places as long as those of the library: longer than any look at the store takes.
const IN_NO_HURRY: Terms = Terms { place_ms: 30_000, ..LOCK };
/// Waits in places that last longer than its leases.
const LONG_PLACE: Terms = Terms { ttl_ms: 100, place_ms: 600, ..LOCK };
/// Does not wait.
const TRY: Terms = Terms { place_ms: 0, ..LOCK };
/// Waits for so long and no longer.
const PATIENT: Terms = Terms { wait_ms: Some(150), ..LOCK };

/// How much two clocks may differ over a lease of [`LOCK`]: 1 % of it, and 2 ms for rounding. A slow clock may lose one
/// more, because the store keeps a hold in its last millisecond.
const FAST_MS: i64 = 3 + 2;
const SLOW_MS: i64 = -FAST_MS - 1;

/// The answer to the second copy of a release does not say that the first one released, and the second copy of an ask
/// that was answered may take a place for nobody.
pub const BROKEN_BY_DOUBLES: &[(Promise, usize)] =
    &[(Promise::NoFalseAlarm, 7), (Promise::NothingLeft, 5), (Promise::DeadWaiters, 11)];

/// The lock goes from hand to hand.
const HANDED_OVER: &[Fact] =
    &[Fact::HandOver, Fact::HandOverHeard, Fact::HandOverCrossedAsk, Fact::HandOverNeverHeard];

/// Leases end.
const RUN_OUT: &[Fact] = &[
    Fact::HoldRanOut,
    Fact::Expired,
    Fact::LateRenewal,
    Fact::NotHeld,
    Fact::ReleaseResent,
    Fact::HandOverTooLate,
];

/// Asks come late.
const LATE_ASKS: &[Fact] = &[Fact::LateAsk, Fact::Ghost, Fact::StaleReply, Fact::Refound];

const EVERYTHING_LATE: &[&[Fact]] = &[HANDED_OVER, RUN_OUT, LATE_ASKS];

/// A scope in which nothing happens yet.
pub const BASE: Scope = Scope {
    name: "",
    about: "",
    callers: Cow::Borrowed(&[LOCK, LOCK]),
    size: Size { lasts_ms: 400, states: 0 },
    deep: None,
    grid_ms: 300,
    timers: false,
    letters: 3,
    sends: u32::MAX,
    chances: Cow::Borrowed(&[]),
    drifts: &[],
    store_steps: &[],
    extend_ms: 0,
    broken: &[],
    reaches: EVERYTHING_LATE,
};

const fn lasts(lasts_ms: u64, states: usize) -> Size {
    Size { lasts_ms, states }
}

/// The scope of this name.
pub fn named(name: &str) -> Option<&'static Scope> {
    ALL.iter().find(|scope| scope.name == name)
}

/// Every scope.
pub static ALL: &[Scope] = &[
    Scope {
        name: "late-letters",
        about: "letters may be as late as they like or never arrive, timers too",
        size: lasts(600, 3_740_008),
        deep: Some(lasts(700, 13_603_715)),
        reaches: &[HANDED_OVER, RUN_OUT, LATE_ASKS, &[Fact::PlaceRanOut, Fact::ReleaseUnknown]],
        ..BASE
    },
    Scope {
        name: "timers",
        about: "the same, stopping wherever a timer falls due",
        size: lasts(200, 287_684),
        deep: Some(lasts(320, 3_793_367)),
        timers: true,
        reaches: &[HANDED_OVER, LATE_ASKS, &[Fact::Renewed]],
        ..BASE
    },
    Scope {
        name: "lost-letters",
        about: "a letter is lost, and a request is given up",
        size: lasts(350, 4_569_136),
        chances: Cow::Borrowed(&[(Chance::Loss, 1), (Chance::Miss, 1)]),
        reaches: &[HANDED_OVER, RUN_OUT, LATE_ASKS, &[Fact::RenewalLost]],
        ..BASE
    },
    Scope {
        name: "lost-answers",
        about: "a request is given up, although it may be carried out later",
        size: lasts(400, 1_221_090),
        deep: Some(lasts(600, 53_165_168)),
        chances: Cow::Borrowed(&[(Chance::Miss, 1)]),
        reaches: &[HANDED_OVER, RUN_OUT, LATE_ASKS, &[Fact::RenewalLost, Fact::Renewed]],
        ..BASE
    },
    Scope {
        name: "lost-answers-twice",
        about: "two requests are given up",
        size: lasts(300, 1_333_357),
        deep: Some(lasts(400, 4_666_507)),
        chances: Cow::Borrowed(&[(Chance::Miss, 2)]),
        reaches: &[HANDED_OVER, LATE_ASKS, &[Fact::RenewalLost, Fact::ReleaseResent]],
        ..BASE
    },
    Scope {
        name: "failures",
        about: "requests do not run, or are refused",
        size: lasts(400, 727_426),
        chances: Cow::Borrowed(&[(Chance::Failure, 2)]),
        reaches: &[HANDED_OVER, RUN_OUT, &[Fact::DidNotRun, Fact::Refused]],
        ..BASE
    },
    Scope {
        name: "cancel",
        about: "an acquire is cancelled",
        size: lasts(400, 424_472),
        deep: Some(lasts(600, 11_037_968)),
        chances: Cow::Borrowed(&[(Chance::Cancel, 1)]),
        reaches: &[HANDED_OVER, RUN_OUT, LATE_ASKS, &[Fact::HandOverMetCancel]],
        ..BASE
    },
    Scope {
        name: "cancel-after-a-lost-answer",
        about: "a request is given up, and an acquire is cancelled",
        size: lasts(300, 1_239_150),
        deep: Some(lasts(400, 4_318_533)),
        chances: Cow::Borrowed(&[(Chance::Cancel, 1), (Chance::Miss, 1)]),
        reaches: &[HANDED_OVER, LATE_ASKS, &[Fact::HandOverMetCancel]],
        ..BASE
    },
    Scope {
        name: "crash",
        about: "a caller dies, and nobody notices",
        size: lasts(400, 183_907),
        deep: Some(lasts(650, 17_911_653)),
        chances: Cow::Borrowed(&[(Chance::Crash, 1)]),
        reaches: &[HANDED_OVER, RUN_OUT, &[Fact::HandOverToTheDead, Fact::PlaceRanOut]],
        ..BASE
    },
    Scope {
        name: "crash-of-three",
        about: "of three callers one dies, and one can't be reached by messages",
        callers: Cow::Borrowed(&[IN_NO_HURRY, IN_NO_HURRY, IN_NO_HURRY]),
        size: lasts(0, 91_966),
        chances: Cow::Borrowed(&[(Chance::Crash, 1), (Chance::Unreachable, 1)]),
        reaches: &[&[Fact::HandOver, Fact::HandOverHeard, Fact::DeadPassedOver, Fact::HandOverToTheDead]],
        ..BASE
    },
    Scope {
        name: "three-callers",
        about: "three callers, in the order in which they came",
        callers: Cow::Borrowed(&[LOCK, LOCK, LOCK]),
        size: lasts(305, 1_651_143),
        letters: 2,
        reaches: &[HANDED_OVER, RUN_OUT],
        ..BASE
    },
    Scope {
        name: "doubled-messages",
        about: "a message arrives twice",
        size: lasts(400, 234_145),
        deep: Some(lasts(600, 7_539_890)),
        chances: Cow::Borrowed(&[(Chance::Echo, 1)]),
        ..BASE
    },
    Scope {
        name: "doubled-requests",
        about: "a request is carried out twice, or an answer arrives twice",
        callers: Cow::Borrowed(&[IN_NO_HURRY, IN_NO_HURRY]),
        size: lasts(400, 518_439),
        chances: Cow::Borrowed(&[(Chance::Repeat, 1)]),
        broken: BROKEN_BY_DOUBLES,
        ..BASE
    },
    Scope {
        name: "late-asks",
        about: "an ask is under way for as long as it may be, and the caller's clock is fast",
        callers: Cow::Borrowed(&[TRY]),
        size: lasts(6_300, 62_469),
        grid_ms: 10_000,
        timers: true,
        letters: 2,
        sends: 4,
        chances: Cow::Borrowed(&[(Chance::Cancel, 1), (Chance::Drift, 1)]),
        drifts: &[900],
        // So fast a clock is beyond what a lease bears; the second beyond an ask's last moment is meant for it.
        broken: &[(Promise::NoFalseAlarm, 6)],
        reaches: &[LATE_ASKS, &[Fact::StaleAsk]],
        ..BASE
    },
    Scope {
        name: "busy",
        about: "one caller waits, the other does not; one dies",
        size: lasts(400, 808_855),
        callers: Cow::Borrowed(&[LOCK, TRY]),
        chances: Cow::Borrowed(&[(Chance::Miss, 1), (Chance::Crash, 1)]),
        reaches: &[HANDED_OVER, RUN_OUT, LATE_ASKS, &[Fact::Busy]],
        ..BASE
    },
    Scope {
        name: "wait-limit",
        about: "a caller waits for so long and no longer",
        size: lasts(400, 1_213_575),
        callers: Cow::Borrowed(&[LOCK, PATIENT]),
        chances: Cow::Borrowed(&[(Chance::Miss, 1)]),
        reaches: &[HANDED_OVER, RUN_OUT, LATE_ASKS, &[Fact::WaitElapsed, Fact::HandOverMetCancel]],
        ..BASE
    },
    Scope {
        name: "long-places",
        about: "places last longer than leases",
        callers: Cow::Borrowed(&[LONG_PLACE, LONG_PLACE]),
        size: lasts(310, 1_274_532),
        grid_ms: 200,
        letters: 2,
        reaches: &[&[Fact::HandOver, Fact::HandOverHeard, Fact::HandOverCrossedAsk], LATE_ASKS],
        ..BASE
    },
    Scope {
        name: "longer",
        about: "a lease is extended to a longer one",
        size: lasts(400, 871_016),
        chances: Cow::Borrowed(&[(Chance::Extend, 1)]),
        extend_ms: 390,
        reaches: &[HANDED_OVER, RUN_OUT, &[Fact::Extended]],
        ..BASE
    },
    Scope {
        name: "shorter",
        about: "a lease is cut to a shorter one",
        callers: Cow::Borrowed(&[TRY, LOCK]),
        size: lasts(400, 771_246),
        chances: Cow::Borrowed(&[(Chance::Extend, 1)]),
        extend_ms: 120,
        reaches: &[HANDED_OVER, RUN_OUT, &[Fact::Extended]],
        ..BASE
    },
    Scope {
        name: "asked-to-stop",
        about: "somebody asks the holder to stop",
        size: lasts(400, 410_647),
        chances: Cow::Borrowed(&[(Chance::Stop, 1)]),
        reaches: &[HANDED_OVER, RUN_OUT, &[Fact::AskedToStop]],
        ..BASE
    },
    Scope {
        name: "job",
        about: "the store sees the holder's job: the lock stays for as long as it runs",
        size: lasts(400, 684_284),
        chances: Cow::Borrowed(&[(Chance::Job, 1), (Chance::Crash, 1)]),
        reaches: &[HANDED_OVER, RUN_OUT, &[Fact::Pinned, Fact::Orphaned]],
        ..BASE
    },
    Scope {
        name: "foreign",
        about: "a client that does not speak Tenure takes the lock",
        size: lasts(400, 305_765),
        chances: Cow::Borrowed(&[(Chance::Foreign, 1)]),
        ..BASE
    },
    Scope {
        name: "drift",
        about: "a clock gains or loses as much during a lease as the lease rule allows",
        size: lasts(400, 3_145_895),
        chances: Cow::Borrowed(&[(Chance::Drift, 1)]),
        drifts: &[FAST_MS, SLOW_MS],
        ..BASE
    },
    Scope {
        name: "drift-beyond",
        about: "a clock loses a millisecond more than that",
        size: lasts(400, 2_261_055),
        chances: Cow::Borrowed(&[(Chance::Drift, 1)]),
        drifts: &[SLOW_MS - 1],
        broken: &[(Promise::ToldFirst, 10), (Promise::NoFalseAlarm, 10)],
        ..BASE
    },
    Scope {
        name: "store-clock-ahead",
        about: "the store's clock jumps ahead by no more than the guard time",
        size: lasts(400, 432_300),
        callers: Cow::Borrowed(&[GUARDED, GUARDED]),
        chances: Cow::Borrowed(&[(Chance::StoreClock, 1)]),
        store_steps: &[100],
        ..BASE
    },
    Scope {
        name: "store-clock-far-ahead",
        about: "the store's clock jumps ahead by more than the guard time",
        size: lasts(400, 284_623),
        callers: Cow::Borrowed(&[GUARDED, GUARDED]),
        chances: Cow::Borrowed(&[(Chance::StoreClock, 1)]),
        store_steps: &[450],
        broken: &[
            (Promise::OneHolder, 7),
            (Promise::ToldFirst, 6),
            (Promise::NoFalseAlarm, 7),
            (Promise::HandOverIsAHold, 4),
        ],
        reaches: &[HANDED_OVER, RUN_OUT, &[Fact::Overlap, Fact::Taken]],
        ..BASE
    },
    Scope {
        name: "store-clock-back",
        about: "the store's clock is set back",
        size: lasts(400, 1_095_526),
        chances: Cow::Borrowed(&[(Chance::StoreClock, 1)]),
        store_steps: &[-90],
        // Nobody knows how long a hold stays that nobody can release.
        broken: &[(Promise::NoFalseAlarm, 8)],
        ..BASE
    },
    Scope {
        name: "store-clock-far-back",
        about: "the store's clock is set back by more than an ask may be late",
        callers: Cow::Borrowed(&[TRY]),
        size: lasts(9_300, 99_743),
        grid_ms: 10_000,
        timers: true,
        letters: 2,
        sends: 4,
        chances: Cow::Borrowed(&[(Chance::Cancel, 1), (Chance::StoreClock, 1)]),
        store_steps: &[-2_000],
        // What nobody can release stays for as much longer as the clock was set back.
        broken: &[(Promise::NoFalseAlarm, 7), (Promise::NothingLeft, 5), (Promise::StoreBounded, 7)],
        reaches: &[LATE_ASKS],
        ..BASE
    },
    Scope {
        name: "job-forgotten",
        about: "the store sees the holder's job, and forgets everything",
        chances: Cow::Borrowed(&[(Chance::Job, 1), (Chance::Forget, 1)]),
        size: lasts(310, 3_323_558),
        broken: &[
            (Promise::OneHolder, 7),
            (Promise::ToldFirst, 6),
            (Promise::NoFalseAlarm, 7),
            // Its lease was over by its own account, and only the job had kept the lock.
            (Promise::AlarmIsRaised, 13),
            (Promise::HandOverIsAHold, 4),
        ],
        reaches: &[HANDED_OVER, &[Fact::Overlap, Fact::Taken, Fact::Pinned]],
        ..BASE
    },
    Scope {
        name: "longer-unanswered",
        about: "a lease is extended to a longer one, and a request is given up",
        size: lasts(210, 331_137),
        deep: Some(lasts(310, 6_768_320)),
        chances: Cow::Borrowed(&[(Chance::Extend, 1), (Chance::Miss, 1)]),
        extend_ms: 390,
        reaches: &[HANDED_OVER, &[Fact::Extended, Fact::RenewalLost]],
        ..BASE
    },
    Scope {
        name: "forget",
        about: "the store forgets everything",
        size: lasts(400, 934_789),
        chances: Cow::Borrowed(&[(Chance::Forget, 1)]),
        broken: &[
            (Promise::OneHolder, 7),
            (Promise::ToldFirst, 6),
            (Promise::NoFalseAlarm, 7),
            (Promise::HandOverIsAHold, 4),
        ],
        reaches: &[HANDED_OVER, RUN_OUT, &[Fact::Overlap, Fact::Taken]],
        ..BASE
    },
    Scope {
        name: "forget-and-clock-back",
        about: "the store forgets, and its clock is set back past what it forgot",
        size: lasts(400, 4_022_859),
        chances: Cow::Borrowed(&[(Chance::Forget, 1), (Chance::StoreClock, 1)]),
        store_steps: &[-450],
        broken: &[
            (Promise::OneHolder, 7),
            (Promise::TokensRise, 6),
            (Promise::ToldFirst, 6),
            (Promise::NoFalseAlarm, 7),
            (Promise::HandOverIsAHold, 4),
        ],
        reaches: &[HANDED_OVER, RUN_OUT, &[Fact::Overlap, Fact::Taken]],
        ..BASE
    },
];
