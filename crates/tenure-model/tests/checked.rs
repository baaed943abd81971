//! The checker, in a form that is short enough for every test run. `cargo xtask check` visits all scopes.

use tenure_model::check::{self, retrace};
use tenure_model::facts::Fact;
use tenure_model::promises::Promise;
use tenure_model::scope::Scope;
use tenure_model::{report, scopes, story, walk};

fn scope(name: &str) -> &'static Scope {
    scopes::ALL.iter().find(|scope| scope.name == name).unwrap()
}

#[test]
fn the_smallest_scopes_are_as_they_are_written_down() {
    for name in ["late-asks", "crash-of-three", "crash"] {
        let scope = scope(name);
        let found = check::exhaust(scope, scope.size, 2);
        assert!(found.counterexample.is_none(), "{name}: {:?}", found.counterexample);
        assert_eq!(found.states, scope.size.states, "{name} has another size");
        for fact in scope.reaches.iter().copied().flatten() {
            assert_ne!(found.reached & fact.bit(), 0, "{name} never reaches: {}", fact.words());
        }
    }
}

#[test]
fn one_thread_or_two_make_no_difference() {
    let scope = scope("late-asks");
    let (one, two) = (check::exhaust(scope, scope.size, 1), check::exhaust(scope, scope.size, 2));
    assert_eq!((one.states, one.reached), (two.states, two.reached));
}

#[test]
fn random_walks_break_nothing() {
    let (mut reached, mut grants) = (0, 0);
    for seed in 0..1_000 {
        let walked = walk::walk(seed);
        if let Some(broken) = &walked.counterexample {
            panic!("seed {seed}: {}\n{}", broken.what, story::tell(&walked.scope, &broken.actions));
        }
        reached |= walked.reached;
        grants += walked.grants;
    }
    assert!(grants > 1_000, "{grants} grants are too few to prove anything");
    let facts = Fact::ALL.iter().filter(|fact| reached & fact.bit() != 0).count();
    assert!(facts >= 25, "only {facts} kinds of facts were reached");
}

/// A store that forgets lets two hold: what is expected is found, by the shortest way.
#[test]
fn an_expected_weakness_is_found_and_told() {
    let scope = scope("forget");
    let found = check::shortest(scope, &[Promise::OneHolder]).counterexample.unwrap();
    let steps = scope.broken.iter().find(|(promise, _)| *promise == Promise::OneHolder).unwrap().1;
    assert_eq!(found.actions.len(), steps);

    let told = story::tell(scope, &found.actions);
    assert!(told.contains("store forgets") && told.matches("HOLDS").count() == 2, "{told}");
    assert_eq!(story::replay(&told), told, "a story that was told can be replayed");
    assert_eq!(report::story_of(&report::json(scope, &found)).unwrap(), told, "and so can its JSON");

    let again = retrace(scope, &[Promise::OneHolder], &found.actions).unwrap();
    assert_eq!(again.what, "a and b hold at the same time");
}

/// Whatever way is taken through a world, its story tells the same as what happened.
#[test]
fn any_way_can_be_told_and_replayed() {
    for scope in [scope("late-letters"), scope("doubled-requests"), scope("lost-letters")] {
        for seed in 0..60 {
            let actions = walk::stroll(scope, seed, 40);
            let told = story::tell(scope, &actions);
            let by_world: Vec<String> = story::lines(scope, &actions)
                .iter()
                .filter(|line| line.words.is_some())
                .flat_map(|line| {
                    story::consequences(&line.world, &line.happened, &|who| {
                        char::from(b'a' + who as u8).to_string()
                    })
                })
                .collect();
            let by_story: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("    ")).collect();
            assert_eq!(by_story, by_world, "{}, seed {seed}:\n{told}", scope.name);
        }
    }
}

#[test]
fn the_table_in_the_guarantees_is_the_list_of_scopes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guarantees.md");
    let text = std::fs::read_to_string(path).unwrap();
    let table = text
        .split("<!-- from the scopes: cargo xtask check --guarantees -->\n")
        .nth(1)
        .and_then(|rest| rest.split("<!-- end -->").next())
        .expect("the guarantees have a table between two marks");
    assert_eq!(
        table,
        tenure_model::matrix::markdown(),
        "run cargo xtask check --guarantees and paste the table"
    );
}
