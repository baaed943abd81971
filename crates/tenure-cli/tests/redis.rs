//! `tenure run` on a Redis server of its own: there a lease can end under a living job, and must not.
mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tenure_conformance::server::RedisServer;

use common::{Bench, Running, alive, pid_in, wait_for, word};

/// A job that writes its process number, and that of a child which it leaves in the background, and waits.
fn job_with_child(child: &Path, grandchild: &Path) -> String {
    format!("sleep 99 >/dev/null 2>&1 & echo $! >{}; echo $$ >{}; wait", word(grandchild), word(child))
}

/// Starts such a job under `ttl`; its two process numbers.
fn start(bench: &Bench, name: &str, ttl: &str) -> (Running, i32, i32) {
    let (child, grandchild) = (bench.path("child"), bench.path("grandchild"));
    for path in [&child, &grandchild] {
        let _ = std::fs::remove_file(path);
    }
    let line = job_with_child(&child, &grandchild);
    let running = bench.start_job(&["run", "--ttl", ttl, name, "--", "sh", "-c", &line], &child);
    (running, pid_in(&child), pid_in(&grandchild))
}

/// What the server says of a key's life, in milliseconds.
fn pttl(server: &RedisServer, name: &str) -> i64 {
    server.command(&["PTTL", name]).trim().trim_start_matches(':').parse().expect("a number")
}

#[test]
fn it_is_an_ordinary_lock_for_everybody_else() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 30", word(&sign));
    let running = bench.start_job(&["run", "x", "-c", &line], &sign);
    assert_eq!(server.command(&["SET", "x", "y", "NX", "PX", "1000"]), "$-1\r\n");
    running.send(Signal::SIGTERM);
    assert_eq!(running.finish().0, 143);
    assert_eq!(server.command(&["SET", "x", "y", "NX", "PX", "60000"]), "+OK\r\n");

    let (code, text) = bench.code(&["run", "-n", "x", "--", "true"]);
    assert_eq!(code, 75);
    assert!(text.contains("held by a client that does not speak Tenure (string"), "{text}");
    assert!(text.contains("; it ends in 59s"), "{text}");
    assert_eq!(bench.inspect("x")["state"], "foreign");
    assert_eq!(server.command(&["GET", "x"]), "$1\r\ny\r\n");
}

#[test]
fn tokens_grow_and_exit_codes_come_back() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let fence = || {
        let output = bench.output(&["run", "demo", "-c", "echo $TENURE_FENCE; exit 42"]);
        assert_eq!(common::code(output.status), 42, "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().parse::<u64>().unwrap()
    };
    let first = fence();
    assert!(fence() > first);
    assert_eq!(server.command(&["EXISTS", "demo"]), ":0\r\n");
}

#[test]
fn nothing_of_a_job_outlives_its_killed_wrapper() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let (running, child, grandchild) = start(&bench, "x", "2s");
    running.send(Signal::SIGKILL);
    let took = wait_for("the job dies", || !alive(child) && !alive(grandchild));
    assert!(took < Duration::from_secs(1), "{took:?}");
    // The lease of 2 s and its guard of 1 s have to end, and nobody else runs before.
    assert_eq!(bench.code(&["run", "-n", "-q", "x", "--", "true"]).0, 75);
    assert_eq!(bench.code(&["run", "-w", "6s", "x", "--", "true"]).0, 0);
}

#[test]
fn the_keeper_is_not_left_behind() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let (running, child, _) = start(&bench, "x", "10s");
    let of_ours = format!("tenure\0__keeper\0{child}\0");
    let ours = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines.any(|line| line == of_ours.as_bytes())
    };
    assert!(ours());
    running.send(Signal::SIGTERM);
    assert_eq!(running.finish().0, 143);
    wait_for("the keeper ends", || !ours());
}

#[test]
fn a_stopped_wrapper_is_no_danger() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let (running, child, grandchild) = start(&bench, "x", "2s");
    running.send(Signal::SIGSTOP);
    // The store's own end of the lease is the latest moment; the job dies before, while the key is still there.
    wait_for("the job dies", || !alive(child) && !alive(grandchild));
    assert!(pttl(&server, "x") > 900, "the guard of a second is still ahead: {}", pttl(&server, "x"));
    std::thread::sleep(Duration::from_secs(3));
    running.send(Signal::SIGCONT);
    let (code, text) = running.finish();
    assert_eq!(code, 79, "{text}");
    assert!(text.contains("LOST 'x': no renewal was answered for "), "{text}");
    assert!(text.contains("its keeper killed the job before the lease ended"), "{text}");
}

