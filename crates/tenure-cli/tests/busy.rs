//! `tenure run --on-busy`: what becomes of a command whose lock is taken.
mod common;

use std::time::{Duration, Instant};

use tenure_conformance::server::RedisServer;

use common::{Bench, Running, wait_for, word};

/// A lock that is held, as others see it.
fn held(bench: &Bench, name: &str) -> Running {
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 30", word(&sign));
    let holder = bench.start_job(&["run", name, "--", "sh", "-c", &line], &sign);
    wait_for("the holder tells of itself", || bench.inspect(name)["holder"]["pid"] == holder.pid());
    holder
}

/// Runs it on a busy lock; exit code, stderr and how long it took.
fn timed(bench: &Bench, options: &[&str]) -> (i32, String, Duration) {
    let begun = Instant::now();
    let (code, text) = bench.code(&[&["run"], options, &["mail", "--", "echo", "ran"]].concat());
    (code, text, begun.elapsed())
}

#[test]
fn fail_says_who_holds_since_when_and_when_to_try_again() {
    let server = RedisServer::start();
    for bench in [Bench::embedded(), Bench::on(&server.url())] {
        let holder = held(&bench, "mail");
        for options in [&["-n"][..], &["--on-busy", "fail"]] {
            let (code, text, took) = timed(&bench, options);
            assert_eq!(code, 75, "{text}");
            assert!(took < Duration::from_secs(5), "{took:?}");
            assert!(text.contains(&format!("(pid {}, sh -c", holder.pid())), "{text}");
            assert!(text.contains(" since ") && text.contains("; try again "), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
        assert_eq!(timed(&bench, &["--on-busy", "fail", "-E", "3", "-q"]).0, 3);
    }
}

#[test]
fn skip_runs_nothing_and_writes_nothing() {
    let bench = Bench::embedded();
    let _holder = held(&bench, "mail");
    for options in [&["--on-busy", "skip"][..], &["--on-busy", "skip", "-v"]] {
        let output = bench.output(&[&["run"], options, &["mail", "--", "echo", "ran"]].concat());
        assert_eq!(common::code(output.status), 0);
        assert_eq!((output.stdout, output.stderr), (Vec::new(), Vec::new()));
    }
    let output = bench.output(&["run", "--on-busy", "skip", "free", "--", "echo", "ran"]);
    assert_eq!(output.stdout, b"ran\n", "a free lock is taken");
}

#[test]
fn retry_tries_so_often_and_then_says_who_holds() {
    let bench = Bench::embedded();
    let _holder = held(&bench, "mail");
    let (code, text, took) = timed(&bench, &["--on-busy", "retry"]);
    assert_eq!(code, 75, "{text}");
    assert!((Duration::from_millis(600)..Duration::from_secs(6)).contains(&took), "{took:?}");
    assert!(text.contains("gave up after 4 tries in ") && text.contains("'mail' is held by "), "{text}");

    let (code, text, took) =
        timed(&bench, &["--on-busy", "retry", "--retry-times", "2", "--retry-sleep", "50ms"]);
    assert_eq!(code, 75, "{text}");
    assert!((Duration::from_millis(100)..Duration::from_secs(5)).contains(&took), "{took:?}");
    assert!(text.contains("gave up after 3 tries"), "{text}");

    // Without a number of tries it is the time that counts, and the last try is made at its end.
    let (code, text, took) = timed(&bench, &["--on-busy", "retry", "-w", "450ms"]);
    assert_eq!(code, 75, "{text}");
    assert!((Duration::from_millis(450)..Duration::from_secs(6)).contains(&took), "{took:?}");
    assert!(text.contains("gave up after "), "{text}");

    // Random pauses of at most 10, 20, 20 ms.
    let options = ["--on-busy", "retry", "--retry-sleep", "10ms", "--retry-max-sleep", "20ms"];
    let (code, text, took) = timed(&bench, &options);
    assert_eq!(code, 75, "{text}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(text.contains("gave up after 4 tries"), "{text}");
}

#[test]
fn retry_gets_a_lock_that_becomes_free_and_has_no_place_in_the_line() {
    let bench = Bench::embedded();
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 0.4", word(&sign));
    let _holder = bench.start_job(&["run", "mail", "--", "sh", "-c", &line], &sign);
    let retrying = bench.start(&["run", "--on-busy", "retry", "-w", "10s", "mail", "-c", "exit 6"]);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(bench.inspect("mail")["waiting"], 0);
    assert_eq!(retrying.finish(), (6, String::new()));
}

#[test]
fn a_retry_that_makes_no_sense_is_refused() {
    let bench = Bench::embedded();
    for (options, why) in [
        (&["--on-busy", "retry", "--retry-sleep", "0"][..], "outside 1 ms to 24 h"),
        (
            &["--on-busy", "retry", "--retry-sleep", "2", "--retry-max-sleep", "1"],
            "give the shorter one first",
        ),
        (&["--on-busy", "skip", "-w", "1"], "--wait goes with --on-busy wait or retry"),
        (&["--retry-times", "1"], "--retry-times goes with --on-busy retry"),
    ] {
        let (code, text, _) = timed(&bench, options);
        assert_eq!(code, 64, "{text}");
        assert!(text.contains(why), "{text}");
    }
}
