//! `tenure run --max-hold`: a job is stopped at a limit, on either store, and that is no loss of the lock.
mod common;

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tenure_conformance::server::RedisServer;

use common::{Bench, alive, pid_in, wait_for, word};

#[test]
fn a_job_is_told_to_stop_at_the_limit_and_the_lock_is_free() {
    let server = RedisServer::start();
    for bench in [Bench::embedded(), Bench::on(&server.url())] {
        let begun = Instant::now();
        let (code, text) = bench.code(&["run", "--max-hold", "300ms", "x", "--", "sleep", "60"]);
        let took = begun.elapsed();
        assert_eq!(code, 124, "{text}");
        assert!((Duration::from_millis(300)..Duration::from_secs(6)).contains(&took), "{took:?}");
        assert!(
            text.contains("STOPPED 'x': held for 300ms, its --max-hold. Stopped the job (TERM)."),
            "{text}"
        );
        assert!(text.ends_with("Exit 124\n") && !text.contains("LOST"), "{text}");
        assert_eq!(bench.code(&["run", "-n", "x", "--", "true"]).0, 0, "released at once");
    }
}

#[test]
fn a_job_that_ignores_term_is_killed_with_all_that_it_started() {
    let server = RedisServer::start();
    for bench in [Bench::embedded(), Bench::on(&server.url())] {
        let (child, grandchild) = (bench.path("child"), bench.path("grandchild"));
        let line = format!(
            "trap '' TERM; sleep 99 >/dev/null 2>&1 & echo $! >{}; echo $$ >{}; while :; do sleep 0.05; done",
            word(&grandchild),
            word(&child)
        );
        let limits = ["--max-hold", "300ms", "--kill-after", "200ms"];
        let running = bench.start(&[&["run"][..], &limits, &["x", "--", "sh", "-c", &line]].concat());
        let (child, grandchild) = (pid_in(&child), pid_in(&grandchild));
        let (code, text) = running.finish();
        assert_eq!(code, 124, "{text}");
        assert!(text.contains("(TERM, 200ms, KILL)"), "{text}");
        assert!(!alive(child) && !alive(grandchild));
        assert_eq!(bench.code(&["run", "-n", "x", "--", "true"]).0, 0, "released at once");
    }
}

#[test]
fn a_job_that_ends_well_after_term_was_stopped_all_the_same() {
    let bench = Bench::embedded();
    let line = "exec 2>/dev/null; trap 'exit 0' TERM; while :; do sleep 0.02; done";
    let (code, text) = bench.code(&["run", "--max-hold", "200ms", "x", "--", "sh", "-c", line]);
    assert_eq!(code, 124, "{text}");
    assert_eq!(
        bench.code(&["run", "-q", "--max-hold", "200ms", "x", "--", "sh", "-c", line]),
        (124, String::new())
    );
}

#[test]
fn a_job_within_its_limit_knows_nothing_of_it() {
    let bench = Bench::embedded();
    assert_eq!(bench.code(&["run", "--max-hold", "20s", "x", "-c", "exit 7"]), (7, String::new()));
}

#[test]
fn the_limit_counts_from_the_grant_and_not_from_the_wait() {
    let bench = Bench::embedded();
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 0.6", word(&sign));
    let _holder = bench.start_job(&["run", "x", "-c", &line], &sign);
    assert_eq!(bench.code(&["run", "--max-hold", "500ms", "x", "--", "sleep", "0.2"]), (0, String::new()));
}

#[test]
fn the_keeper_keeps_the_limit_of_a_stopped_wrapper() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let pid = bench.path("pid");
    let line = format!("echo $$ >{}; exec sleep 99", word(&pid));
    let limits = ["--max-hold", "400ms", "--kill-after", "100ms"];
    let running = bench.start(&[&["run"][..], &limits, &["x", "--", "sh", "-c", &line]].concat());
    let pid = pid_in(&pid);
    running.send(Signal::SIGSTOP);
    let took = wait_for("the job dies", || !alive(pid));
    assert!(took < Duration::from_secs(10), "its lease of 30 s is not waited for: {took:?}");
    running.send(Signal::SIGCONT);
    let (code, text) = running.finish();
    assert_eq!(code, 124, "{text}");
    assert_eq!(bench.code(&["run", "-n", "x", "--", "true"]).0, 0);
}

#[test]
fn a_lock_that_is_lost_before_the_limit_is_a_loss() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 60", word(&sign));
    let running = bench.start_job(&["run", "--ttl", "2s", "--max-hold", "9s", "x", "-c", &line], &sign);
    server.command(&["DEL", "x"]);
    let (code, text) = running.finish();
    assert_eq!(code, 79, "{text}");
    assert!(text.contains("LOST 'x'"), "{text}");
}

#[test]
fn what_a_command_leaves_behind_on_one_host_is_stopped_at_the_limit() {
    let bench = Bench::embedded();
    let left = bench.path("left");
    let line = format!("sleep 99 >/dev/null 2>&1 & echo $! >{}", word(&left));
    let running = bench.start(&["run", "--max-hold", "500ms", "x", "--", "sh", "-c", &line]);
    let left = pid_in(&left);
    let (code, text) = running.finish();
    assert_eq!(code, 124, "{text}");
    assert!(text.contains("its --max-hold. Stopped what the command left behind (TERM)"), "{text}");
    assert!(!alive(left));
    assert_eq!(bench.code(&["run", "-n", "x", "--", "true"]).0, 0, "released at once");
}

#[test]
fn what_the_limit_does_not_reach_is_told() {
    let bench = Bench::embedded();
    let left = bench.path("left");
    let line = format!("setsid sh -c 'echo $$ >{}; exec sleep 99' >/dev/null 2>&1 &", word(&left));
    let wait = format!("{line} while ! [ -s {} ]; do sleep 0.01; done", word(&left));
    let (code, text) = bench.code(&["run", "--max-hold", "20s", "x", "--", "sh", "-c", &wait]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("still run and keep the lock: --max-hold does not reach them"), "{text}");
    assert_eq!(bench.code(&["run", "-n", "-q", "x", "--", "true"]).0, 75);
    let left = nix::unistd::Pid::from_raw(pid_in(&left));
    nix::sys::signal::kill(left, Signal::SIGKILL).unwrap();
}

#[test]
fn what_a_command_leaves_behind_may_end_before_the_limit() {
    let bench = Bench::embedded();
    let line = "sleep 0.2 >/dev/null 2>&1 & exit 3";
    assert_eq!(bench.code(&["run", "--max-hold", "20s", "x", "--", "sh", "-c", line]), (3, String::new()));
    assert_eq!(bench.code(&["run", "-n", "x", "--", "true"]).0, 0);
}
