//! `tenure lab`: the locks of the documents, seen through the command.
mod common;

use std::process::Output;

use common::{Bench, code};
use tenure_conformance::server::RedisServer;
use tenure_forms::FORMS;
use tenure_model::lab::Promise;
use tenure_model::lab::pinned::{self, Pin};

fn lab(words: &[&str]) -> Output {
    Bench::embedded().output(&[&["lab"], words].concat())
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Every promise that a form breaks.
fn broken() -> impl Iterator<Item = (&'static str, Promise)> {
    let pins = pinned::PINS
        .into_iter()
        .flat_map(|(form, pins)| pins.iter().map(move |(one, pin)| (form, *one, *pin)));
    pins.filter(|(_, _, pin)| matches!(pin, Pin::Broken(_))).map(|(form, promise, _)| (form, promise))
}

#[test]
fn the_nine_forms_are_listed_in_the_order_of_history() {
    let listed = text(&lab(&["ls"]));
    let names: Vec<_> = listed.lines().skip(1).take(9).filter_map(|line| line.split(' ').next()).collect();
    let history = [
        "setnx-del",
        "setnx-expire",
        "set-nx-ex",
        "get-del",
        "cad",
        "getset",
        "pid-lock",
        "redlock",
        "tenure",
    ];
    assert_eq!(names, history);
    let rows = text(&lab(&["ls", "--json"]));
    let names =
        rows.lines().map(|row| serde_json::from_str::<serde_json::Value>(row).unwrap()["name"].clone());
    assert!(names.eq(history));
}

#[test]
fn each_form_is_explained_with_what_it_breaks_and_the_slips_of_its_listing() {
    for form in FORMS {
        let page = text(&lab(&["explain", form.name]));
        assert!(page.contains(form.acquires) && page.contains(form.releases), "{page}");
        for (_, promise) in broken().filter(|(name, _)| *name == form.name) {
            assert!(page.contains(promise.words()), "{page}");
        }
        assert_eq!(page.matches("effect: ").count(), form.slips().count(), "{page}");
    }
}

#[test]
fn an_unknown_form_is_told_the_ones_there_are() {
    let output = lab(&["check", "mutex"]);
    assert_eq!(code(output.status), 64);
    assert!(String::from_utf8_lossy(&output.stderr).contains("setnx-del, setnx-expire"));
    let output = lab(&["replay", "cad", "--promise", "crash-frees"]);
    assert_eq!(code(output.status), 64);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("cad does not break crash-frees; it breaks told, own-identity"), "{told}");
}

#[test]
fn a_broken_promise_is_drawn() {
    let drawn = text(&lab(&["check", "get-del"]));
    for line in ["GET lock → t1", "time passes", "DEL lock → 1", "what went wrong: the lock of B was deleted"]
    {
        assert!(drawn.contains(line), "{drawn}");
    }
    let rows = text(&lab(&["check", "get-del", "--json"]));
    let rows: Vec<serde_json::Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let told: Vec<_> = rows.iter().map(|row| row["verdict"].as_str().unwrap()).collect();
    assert_eq!(told, ["broken", "broken", "kept", "broken", "no-tokens", "kept", "kept"]);
    assert_eq!(rows[3]["steps"], 5);
}

/// The schedule of the checker, with real commands on a real server, has the answers that the checker reckoned with.
#[test]
fn every_broken_promise_is_broken_on_a_real_server() {
    let all: Vec<_> = broken().collect();
    assert_eq!(all.len(), 32);
    for some in all.chunks(9) {
        std::thread::scope(|scope| {
            for (form, promise) in some {
                scope.spawn(move || {
                    let output = lab(&["replay", form, "--promise", promise.name()]);
                    let shown = text(&output);
                    assert_eq!(code(output.status), 0, "{form} {}\n{shown}{output:?}", promise.name());
                    assert!(shown.contains("Each answer was the one"), "{shown}");
                });
            }
        });
    }
}

#[test]
fn the_damage_is_shown() {
    let stuck = text(&lab(&["replay", "setnx-del"]));
    assert!(stuck.contains("SETNX lock t3 → 0 busy") && stuck.contains("TTL lock → -1"), "{stuck}");
    let freed = text(&lab(&["replay", "get-del"]));
    assert!(freed.contains("B and C work at the same time."), "{freed}");
    let refused = lab(&["replay", "tenure"]);
    assert_eq!(code(refused.status), 0);
    let refused = text(&refused);
    assert!(refused.contains("holds() is false") && refused.contains("REFUSED"), "{refused}");
}

#[test]
fn a_server_of_ones_own_is_left_as_it_was() {
    let server = RedisServer::start();
    for form in ["cad", "setnx-del", "tenure"] {
        let output = lab(&["replay", form, "--url", &server.url()]);
        assert_eq!(code(output.status), 0, "{output:?}");
    }
    // Tenure's counter of its hash slot stays, and cards that run out.
    let left = server.command(&["KEYS", "tenure-lab*"]);
    assert_eq!(left, "*0\r\n");
    let output = lab(&["replay", "redlock", "--url", &server.url()]);
    assert_eq!(code(output.status), 64, "{output:?}");
}

/// Real processes that die and oversleep: each form shows its damage, and Tenure none. It ends with 1 otherwise.
#[test]
fn in_a_race_every_form_breaks_but_tenure() {
    let output = lab(&["race", "--json"]);
    let counts = text(&output);
    assert_eq!(code(output.status), 0, "{counts}");
    let counts: Vec<serde_json::Value> =
        counts.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    assert_eq!(counts.len(), 9);
    for count in counts {
        let harm = ["stale_writes", "overlaps", "stuck_ms"]
            .map(|harm| count[harm].as_u64().unwrap())
            .iter()
            .sum::<u64>();
        assert_eq!(harm == 0, count["form"] == "tenure", "{count}");
    }
}
