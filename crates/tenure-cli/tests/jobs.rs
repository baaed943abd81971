//! Deferred jobs: `tenure run --on-busy defer`, `tenure jobs` and `tenure work`.
mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tenure_conformance::server::RedisServer;

use common::{Bench, Running, alive, pid_in, wait_for, word};

/// A lock that is held until the process is told to end.
fn held(bench: &Bench, name: &str) -> Running {
    let sign = bench.path(&format!("sign-{name}"));
    let line = format!("touch {}; exec sleep 60", word(&sign));
    bench.start_job(&["run", name, "--", "sh", "-c", &line], &sign)
}

fn end(holder: Running) {
    holder.send(Signal::SIGTERM);
    assert_eq!(holder.finish().0, 143);
}

/// Defers a shell line under a lock that is held; its ID.
fn defer(bench: &Bench, name: &str, line: &str) -> String {
    defer_with(bench, &[], name, line)
}

fn defer_with(bench: &Bench, options: &[&str], name: &str, line: &str) -> String {
    let words = [&["run", "--on-busy", "defer"], options, &[name, "--", "sh", "-c", line]].concat();
    let (code, text) = bench.code(&words);
    assert_eq!(code, 0, "{text}");
    let end = ". `tenure work` runs it; see: tenure jobs\n";
    let id = text.strip_prefix("tenure: Deferred as job ").and_then(|rest| rest.strip_suffix(end));
    id.unwrap_or_else(|| panic!("one line that says so: {text}")).to_owned()
}

/// Defers a line while somebody holds the lock, who ends then.
fn defer_now(bench: &Bench, options: &[&str], name: &str, line: &str) -> String {
    let holder = held(bench, name);
    let id = defer_with(bench, options, name, line);
    end(holder);
    id
}

fn jobs(bench: &Bench) -> Vec<Value> {
    let output = bench.output(&["jobs", "--json"]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(|row| serde_json::from_str(row).unwrap()).collect()
}

fn read(path: &PathBuf) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn a_deferred_job_runs_when_its_lock_is_free_as_it_would_have_run_here() {
    let bench = Bench::embedded();
    let (there, out) = (bench.path("there"), bench.path("out"));
    std::fs::create_dir(&there).unwrap();
    let holder = held(&bench, "mail");
    let line = format!(
        "{{ pwd; echo $KEPT ${{SECRET-none}} ${{TENURE_URL-none}} $LANG $TENURE_NAME $TENURE_JOB; cat; }} >{}",
        word(&out)
    );
    let deferred = bench
        .tenure(&["run", "--on-busy", "defer", "--keep-env", "KEPT", "mail", "-c", &line])
        .current_dir(&there)
        .envs([("KEPT", "kept"), ("SECRET", "secret"), ("LANG", "C.UTF-8"), ("TENURE_URL", "file:")])
        .output()
        .unwrap();
    let text = String::from_utf8(deferred.stderr).unwrap();
    assert!(deferred.status.success() && deferred.stdout.is_empty(), "{text}");
    assert!(text.starts_with("tenure: Deferred as job ") && text.lines().count() == 1, "{text}");
    let id = jobs(&bench)[0]["id"].as_str().unwrap().to_owned();
    assert!(text.contains(&id));

    let worker =
        bench.tenure(&["work", "--drain"]).env("KEPT", "other").env("LANG", "other").spawn().unwrap();
    let worker = Running(worker);
    wait_for("the worker stands in line", || bench.inspect("mail")["waiting"] == 1);
    assert!(!out.exists());
    end(holder);
    let (code, text) = worker.finish();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("job {id}: 'mail' begins, try 1 of 12 (")), "{text}");
    assert!(text.contains(&format!("job {id}: done")), "{text}");
    let there = there.canonicalize().unwrap();
    assert_eq!(read(&out), format!("{}\nkept none none C.UTF-8 mail {id}\n", word(&there)));
    assert_eq!(jobs(&bench), [] as [Value; 0]);
    assert_eq!(bench.inspect("mail")["state"], "free");
}

#[test]
fn only_a_busy_lock_defers() {
    let bench = Bench::embedded();
    assert_eq!(bench.code(&["run", "--on-busy", "defer", "x", "-c", "exit 5"]), (5, String::new()));
    assert_eq!(bench.code(&["jobs"]), (0, "tenure: no deferred jobs\n".to_owned()));
    let _holder = held(&bench, "x");
    assert_eq!(bench.code(&["run", "-q", "--on-busy", "defer", "x", "--", "true"]), (0, String::new()));
    assert_eq!(jobs(&bench).len(), 1);
}

