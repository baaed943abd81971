//! `tenure run --protocol`: jobs under the locks of other programs, beside a client that knows nothing of Tenure.
mod common;

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tenure_conformance::fleet::{Fleet, Ring};
use tenure_conformance::server::RedisServer;

use common::{Bench, alive, pid_in, wait_for, word};

/// Protocol, and two seconds in its unit.
const PROTOCOLS: [(&str, u64); 3] = [("classic", 2000), ("getset", 2), ("pid-lock", 2000)];

/// Jobs and a client of the fleet take turns, so many each.
fn alternate(protocol: &str, ttl: u64, turns: usize) {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let ring = Ring::new(bench.dir.path());
    let mut theirs = Fleet::start(&server, protocol, "x", ttl);
    theirs.tell(&ring.race('p', turns));
    let dir = word(bench.dir.path());
    // With -C no file is written over: what is there was made by somebody who is inside.
    let job = format!("set -C; : >{dir}/inside || exit 3; printf t >>{dir}/log; rm {dir}/inside");
    for _ in 0..turns {
        wait_for("their turn", || ring.was_last('p'));
        let retry = ["--on-busy", "retry", "--retry-sleep", "2ms", "-w", "20s", "--ttl", "10s"];
        let (code, text) =
            bench.code(&[&["run", "--protocol", protocol], &retry[..], &["x", "-c", &job]].concat());
        assert_eq!(code, 0, "{protocol}, after {}: {text}", ring.log());
    }
    assert_eq!(theirs.answer(), "raced");
    assert_eq!(ring.log(), "pt".repeat(turns));
}

#[test]
fn jobs_and_getset_clients_are_never_inside_together() {
    alternate("getset", 10, 250);
}

#[test]
fn jobs_and_pid_lock_clients_are_never_inside_together() {
    alternate("pid-lock", 10_000, 40);
}

#[test]
fn jobs_and_classic_clients_are_never_inside_together() {
    alternate("classic", 10_000, 40);
}

/// Its job dies before the key ends, and others take over after it.
fn kill_the_command(protocol: &str, ttl: u64) {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let pid = bench.path("pid");
    let line = format!("echo $$ >{}; exec sleep 60", word(&pid));
    let begun = Instant::now();
    let running = bench.start_job(&["run", "--protocol", protocol, "--ttl", "2s", "x", "-c", &line], &pid);
    let job = pid_in(&pid);
    running.send(Signal::SIGKILL);
    let mut theirs = Fleet::start(&server, protocol, "x", ttl);
    assert!(!theirs.wins(), "{protocol}: the key is there");
    wait_for("they take over", || theirs.wins());
    assert!(!alive(job), "{protocol}: it lives beside the next holder");
    let waited = begun.elapsed();
    assert!(waited > Duration::from_millis(1950), "{protocol}: too early, after {waited:?}");
    assert!(waited < Duration::from_secs(6), "{protocol}: {waited:?}");
}

#[test]
fn when_the_command_is_killed_others_take_over_after_its_key_has_ended() {
    std::thread::scope(|scope| {
        for (protocol, ttl) in PROTOCOLS {
            scope.spawn(move || kill_the_command(protocol, ttl));
        }
    });
}

#[test]
fn a_job_that_outlives_its_stamp_is_stopped_before_it() {
    for (protocol, ttl) in &PROTOCOLS[1..] {
        let server = RedisServer::start();
        let bench = Bench::on(&server.url());
        let begun = Instant::now();
        let (code, text) =
            bench.code(&["run", "--protocol", protocol, "--ttl", "2s", "x", "--", "sleep", "60"]);
        assert!(begun.elapsed() < Duration::from_secs(2), "{protocol}: {:?}", begun.elapsed());
        assert_eq!(code, 79, "{protocol}: {text}");
        assert!(text.contains("is not renewed: --ttl must cover the command"), "{protocol}: {text}");
        assert!(text.contains("before its lease ended"), "{protocol}: {text}");
        // As its release was still in time, the lock is free, or it ends by itself.
        let mut theirs = Fleet::start(&server, protocol, "x", *ttl);
        wait_for("they take over", || theirs.wins());
    }
}

#[test]
fn a_lock_that_was_taken_over_by_a_fast_clock_is_told_when_the_job_ends() {
    for (protocol, ttl) in &PROTOCOLS[1..] {
        let server = RedisServer::start();
        let bench = Bench::on(&server.url());
        let (sign, go) = (bench.path("sign"), bench.path("go"));
        let line = format!("touch {}; until [ -e {} ]; do sleep 0.01; done; exit 3", word(&sign), word(&go));
        let running =
            bench.start_job(&["run", "--protocol", protocol, "--ttl", "10s", "x", "-c", &line], &sign);
        let mut fast = Fleet::start(&server, protocol, "x", *ttl);
        assert_eq!(fast.say("clock 20000"), "ok");
        assert!(fast.wins());
        std::fs::write(go, "").unwrap();
        let (code, text) = running.finish();
        assert_eq!(code, 3, "{protocol}: the job's own; {text}");
        assert!(text.contains("the key does not hold its stamp any more"), "{protocol}: {text}");
        assert_eq!(server.command(&["EXISTS", "x"]), ":1\r\n", "{protocol}: it is left");
    }
}