#[test]
fn a_job_is_not_woken_into_a_section_that_it_does_not_own() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let (sign, tick) = (bench.path("sign"), bench.path("tick"));
    let line = format!("touch {}; while :; do date +%s%N >{}; sleep 0.02; done", word(&sign), word(&tick));
    let running = bench.start_job(&["run", "--ttl", "2s", "x", "-c", &line], &sign);
    let child = bench.inspect("x")["holder"]["pid"].as_i64().unwrap_or_else(|| running.pid().into());
    assert_eq!(child, i64::from(running.pid()));
    running.send(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_secs(4));
    let last = std::fs::read_to_string(&tick).unwrap();
    running.send(Signal::SIGCONT);
    let (code, _) = running.finish();
    assert_eq!(code, 79);
    assert_eq!(std::fs::read_to_string(&tick).unwrap(), last);
}

#[test]
fn a_silent_store_stops_the_job_before_its_lease_ends() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let (pid, told) = (bench.path("pid"), bench.path("told"));
    // A job that hears TERM and goes on.
    let line = format!(
        "trap 'echo told >{}' TERM; echo $$ >{}; while :; do sleep 0.02; done",
        word(&told),
        word(&pid)
    );
    let running = bench.start_job(&["run", "--ttl", "2s", "x", "--", "sh", "-c", &line], &pid);
    let pid = pid_in(&pid);
    // The key lives for the lease of 2 s and the guard of a second. Just renewed, it is not renewed again before the
    // server stands still.
    wait_for("the lease grows old", || pttl(&server, "x") < 2500);
    let mut left = 0;
    wait_for("the lease is renewed", || {
        left = pttl(&server, "x");
        left > 2900
    });
    server.stop();
    let lease_ends = Instant::now() + Duration::from_millis(u64::try_from(left - 1000).unwrap());
    wait_for("the job dies", || !alive(pid));
    let died = Instant::now();
    assert!(died < lease_ends, "{:?} too late", died - lease_ends);
    assert!(told.exists(), "TERM comes first");
    let (code, text) = running.finish();
    server.cont();
    assert_eq!(code, 79, "{text}");
    assert!(text.contains("before its lease ended") && text.contains("KILL)"), "{text}");
}

#[test]
fn a_short_silence_of_the_store_stops_nothing() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 4; exit 8", word(&sign));
    let running = bench.start_job(&["run", "-v", "--ttl", "4s", "x", "-c", &line], &sign);
    std::thread::sleep(Duration::from_secs(1));
    server.stop();
    std::thread::sleep(Duration::from_millis(1200));
    server.cont();
    let (code, text) = running.finish();
    assert_eq!(code, 8, "{text}");
}

#[test]
fn a_lock_that_is_taken_away_stops_the_job() {
    let mut server = RedisServer::start();
    let bench = Bench::on(&server.url());
    for how in ["DEL", "FLUSHALL", "a restart with nothing", "another owner"] {
        let (running, child, grandchild) = start(&bench, "x", "2s");
        match how {
            "DEL" => drop(server.command(&["DEL", "x"])),
            "FLUSHALL" => drop(server.command(&["FLUSHALL"])),
            "another owner" => drop(server.command(&["SET", "x", "theirs", "PX", "60000"])),
            _ => server.restart_empty(),
        }
        let begun = Instant::now();
        let (code, text) = running.finish();
        assert_eq!(code, 79, "{how}: {text}");
        assert!(begun.elapsed() < Duration::from_secs(3), "{how}: {:?}", begun.elapsed());
        assert!(text.contains("held by somebody else or nobody"), "{how}: {text}");
        assert!(!alive(child) && !alive(grandchild), "{how}");
    }
    assert_eq!(server.command(&["GET", "x"]), "$6\r\ntheirs\r\n", "what is theirs is not deleted");
}