#[test]
fn a_job_may_be_deferred_from_inside_the_job_that_holds_its_lock() {
    let bench = Bench::embedded();
    let again = bench.path("again");
    let line = format!("'{}' run --on-busy defer x -- touch {}", env!("CARGO_BIN_EXE_tenure"), word(&again));
    let (code, text) = bench.code(&["run", "x", "-c", &line]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(bench.code(&["work", "-q", "--once"]), (0, String::new()));
    assert!(again.exists());
}

#[test]
fn a_worker_does_not_wait_for_the_lock_of_the_job_around_it() {
    let bench = Bench::embedded();
    let (x, y) = (held(&bench, "x"), held(&bench, "y"));
    let done = bench.path("done");
    let waiting = defer(&bench, "x", "true");
    defer(&bench, "y", &format!("touch {}", word(&done)));
    end(x);
    end(y);
    let line = format!("'{}' work -q --drain", env!("CARGO_BIN_EXE_tenure"));
    assert_eq!(bench.code(&["run", "x", "-c", &line]), (0, String::new()));
    assert!(done.exists());
    assert_eq!(jobs(&bench)[0]["id"], waiting.as_str());
}

#[test]
fn the_list_says_what_waits_and_why() {
    let bench = Bench::embedded();
    let (holder, _other) = (held(&bench, "mail"), held(&bench, "tidy"));
    let (first, second) = (defer(&bench, "mail", "exit 3"), defer(&bench, "tidy", "true"));
    assert!(first < second, "IDs sort by time");
    end(holder);
    let (code, text) = bench.code(&["work", "--once", "mail"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(&format!("job {first}: failed (exit 3); again in 10s")), "{text}");

    let list = String::from_utf8(bench.output(&["jobs"]).stdout).unwrap();
    let rows: Vec<&str> = list.lines().collect();
    assert!(rows[0].starts_with("ID") && rows.len() == 3, "{list}");
    assert!(
        rows[1].starts_with(&first) && rows[1].contains("exit 3") && rows[1].ends_with("sh -c exit 3"),
        "{list}"
    );
    assert!(rows[2].starts_with(&second) && rows[2].contains(" due ") && rows[2].contains("file:"), "{list}");
    let list = String::from_utf8(bench.output(&["jobs", "tidy"]).stdout).unwrap();
    assert!(list.contains(&second) && !list.contains(&first), "{list}");
    assert_eq!(bench.code(&["jobs", "--dead"]), (0, "tenure: no deferred jobs\n".to_owned()));

    assert_eq!(bench.code(&["jobs", "--remove", &first]).0, 0);
    for action in ["--remove", "--retry"] {
        let (code, text) = bench.code(&["jobs", action, &first]);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains(&format!("there is no job {first}")), "{text}");
        let (code, text) = bench.code(&["jobs", action, "../x"]);
        assert_eq!(code, 64, "{text}");
    }
    assert_eq!(jobs(&bench).len(), 1);
}

#[test]
fn a_killed_worker_loses_nothing_and_its_job_runs_again() {
    let server = RedisServer::start();
    for bench in [Bench::embedded(), Bench::on(&server.url())] {
        let (pid, done) = (bench.path("pid"), bench.path("done"));
        let line = format!(
            "echo $$ >>{}; [ -e {done} ] || exec sleep 60; touch {done}.2",
            word(&pid),
            done = word(&done)
        );
        let id = defer_now(&bench, &["--ttl", "2s"], "x", &line);
        let worker = bench.start(&["work", "--pause", "200ms"]);
        let first = pid_in(&pid);
        assert_eq!(jobs(&bench)[0]["state"], "taken");
        let (code, text) = bench.code(&["jobs", "--remove", &id]);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("a worker is at job"), "{text}");
        worker.send(Signal::SIGKILL);
        drop(worker);
        wait_for("the job dies with its worker", || !alive(first));
        std::fs::write(&done, "").unwrap();

        assert_eq!(jobs(&bench)[0]["attempts"], 1, "it counts from before it began");
        let worker = bench.start(&["work"]);
        wait_for("it has run again", || jobs(&bench).is_empty());
        assert!(bench.path("done.2").exists());
        assert_eq!(read(&pid).lines().count(), 2);
        worker.send(Signal::SIGTERM);
        let (code, text) = worker.finish();
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("try 2 of 12"), "{text}");
    }
}

