//! `tenure lab`: the locks of the documents, seen through the command.
mod common;

use std::process::Output;

use common::{Bench, Running, code, wait_for};
use nix::sys::signal::Signal;
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

/// Every promise that a form of single commands breaks.
fn broken() -> Vec<(&'static str, Promise)> {
    let forms = FORMS.into_iter().filter(|form| form.steps.is_some());
    forms.flat_map(|form| pinned::of(form.name).broken().map(|promise| (form.name, promise))).collect()
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
fn each_form_is_explained_with_what_it_breaks_and_when_and_the_slips_of_its_listing() {
    for form in FORMS {
        let page = text(&lab(&["explain", form.name]));
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in [form.acquires, form.releases, form.how, form.changed, form.advice] {
            assert!(
                page.contains(&words.split_whitespace().collect::<Vec<_>>().join(" ")),
                "{words}\n{page}"
            );
        }
        for (promise, pin, when) in pinned::of(form.name).promises {
            assert!(page.contains(promise.name()), "{page}");
            assert!(!matches!(pin, Pin::Broken(_)) || page.contains(when), "{page}");
        }
        assert_eq!(page.matches("effect: ").count(), form.slips().count(), "{page}");
    }
    let page = text(&lab(&["explain", "setnx-del"]));
    assert!(
        page.contains("What setnx-expire changed in it") && page.contains("What getset changed in it"),
        "{page}"
    );
}

#[test]
fn an_unknown_form_is_told_the_ones_there_are() {
    let output = lab(&["check", "mutex"]);
    assert_eq!(code(output.status), 64);
    assert!(String::from_utf8_lossy(&output.stderr).contains("setnx-del, setnx-expire"));
    let output = lab(&["replay", "cad", "--promise", "crash-frees"]);
    assert_eq!(code(output.status), 64);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        told.contains("cad does not break crash-frees; it breaks told, loss-survived, own-identity"),
        "{told}"
    );
}

#[test]
fn a_broken_promise_is_drawn() {
    let drawn = text(&lab(&["check", "get-del"]));
    for line in ["GET lock → a1", "time passes", "DEL lock → 1", "what went wrong: the lock of B was deleted"]
    {
        assert!(drawn.contains(line), "{drawn}");
    }
    let rows = text(&lab(&["check", "get-del", "--json"]));
    let rows: Vec<serde_json::Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let told: Vec<_> = rows.iter().map(|row| row["verdict"].as_str().unwrap()).collect();
    assert_eq!(told, ["broken", "broken", "kept", "broken", "no-tokens", "broken", "kept", "kept"]);
    assert_eq!(rows[3]["steps"], 5);
}

/// The schedule of the checker, with real commands on a real server, has the answers that the checker reckoned with.
#[test]
fn every_broken_promise_is_broken_on_a_real_server() {
    let all = broken();
    assert_eq!(all.len(), 38);
    for some in all.chunks(9) {
        std::thread::scope(|scope| {
            for (form, promise) in some {
                scope.spawn(move || {
                    let output = lab(&["replay", form, "--promise", promise.name()]);
                    let shown = text(&output);
                    assert_eq!(code(output.status), 0, "{form} {}\n{shown}{output:?}", promise.name());
                    assert!(shown.contains("Each answer was the one"), "{shown}");
                    let columns = shown.lines().filter(|line| line.contains("HAS IT1")).count();
                    assert_eq!(columns, 0, "the columns run together\n{shown}");
                });
            }
        });
    }
}

#[test]
fn the_damage_is_shown() {
    let stuck = text(&lab(&["replay", "setnx-del"]));
    assert!(stuck.contains("C SETNX lock c1 → 0 busy") && stuck.contains("TTL lock → -1"), "{stuck}");
    let freed = text(&lab(&["replay", "get-del"]));
    assert!(freed.contains("B and C work at the same time."), "{freed}");
    let refused = lab(&["replay", "tenure"]);
    assert_eq!(code(refused.status), 0);
    let refused = text(&refused);
    assert!(refused.contains("holds() is false") && refused.contains("REFUSED"), "{refused}");
}

