//! `tenure run --reenter`: a command under the hold of the job around it.
mod common;

use nix::sys::signal::Signal;
use tenure_conformance::server::RedisServer;

use common::{Bench, alive, pid_in, word};

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// The same lock from inside its own job, on the store of the bench, with these options.
fn inside(url: &str, options: &str, line: &str) -> String {
    format!("'{TENURE}' run --url {url} {options} x -- sh -c '{line}'")
}

#[test]
fn the_error_of_a_nested_run_names_the_way_out() {
    let bench = Bench::embedded();
    let (code, text) = bench.code(&["run", "x", "-c", &inside("file:", "", "true")]);
    assert_eq!(code, 64);
    assert!(text.contains("it would wait for itself") && text.contains("Say --reenter"), "{text}");
}

#[test]
fn a_command_that_reenters_has_the_hold_of_the_job_around_it() {
    let server = RedisServer::start();
    for (bench, url) in [(Bench::embedded(), "file:".to_owned()), (Bench::on(&server.url()), server.url())] {
        let shown = "echo $TENURE_NAME $TENURE_FENCE $TENURE_HOLDER ${TENURE_URL-none}";
        // Another lock in between: what the environment says of that one is replaced.
        let between = format!("'{TENURE}' run --url {url} y -- {}", inside(&url, "--reenter", shown));
        let output = bench.output(&["run", "x", "-c", &format!("{shown}; {between}; exit 3")]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{output:?}");
        assert_eq!(lines[0], lines[1]);
        assert!(lines[0].starts_with("x ") && lines[0].ends_with(" none"), "{text}");
        assert_eq!(common::code(output.status), 3);
    }
}

#[test]
fn the_exit_code_of_a_command_that_reenters_comes_back() {
    let bench = Bench::embedded();
    let line = inside("file:", "--reenter", "exit 9");
    assert_eq!(bench.code(&["run", "x", "-c", &line]), (9, String::new()));
    let missing = format!("'{TENURE}' run --url file: --reenter x -- /no/such/command");
    let (code, text) = bench.code(&["run", "x", "-c", &missing]);
    assert_eq!(code, 127, "{text}");
    assert!(text.contains("'/no/such/command': not found"), "{text}");
}

#[test]
fn the_outer_run_watches_over_a_command_that_reenters() {
    let server = RedisServer::start();
    for (bench, url) in [(Bench::embedded(), "file:".to_owned()), (Bench::on(&server.url()), server.url())] {
        let pid = bench.path("pid");
        let line = inside(&url, "--reenter", &format!("echo $$ >{}; exec sleep 99", word(&pid)));
        let running = bench.start(&["run", "x", "--", "sh", "-c", &format!("exec {line}")]);
        let pid = pid_in(&pid);
        running.send(Signal::SIGTERM);
        assert_eq!(running.finish().0, 143, "signals arrive: none stays blocked");
        assert!(!alive(pid));
        assert_eq!(bench.inspect("x")["state"], "free");
    }
}

#[test]
fn a_lock_that_no_job_around_us_holds_is_acquired_as_usual() {
    let bench = Bench::embedded();
    assert_eq!(bench.code(&["run", "--reenter", "x", "-c", "exit 5"]), (5, String::new()));
    let (code, text) = bench.code(&["run", "--reenter", "--max-hold", "9s", "x", "--", "true"]);
    assert!(code == 64 && text.contains("cannot be used with"), "a limit without effect: {text}");
    let line = format!("'{TENURE}' run --url file: --reenter y -- sh -c 'echo $TENURE_NAME'");
    let output = bench.output(&["run", "x", "-c", &line]);
    assert_eq!(output.stdout, b"y\n");

    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 30", word(&sign));
    let holder = bench.start_job(&["run", "x", "-c", &line], &sign);
    assert_eq!(bench.code(&["run", "-n", "-q", "--reenter", "x", "--", "true"]).0, 75);
    // An id that somebody merely says is around them, of a hold that has ended.
    let old = bench.inspect("x")["holder"]["id"].as_str().expect("an id").to_owned();
    holder.send(Signal::SIGTERM);
    assert_eq!(holder.finish().0, 143);
    let output = bench
        .tenure(&["run", "--reenter", "x", "-c", "echo $TENURE_HOLDER"])
        .env("TENURE_HOLDERS", &old)
        .output()
        .unwrap();
    assert_ne!(String::from_utf8_lossy(&output.stdout).trim(), old);
}

#[test]
fn an_environment_that_left_its_job_reenters_nothing() {
    let server = RedisServer::start();
    for bench in [Bench::embedded(), Bench::on(&server.url())] {
        let sign = bench.path("sign");
        let line = format!("echo $TENURE_HOLDERS >{0}.part; mv {0}.part {0}; exec sleep 30", word(&sign));
        let _holder = bench.start_job(&["run", "x", "--", "sh", "-c", &line], &sign);
        let around = std::fs::read_to_string(&sign).unwrap();
        let output = bench
            .tenure(&["run", "-n", "--reenter", "x", "--", "echo", "ran"])
            .env("TENURE_HOLDERS", around.trim())
            .output()
            .unwrap();
        assert_eq!(common::code(output.status), 75, "{output:?}");
        assert_eq!(output.stdout, b"", "two at a time");
    }
}

#[test]
fn who_has_left_the_group_that_the_outer_run_stops_is_refused() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    for leaving in ["setsid --wait", "timeout 20"] {
        let line = format!("{leaving} {}", inside(&server.url(), "--reenter", "echo ran"));
        let output = bench.output(&["run", "x", "-c", &line]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(common::code(output.status), 64, "{text}");
        assert!(text.contains("--reenter is refused: this process has left that job"), "{text}");
        assert_eq!(output.stdout, b"");
    }
    let line = format!("timeout --foreground 20 {}", inside(&server.url(), "--reenter", "exit 6"));
    assert_eq!(bench.code(&["run", "x", "-c", &line]), (6, String::new()));
}

#[test]
fn on_one_host_it_is_the_open_file_that_counts() {
    let bench = Bench::embedded();
    let again = inside("file:", "--reenter", "exit 6");
    assert_eq!(bench.code(&["run", "x", "-c", &format!("setsid --wait {again}")]), (6, String::new()));
    let close = "for file in /proc/$$/fd/*; do n=${file##*/}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done";
    let (code, text) = bench.code(&["run", "x", "--", "bash", "-c", &format!("{close}; {again}")]);
    assert_eq!(code, 64, "{text}");
    assert!(text.contains("--reenter is refused: this process has left that job"), "{text}");
}