#[test]
fn a_job_that_fails_is_tried_again_later_then_dead_then_revived() {
    let bench = Bench::embedded();
    let (times, well) = (bench.path("times"), bench.path("well"));
    let line = format!("date +%s%N >>{}; test -e {}", word(&times), word(&well));
    let id = defer_now(&bench, &[], "x", &line);
    let worker = bench.start(&["work", "--max-attempts", "2", "--pause", "1s"]);
    wait_for("it is dead", || jobs(&bench)[0]["state"] == "dead");
    let at: Vec<u64> = read(&times).lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(at.len(), 2);
    let pause = Duration::from_nanos(at[1] - at[0]);
    assert!((Duration::from_secs(1)..Duration::from_secs(10)).contains(&pause), "{pause:?}");
    let row = &jobs(&bench)[0];
    assert_eq!((&row["attempts"], &row["last"]["exit"]), (&2.into(), &1.into()));
    let list = String::from_utf8(bench.output(&["jobs", "--dead"]).stdout).unwrap();
    assert!(list.contains(&id) && list.contains("dead"), "{list}");

    std::fs::write(&well, "").unwrap();
    assert_eq!(bench.code(&["jobs", "--retry", &id]), (0, String::new()));
    wait_for("it is done", || jobs(&bench).is_empty());
    worker.send(Signal::SIGINT);
    let (code, text) = worker.finish();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("failed (exit 1); dead until: tenure jobs --retry {id}")), "{text}");
}

#[test]
fn a_worker_that_is_told_to_end_stops_its_job_and_that_is_no_attempt() {
    let bench = Bench::embedded();
    let pid = bench.path("pid");
    let id = defer_now(&bench, &[], "x", &format!("echo $$ >{}; exec sleep 60", word(&pid)));
    let worker = bench.start(&["work"]);
    let job = pid_in(&pid);
    worker.send(Signal::SIGTERM);
    let (code, text) = worker.finish();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("job {id}: stopped with its worker (exit 143)")), "{text}");
    assert!(!alive(job));
    let row = &jobs(&bench)[0];
    assert_eq!((&row["attempts"], &row["state"]), (&0.into(), &"due".into()));
}

#[test]
fn a_job_that_ends_well_because_its_worker_was_told_to_end_is_begun_again() {
    let bench = Bench::embedded();
    let pid = bench.path("pid");
    let line = format!("trap 'exit 0' TERM; echo $$ >{}; while :; do sleep 0.02; done", word(&pid));
    let id = defer_now(&bench, &[], "x", &line);
    let worker = bench.start(&["work"]);
    pid_in(&pid);
    worker.send(Signal::SIGTERM);
    let (code, text) = worker.finish();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("job {id}: stopped with its worker (exit 0)")), "{text}");
    assert_eq!(jobs(&bench)[0]["attempts"], 0, "half of it may be done");
}

#[test]
fn a_job_that_ignores_the_end_of_its_worker_or_is_stopped_does_not_keep_it() {
    let server = RedisServer::start();
    for bench in [Bench::embedded(), Bench::on(&server.url())] {
        for (name, line, exit) in [("deaf", "trap '' TERM", 137), ("still", "kill -STOP $$", 143)] {
            let pid = bench.path(name);
            let line = format!("echo $$ >{}; {line}; while :; do sleep 0.05; done", word(&pid));
            let id = defer_now(&bench, &["--kill-after", "300ms"], name, &line);
            let worker = bench.start(&["work"]);
            let job = pid_in(&pid);
            let stat = || read(&format!("/proc/{job}/stat").into());
            wait_for("it is where it wants to be", || exit == 137 || stat().contains(") T "));
            std::thread::sleep(Duration::from_millis(50));
            worker.send(Signal::SIGTERM);
            let (code, text) = worker.finish();
            assert_eq!(code, 0, "{text}");
            assert!(text.contains(&format!("stopped with its worker (exit {exit})")), "{text}");
            assert!(!alive(job));
            assert_eq!(bench.code(&["jobs", "--remove", &id]).0, 0);
        }
    }
}

#[test]
fn a_worker_in_line_that_is_told_to_end_leaves_nothing() {
    let server = RedisServer::start();
    for bench in [Bench::embedded(), Bench::on(&server.url())] {
        let _holder = held(&bench, "x");
        defer(&bench, "x", "true");
        let worker = bench.start(&["work"]);
        wait_for("it stands in line", || bench.inspect("x")["waiting"] == 1);
        worker.send(Signal::SIGTERM);
        assert_eq!(worker.finish().0, 0);
        assert_eq!(bench.inspect("x")["waiting"], 0);
        assert_eq!(jobs(&bench)[0]["state"], "due");
    }
}