#[test]
fn a_server_that_is_not_ours_is_left_as_it_was() {
    let server = RedisServer::start();
    for form in ["cad", "setnx-del", "tenure"] {
        let output = lab(&["replay", form, "--url", &server.url()]);
        assert_eq!(code(output.status), 0, "{output:?}");
    }
    let output = lab(&["race", "set-nx-ex", "--secs", "6", "--url", &server.url()]);
    assert_eq!(code(output.status), 0, "{output:?}");
    assert_eq!(server.command(&["KEYS", "tenure-lab*"]), "*0\r\n");
}

#[test]
fn a_signal_leaves_nothing_behind() {
    let server = RedisServer::start();
    let bench = Bench::embedded();
    let temporary = bench.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let keys = || server.command(&["KEYS", "tenure-lab*"]);
    let start = |words: &[&str]| {
        let mut command = bench.tenure(&[&["lab"], words].concat());
        Running(command.env("TMPDIR", &temporary).spawn().unwrap())
    };

    let running = start(&["race", "setnx-del", "--url", &server.url()]);
    wait_for("the lock is taken", || keys() != "*0\r\n");
    running.send(Signal::SIGTERM);
    assert_eq!(running.finish().0, 143);
    // Its processes die with it, and take no lock any more.
    wait_for("nothing is left", || keys() == "*0\r\n");

    let running = start(&["race", "cad"]);
    let left = || std::fs::read_dir(&temporary).unwrap().count();
    wait_for("its server has a directory", || left() > 0);
    running.send(Signal::SIGINT);
    assert_eq!(running.finish().0, 130);
    assert_eq!(left(), 0);
}

#[test]
fn what_the_lab_can_not_use_is_refused() {
    let refused = |words: &[&str], text: &str| {
        let output = lab(words);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(text), "{words:?}: {told}");
        assert!(!told.contains("secret"), "{told}");
        code(output.status)
    };
    let server = RedisServer::start();
    let url = server.url();
    assert_eq!(refused(&["replay", "redlock", "--url", &url], "give --url 3 time(s)"), 64);
    assert_eq!(
        refused(&["replay", "redlock", "--url", &url, "--url", &url, "--url", &url], "each of another one"),
        64
    );
    assert_eq!(refused(&["replay", "cad", "--url", "rediss://:secret@localhost"], "speaks no TLS"), 64);
    assert_eq!(refused(&["replay", "cad", "--url", &format!("{url}?prefix=x")], "takes no options"), 64);
    assert_eq!(
        refused(&["replay", "cad", "--url", "redis://:secret@127.0.0.1:1"], "server of the experiment"),
        69
    );
    assert_eq!(refused(&["replay", "tenure", "--promise", "exclusion"], "as a whole"), 64);
    assert_eq!(refused(&["check", "cad", "--promise", "living-stays"], "means nothing for cad"), 64);
}

#[test]
fn a_missing_server_program_is_told_with_what_to_do() {
    let mut command = Bench::embedded().tenure(&["lab", "replay", "cad"]);
    let output = command.env("TENURE_REDIS_SERVER", "/nowhere/redis-server").output().unwrap();
    assert_eq!(code(output.status), 69);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("cannot run /nowhere/redis-server") && told.contains("apt-get install"), "{told}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for words in [&["explain", "getset"][..], &["check", "cad"], &["replay", "cad"]] {
        let mut running = Bench::embedded().start(&[&["lab"], words].concat());
        drop(running.0.stdout.take());
        assert_eq!(running.finish(), (0, String::new()), "{words:?}");
    }
}

/// Real processes that die and oversleep: each form shows what it is known for and nothing else, and Tenure nothing.
#[test]
fn in_a_race_every_form_breaks_but_tenure() {
    let output = lab(&["race", "--json"]);
    let counts = text(&output);
    assert_eq!(code(output.status), 0, "{counts}");
    let counts: Vec<serde_json::Value> =
        counts.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    assert_eq!(counts.len(), 9);
    for count in counts {
        let harm = ["stale_writes", "overlaps", "stuck_ms", "wronged_holders"];
        let harm: u64 = harm.iter().map(|harm| count[harm].as_u64().unwrap()).sum();
        assert_eq!(harm == 0, count["form"] == "tenure", "{count}");
    }
}
