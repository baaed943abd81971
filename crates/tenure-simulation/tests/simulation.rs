//! The library keeps its promises whatever its network, its store and its callers do: ten thousand histories, each of
//! which a number repeats.
//!
//! `TENURE_SIM_SEEDS` sets how many, `TENURE_SIM_SEED` the first one. One alone is told in full.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use tenure_simulation::{Awaits, Failure, Rule, Sabotage, simulate};

const SEEDS: u64 = 10_000;
const FIRST: u64 = 1;

/// So many seeds reach every await.
const ENOUGH: u64 = 5_000;

#[test]
fn the_library_keeps_its_promises() {
    let number = |variable: &str, default| {
        std::env::var(variable)
            .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}: a number")))
    };
    let (seeds, first) = (number("TENURE_SIM_SEEDS", SEEDS), number("TENURE_SIM_SEED", FIRST));
    if seeds == 1 {
        let trace = match simulate(first, None, true) {
            Ok(history) => history.trace,
            Err(failure) => panic!("{}{failure}", failure.trace),
        };
        println!("{trace}seed {first} went well");
        return;
    }
    let started = Instant::now();
    let (awaits, failures) = run(first, seeds);
    for (seed, failure) in failures.iter().take(20) {
        println!("{failure}\n  cargo xtask simulate 1 {seed}");
    }
    let per_second = seeds as f64 / started.elapsed().as_secs_f64();
    println!("{seeds} seeds from {first}, {per_second:.0} per second");
    assert!(failures.is_empty(), "{} of {seeds} seeds failed", failures.len());
    if seeds >= ENOUGH {
        assert_eq!(awaits.missing(), [], "nothing was dropped at these awaits");
    }
}

/// Runs so many seeds on all cores.
fn run(first: u64, seeds: u64) -> (Awaits, Vec<(u64, Failure)>) {
    let next = AtomicU64::new(first);
    let work = || {
        let (mut awaits, mut failures) = (Awaits::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= first + seeds {
                return (awaits, failures);
            }
            match simulate(seed, None, false) {
                Ok(history) => awaits.add(&history.awaits),
                Err(failure) => failures.push((seed, failure)),
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let (mut awaits, mut failures) = (Awaits::default(), Vec::new());
        for thread in threads {
            let (seen, failed) = thread.join().expect("a simulation panics within itself");
            awaits.add(&seen);
            failures.extend(failed);
        }
        failures.sort_by_key(|(seed, _)| *seed);
        (awaits, failures)
    })
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for seed in 1..=200 {
        assert_eq!(trace(seed, None), trace(seed, None), "seed {seed}");
    }
    let differs =
        |seed| trace(seed, Some(Sabotage::OwnRandomness)) != trace(seed, Some(Sabotage::OwnRandomness));
    assert!((1..20).any(differs), "a difference shows");
}

fn trace(seed: u64, sabotage: Option<Sabotage>) -> String {
    simulate(seed, sabotage, true).map_or_else(|failure| failure.trace, |history| history.trace)
}

/// An oracle that can't fail says nothing.
#[test]
fn every_rule_can_be_broken() {
    for (sabotage, rule) in [
        (Sabotage::GrantTwice, Rule::Exclusion),
        (Sabotage::EndEarly, Rule::Exclusion),
        (Sabotage::ForgetSecretly, Rule::Belief),
        (Sabotage::StopSecretly, Rule::Told),
        (Sabotage::RepeatTokens, Rule::Fences),
        (Sabotage::DenyRenewals, Rule::Cause),
        (Sabotage::LeakHolds, Rule::Confirmed),
        (Sabotage::LeakHolds, Rule::LeftBehind),
        (Sabotage::NeverAnswer, Rule::Idle),
        (Sabotage::GrantNothing, Rule::Progress),
        (Sabotage::Panic, Rule::Panic),
    ] {
        let broken = |seed| simulate(seed, Some(sabotage), false).is_err_and(|failure| failure.rule == rule);
        assert!((1..=2_000).any(broken), "{sabotage:?} breaks {rule:?}");
    }
}