#[test]
fn a_busy_lock_keeps_no_job_of_another_from_running() {
    let bench = Bench::embedded();
    let (a, b) = (held(&bench, "a"), held(&bench, "b"));
    let out = bench.path("out");
    let echo = |word_: &str| format!("echo {word_} >>{}", word(&out));
    defer(&bench, "a", &echo("a1"));
    defer(&bench, "b", &echo("b1"));
    let worker = bench.start(&["work", "--drain"]);
    wait_for("it stands in the line of the first", || bench.inspect("a")["waiting"] == 1);
    end(b);
    wait_for("the other one has run", || read(&out) == "b1\n");
    wait_for("it is back in line", || bench.inspect("a")["waiting"] == 1);
    // One that comes while it waits.
    let c = held(&bench, "c");
    defer(&bench, "c", &echo("c1"));
    let begun = Instant::now();
    end(c);
    wait_for("the new one has run", || read(&out) == "b1\nc1\n");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    end(a);
    assert_eq!(worker.finish().0, 0);
    assert_eq!(read(&out), "b1\nc1\na1\n");
}

#[test]
fn a_worker_notices_new_jobs_within_a_second_or_so() {
    let bench = Bench::embedded();
    let done = bench.path("done");
    let _worker = bench.start(&["work", "x"]);
    defer_now(&bench, &[], "x", &format!("touch {}", word(&done)));
    let took = wait_for("it has run", || done.exists());
    assert!(took < Duration::from_secs(5), "{took:?}");
    // A lock that it is not for.
    defer_now(&bench, &[], "y", "true");
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(jobs(&bench).len(), 1);
}

#[test]
fn two_workers_never_run_one_lock_at_a_time_and_lose_nothing() {
    let server = RedisServer::start();
    for (bench, killed) in [(Bench::embedded(), true), (Bench::on(&server.url()), false)] {
        let (out, step) = (bench.path("out"), bench.path("step"));
        let holder = held(&bench, "x");
        for number in 0..20 {
            let line = format!(
                "exec 9>{}; flock -n 9 || echo overlap >>{out}; echo {number} >>{out}; sleep 0.02",
                word(&step),
                out = word(&out)
            );
            defer(&bench, "x", &line);
        }
        let first = bench.start(&["work", "-q"]);
        let _second = bench.start(&["work", "-q"]);
        end(holder);
        if killed {
            wait_for("some have run", || read(&out).lines().count() > 4);
            first.send(Signal::SIGKILL);
        }
        wait_for("all have run", || jobs(&bench).is_empty());
        let mut ran: Vec<u32> = read(&out).lines().map(|line| line.parse().expect("no overlap")).collect();
        let runs = ran.len();
        ran.sort_unstable();
        ran.dedup();
        assert_eq!(ran, (0..20).collect::<Vec<u32>>());
        assert!(runs == 20 || killed && runs == 21, "{runs} runs of 20 jobs");
    }
}

#[test]
fn nothing_of_a_job_is_sent_to_a_server() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let holder = held(&bench, "x");
    wait_for("the holder tells of itself", || bench.inspect("x")["holder"]["pid"] == holder.pid());
    // From here on every command that the server gets is seen, those of scripts too.
    let mut seen = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    seen.set_read_timeout(Some(common::PATIENCE)).unwrap();
    seen.write_all(b"MONITOR\r\n").unwrap();
    let mut text = String::new();
    let mut read_until = |mark: &str| {
        let mut bytes = [0; 4096];
        while !text.contains(mark) {
            let read = seen.read(&mut bytes).unwrap();
            text += &String::from_utf8_lossy(&bytes[..read]);
        }
        text.clone()
    };
    read_until("+OK");
    let done = bench.path("done");
    let mut deferring =
        bench.tenure(&["run", "-q", "--no-cmdline", "--on-busy", "defer", "--keep-env", "KEPT"]);
    deferring.args(["x", "--", "touch", word(&done)]).env("KEPT", "a-secret").current_dir(bench.dir.path());
    assert!(deferring.status().unwrap().success());
    server.command(&["ECHO", "that was all"]);
    let text = read_until("that was all");
    assert!(text.contains("\"x\""), "it asked for the lock: {text}");
    assert!(!text.contains("a-secret") && !text.contains(word(bench.dir.path())), "{text}");
    let file = bench.path("jobs").join(format!("{}.json", jobs(&bench)[0]["id"].as_str().unwrap()));
    let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&bench.path("jobs")), mode(&file)), (0o700, 0o600));
    end(holder);

    // A worker of another store leaves it alone, and the list says where it belongs.
    let (code, text) = bench.code(&["work", "--drain", "--url", "file:"]);
    assert!(code == 0 && text.contains("jobs there for other workers: 1"), "{text}");
    assert_eq!(jobs(&bench)[0]["scope"], server.url());
    assert_eq!(bench.code(&["work", "-q", "--drain"]), (0, String::new()));
    assert!(done.exists());
}

