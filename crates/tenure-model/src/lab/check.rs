//! Tries everything that can happen with a form.

use stateright::{Checker, HasDiscoveries, Model, Property};
use tenure_forms::Form;

use super::world::{Action, World, worlds};
use super::{Promise, pinned};
use crate::{check, promises, scope, scopes};

/// What became of a promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is kept in every state; so many there are.
    Kept {
        /// Distinct states.
        states: usize,
    },
    /// It is broken.
    Broken(Broken),
    /// The form has no tokens: nothing can be refused by them.
    NoTokens,
}

/// The shortest way to a broken promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// Where it begins.
    pub begin: World,
    /// What happens.
    pub actions: Vec<Action>,
    /// What went wrong, in words.
    pub what: String,
}

/// What becomes of a promise under a form. For `tenure` itself see [`tenure`].
pub fn verdict(form: &'static Form, promise: Promise) -> Verdict {
    if form.steps.is_none() {
        return Verdict::Kept { states: tenure() };
    }
    if promise == Promise::TokensRise {
        return Verdict::NoTokens;
    }
    let mut states = 0;
    let mut shortest: Option<Box<Broken>> = None;
    for begin in worlds(form, promise) {
        match search(begin, promise) {
            Ok(visited) => states += visited,
            Err(broken)
                if shortest.as_ref().is_none_or(|known| broken.actions.len() < known.actions.len()) =>
            {
                shortest = Some(broken);
            }
            Err(_) => {}
        }
    }
    shortest.map_or(Verdict::Kept { states }, |broken| Verdict::Broken(*broken))
}

/// Visits everything that can come of a world, or finds a shortest way to a broken promise.
fn search(begin: World, promise: Promise) -> Result<usize, Box<Broken>> {
    // One thread, breadth first: the first way found is a shortest one.
    let search = Search { begin, promise };
    let checker = search.checker().threads(1).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let Some(path) = checker.discoveries().remove(KEPT) else { return Ok(checker.unique_state_count()) };
    let begin = checker.model().begin.clone();
    let actions = path.into_actions();
    let what = walk(&begin, promise, &actions).expect_err("the search found it broken");
    Err(Box::new(Broken { begin, actions, what }))
}

/// Walks a way; what went wrong on it.
fn walk(begin: &World, promise: Promise, actions: &[Action]) -> Result<(), String> {
    let mut world = begin.clone();
    for action in actions {
        let happened = world.act(*action);
        promise.judge(&world, &happened)?;
    }
    Ok(())
}

/// Checks Tenure's own protocol in the scopes that have what the forms are subjected to; the states in all.
///
/// # Panics
/// When a promise is broken in one of them.
pub fn tenure() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    pinned::TENURE_SCOPES
        .iter()
        .map(|name| {
            let scope: &'static scope::Scope = scopes::named(name).expect("a scope");
            let found = check::exhaust(scope, scope.size, threads);
            if let Some(broken) = found.counterexample {
                panic!("{name}: {}: {}", broken.promise.name(), broken.what);
            }
            assert!(
                pinned::TENURE_PROMISES.iter().all(|one: &promises::Promise| scope.promises().contains(one))
            );
            found.states
        })
        .sum()
}

const KEPT: &str = "the promise is kept";

struct Search {
    begin: World,
    promise: Promise,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    world: World,
    kept: bool,
}

impl Model for Search {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { world: self.begin.clone(), kept: true }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.kept {
            state.world.possible(actions);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut world = before.world.clone();
        let happened = world.act(action);
        let kept = self.promise.judge(&world, &happened).is_ok();
        Some(State { world, kept })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(KEPT, |_, state: &State| state.kept)]
    }
}
