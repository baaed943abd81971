//! `tenure run` on one host: exit codes, waiting, signals, what the job finds.
mod common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use common::{Bench, alive, pid_in, wait_for, word};

#[test]
fn the_exit_code_of_the_command_comes_back() {
    let bench = Bench::embedded();
    for code in [0, 1, 42, 255] {
        let line = format!("exit {code}");
        assert_eq!(bench.code(&["run", "x", "--", "sh", "-c", &line]), (code, String::new()));
    }
    assert_eq!(bench.code(&["run", "x", "--", "sh", "-c", "kill -9 $$"]).0, 137);
    assert_eq!(bench.code(&["run", "x", "-c", "exit 7"]).0, 7);
}

#[test]
fn a_command_that_cannot_be_run_is_told_as_shells_do() {
    let bench = Bench::embedded();
    let (code, text) = bench.code(&["run", "x", "--", "/no/such/command"]);
    assert_eq!(code, 127);
    assert!(text.contains("'/no/such/command': not found"), "{text}");
    let file = bench.path("plain");
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, text) = bench.code(&["run", "x", "--", word(&file)]);
    assert_eq!(code, 126);
    assert!(text.contains("Permission denied"), "{text}");
    assert_eq!(bench.inspect("x")["state"], "free");
}

#[test]
fn wrong_usage_is_told_before_anything_runs() {
    let bench = Bench::embedded();
    for (arguments, why) in [
        (&["run", "x"][..], "required"),
        (&["run", "", "--", "true"], "empty"),
        (&["run", "tenure:x", "--", "true"], "kept for Tenure's own keys"),
        (&["run", "x", "--ttl", "1s", "--", "true"], "outside 2s to 24h"),
        (&["run", "x", "--ttl", "25h", "--", "true"], "outside 2s to 24h"),
        (&["run", "x", "--ttl", "3s", "--kill-after", "1500ms", "--", "true"], "more than a third"),
        (&["run", "x", "-w", "5min", "--", "true"], "\"min\" in \"5min\" is not a unit"),
        (&["run", "x", "-n", "-w", "5", "--", "true"], "cannot be used with"),
        (&["run", "x", "--url", "ftp://u:secret@h", "--", "true"], "is no address of a lock store"),
        (&["release", "x", "--holder", "me"], "not a Tenure id"),
        (&["nonsense"], "unrecognized subcommand"),
    ] {
        let (code, text) = bench.code(arguments);
        assert_eq!(code, 64, "{arguments:?}: {text}");
        assert!(text.contains(why), "{arguments:?}: {text}");
        assert!(!text.contains("secret@"), "{text}");
    }
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"]] {
        assert_eq!(bench.code(arguments), (0, String::new()));
    }
}

#[test]
fn the_job_knows_its_lock_and_tokens_grow() {
    let bench = Bench::embedded();
    let fence = || {
        let line = "echo $TENURE_NAME $TENURE_FENCE $TENURE_HOLDER ${TENURE_URL-none}";
        let output = bench.tenure(&["run", "demo", "-c", line]).env("TENURE_URL", "file:").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!((words[0], words[3]), ("demo", "none"), "{text}");
        assert!(words[2].contains('.'), "{text}");
        words[1].parse::<u64>().unwrap()
    };
    let first = fence();
    assert!(fence() > first);
}