#[test]
fn what_a_deferred_job_leaves_behind_keeps_its_lock_and_no_longer() {
    let bench = Bench::embedded();
    let left = bench.path("left");
    defer_now(&bench, &[], "x", &format!("sleep 99 >/dev/null 2>&1 & echo $! >{}", word(&left)));
    let _worker = bench.start(&["work", "-q"]);
    let left = pid_in(&left);
    wait_for("the job is done", || jobs(&bench).is_empty());
    assert!(alive(left));
    assert_eq!(bench.code(&["run", "-n", "-q", "x", "--", "true"]).0, 75);
    kill(Pid::from_raw(left), Signal::SIGKILL).unwrap();
    assert_eq!(
        bench.code(&["run", "-w", "5s", "x", "--", "true"]),
        (0, String::new()),
        "the worker does not keep it"
    );
}

#[test]
fn the_limits_of_a_job_go_with_it() {
    let bench = Bench::embedded();
    let limits = ["--max-hold", "300ms", "--kill-after", "100ms"];
    let id = defer_now(&bench, &limits, "x", "trap '' TERM; while :; do sleep 0.05; done");
    let (code, text) = bench.code(&["work", "--once", "--max-attempts", "1"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("held for 300ms, its --max-hold. Stopped the job (TERM, 100ms, KILL)"), "{text}");
    assert!(
        text.contains(&format!("job {id}: failed (exit 124); dead until: tenure jobs --retry {id}")),
        "{text}"
    );
}

#[test]
fn a_job_that_cannot_be_started_is_a_failure_of_that_job_alone() {
    let bench = Bench::embedded();
    let there = bench.path("there");
    std::fs::create_dir(&there).unwrap();
    let holder = held(&bench, "x");
    let mut command = bench.tenure(&["run", "-q", "--on-busy", "defer", "x", "--", "true"]);
    assert!(command.current_dir(&there).status().unwrap().success());
    std::fs::remove_dir(&there).unwrap();
    let done = bench.path("done");
    defer(&bench, "x", &format!("touch {}", word(&done)));
    end(holder);
    let (code, text) = bench.code(&["work", "--drain"]);
    assert_eq!(code, 1, "{text}");
    let why = format!(
        "cannot run in the directory '{}': No such file",
        word(&there.canonicalize().unwrap_or(there))
    );
    assert!(text.contains(&why) && text.contains("failed (exit 126)"), "{text}");
    assert!(done.exists());
    assert_eq!(jobs(&bench)[0]["attempts"], 1);
}

#[test]
fn a_damaged_file_is_set_aside_and_loses_nothing_else() {
    let bench = Bench::embedded();
    let done = bench.path("done");
    let holder = held(&bench, "x");
    let [torn, newer, link] = [(); 3].map(|()| defer(&bench, "x", "exit 1"));
    defer(&bench, "x", &format!("touch {}", word(&done)));
    let file = |id: &str| bench.path("jobs").join(format!("{id}.json"));
    let text = read(&file(&torn));
    std::fs::write(file(&torn), &text[..text.len() / 2]).unwrap();
    std::fs::write(file(&newer), text.replace("\"v\":1", "\"v\":2")).unwrap();
    std::fs::remove_file(file(&link)).unwrap();
    std::os::unix::fs::symlink(bench.path("elsewhere"), file(&link)).unwrap();
    std::fs::write(bench.path("jobs/draft"), "left by a crash").unwrap();
    end(holder);

    let (code, text) = bench.code(&["work", "--drain"]);
    assert_eq!(code, 0, "{text}");
    assert!(done.exists(), "{text}");
    assert!(text.contains(&format!("job {torn} is damaged: ")) && text.contains("set aside"), "{text}");
    let rows = jobs(&bench);
    let states: Vec<&str> = rows.iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states.len(), 3, "{states:?}");
    assert!(states[0].starts_with("damaged: ") && states[2].starts_with("damaged: "), "{states:?}");
    assert_eq!(states[1], "format 2 is not known to this version of tenure");
    assert!(!bench.code(&["work", "--drain"]).1.contains("damaged"), "it is told once");
    for id in [torn, newer, link] {
        assert_eq!(bench.code(&["jobs", "--remove", &id]), (0, String::new()));
    }
    assert_eq!(jobs(&bench), [] as [Value; 0]);
}

