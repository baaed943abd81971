//! A small world and what may happen in it.

use std::borrow::Cow;

use crate::facts::Fact;
use crate::past::Chance;
use crate::promises::Promise;
use crate::protocol::{Moment, Occupant, Outcome, Phase, Sight, Terms};
use crate::world::{Action, Body, World};

/// A small world and what may happen in it.
pub struct Scope {
    /// What the command calls it.
    pub name: &'static str,
    /// What it is for, in one line.
    pub about: &'static str,
    /// The callers.
    pub callers: Cow<'static, [Terms]>,
    /// How long the world lasts in every run, and how many states that makes.
    pub size: Size,
    /// The same in the deep run; `None`: as in every run.
    pub deep: Option<Size>,
    /// Time stops at every multiple of this, and where a hold, a place, a belief or an ask's time ends.
    pub grid_ms: u64,
    /// Time stops where a timer falls due as well. Otherwise timers fire at the next stop.
    pub timers: bool,
    /// At most so many letters are under way at once.
    pub letters: usize,
    /// No caller sends more requests than this.
    pub sends: u32,
    /// How often each chance may be taken.
    pub chances: Cow<'static, [(Chance, u8)]>,
    /// What a caller's clock may gain or lose, at once.
    pub drifts: &'static [i64],
    /// How far the store's clock may be set, at once.
    pub store_steps: &'static [i64],
    /// The lease that a caller may ask for with an extension.
    pub extend_ms: u64,
    /// What these faults break by nature: the checker must find it broken, and the shortest way there has so many steps.
    /// Every other promise is kept.
    pub broken: &'static [(Promise, usize)],
    /// What must be seen to happen.
    pub reaches: &'static [&'static [Fact]],
}

/// How much of a scope is explored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Milliseconds from the first moment to the last.
    pub lasts_ms: u64,
    /// The number of distinct states, so that a world that shrank does not go unnoticed.
    pub states: usize,
}

/// When a world begins: late enough for clocks to be set back.
pub const BEGIN_MS: u64 = 100_000;

impl Scope {
    /// What is promised under these faults.
    pub fn promises(&self) -> Vec<Promise> {
        let broken = |promise: &Promise| self.broken.iter().any(|(known, _)| known == promise);
        Promise::ALL.into_iter().filter(|promise| !broken(promise)).collect()
    }

    /// The world before anything has happened.
    pub fn world(&self) -> World {
        World::new(BEGIN_MS, &self.callers)
    }

