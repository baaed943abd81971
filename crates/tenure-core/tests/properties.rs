//! Random histories: any request arrives at any time, any number of times or never, and so do answers and messages.
//! After every step the invariants of the claim and of the ledger are checked, and the promises between them.

mod world;

use proptest::prelude::*;
use tenure_core::{Attempt, Input, Lost, Moment, Notice, Occupant, Outcome, Request, Sight, Terms};
use world::World;

/// What chance may do. Numbers pick one of the things there are.
#[derive(Clone, Copy, Debug)]
enum Chance {
    Acquire(usize),
    Release(usize),
    Extend(usize, u64),
    /// The newest requests, answers and messages are picked more often than old ones.
    Arrive(usize),
    Answer(usize),
    Hear(usize),
    Unanswered(usize),
    Pass(u64),
    Reach(usize),
    /// Begins a job that the store can see.
    Work(usize),
}

const CLAIMS: usize = 5;

/// Asks are carried out within this time or never: an engine closes the connection and the store refuses stale ones.
const LATEST_MS: u64 = 5_000;

fn chance() -> impl Strategy<Value = Chance> {
    prop_oneof![
        2 => any::<usize>().prop_map(Chance::Acquire),
        2 => any::<usize>().prop_map(Chance::Release),
        2 => (any::<usize>(), 100..9_000u64).prop_map(|(claim, ttl_ms)| Chance::Extend(claim, ttl_ms)),
        12 => (0..4usize).prop_map(Chance::Arrive),
        4 => (0..60usize).prop_map(Chance::Arrive),
        12 => (0..4usize).prop_map(Chance::Answer),
        1 => (0..60usize).prop_map(Chance::Answer),
        5 => (0..4usize).prop_map(Chance::Hear),
        1 => any::<usize>().prop_map(Chance::Unanswered),
        6 => prop_oneof![0..50u64, 0..2_500u64].prop_map(Chance::Pass),
        1 => any::<usize>().prop_map(Chance::Reach),
        1 => any::<usize>().prop_map(Chance::Work),
    ]
}

fn terms() -> impl Strategy<Value = Terms> {
    let wait = prop_oneof![Just(None), (0..20_000u64).prop_map(Some)];
    (100..6_000u64, prop_oneof![Just(0u64), 100..9_000u64], wait, any::<bool>()).prop_map(
        |(ttl_ms, place_ms, wait_ms, renew)| Terms { ttl_ms, guard_ms: 1000, place_ms, wait_ms, renew },
    )
}

fn from_the_end(len: usize, back: usize) -> Option<usize> {
    len.checked_sub(1 + back % len.max(1))
}