#[test]
fn a_place_that_others_can_write_to_is_refused() {
    let bench = Bench::embedded();
    let done = bench.path("done");
    defer_now(&bench, &[], "x", &format!("touch {}", word(&done)));
    let id = jobs(&bench)[0]["id"].as_str().unwrap().to_owned();
    let file = bench.path("jobs").join(format!("{id}.json"));
    let mode = |path: &PathBuf, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&bench.path("jobs"), 0o770);
    for arguments in [&["work", "--drain"][..], &["jobs"]] {
        let (code, text) = bench.code(arguments);
        assert_eq!(code, 69, "{text}");
        assert!(text.contains("others may write to the directory"), "{text}");
    }
    mode(&bench.path("jobs"), 0o700);
    mode(&file, 0o620);
    let (code, text) = bench.code(&["work", "--drain"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("others may have written it"), "{text}");
    assert!(!done.exists());
}

#[test]
fn the_queue_has_bounds() {
    let bench = Bench::embedded();
    let _holder = held(&bench, "x");
    let long = "x".repeat(100_000);
    let words = ["run", "--on-busy", "defer", "x", "--", "echo", &long, &long, &long];
    let (code, text) = bench.code(&words);
    assert_eq!(code, 64, "{text}");
    assert!(text.contains("the limit is 262144"), "{text}");
    let mut bad = bench.tenure(&["run", "--on-busy", "defer", "x", "--", "echo"]);
    let output =
        bad.arg(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff")).output().unwrap();
    assert_eq!(common::code(output.status), 64, "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not UTF-8"), "{output:?}");

    // Of what could not be deferred people hear also when the lock is free.
    let (code, text) = bench.code(&["run", "--on-busy", "defer", "free", "--", "echo", &long, &long, &long]);
    assert_eq!(code, 64, "{text}");

    defer(&bench, "x", "true");
    for number in 1..10_000 {
        std::fs::write(bench.path("jobs").join(format!("{number:011x}-00000000.json")), "").unwrap();
    }
    let (code, text) = bench.code(&["run", "--on-busy", "defer", "x", "--", "true"]);
    assert_eq!(code, 75, "{text}");
    assert!(text.contains("has 10000 jobs already"), "{text}");
}

#[test]
fn a_worker_waits_for_a_store_that_is_away() {
    let mut server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let done = bench.path("done");
    let worker = bench.start(&["work"]);
    server.kill();
    let (code, text) = bench.code(&["work", "--drain"]);
    assert_eq!(code, 69, "{text}");
    server.restart_empty();
    defer_now(&bench, &[], "x", &format!("touch {}", word(&done)));
    wait_for("it has run", || done.exists());
    worker.send(Signal::SIGTERM);
    assert_eq!(worker.finish().0, 0);
}

#[test]
fn a_worker_may_be_killed_at_any_moment() {
    let bench = Bench::embedded();
    let (out, step) = (bench.path("out"), bench.path("step"));
    let holder = held(&bench, "x");
    let numbers = 0..12;
    for number in numbers.clone() {
        let line = format!(
            "exec 9>{}; flock -n 9 || echo overlap >>{out}; echo {number} >>{out}",
            word(&step),
            out = word(&out)
        );
        defer(&bench, "x", &line);
    }
    end(holder);
    let work = ["work", "-q", "--max-attempts", "1000", "--pause", "1ms"];
    let mut cut_short = 0;
    for round in 0..24 {
        let worker = bench.start(&work);
        // Its first step changes a file. From there on it is a little later each time, until all is done.
        let before = std::fs::metadata(bench.path("jobs")).unwrap().modified().unwrap();
        wait_for("it is at work", || {
            std::fs::metadata(bench.path("jobs")).unwrap().modified().unwrap() != before
        });
        std::thread::sleep(Duration::from_micros(400 * (round % 12)));
        worker.send(Signal::SIGKILL);
        drop(worker);
        let rows = jobs(&bench);
        for row in &rows {
            assert!(!row["state"].as_str().unwrap().starts_with("damaged"), "round {round}: {row}");
        }
        cut_short += u32::from(rows.iter().any(|row| row["attempts"] != 0 && row["last"].is_null()));
        if rows.is_empty() {
            break;
        }
    }
    assert!(cut_short > 0, "some were killed while a job was under way");
    let _worker = bench.start(&work);
    wait_for("all have run", || jobs(&bench).is_empty());
    let mut ran: Vec<u32> = read(&out).lines().map(|line| line.parse().expect("no overlap")).collect();
    ran.sort_unstable();
    ran.dedup();
    assert_eq!(ran, numbers.collect::<Vec<u32>>());
}