    /// Everything that can happen next up to the moment `last`, in an order that depends on the world alone.
    pub fn possible(&self, world: &World, last: u64, actions: &mut Vec<Action>) {
        let may = |chance: Chance| {
            let most = self.chances.iter().find(|(known, _)| *known == chance).map_or(0, |(_, most)| *most);
            world.past.taken[chance as usize] < most
        };
        for (caller, known) in world.callers.iter().enumerate() {
            if known.sight == Sight::Orphaned {
                actions.push(Action::See(caller, Sight::Gone));
            }
            if !known.alive {
                continue;
            }
            let clock = world.clock(caller);
            match known.claim.phase() {
                Phase::Idle => actions.push(Action::Acquire(caller)),
                Phase::Asking { .. } | Phase::Waiting { .. } if may(Chance::Cancel) => {
                    actions.push(Action::Release(caller));
                }
                Phase::Held(_) => {
                    actions.push(Action::Release(caller));
                    if may(Chance::Extend) {
                        actions.push(Action::Extend(caller, self.extend_ms));
                    }
                    if may(Chance::Stop) {
                        actions.push(Action::Stop(caller, "ops".to_owned()));
                    }
                    if may(Chance::Job) && world.occupant() == Some(caller) && world.is_held() {
                        // An engine makes the file while it sees the hold.
                        actions.push(Action::See(caller, Sight::Working));
                    }
                    if known.sight == Sight::Working && known.claim.valid_until() < Some(Moment::NEVER) {
                        actions.push(Action::Pin(caller));
                    }
                }
                Phase::Lost { .. } => actions.push(Action::Release(caller)),
                _ => {}
            }
            if known.claim.deadline().is_some_and(|at| at <= clock) {
                actions.push(Action::Tick(caller));
            }
            if may(Chance::Miss)
                && let Some(attempt) = known.claim.awaits()
            {
                actions.push(Action::Miss(caller, attempt, Outcome::Unknown));
            }
            if may(Chance::Failure)
                && let Some(attempt) = known.claim.awaits()
                && world.letters.iter().any(|letter| letter.is_request(caller, attempt))
            {
                actions.push(Action::Miss(caller, attempt, Outcome::NotRun));
                actions.push(Action::Miss(caller, attempt, Outcome::Refused));
            }
            if may(Chance::Crash) && !matches!(known.claim.phase(), Phase::Idle | Phase::Ended) {
                actions.push(Action::Crash(caller));
            }
            if may(Chance::Drift) {
                actions.extend(self.drifts.iter().map(|by_ms| Action::Drift(caller, *by_ms)));
            }
            if may(Chance::Unreachable) && known.reachable {
                actions.push(Action::Reach(caller, false));
            }
        }
        for at in 0..world.letters.len() {
            if at > 0 && world.letters[at] == world.letters[at - 1] {
                continue;
            }
            actions.push(Action::Deliver(at));
            let again = match world.letters[at].body {
                Body::Message(_) => Chance::Echo,
                _ => Chance::Repeat,
            };
            if may(again) {
                actions.push(Action::Repeat(at));
            }
            if may(Chance::Loss) {
                actions.push(Action::Lose(at));
            }
        }
        if may(Chance::Forget) {
            actions.push(Action::Forget);
        }
        if may(Chance::StoreClock) {
            actions.extend(self.store_steps.iter().map(|by_ms| Action::StoreClock(*by_ms)));
        }
        if may(Chance::Foreign) && world.store.ledger.occupant.is_none() {
            actions.push(Action::ForeignTakes(Some(self.grid_ms)));
        }
        if let Some(to) = self.next_moment(world, last) {
            actions.push(Action::Pass(to));
        }
    }

    /// The next moment at which something falls due on some clock, or at which time stops for its own sake.
    fn next_moment(&self, world: &World, last: u64) -> Option<u64> {
        let now = world.now;
        let in_true_time = |at: Moment, ahead_ms: i64| at.0.saturating_add_signed(-ahead_ms);
        let mut next = (now / self.grid_ms + 1) * self.grid_ms;
        let mut consider = |at: u64| {
            if at > now {
                next = next.min(at);
            }
        };
        for caller in world.callers.iter().filter(|caller| caller.alive) {
            let timer = caller.claim.deadline().filter(|_| self.timers);
            for at in timer.into_iter().chain(caller.claim.valid_until()) {
                if at < Moment::NEVER {
                    consider(in_true_time(at, caller.ahead_ms));
                }
            }
        }
        let ledger = &world.store.ledger;
        let hold_ends = match &ledger.occupant {
            Some(Occupant::Ours(hold)) => Some(hold.ends),
            Some(Occupant::Foreign { ends }) => *ends,
            None => None,
        };
        // A hold and a place stand in their last millisecond.
        let over = hold_ends.into_iter().chain(ledger.places.iter().map(|place| place.until));
        for at in over.map(|at| at.plus(1)).chain(hold_ends) {
            consider(in_true_time(at, world.store.ahead_ms));
        }
        for letter in &world.letters {
            if let Body::Request {
                request: crate::protocol::Request::Ask { not_after: Some(at), .. }, ..
            } = &letter.body
            {
                consider(in_true_time(*at, world.store.ahead_ms));
            }
        }
        (next <= last).then_some(next)
    }
}