#[test]
fn what_a_job_leaves_behind_is_stopped_before_the_lock_is_free() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let (left, other) = (bench.path("left"), bench.path("other"));
    // One that goes on TERM, and one that has to be killed.
    let line = format!(
        "sleep 99 >/dev/null 2>&1 & echo $! >{}; sh -c \"trap '' TERM; echo \\$\\$ >{other}; while :; do sleep 0.1; \
         done\" >/dev/null 2>&1 & while ! test -s {other}; do sleep 0.01; done; exit 5",
        word(&left),
        other = word(&other)
    );
    let begun = Instant::now();
    assert_eq!(bench.code(&["run", "--ttl", "3s", "x", "--", "sh", "-c", &line]).0, 5);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(!alive(pid_in(&left)) && !alive(pid_in(&other)));
    assert_eq!(server.command(&["EXISTS", "x"]), ":0\r\n");
}

#[test]
fn a_killed_child_and_the_next_holder_never_meet() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    for round in 0..3 {
        let (running, child, grandchild) = start(&bench, "x", "2s");
        let line = format!(
            "kill -0 {child} 2>/dev/null && exit 1; kill -0 {grandchild} 2>/dev/null && exit 2; exit 0"
        );
        let next = bench.start(&["run", "-q", "x", "-c", &line]);
        std::thread::sleep(Duration::from_millis(40 * round));
        kill(Pid::from_raw(running.pid()), Signal::SIGKILL).unwrap();
        assert_eq!(next.finish().0, 0, "round {round}");
    }
}

#[test]
fn a_wrapper_may_be_killed_at_any_moment_of_its_start() {
    let server = RedisServer::start();
    for (bench, mark) in [(Bench::embedded(), 70_001), (Bench::on(&server.url()), 70_002)] {
        // So long that nobody else sleeps as long.
        let sleep = format!("{mark}.{}", std::process::id());
        let sleepers = || {
            let processes = std::fs::read_dir("/proc").unwrap().flatten();
            let lines =
                processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
            lines.filter(|line| line.starts_with("sleep\0") && line.contains(&sleep)).count()
        };
        let mut begun = 0;
        for round in 0..60 {
            let running = bench.start(&["run", &format!("x{round}"), "--", "sleep", &sleep]);
            // Most of them early, the last ones late enough for a busy machine.
            std::thread::sleep(Duration::from_micros(50 * round * round));
            begun += sleepers();
            running.send(Signal::SIGKILL);
            drop(running);
            let took = wait_for("nobody sleeps any more", || sleepers() == 0);
            assert!(took < Duration::from_secs(1), "round {round}: {took:?}");
        }
        // Dead by now, and none comes to life.
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(sleepers(), 0);
        assert!((1..60).contains(&begun), "the moments are badly chosen: {begun} of 60 had begun");
    }
}

#[test]
fn the_right_id_asks_a_holder_to_stop_and_a_stale_one_does_not() {
    let server = RedisServer::start();
    for bench in [Bench::embedded(), Bench::on(&server.url())] {
        let (running, child, grandchild) = start(&bench, "x", "30s");
        let id = bench.inspect("x")["holder"]["id"].as_str().expect("an id").to_owned();
        let (process, _) = id.split_once('.').unwrap();

        let (code, text) = bench.code(&["release", "x", "--holder", &format!("{process}.4000")]);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("does not hold 'x' (any more)"), "{text}");
        assert!(alive(child));

        let output = bench.output(&["release", "x", "--holder", &id]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(common::code(output.status), 0, "{output:?}");
        assert!(said.contains(&format!("Asked {id} to stop 'x'")) && said.contains("told at once"), "{said}");
        let begun = Instant::now();
        let (code, text) = running.finish();
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        assert_eq!(code, 79, "{text}");
        assert!(text.contains("LOST 'x': asked to stop by ") && text.contains("(pid "), "{text}");
        assert!(!alive(child) && !alive(grandchild));
        assert_eq!(bench.code(&["run", "-n", "x", "--", "true"]).0, 0, "released at once");
    }
}