#[test]
fn a_host_that_runs_out_of_files_takes_no_job_for_damaged() {
    let bench = Bench::embedded();
    let done = bench.path("done");
    let _x = held(&bench, "x");
    // It stands in line, which takes a file, while the next one is looked at.
    defer(&bench, "x", "true");
    defer_now(&bench, &[], "y", &format!("touch {}", word(&done)));
    let mut told = false;
    for files in 8..64 {
        let tenure = env!("CARGO_BIN_EXE_tenure");
        let line = format!("ulimit -n {files}; exec timeout 0.4 '{tenure}' work --once");
        let mut limited = std::process::Command::new("sh");
        limited.args(["-c", &line]).env("TENURE_DIR", bench.dir.path()).env_remove("TENURE_URL");
        let text = String::from_utf8(limited.output().unwrap().stderr).unwrap();
        assert!(!text.contains("damaged"), "{files}: {text}");
        told = text.contains("is left alone: not readable just now");
        if told || done.exists() {
            break;
        }
    }
    assert!(told, "at some number of files the job was seen but could not be opened");
    assert_eq!(bench.code(&["work", "-q", "--once"]), (0, String::new()));
    assert!(done.exists());
}

#[test]
fn a_lock_that_is_refused_stops_no_other_job() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let done = bench.path("done");
    let (x, y) = (held(&bench, "x"), held(&bench, "y"));
    let refused = defer(&bench, "x", "true");
    defer(&bench, "y", &format!("touch {}", word(&done)));
    end(x);
    end(y);
    server.command(&["ACL", "SETUSER", "default", "resetkeys", "~[^x]*"]);
    let worker = bench.start(&["work"]);
    wait_for("the other one has run", || done.exists());
    std::thread::sleep(Duration::from_millis(2500));
    server.command(&["ACL", "SETUSER", "default", "allkeys"]);
    wait_for("all have run", || jobs(&bench).is_empty());
    worker.send(Signal::SIGTERM);
    let (code, text) = worker.finish();
    assert_eq!(code, 0, "{text}");
    assert_eq!(text.matches("'x': ").count(), 1, "told once: {text}");
    assert!(text.contains(&format!("job {refused}: done")), "{text}");
}

#[test]
fn the_oldest_job_does_not_starve_behind_others() {
    let bench = Bench::embedded();
    let (out, b) = (bench.path("out"), held(&bench, "b"));
    let a = held(&bench, "a");
    defer(&bench, "a", &format!("echo a >>{}", word(&out)));
    for _ in 0..14 {
        defer(&bench, "b", &format!("echo b >>{}", word(&out)));
    }
    end(b);
    let worker = bench.start(&["work", "-q", "--drain"]);
    wait_for("ten others have run", || read(&out).lines().count() == 10);
    wait_for("it stands in the line of the oldest", || bench.inspect("a")["waiting"] == 1);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(read(&out).lines().count(), 10, "and in no other");
    end(a);
    assert_eq!(worker.finish(), (0, String::new()));
    assert_eq!(read(&out), format!("{}a\n{}", "b\n".repeat(10), "b\n".repeat(4)));
}

#[test]
fn a_worker_outlives_its_queue() {
    let bench = Bench::embedded();
    let done = bench.path("done");
    let worker = bench.start(&["work"]);
    wait_for("the queue is there", || bench.path("jobs").exists());
    std::thread::sleep(Duration::from_millis(200));
    std::fs::remove_dir_all(bench.path("jobs")).unwrap();
    defer_now(&bench, &[], "x", &format!("touch {}", word(&done)));
    wait_for("a job of the new one has run", || done.exists());
    worker.send(Signal::SIGTERM);
    let (code, text) = worker.finish();
    assert_eq!(code, 0, "{text}");
    assert!(text.starts_with("tenure: works on ") && text.contains("was deleted or moved"), "{text}");
}

#[test]
fn a_job_that_was_removed_by_hand_while_it_ran_is_done() {
    let bench = Bench::embedded();
    let id = defer_now(&bench, &[], "x", "rm $TENURE_DIR/jobs/$TENURE_JOB.json");
    let (code, text) = bench.code(&["work", "--once"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("job {id}: done")), "{text}");
}

