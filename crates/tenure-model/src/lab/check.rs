//! Tries everything that can happen with a form.

use stateright::{Checker, HasDiscoveries, Model, Property};
use tenure_forms::Form;

use super::world::{Action, World, worlds};
use super::{Promise, pinned};
use crate::check::Counterexample;
use crate::scope::Scope;
use crate::{check, promises, scopes};

/// What became of a promise.
#[derive(Clone)]
pub enum Verdict {
    /// It is kept in every state; so many there are.
    Kept {
        /// Distinct states.
        states: usize,
    },
    /// It is broken.
    Broken(Broken),
    /// Tenure's own protocol breaks it in this scope.
    InScope(&'static Scope, Counterexample),
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

/// What becomes of each promise that concerns a form.
pub fn verdicts(form: &'static Form) -> Vec<(Promise, Verdict)> {
    let mut found: Vec<(Promise, Verdict)> = Vec::new();
    for promise in Promise::ALL.into_iter().filter(|promise| promise.concerns(form)) {
        // The scopes of Tenure's own protocol are visited once for all promises that they keep.
        let known =
            found.iter().find(|(_, verdict)| form.steps.is_none() && matches!(verdict, Verdict::Kept { .. }));
        let verdict = match known {
            Some((_, verdict)) if promise != Promise::LossSurvived => verdict.clone(),
            _ => verdict(form, promise),
        };
        found.push((promise, verdict));
    }
    found
}

/// What becomes of a promise under a form. With clocks alike if it is broken so, otherwise with others.
pub fn verdict(form: &'static Form, promise: Promise) -> Verdict {
    match (form.steps, promise) {
        (None, Promise::LossSurvived) => forgotten(),
        (None, _) => tenure(),
        (Some(_), Promise::TokensRise) => Verdict::NoTokens,
        (Some(_), _) => {
            let mut states = 0;
            for begin in worlds(form, promise) {
                match search(begin, promise) {
                    Ok(visited) => states += visited,
                    Err(broken) => return Verdict::Broken(*broken),
                }
            }
            Verdict::Kept { states }
        }
    }
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

/// Tenure's own protocol in the scopes that have what the forms are subjected to; the states in all.
fn tenure() -> Verdict {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut states = 0;
    for name in pinned::TENURE_SCOPES {
        let scope = scopes::named(name).expect("a scope");
        let found = check::exhaust(scope, scope.size, threads);
        if let Some(counterexample) = found.counterexample {
            return Verdict::InScope(scope, counterexample);
        }
        states += found.states;
    }
    Verdict::Kept { states }
}

/// Tenure's own protocol over a store that forgets.
fn forgotten() -> Verdict {
    let scope = scopes::named(pinned::FORGETFUL_SCOPE).expect("a scope");
    match check::shortest(scope, &[promises::Promise::OneHolder]) {
        check::Found { counterexample: Some(counterexample), .. } => Verdict::InScope(scope, counterexample),
        found => Verdict::Kept { states: found.states },
    }
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