#[test]
fn a_password_is_shown_nowhere() {
    let server = RedisServer::with_args(&["--requirepass", "sesame"]);
    let bench = Bench::on(&format!("redis://:sesame@127.0.0.1:{}/0", server.port()));
    let sign = bench.path("sign");
    let line = format!("env; touch {}; sleep 1.2", word(&sign));
    let running = bench.start_job(&["run", "-v", "x", "-c", &line], &sign);
    let mut shown = String::new();
    for arguments in [&["ls"][..], &["ls", "--json"], &["inspect", "x"], &["run", "-n", "x", "--", "true"]] {
        let output = bench.output(arguments);
        shown += &String::from_utf8_lossy(&output.stdout);
        shown += &String::from_utf8_lossy(&output.stderr);
    }
    assert!(shown.contains("redis://"), "{shown}");
    let (code, text) = running.finish();
    assert_eq!(code, 0, "{text}");
    assert!(!shown.contains("sesame") && !text.contains("sesame"), "{shown}{text}");
    let environment = bench.output(&["run", "x", "--", "env"]);
    assert!(!String::from_utf8_lossy(&environment.stdout).contains("sesame"));

    // Errors name no password, not even the wrong one; and a flag is the wrong place for one.
    for url in [
        format!("redis://:abracadabra@127.0.0.1:{}/0", server.port()),
        "redis://:abracadabra@127.0.0.1:1/0".to_owned(),
    ] {
        let (code, text) = bench.code(&["run", "--url", &url, "x", "--", "true"]);
        assert_eq!(code, 69, "{text}");
        assert!(!text.contains("abracadabra"), "{text}");
        assert!(text.contains("set TENURE_URL instead") && text.contains("(from --url)"), "{text}");
    }
}

#[test]
fn a_store_out_of_reach_runs_nothing() {
    let bench = Bench::on("redis://127.0.0.1:1/0");
    let (code, text) = bench.code(&["run", "x", "--", "echo", "ran"]);
    assert_eq!(code, 69, "{text}");
    assert!(text.contains("(from TENURE_URL)") && text.contains("Nothing was run"), "{text}");
}

#[test]
fn a_command_inside_a_job_does_not_lock_elsewhere_in_silence() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let (code, text) = bench.code(&["run", "x", "--", tenure, "run", "y", "--", "true"]);
    assert_eq!(code, 64, "{text}");
    assert!(text.contains("TENURE_URL is not passed on to jobs"), "{text}");
    let url = server.url();
    assert_eq!(bench.code(&["run", "x", "--", tenure, "run", "--url", &url, "y", "--", "true"]).0, 0);
    let (code, text) = bench.code(&["run", "x", "--", tenure, "run", "--url", &url, "x", "--", "true"]);
    assert_eq!(code, 64, "{text}");
    assert!(text.contains("it would wait for itself"), "{text}");
}

#[test]
fn the_list_shows_who_holds_and_who_waits() {
    let server = RedisServer::start();
    for bench in [Bench::embedded(), Bench::on(&server.url())] {
        let output = bench.output(&["ls"]);
        assert!(output.stdout.is_empty());
        assert!(String::from_utf8_lossy(&output.stderr).contains("nothing is held"), "{output:?}");

        let (running, ..) = start(&bench, "mail:daily", "30s");
        let _waiter = bench.start(&["run", "-q", "mail:daily", "--", "true"]);
        let row = || -> Option<String> {
            let output = bench.output(&["ls"]);
            String::from_utf8_lossy(&output.stdout).lines().nth(1).map(str::to_owned)
        };
        wait_for("the list is complete", || {
            row().is_some_and(|row| row.contains("30s") && row.ends_with('1'))
        });
        let row = row().unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!((cells[0], cells[1], cells[4], cells[5]), ("mail:daily", "held", "30s", "1"), "{row}");
        assert!(cells[2].ends_with(&format!(":{}", running.pid())), "{row}");

        let output = bench.output(&["ls", "--json"]);
        let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&row["v"], &row["name"], &row["waiters"][0]["place"]),
            (&1.into(), &"mail:daily".into(), &1.into())
        );
        let page = bench.output(&["inspect", "mail:daily"]);
        let page = String::from_utf8_lossy(&page.stdout).into_owned();
        assert!(page.contains(row["holder"]["id"].as_str().unwrap()), "{page}");
        assert!(!page.contains('\u{1b}'));
    }
}
