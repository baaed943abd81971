//! Tries everything that can happen in a scope.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::facts;
use crate::promises::{Promise, Step};
use crate::protocol::Output;
use crate::recovery::recover;
use crate::scope::{BEGIN_MS, Scope, Size};
use crate::world::{Action, World};

/// What became of a search.
pub struct Found {
    /// Distinct states that were visited.
    pub states: usize,
    /// The facts that were reached, as a set of [`facts::Fact::bit`]s.
    pub reached: u64,
    /// Promises that were broken somewhere, besides those that were watched.
    pub broken: Vec<Promise>,
    /// A way to a state in which a watched promise is broken.
    pub counterexample: Option<Counterexample>,
}

/// A way to a broken promise.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// Which.
    pub promise: Promise,
    /// What went wrong, in words.
    pub what: String,
    /// How to get there.
    pub actions: Vec<Action>,
}

/// Visits every state of a scope. Ends early only when a promise of the scope is broken.
pub fn exhaust(scope: &'static Scope, size: Size, threads: usize) -> Found {
    let promises = scope.promises();
    let search = Search::new(scope, size, promises.clone(), true);
    let (reached, broken) = (search.reached.clone(), search.broken.clone());
    let checker =
        search.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
    let counterexample =
        checker.discoveries().remove(KEPT).and_then(|path| retrace(scope, &promises, &path.into_actions()));
    let broken = broken.load(Relaxed);
    Found {
        states: checker.unique_state_count(),
        reached: reached.load(Relaxed),
        broken: Promise::ALL.into_iter().filter(|promise| broken & promise.bit() != 0).collect(),
        counterexample,
    }
}

/// Looks for the shortest way to break one of these promises. One thread: with more, the first is not the shortest.
pub fn shortest(scope: &'static Scope, watched: &[Promise]) -> Found {
    let search = Search::new(scope, scope.size, watched.to_vec(), false);
    let reached = search.reached.clone();
    let checker = search.checker().threads(1).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let counterexample =
        checker.discoveries().remove(KEPT).and_then(|path| retrace(scope, watched, &path.into_actions()));
    Found {
        states: checker.unique_state_count(),
        reached: reached.load(Relaxed),
        broken: Vec::new(),
        counterexample,
    }
}

/// Walks a way again, to the first promise that it breaks.
pub fn retrace(scope: &Scope, watched: &[Promise], actions: &[Action]) -> Option<Counterexample> {
    let mut world = scope.world();
    for (at, action) in actions.iter().enumerate() {
        let before = world.clone();
        let happened = world.act(action);
        let step = Step { before: &before, action, after: &world, happened: &happened };
        for promise in watched {
            let judged = promise.judge_step(&step).and_then(|()| {
                if promise.needs_recovery() { promise.judge_recovery(&recover(&world)) } else { Ok(()) }
            });
            if let Err(what) = judged {
                return Some(Counterexample { promise: *promise, what, actions: actions[..=at].to_vec() });
            }
        }
    }
    None
}

const KEPT: &str = "the promises are kept";

/// A scope as the library for model checking wants it.
struct Search {
    scope: &'static Scope,
    last: u64,
    /// These stop the search when they are broken.
    watched: Vec<Promise>,
    recoveries: bool,
    /// The others are only written down.
    unwatched: Vec<Promise>,
    reached: Arc<AtomicU64>,
    broken: Arc<AtomicU64>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    world: World,
    kept: bool,
}

impl Search {
    fn new(scope: &'static Scope, size: Size, watched: Vec<Promise>, all: bool) -> Self {
        let unwatched = if all {
            Promise::ALL.into_iter().filter(|one| !watched.contains(one)).collect()
        } else {
            Vec::new()
        };
        let recoveries = watched.iter().any(|promise| promise.needs_recovery());
        let last = BEGIN_MS + size.lasts_ms;
        Self { scope, last, watched, recoveries, unwatched, reached: Arc::default(), broken: Arc::default() }
    }
}

impl Model for Search {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { world: self.scope.world(), kept: true }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.kept {
            self.scope.possible(&state.world, self.last, actions);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut world = before.world.clone();
        let happened = world.act(&action);
        let sends = happened.outputs.iter().filter_map(|(_, output)| match output {
            Output::Send { attempt, .. } => Some(attempt.0),
            Output::Tell(_) => None,
        });
        if world.letters.len() > self.scope.letters || sends.max() > Some(self.scope.sends) {
            return None;
        }
        let step = Step { before: &before.world, action: &action, after: &world, happened: &happened };
        self.reached.fetch_or(facts::of(&step), Relaxed);
        let kept = self.watched.iter().all(|promise| promise.judge_step(&step).is_ok());
        for promise in &self.unwatched {
            if promise.judge_step(&step).is_err() {
                self.broken.fetch_or(promise.bit(), Relaxed);
            }
        }
        Some(State { world, kept })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(KEPT, |search: &Self, state: &State| {
            state.kept
                && (!search.recoveries || {
                    let recovery = recover(&state.world);
                    search.watched.iter().all(|promise| promise.judge_recovery(&recovery).is_ok())
                })
        })]
    }
}
