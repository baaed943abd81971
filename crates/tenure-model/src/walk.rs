//! Takes one way after another, at random, through worlds that are too large to be searched: up to five callers with
//! leases of any length, at any moment, with any mixture of faults. Tiny scopes and long walks find different mistakes.

use std::borrow::Cow;

use crate::check::{Counterexample, retrace};
use crate::facts;
use crate::past::Chance;
use crate::promises::{Promise, Step};
use crate::protocol::Terms;
use crate::recovery::recover;
use crate::scope::{BEGIN_MS, Scope};
use crate::scopes::{self, BASE};
use crate::world::{Action, World};

/// Steps of one walk.
const STEPS: usize = 150;

/// What became of a walk.
pub struct Walked {
    /// The world that was walked in.
    pub scope: Scope,
    /// The facts that were reached.
    pub reached: u64,
    /// How often the lock was granted.
    pub grants: usize,
    /// The way to a broken promise, made as short as leaving steps out can make it.
    pub counterexample: Option<Counterexample>,
}

/// Chance, the same for the same seed everywhere (splitmix64, Steele, Lea, Flood 2014).
struct Dice(u64);

impl Dice {
    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }
}

/// Takes one walk.
pub fn walk(seed: u64) -> Walked {
    let mut dice = Dice(seed);
    let scope = some_scope(&mut dice);
    let last = BEGIN_MS + scope.size.lasts_ms;
    let (mut world, mut taken, mut actions) = (scope.world(), Vec::new(), Vec::new());
    let promises = scope.promises();
    let (mut reached, mut grants, mut broken) = (0, 0, false);
    while taken.len() < STEPS && !broken {
        actions.clear();
        scope.possible(&world, last, &mut actions);
        let Some(action) = pick(&mut dice, &world, &actions) else { break };
        let before = world.clone();
        let happened = world.act(&action);
        let step = Step { before: &before, action: &action, after: &world, happened: &happened };
        let facts = facts::of(&step);
        reached |= facts;
        grants += usize::from(world.past.highest > before.past.highest);
        broken = promises.iter().any(|promise| promise.judge_step(&step).is_err());
        taken.push(action);
    }
    let recovery = recover(&world);
    broken |= promises.iter().any(|promise| promise.judge_recovery(&recovery).is_err());
    let counterexample = broken.then(|| shorten(&scope, taken)).flatten();
    Walked { scope, reached, grants, counterexample }
}

/// Each walk has some kinds of faults and not others: what hides one mistake shows another (swarm testing, Groce et al.
/// 2012).
fn some_scope(dice: &mut Dice) -> Scope {
    let callers = (0..dice.between(2, 5)).map(|_| {
        let ttl_ms = dice.between(100, 390);
        Terms {
            ttl_ms,
            guard_ms: dice.below(3) * 100,
            place_ms: [0, 300, 1_000, 30_000][dice.below(4) as usize],
            wait_ms: (dice.below(3) == 0).then(|| dice.between(0, 2_000)),
            renew: dice.below(4) > 0,
        }
    });
    let callers = callers.collect();
    let kinds = [
        Chance::Loss,
        Chance::Echo,
        Chance::Miss,
        Chance::Failure,
        Chance::Cancel,
        Chance::Extend,
        Chance::Drift,
        Chance::Crash,
        Chance::Unreachable,
        Chance::Stop,
        Chance::Job,
        Chance::Foreign,
    ];
    let chances = kinds.into_iter().filter_map(|kind| {
        let most = if kind == Chance::Drift { 1 } else { dice.between(1, 4) as u8 };
        (dice.below(3) == 0).then_some((kind, most))
    });
    let mut chances: Vec<_> = chances.collect();
    let doubled = dice.below(6) == 0;
    if doubled {
        chances.push((Chance::Repeat, 3));
    }
    let extend_ms = dice.between(100, 390);
    Scope {
        name: "a walk",
        about: "at random",
        callers: Cow::Owned(callers),
        chances: Cow::Owned(chances),
        broken: if doubled { scopes::BROKEN_BY_DOUBLES } else { &[] },
        size: crate::scope::Size { lasts_ms: 20_000, states: 0 },
        grid_ms: dice.between(30, 500),
        timers: true,
        letters: usize::MAX,
        // A hundredth of the shortest lease, and what is left for rounding.
        drifts: &[3, -3],
        extend_ms,
        ..BASE
    }
}

/// Time passes less often than other things happen, and then to any moment.
fn pick(dice: &mut Dice, world: &World, actions: &[Action]) -> Option<Action> {
    let (time, others): (Vec<_>, Vec<_>) =
        actions.iter().partition(|action| matches!(action, Action::Pass(_)));
    let passes = others.is_empty() || dice.below(4) == 0;
    match (time.first(), passes) {
        (Some(Action::Pass(to)), true) if dice.below(2) == 0 => {
            Some(Action::Pass(dice.between(world.now, *to)))
        }
        (Some(time), true) => Some((*time).clone()),
        _ if others.is_empty() => None,
        _ => Some(others[dice.below(others.len() as u64) as usize].clone()),
    }
}

/// Leaves steps out as long as a promise is still broken.
fn shorten(scope: &Scope, mut actions: Vec<Action>) -> Option<Counterexample> {
    let mut found = broken_by(scope, &actions)?;
    let mut span = actions.len();
    while span > 0 {
        let mut from = 0;
        while from < actions.len() {
            let mut fewer = actions.clone();
            fewer.drain(from..(from + span).min(actions.len()));
            match broken_by(scope, &fewer).filter(|fewer| fewer.promise == found.promise) {
                Some(shorter) => {
                    actions.clone_from(&shorter.actions);
                    found = shorter;
                }
                None => from += span,
            }
        }
        span /= 2;
    }
    Some(found)
}

/// Walks a way of which steps may be missing: indices then name other letters, which is as good as any other way.
fn broken_by(scope: &Scope, actions: &[Action]) -> Option<Counterexample> {
    let possible = {
        let mut world = scope.world();
        actions.iter().all(|action| {
            let now = world.now;
            let fits = match action {
                Action::Deliver(at) | Action::Repeat(at) | Action::Lose(at) => *at < world.letters.len(),
                Action::Pass(to) => *to >= now,
                _ => true,
            };
            if fits {
                world.act(action);
            }
            fits
        })
    };
    if !possible {
        return None;
    }
    let promises = scope.promises();
    let steps: Vec<Promise> = promises.iter().copied().filter(|promise| !promise.needs_recovery()).collect();
    retrace(scope, &steps, actions).or_else(|| {
        let mut world = scope.world();
        for action in actions {
            world.act(action);
        }
        let recovery = recover(&world);
        promises.iter().find_map(|promise| {
            let what = promise.judge_recovery(&recovery).err()?;
            Some(Counterexample { promise: *promise, what, actions: actions.to_vec() })
        })
    })
}

/// So many steps at random through a scope.
pub fn stroll(scope: &Scope, seed: u64, steps: usize) -> Vec<Action> {
    let mut dice = Dice(seed);
    let last = BEGIN_MS + scope.size.lasts_ms;
    let (mut world, mut taken, mut actions) = (scope.world(), Vec::new(), Vec::new());
    while taken.len() < steps {
        actions.clear();
        scope.possible(&world, last, &mut actions);
        let Some(action) = pick(&mut dice, &world, &actions) else { break };
        world.act(&action);
        taken.push(action);
    }
    taken
}