#[test]
fn arguments_and_variables_that_may_be_secrets_are_not_shown() {
    let bench = Bench::embedded();
    let holder = held(&bench, "x");
    let mut deferring =
        bench.tenure(&["run", "-q", "--no-cmdline", "--on-busy", "defer", "--keep-env", "KEPT"]);
    deferring.args(["x", "--", "echo", "a-secret"]).env("KEPT", "a-secret");
    assert!(deferring.status().unwrap().success());
    defer(&bench, "x", "echo redis://u:a-secret@h");
    end(holder);
    for options in [&["jobs"][..], &["jobs", "--json"]] {
        let text = String::from_utf8(bench.output(options).stdout).unwrap();
        assert!(!text.contains("a-secret") && text.contains("echo"), "{text}");
    }
    let names = &jobs(&bench)[0]["surroundings"]["variables"];
    assert!(names.as_array().unwrap().contains(&"KEPT".into()), "{names}");
    let output = bench.output(&["work", "--drain"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!text.contains("a-secret") && text.contains("(echo)"), "{text}");
}

#[test]
fn a_damaged_job_that_was_mended_is_begun_again() {
    let bench = Bench::embedded();
    let done = bench.path("done");
    let id = defer_now(&bench, &[], "x", &format!("touch {}", word(&done)));
    let file = |end: &str| bench.path("jobs").join(format!("{id}.{end}"));
    let text = read(&file("json"));
    std::fs::write(file("json"), "{").unwrap();
    let (code, said) = bench.code(&["work", "-q", "--drain"]);
    assert_eq!(code, 0);
    assert!(said.contains("set aside"), "not even -q hides that: {said}");
    let (code, said) = bench.code(&["jobs", "--retry", &id]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(&format!("job {id} is not begun again, it is damaged: ")), "{said}");
    std::fs::write(file("damaged"), text).unwrap();
    assert_eq!(bench.code(&["jobs", "--retry", &id]), (0, String::new()));
    assert_eq!(bench.code(&["work", "-q", "--drain"]), (0, String::new()));
    assert!(done.exists());
}

#[test]
fn all_dead_jobs_are_retried_or_removed_at_once() {
    let bench = Bench::embedded();
    let (x, y) = (held(&bench, "x"), held(&bench, "y"));
    for name in ["x", "x", "y"] {
        defer(&bench, name, "exit 3");
    }
    end(x);
    end(y);
    let die = || bench.code(&["work", "-q", "--drain", "--max-attempts", "1"]);
    let states = || -> Vec<String> {
        jobs(&bench).iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect()
    };
    let (code, text) = die();
    assert_eq!(code, 1, "{text}");
    assert_eq!(text.matches("dead until: tenure jobs --retry").count(), 3, "not even -q hides that: {text}");
    assert_eq!(states(), ["dead", "dead", "dead"]);
    assert_eq!(bench.code(&["jobs", "--dead", "--retry-all", "x"]), (0, String::new()));
    assert_eq!(states(), ["due", "due", "dead"]);
    die();
    assert_eq!(bench.code(&["jobs", "--dead", "--remove-all"]), (0, String::new()));
    assert_eq!(jobs(&bench), [] as [Value; 0]);
    assert_eq!(bench.code(&["jobs", "--remove-all"]).0, 64);
}

#[test]
fn a_lock_that_was_lost_is_not_held_against_the_job() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let pid = bench.path("pid");
    let id = defer_now(&bench, &["--ttl", "2s"], "x", &format!("echo $$ >{}; exec sleep 30", word(&pid)));
    let worker = bench.start(&["work", "--once", "--max-attempts", "1"]);
    pid_in(&pid);
    server.command(&["DEL", "x"]);
    let (code, text) = worker.finish();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(&format!("job {id}: put off (exit 79); again in 10s")), "{text}");
    assert_eq!(jobs(&bench)[0]["attempts"], 0);
}

#[test]
fn a_job_keeps_its_mask_of_file_modes() {
    let bench = Bench::embedded();
    let made = bench.path("made");
    let holder = held(&bench, "x");
    let line = format!(
        "umask 027; exec '{}' run -q --on-busy defer x -- touch {}",
        env!("CARGO_BIN_EXE_tenure"),
        word(&made)
    );
    let mut deferred = std::process::Command::new("sh");
    deferred.args(["-c", &line]).env("TENURE_DIR", bench.dir.path());
    assert!(deferred.env_remove("TENURE_URL").status().unwrap().success());
    end(holder);
    assert_eq!(bench.code(&["work", "-q", "--drain"]), (0, String::new()));
    assert_eq!(std::fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o640);
}