#[test]
fn a_classic_job_is_renewed() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 3.5", word(&sign));
    let running = bench.start_job(&["run", "--protocol", "classic", "--ttl", "2s", "x", "-c", &line], &sign);
    let mut theirs = Fleet::start(&server, "classic", "x", 1000);
    std::thread::sleep(Duration::from_millis(3200));
    assert!(!theirs.wins());
    assert_eq!(running.finish().0, 0);
    assert!(theirs.wins());
}

#[test]
fn a_job_without_a_fencing_token_does_not_find_that_of_the_job_around_it() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let environment = |protocol: &str| {
        let mut run = bench.tenure(&["run", "--protocol", protocol, "x", "-c"]);
        run.arg("echo ${TENURE_FENCE-none} ${TENURE_HOLDER-none} $TENURE_NAME $TENURE_SCOPE");
        run.env("TENURE_FENCE", "17").env("TENURE_HOLDER", "outer");
        String::from_utf8(run.output().unwrap().stdout).unwrap()
    };
    for protocol in ["getset", "pid-lock"] {
        assert!(environment(protocol).starts_with("none none x redis://127.0.0.1:"), "{protocol}");
    }
    let classic = environment("classic");
    assert!(classic.starts_with("none ") && !classic.contains("outer"), "{classic}");
    assert!(!classic.contains("none none"), "the key shows its holder: {classic}");
}

#[test]
fn a_busy_lock_is_told_as_far_as_its_key_tells() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let mut theirs = Fleet::start(&server, "getset", "x", 60);
    assert!(theirs.wins());
    let run = |options: &[&str]| {
        bench.code(
            &[&["run", "--protocol", "getset", "--ttl", "2s"], options, &["x", "--", "echo", "ran"]].concat(),
        )
    };
    let (code, text) = run(&["-n"]);
    assert_eq!(code, 75);
    assert!(text.contains("a client that does not speak Tenure (stamp 1"), "{text}");
    assert!(text.contains("; it ends in 1m"), "{text}");
    assert_eq!(run(&["--on-busy", "skip"]), (0, String::new()));
    let (code, text) = run(&["--as-written", "-v"]);
    assert_eq!(code, 75);
    assert!(text.contains("getset locks have no queue") && text.contains("gave up after 11 tries"), "{text}");
    let (code, text) = run(&["-w", "100ms"]);
    assert_eq!(code, 75, "{text}");
    assert_eq!(theirs.say("release"), "released", "it is as it was");

    // A key without an end has one all the same: its stamp.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(server.command(&["SETNX", "x", &(now + 3).to_string()]), ":1\r\n");
    let (code, text) = run(&["-w", "10s"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("waiting for 'x', held by a client that does not speak Tenure"), "{text}");
    assert!(text.contains("; ends in ") && !text.contains("no end of its own"), "{text}");
}

#[test]
fn a_deferred_job_keeps_its_protocol() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let mut theirs = Fleet::start(&server, "getset", "x", 60);
    assert!(theirs.wins());
    let done = bench.path("done");
    let line = format!("echo ${{TENURE_FENCE-none}} >{}", word(&done));
    let defer = ["run", "--protocol", "getset", "--ttl", "2s", "--on-busy", "defer", "x", "-c", &line];
    assert_eq!(bench.code(&defer).0, 0);
    assert_eq!(theirs.say("release"), "released");
    assert_eq!(bench.code(&["work", "--drain"]).0, 0);
    assert!(!done.exists(), "it is not for a worker that takes other locks");
    assert_eq!(bench.code(&["work", "--drain", "--protocol", "getset"]).0, 0);
    assert_eq!(std::fs::read_to_string(done).unwrap(), "none\n");
}

#[test]
fn what_does_not_go_together_is_refused() {
    let server = RedisServer::start();
    let (here, there) = (Bench::embedded(), Bench::on(&server.url()));
    for (bench, options, why) in [
        (&here, &["--protocol", "getset"][..], "getset locks are on Redis, and file: has none"),
        (&here, &["--protocol", "classic", "--url", "http://h"], "is no address of a lock store"),
        (&here, &["--as-written"], "--protocol"),
        (&there, &["--protocol", "classic", "--as-written"], "go with --protocol getset or pid-lock"),
        (&there, &["--protocol", "getset", "--reenter"], "cannot be used with"),
        (&there, &["--protocol", "getset", "--ttl", "2500ms"], "no whole number of seconds"),
        (&there, &["--protocol", "getset", "--as-written", "--on-busy", "defer"], "for comparison"),
    ] {
        let (code, text) = bench.code(&[&["run"], options, &["x", "--", "echo", "ran"]].concat());
        assert_eq!(code, 64, "{options:?}: {text}");
        assert!(text.contains(why), "{options:?}: {text}");
    }
    assert_eq!(server.command(&["DBSIZE"]), ":0\r\n");
}

#[test]
fn a_classic_job_inside_itself_would_wait_for_itself() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let inner = format!(
        "{} run --url {} --protocol classic x -- echo ran",
        env!("CARGO_BIN_EXE_tenure"),
        server.url()
    );
    let (code, text) = bench.code(&["run", "--protocol", "classic", "x", "-c", &inner]);
    assert_eq!(code, 64, "{text}");
    assert!(text.contains("it would wait for itself") && !text.contains("--reenter"), "{text}");
}