fn perform(world: &mut World, sent: &mut Vec<u64>, chance: Chance) {
    match chance {
        Chance::Acquire(claim) => drop(world.feed(claim % CLAIMS, Input::Acquire)),
        Chance::Release(claim) => {
            world.sights[claim % CLAIMS] = Sight::Unknown;
            world.feed(claim % CLAIMS, Input::Release);
        }
        Chance::Work(claim) => {
            let claim = claim % CLAIMS;
            // As the engine does it: the file counts only if the hold still stands when it is there.
            let stands = matches!(&world.ledger.occupant,
                Some(Occupant::Ours(hold)) if hold.owner == *world.claims[claim].owner() && world.now <= hold.ends);
            if stands && world.claims[claim].holds(world.now).is_some() {
                world.sights[claim] = Sight::Working;
                world.feed(claim, Input::Pin);
            }
        }
        Chance::Extend(claim, ttl_ms) => {
            drop(world.feed(claim % CLAIMS, Input::Extend { ttl_ms, guard_ms: 1000 }));
        }
        Chance::Arrive(back) => {
            if let Some(at) = from_the_end(world.requests.len(), back) {
                let in_time = world.now.0 <= sent[at] + LATEST_MS;
                if in_time || !matches!(world.requests[at].2, Request::Ask { .. }) {
                    world.arrive(at);
                }
            }
        }
        Chance::Answer(back) => {
            if let Some(at) = from_the_end(world.replies.len(), back) {
                world.answer(at);
            }
        }
        Chance::Hear(back) => {
            if let Some(at) = from_the_end(world.messages.len(), back) {
                let (claim, message) = world.messages[at].clone();
                world.feed(claim, Input::Message(message));
            }
        }
        Chance::Unanswered(claim) => {
            let claim = claim % CLAIMS;
            let last =
                world.requests.iter().rev().find(|(to, _, _)| *to == claim).map(|(_, attempt, _)| *attempt);
            let attempt = last.unwrap_or(Attempt(1));
            world.feed(claim, Input::Reply { attempt, outcome: Outcome::Unknown });
        }
        Chance::Pass(ms) => {
            world.now = world.now.plus(ms);
            for claim in 0..CLAIMS {
                if world.claims[claim].deadline().is_some_and(|at| at <= world.now) {
                    world.feed(claim, Input::Tick);
                }
            }
        }
        Chance::Reach(claim) => {
            let claim = claim % CLAIMS;
            if !world.unreachable.remove(&claim) {
                world.unreachable.insert(claim);
            }
        }
    }
    sent.resize(world.requests.len(), world.now.0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_to_letters(
        terms in proptest::collection::vec(terms(), CLAIMS),
        chances in proptest::collection::vec(chance(), 1..250),
    ) {
        let mut world = World { now: Moment(100_000), ..World::default() };
        for terms in terms {
            world.enter(terms);
        }
        let mut sent = Vec::new();
        for chance in chances {
            let holders_before = world.holders();
            perform(&mut world, &mut sent, chance);

            let holders = world.holders();
            prop_assert!(holders.len() <= 1, "{holders:?} hold at the same time");
            if let (Some(old), Some(new)) = (holders_before.first(), holders.first()) {
                prop_assert!(
                    old == new || world.claims[*old].holds(world.now).is_none(),
                    "{old} still believed when {new} began"
                );
            }
            prop_assert!(world.granted.is_sorted_by(|a, b| a < b), "tokens rise in the order of grants");
        }
        for (claim, notice) in &world.notices {
            prop_assert!(
                *notice != Notice::Lost(Lost::Taken),
                "{claim} was told that its lock was taken, though the store kept its word"
            );
        }
    }

    /// After everything is given back and every letter has arrived, the store remembers nothing but its last token.
    #[test]
    fn nothing_is_left_behind(
        terms in proptest::collection::vec(terms(), CLAIMS),
        chances in proptest::collection::vec(chance(), 1..120),
    ) {
        let mut world = World { now: Moment(100_000), ..World::default() };
        for terms in terms {
            world.enter(terms);
        }
        let mut sent = Vec::new();
        for chance in chances {
            perform(&mut world, &mut sent, chance);
        }
        world.unreachable.clear();
        for claim in 0..CLAIMS {
            world.feed(claim, Input::Release);
        }
        for sight in &mut world.sights {
            *sight = Sight::Unknown;
        }
        let mut under_way = 0;
        for round in 0..200 {
            perform(&mut world, &mut sent, Chance::Pass(500));
            // An old ask is carried out at last, as late as it can be.
            for (at, sent) in sent.iter().enumerate().take(under_way) {
                let ask = matches!(world.requests[at].2, Request::Ask { .. });
                if ask && (round + at) % 3 == 0 && sent + LATEST_MS >= world.now.0 {
                    world.arrive(at);
                }
            }
            // Whatever is new arrives and is answered, in order.
            while under_way < world.requests.len() {
                world.arrive(under_way);
                let last = world.replies.len() - 1;
                world.answer(last);
                sent.resize(world.requests.len(), world.now.0);
                under_way += 1;
            }
        }
        for claim in &world.claims {
            prop_assert!(claim.deadline().is_none(), "{claim:?} still has something to do");
        }
        let owner = *world.claims[0].owner();
        world.apply(&Request::Release { owner });
        prop_assert!(world.ledger.is_blank(), "{:?}", world.ledger);
    }
}