#[test]
fn busy_is_told_at_once_with_who_holds() {
    let bench = Bench::embedded();
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 30", word(&sign));
    let holder = bench.start_job(&["run", "mail", "--", "sh", "-c", &line], &sign);
    wait_for("the holder tells of itself", || bench.inspect("mail")["holder"]["pid"] == holder.pid());

    let begun = Instant::now();
    let (code, text) = bench.code(&["run", "-n", "mail", "--", "true"]);
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!(code, 75, "{text}");
    let expected = format!("(pid {}, sh -c touch", holder.pid());
    assert!(text.starts_with("tenure: 'mail' is held by ") && text.contains(&expected), "{text}");
    assert!(text.contains("unless renewed") && text.trim_end().ends_with("Not run (exit 75)"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");

    assert_eq!(bench.code(&["run", "-w", "0", "mail", "--", "true"]).0, 75);
    assert_eq!(bench.code(&["run", "-n", "-E", "3", "mail", "--", "true"]).0, 3);
    assert_eq!(bench.code(&["run", "-n", "-q", "mail", "--", "true"]), (75, String::new()));

    let begun = Instant::now();
    let (code, text) = bench.code(&["run", "-w", ".2", "mail", "--", "true"]);
    let waited = begun.elapsed();
    assert_eq!(code, 75, "{text}");
    assert!((Duration::from_millis(200)..Duration::from_millis(600)).contains(&waited), "{waited:?}");
    assert!(text.contains("waited 200ms") && text.contains("is held by"), "{text}");
}

#[test]
fn who_waits_says_so_after_a_second_and_gets_it() {
    let bench = Bench::embedded();
    let (sign, done) = (bench.path("sign"), bench.path("done"));
    let line = format!("touch {}; sleep 1.6; touch {}", word(&sign), word(&done));
    let _holder = bench.start_job(&["run", "mail", "-c", &line], &sign);
    let check = format!("test -e {}", word(&done));
    let (code, text) = bench.code(&["run", "-v", "mail", "-c", &check]);
    assert_eq!(code, 0, "the two overlapped: {text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("tenure: waiting for 'mail' (place 1 of 1), held by "), "{text}");
    assert!(lines[1].starts_with("tenure: acquired 'mail' after 1s (fence "), "{text}");
}

#[test]
fn a_signal_ends_the_wait_and_leaves_nothing() {
    let bench = Bench::embedded();
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 30", word(&sign));
    let _holder = bench.start_job(&["run", "x", "-c", &line], &sign);
    for (signal, code) in
        [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129), (Signal::SIGQUIT, 131)]
    {
        let waiter = bench.start(&["run", "-q", "x", "--", "true"]);
        wait_for("it waits", || bench.inspect("x")["waiting"] == 1);
        waiter.send(signal);
        let begun = Instant::now();
        let (ended, text) = waiter.finish();
        assert!(begun.elapsed() < Duration::from_millis(300), "{:?}", begun.elapsed());
        assert_eq!((ended, text), (code, String::new()));
        assert_eq!(bench.inspect("x")["waiting"], 0);
    }
}

#[test]
fn signals_reach_the_whole_job() {
    let bench = Bench::embedded();
    for (signal, name) in [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
        (Signal::SIGWINCH, "WINCH"),
    ] {
        let (sign, got) = (bench.path(&format!("sign-{name}")), bench.path(&format!("got-{name}")));
        // The one that takes the signal is a grandchild; between it and us is a shell that dies of it, or ignores it.
        let line = format!(
            "trap : {name}; sh -c 'trap \"echo $name >{got}; exit 0\" {name}; touch {sign}; while :; do sleep 0.05; \
             done'; exit 9",
            got = word(&got),
            sign = word(&sign)
        );
        let running = bench.start_job(&["run", "x", "--", "sh", "-c", &line], &sign);
        running.send(signal);
        assert_eq!(running.finish().0, 9, "{name}");
        assert!(got.exists(), "{name} did not arrive");
    }
    assert_eq!(bench.inspect("x")["state"], "free");
}

#[test]
fn a_job_that_dies_of_a_signal_is_told_as_such() {
    let bench = Bench::embedded();
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 30", word(&sign));
    let running = bench.start_job(&["run", "x", "--", "sh", "-c", &line], &sign);
    running.send(Signal::SIGTERM);
    assert_eq!(running.finish().0, 143);
}

#[test]
fn stdin_and_signal_dispositions_are_the_jobs_own() {
    let bench = Bench::embedded();
    let mut running = bench.tenure(&["run", "x", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    running.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(running.wait_with_output().unwrap().stdout, b"through");

    let closed = bench.path("closed");
    let line = format!(
        "exec 0<&-; '{}' run x -c 'ls -l /proc/self/fd/0 >{} 2>&1'; :",
        env!("CARGO_BIN_EXE_tenure"),
        word(&closed)
    );
    let status =
        std::process::Command::new("sh").args(["-c", &line]).env("TENURE_DIR", bench.dir.path()).status();
    assert!(status.unwrap().success());
    // A Rust program opens /dev/null on a closed stdin at its start; what matters is that nothing else sneaks in.
    let text = std::fs::read_to_string(&closed).unwrap();
    assert!(text.contains("/dev/null") || text.contains("No such file"), "{text}");

    let output = bench.output(&["run", "x", "--", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let mask = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    assert_eq!(mask("SigBlk:"), 0, "{text}");
    assert_eq!(mask("SigIgn:") >> (Signal::SIGPIPE as i32 - 1) & 1, 0, "{text}");
}

#[test]
fn what_was_ignored_from_birth_stays_ignored() {
    let bench = Bench::embedded();
    let sign = bench.path("sign");
    let line = format!(
        "trap '' HUP; exec '{}' run x -c 'touch {}; sleep 0.5; exit 5'",
        env!("CARGO_BIN_EXE_tenure"),
        word(&sign)
    );
    let mut command = std::process::Command::new("sh");
    let child =
        command.args(["-c", &line]).env("TENURE_DIR", bench.dir.path()).env("SHELL", "/bin/sh").spawn();
    let running = common::Running(child.unwrap());
    wait_for("the job begins", || sign.exists());
    running.send(Signal::SIGHUP);
    assert_eq!(running.finish().0, 5);
}

#[test]
fn a_lock_inside_its_own_job_is_refused_at_once() {
    let bench = Bench::embedded();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let line = format!("'{tenure}' run y -- '{tenure}' run x -- true");
    let begun = Instant::now();
    let (code, text) = bench.code(&["run", "x", "-c", &line]);
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!(code, 64);
    assert!(text.contains("it would wait for itself"), "{text}");
    let line = format!("'{tenure}' run y -- '{tenure}' run z -- sh -c 'exit 4'");
    assert_eq!(bench.code(&["run", "x", "-c", &line]), (4, String::new()));
}

#[test]
fn the_job_dies_with_its_wrapper_and_what_it_started_keeps_the_lock() {
    let bench = Bench::embedded();
    let (child, grandchild) = (bench.path("child"), bench.path("grandchild"));
    let line = format!("sleep 99 & echo $! >{}; echo $$ >{}; wait", word(&grandchild), word(&child));
    let running = bench.start_job(&["run", "x", "--", "sh", "-c", &line], &child);
    let (child, grandchild) = (pid_in(&child), pid_in(&grandchild));
    running.send(Signal::SIGKILL);
    let took = wait_for("the job dies", || !alive(child));
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(alive(grandchild), "on one host it is the lock that lasts");

    let state = bench.inspect("x")["state"].clone();
    assert_eq!(state, "orphaned");
    assert_eq!(bench.code(&["run", "-w", "1s", "-q", "x", "--", "true"]).0, 75);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(grandchild), Signal::SIGKILL).unwrap();
    let (code, text) = bench.code(&["run", "-w", "10s", "x", "--", "true"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn what_a_job_leaves_behind_keeps_the_lock() {
    let bench = Bench::embedded();
    let left = bench.path("left");
    let line = format!("sleep 99 >/dev/null 2>&1 & echo $! >{}", word(&left));
    let begun = Instant::now();
    assert_eq!(bench.code(&["run", "x", "-c", &line]).0, 0);
    assert!(begun.elapsed() < Duration::from_secs(5), "as with flock(1), the command itself does not wait");
    let left = pid_in(&left);
    assert!(alive(left));
    assert_eq!(bench.code(&["run", "-n", "-q", "x", "--", "true"]).0, 75);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(left), Signal::SIGKILL).unwrap();
    assert_eq!(bench.code(&["run", "-w", "10s", "x", "--", "true"]).0, 0);
}

#[test]
fn a_stopped_wrapper_keeps_its_lock_where_the_kernel_sees_it() {
    let bench = Bench::embedded();
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 4; exit 6", word(&sign));
    let running = bench.start_job(&["run", "--ttl", "2s", "x", "-c", &line], &sign);
    running.send(Signal::SIGSTOP);
    assert_eq!(bench.code(&["run", "-w", "3s", "-q", "x", "--", "true"]).0, 75);
    running.send(Signal::SIGCONT);
    let (code, text) = running.finish();
    assert_eq!((code, text.as_str()), (6, ""));
    assert_eq!(bench.code(&["run", "-w", "2s", "x", "--", "true"]).0, 0);
}

#[test]
fn waiters_are_served_in_order_and_a_dead_one_is_passed_over() {
    let bench = Bench::embedded();
    let (sign, go, order) = (bench.path("sign"), bench.path("go"), bench.path("order"));
    let line = format!("touch {}; while ! test -e {}; do sleep 0.02; done", word(&sign), word(&go));
    let holder = bench.start_job(&["run", "x", "-c", &line], &sign);
    let mut waiters = Vec::new();
    for number in 0..12 {
        let line = format!("echo {number} >>{}", word(&order));
        waiters.push(bench.start(&["run", "-q", "x", "-c", &line]));
        wait_for("it stands in line", || bench.inspect("x")["waiting"] == number + 1);
    }
    let killed = waiters.remove(5);
    killed.send(Signal::SIGKILL);
    std::fs::write(&go, "").unwrap();
    let begun = Instant::now();
    assert_eq!(holder.finish().0, 0);
    for waiter in waiters {
        assert_eq!(waiter.finish().0, 0);
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let served: Vec<u32> =
        std::fs::read_to_string(&order).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(served, [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]);
}

#[test]
fn the_page_of_a_lock_names_the_sessions() {
    let bench = Bench::embedded();
    let client = tenure::blocking::Client::connect(&format!("file:{}", bench.dir.path().display())).unwrap();
    let session = |label| client.session().label(label).lock("mail");
    let guard = session("import-7").acquire().unwrap();
    let waiting = session("import-8").wait(common::PATIENCE);
    let waits = std::thread::spawn(move || waiting.acquire());
    let mut page = String::new();
    wait_for("processes tell of their sessions", || {
        page = String::from_utf8(bench.output(&["inspect", "mail"]).stdout).unwrap();
        page.contains("(import-8) for ")
    });
    assert!(page.contains("\n  session  import-7\n"), "{page}");
    guard.release().unwrap();
    drop(waits.join().unwrap().unwrap());
}
