//! The forms keep and break what is pinned, by the shortest ways.

use tenure_forms::{FORMS, Form, Reply};
use tenure_model::lab::pinned::{self, Pin};
use tenure_model::lab::{Promise, Verdict, diagram, verdict, worlds};
use tenure_model::scopes;

/// The forms that are made of single commands.
fn forms() -> impl Iterator<Item = &'static Form> {
    FORMS.into_iter().filter(|form| form.steps.is_some())
}

#[test]
fn every_form_keeps_and_breaks_what_is_pinned() {
    for form in forms() {
        for promise in Promise::ALL {
            let pin = pinned::of(form.name).pin(promise);
            assert_eq!(pin.is_some(), promise.concerns(form), "{} {}", form.name, promise.name());
            let Some(pin) = pin else { continue };
            let found = verdict(form, promise);
            let drawn = match &found {
                Verdict::Broken(broken) => diagram::draw(form, promise, broken),
                _ => String::new(),
            };
            assert_eq!(Pin::of(&found), pin, "{} {}\n{drawn}", form.name, promise.name());
        }
    }
}

/// The scopes themselves are visited by `cargo xtask check`.
#[test]
fn what_is_pinned_of_tenure_are_the_states_of_its_scopes() {
    let states: usize =
        pinned::TENURE_SCOPES.iter().map(|name| scopes::named(name).unwrap().size.states).sum();
    for promise in Promise::COLUMNS {
        if promise != Promise::LossSurvived {
            assert_eq!(pinned::of("tenure").pin(promise), Some(Pin::Kept(states)));
        }
    }
    for name in pinned::TENURE_SCOPES {
        let promised = scopes::named(name).unwrap().promises();
        assert!(pinned::TENURE_PROMISES.iter().all(|promise| promised.contains(promise)), "{name}");
    }
}

#[test]
fn each_form_is_known_for_something_that_it_breaks() {
    for form in FORMS {
        let expected = pinned::of(form.name);
        assert!(expected.broken().any(|promise| promise == expected.headline), "{}", form.name);
        for (promise, pin, when) in expected.promises {
            assert_eq!(matches!(pin, Pin::Broken(_)), !when.is_empty(), "{} {}", form.name, promise.name());
        }
    }
}

/// A crash between SETNX and EXPIRE leaves no end; the timestamp form takes such a key over, SET NX never would.
#[test]
fn a_stamp_without_an_end_is_taken_over_by_those_who_read_it() {
    assert!(matches!(pinned::of("getset").pin(Promise::KeyEnds), Some(Pin::Broken(2))));
    assert!(matches!(pinned::of("getset").pin(Promise::CrashFrees), Some(Pin::Kept(_))));
}

#[test]
fn a_clock_that_is_fast_is_what_robs_a_living_lock() {
    for name in ["getset", "pid-lock"] {
        let Verdict::Broken(broken) = verdict(tenure_forms::form(name).unwrap(), Promise::LivingStays) else {
            panic!("{name} is not broken")
        };
        assert!(broken.begin.players[1].ahead_ms > 0);
    }
}

/// What is drawn can be driven: the actions lead from the beginning to the end, at any time of day.
#[test]
fn a_way_is_the_same_at_any_time_of_day() {
    for form in forms() {
        let promise = pinned::of(form.name).headline;
        let Verdict::Broken(broken) = verdict(form, promise) else { panic!() };
        let mut world = broken.begin.beginning_at(1_800_000_000_000);
        let mut judged = Ok(());
        for action in &broken.actions {
            let happened = world.act(*action);
            judged = promise.judge(&world, &happened);
        }
        assert_eq!(judged, Err(broken.what), "{}", form.name);
    }
}

#[test]
fn timestamp_forms_are_tried_with_clocks_that_differ() {
    let stamped = forms().filter(|form| worlds(form, Promise::Exclusion).len() == 3).map(|form| form.name);
    assert_eq!(stamped.collect::<Vec<_>>(), ["getset", "pid-lock"]);
}

/// Tenure's own protocol, too: its scope says in how many steps.
#[test]
fn over_a_store_that_forgets_nothing_excludes() {
    for form in FORMS {
        assert!(
            pinned::of(form.name).broken().any(|promise| promise == Promise::LossSurvived),
            "{}",
            form.name
        );
    }
    let scope = scopes::named(pinned::FORGETFUL_SCOPE).unwrap();
    let (_, steps) = scope.broken.iter().find(|(promise, _)| promise.name() == "one-holder").unwrap();
    assert_eq!(pinned::of("tenure").pin(Promise::LossSurvived), Some(Pin::Broken(*steps)));
    let found = verdict(tenure_forms::form("tenure").unwrap(), Promise::LossSurvived);
    assert_eq!(Pin::of(&found), Pin::Broken(*steps));
}

/// Whoever takes a free lock in any form and gives it back leaves a key that can be taken.
#[test]
fn every_form_works_when_nothing_goes_wrong() {
    use tenure_model::lab::{Action, Doing};
    for form in forms() {
        let mut world = worlds(form, Promise::Exclusion).remove(0);
        let mut answers = Vec::new();
        loop {
            answers.extend(world.act(Action::Go(0)).done.map(|done| done.reply));
            match world.players[0].doing {
                Doing::Idle => break,
                _ => assert!(answers.len() < 20, "{} does not come to an end", form.name),
            }
        }
        assert_eq!(answers[0], Reply::Yes, "{}", form.name);
        assert!(world.can_be_had(), "{}", form.name);
    }
}
