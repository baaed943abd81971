//! What only several processes can show: they are killed, stopped, woken and run out of disk here.
//!
//! The other processes are this very program, started again to play a [`role`].

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use tempfile::TempDir;
use tenure_core::{Attempt, HolderId, Message, Name, Owner, Reply, Request};
use tenure_embedded::{EmbeddedEngine, Location};
use tenure_engine::{Engine, FaultKind, Letter, random_owner};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(1);

/// How soon the next in line learns that the lock is free, whatever became of the one before.
const AT_ONCE: Duration = Duration::from_millis(100);

// ── this process ─────────────────────────────────────────────────────────────────────────────────────────────

struct Peer {
    engine: Arc<EmbeddedEngine>,
    letters: UnboundedReceiver<Letter>,
    serial: AtomicU32,
}

impl Peer {
    fn open(path: &Path) -> Self {
        let engine = EmbeddedEngine::open(&Location::Directory(path.into())).unwrap();
        let (sender, letters) = unbounded_channel();
        engine.listen(Arc::new(move |letter| drop(sender.send(letter))));
        Self { engine, letters, serial: AtomicU32::new(0) }
    }

    fn owner(&self) -> Owner {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        random_owner(HolderId { process: self.engine.process(), serial })
    }

    async fn ask(&self, name: &Name, owner: Owner) -> Reply {
        self.engine.call(name, &ask(owner, 30_000), LIMIT).await.unwrap()
    }

    async fn release(&self, name: &Name, owner: Owner) -> Reply {
        self.engine.call(name, &Request::Release { owner }, LIMIT).await.unwrap()
    }

    /// Waits until told to look again or handed the lock. Comes back when it is held.
    async fn wait_for(&mut self, name: &Name, owner: Owner) -> u64 {
        loop {
            let letter = timeout(Duration::from_secs(10), self.letters.recv()).await.expect("a letter comes");
            match letter.expect("the engine lives").message {
                Message::Granted { token, .. } => return token.0,
                Message::Look => {
                    if let Reply::Granted { token } = self.ask(name, owner).await {
                        return token.0;
                    }
                }
                Message::Head { .. } | Message::Stop { .. } => {}
            }
        }
    }
}

fn ask(owner: Owner, ttl_ms: u64) -> Request {
    let place_ms = 30_000;
    Request::Ask { owner, ttl_ms, guard_ms: 0, place_ms, attempt: Attempt(1), not_after: None }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn store() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("t");
    (place, path)
}

fn boot_directory(path: &Path) -> PathBuf {
    let is_directory = |entry: &fs::DirEntry| entry.file_type().unwrap().is_dir();
    fs::read_dir(path).unwrap().flatten().find(is_directory).unwrap().path()
}

/// Another process. Killed and reaped when dropped.
struct Actor {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Actor {
    fn start(role: &str, path: &Path, name: &str) -> Self {
        Self::of(Command::new(std::env::current_exe().unwrap()), role, path, name)
    }

    fn of(mut command: Command, role: &str, path: &Path, name: &str) -> Self {
        command
            .args(["--exact", "role", "--ignored", "--nocapture", "--test-threads=1"])
            .env("TENURE_TEST_ROLE", role)
            .env("TENURE_TEST_STORE", path)
            .env("TENURE_TEST_NAME", name)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self { process, lines }
    }

    /// The rest of its next line that begins with `@word `.
    fn says(&mut self, word: &str) -> String {
        let begin = format!("@{word} ");
        for line in self.lines.by_ref().lines() {
            let line = line.unwrap();
            // The first line comes behind the name of the test.
            if let Some((_, rest)) = line.split_once(&begin) {
                return rest.to_owned();
            }
        }
        panic!("the other process ended without saying {word}");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Kills it, and reads all that it had said.
    fn kill(mut self) -> String {
        assert!(self.process.try_wait().unwrap().is_none(), "it ended by itself: what it found is above");
        self.process.kill().unwrap();
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn state_of(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

// ── the other process ────────────────────────────────────────────────────────────────────────────────────────

/// What the other processes do. Without a role: nothing.
#[tokio::test]
#[ignore = "played by the other processes of these tests"]
async fn role() {
    let Ok(role) = std::env::var("TENURE_TEST_ROLE") else { return };
    let path = PathBuf::from(std::env::var_os("TENURE_TEST_STORE").unwrap());
    let name = name(&std::env::var("TENURE_TEST_NAME").unwrap());
    match &*role {
        "hammer" => hammer(&path, &name).await,
        "churn" => churn(&path, &name).await,
        "hold" => hold(&path, &name).await,
        "wait" => wait(&path, &name).await,
        "job" => job(&path, &name).await,
        "crowded" => crowded(&path, &name).await,
        "guard" => guard(&path).await,
        "default" => default(),
        other => panic!("no role {other}"),
    }
}

fn say(word: &str, rest: impl std::fmt::Display) {
    // One write, so that a kill leaves no half line.
    std::io::stdout().write_all(format!("@{word} {rest}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

/// Takes and frees for ever, and leaves a mark inside that nobody else may meet while we live.
async fn hammer(path: &Path, name: &Name) {
    let me = Peer::open(path);
    let mark = path.with_extension(name.as_str());
    say("ready", "");
    for round in 0_u64.. {
        let owner = me.owner();
        let reply = loop {
            match me.engine.call(name, &ask(owner, 30_000), LIMIT).await {
                Ok(Reply::Queued { .. }) => tokio::time::sleep(Duration::from_micros(200)).await,
                Ok(reply) => break reply,
                // Whoever is killed inside the guard is gone in less than that.
                Err(fault) => panic!("{fault}"),
            }
        };
        let Reply::Granted { token } = reply else { panic!("{reply:?}") };
        if let Ok(pid) = fs::read_to_string(&mark)
            && let Some(pid) = pid.parse().ok().and_then(Pid::from_raw)
            && !matches!(state_of(pid), None | Some('Z' | 'X'))
        {
            say("overlap", format!("{} met {}", std::process::id(), pid.as_raw_nonzero()));
        }
        fs::write(&mark, std::process::id().to_string()).unwrap();
        say("token", token);
        fs::write(&mark, "").unwrap();
        assert_eq!(me.release(name, owner).await, Reply::Released, "round {round}");
    }
}

/// Takes and frees many locks at once for ever, so that it is killed inside a transaction more often than not.
async fn churn(path: &Path, prefix: &Name) {
    let me = Peer::open(path);
    say("ready", "");
    loop {
        let calls = |request: &dyn Fn(Owner) -> Request, owners: &[Owner]| -> Vec<_> {
            owners
                .iter()
                .enumerate()
                .map(|(i, &owner)| (name(&format!("{prefix}{}", i / 3)), request(owner)))
                .collect()
        };
        let owners: Vec<_> = (0..120).map(|_| me.owner()).collect();
        let asks = calls(&|owner| ask(owner, 30_000), &owners);
        let replies = me.engine.call_many(&asks, LIMIT).await;
        let token = replies.into_iter().filter_map(|reply| match reply.unwrap() {
            Reply::Granted { token } => Some(token),
            _ => None,
        });
        if let Some(token) = token.max() {
            say("token", token);
        }
        let releases = calls(&|owner| Request::Release { owner }, &owners);
        me.engine.call_many(&releases, LIMIT).await.into_iter().for_each(|reply| drop(reply.unwrap()));
    }
}

async fn hold(path: &Path, name: &Name) {
    let me = Peer::open(path);
    let Reply::Granted { token } = me.ask(name, me.owner()).await else { panic!("it was free") };
    say("held", token);
    std::future::pending::<()>().await;
}

async fn wait(path: &Path, name: &Name) {
    let mut me = Peer::open(path);
    let owner = me.owner();
    assert!(matches!(me.ask(name, owner).await, Reply::Queued { head: true, .. }));
    say("waits", "");
    let token = me.wait_for(name, owner).await;
    say("held", token);
    std::future::pending::<()>().await;
}

/// Holds for a short lease, and runs a job that outlives us.
async fn job(path: &Path, name: &Name) {
    let me = Peer::open(path);
    let owner = me.owner();
    let reply = me.engine.call(name, &ask(owner, 200), LIMIT).await.unwrap();
    assert!(matches!(reply, Reply::Granted { .. }));
    let file = me.engine.job_file(owner.holder).unwrap().expect("this engine sees jobs");
    fcntl_setfd(file.as_fd(), FdFlags::empty()).unwrap();
    // Its output closed, or the test would wait for it.
    #[expect(clippy::zombie_processes, reason = "it is to outlive us")]
    let job = Command::new("sleep").arg("30").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    say("job", job.id());
    std::future::pending::<()>().await;
}

/// Asks for a lock when it can open no more files, and again when it can.
async fn crowded(path: &Path, name: &Name) {
    let me = Peer::open(path);
    let owner = me.owner();
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit { current: Some(3), ..before };
    setrlimit(Resource::Nofile, none).unwrap();
    assert!(fs::File::open("/dev/null").is_err(), "the limit is reached");
    let replies = [me.ask(name, owner).await, me.release(name, owner).await];
    setrlimit(Resource::Nofile, before).unwrap();
    say("crowded", format!("{replies:?}"));
    say("again", format!("{:?}", me.ask(name, owner).await));
    std::future::pending::<()>().await;
}

/// Stays inside the guard, as a process does that is stopped in the middle of a transaction.
async fn guard(path: &Path) {
    let file = fs::OpenOptions::new().write(true).open(boot_directory(path).join("guard")).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    say("inside", file.as_raw_fd());
    std::future::pending::<()>().await;
}

fn default() {
    match EmbeddedEngine::open(&Location::Default) {
        Ok(engine) => say("open", engine.scope()),
        Err(fault) => say("fault", format!("{:?} {fault}", fault.kind)),
    }
}

// ── tests ────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn killed_at_any_moment_the_store_opens_and_tokens_rise() {
    let (_place, path) = store();
    let mut dice = tenure_engine::random_process().0;
    let start = |round| Actor::start(["hammer", "churn"][round % 2], &path, "x");
    let mut actors: Vec<_> = (0..3).map(start).collect();
    let (mut highest, mut seen) = (0, 0);
    for round in 0..200_usize {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut actor = actors.remove(0);
        actor.says("ready");
        actors.push(start(round + 3));
        tokio::time::sleep(Duration::from_micros(dice >> 50)).await;
        let said = actor.kill();
        assert!(!said.contains("@overlap"), "round {round}: {said}");
        let tokens: Vec<u64> =
            said.lines().filter_map(|line| line.strip_prefix("@token ")?.parse().ok()).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "round {round}: {tokens:?}");
        highest = tokens.last().copied().unwrap_or(0).max(highest);
        seen += tokens.len();
    }
    for actor in actors {
        let said = actor.kill();
        assert!(!said.contains("@overlap"), "{said}");
        let tokens = said.lines().filter_map(|line| line.strip_prefix("@token ")?.parse().ok());
        highest = tokens.max().unwrap_or(0).max(highest);
    }
    assert!(seen > 200, "only {seen} grants between 200 kills");
    let me = Peer::open(&path);
    let name = name("x");
    let owner = me.owner();
    // Whoever died is passed over at once: no lease has run out here.
    let Reply::Granted { token } = me.ask(&name, owner).await else { panic!("everybody else is dead") };
    assert!(token.0 > highest, "{token} after {highest}");
    assert_eq!(me.engine.names().await.unwrap(), [name]);
    println!("200 kills, {seen} grants");
}

#[tokio::test]
async fn a_process_stopped_inside_a_transaction_is_named_and_waited_for_with_a_limit() {
    let (_place, path) = store();
    let me = Peer::open(&path);
    let mut actor = Actor::start("guard", &path, "x");
    actor.says("inside");
    actor.signal(Signal::STOP);
    while state_of(actor.pid()) != Some('T') {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (name, owner) = (name("x"), me.owner());
    let begun = Instant::now();
    let mut turns = 0;
    let request = ask(owner, 30_000);
    let call = me.engine.call(&name, &request, Duration::from_millis(300));
    tokio::pin!(call);
    // One thread: it goes on with other things meanwhile.
    let fault = loop {
        tokio::select! {
            answer = &mut call => break answer.unwrap_err(),
            () = tokio::time::sleep(Duration::from_millis(5)) => turns += 1,
        }
    };
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(290) && took < Duration::from_millis(600), "{took:?}");
    assert!(turns > 20, "the thread was blocked: {turns} turns");
    assert_eq!(fault.kind, FaultKind::NotRun);
    let text = fault.to_string();
    let pid = actor.pid().as_raw_nonzero();
    assert!(text.contains(&format!("process {pid} (")) && text.contains("is stopped inside"), "{text}");
    assert!(text.contains("processes-"), "its command: {text}");
    // A limit of a minute is no reason to wait for one.
    let begun = Instant::now();
    me.engine.call(&name, &request, Duration::from_secs(60)).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_millis(1500));
    actor.signal(Signal::CONT);
    assert!(
        me.engine.call(&name, &request, LIMIT).await.unwrap_err().to_string().contains("has been inside")
    );
    drop(actor);
    assert!(matches!(me.ask(&name, owner).await, Reply::Granted { .. }));
}

#[tokio::test]
async fn the_next_in_line_learns_at_once_that_the_holder_was_killed() {
    let (_place, path) = store();
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let mut actor = Actor::start("hold", &path, "x");
        let token: u64 = actor.says("held").parse().unwrap();
        let mut me = Peer::open(&path);
        let (name, owner) = (name("x"), me.owner());
        assert!(matches!(me.ask(&name, owner).await, Reply::Queued { head: true, .. }));
        tokio::time::sleep(Duration::from_millis(50)).await;
        let begun = Instant::now();
        actor.kill();
        assert!(me.wait_for(&name, owner).await > token);
        slowest = slowest.max(begun.elapsed());
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    }
    println!("from the kill to the next holder: {slowest:?} at most");
}

#[tokio::test]
async fn a_waiter_in_another_pid_namespace_learns_of_it_too() {
    let (_place, path) = store();
    let mut holder = Actor::start("hold", &path, "x");
    holder.says("held");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
    let mut waiter = Actor::of(command, "wait", &path, "x");
    waiter.says("waits");
    std::thread::sleep(Duration::from_millis(75));
    let begun = Instant::now();
    drop(holder);
    waiter.says("held");
    assert!(begun.elapsed() < Duration::from_millis(200), "{:?}", begun.elapsed());
    println!("from another pid namespace: {:?}", begun.elapsed());
}

#[tokio::test]
async fn the_lock_lasts_as_long_as_the_job_and_then_goes_on_at_once() {
    let (_place, path) = store();
    let mut actor = Actor::start("job", &path, "x");
    let job = Pid::from_raw(actor.says("job").parse().unwrap()).unwrap();
    let mut me = Peer::open(&path);
    let (name, owner) = (name("x"), me.owner());
    // The lease of 200 ms is over; the job is not.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let Reply::Queued { head: true, standing: Some(standing) } = me.ask(&name, owner).await else {
        panic!("the job runs")
    };
    assert!(!standing.quiet && !me.engine.look(&name).await.unwrap().orphaned);
    drop(actor);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(me.letters.try_recv().is_err(), "nothing is free yet");
    let Reply::Queued { head: true, standing: Some(standing) } = me.ask(&name, owner).await else {
        panic!("the job runs")
    };
    assert!(standing.quiet && me.engine.look(&name).await.unwrap().orphaned);
    assert_eq!(me.engine.names().await.unwrap(), std::slice::from_ref(&name));
    let begun = Instant::now();
    kill_process(job, Signal::KILL).unwrap();
    me.wait_for(&name, owner).await;
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    println!("from the end of the job to the next holder: {:?}", begun.elapsed());
}

/// Whoever has no descriptor left cannot look at jobs and processes. Not seen is not ended.
#[tokio::test]
async fn who_can_open_no_files_takes_no_lock_away() {
    let (_place, path) = store();
    let mut actor = Actor::start("job", &path, "x");
    let job = Pid::from_raw(actor.says("job").parse().unwrap()).unwrap();
    let mut alive = Actor::start("job", &path, "y");
    let its_job = Pid::from_raw(alive.says("job").parse().unwrap()).unwrap();
    let mut holder = Actor::start("hold", &path, "z");
    holder.says("held");
    actor.kill();
    // Both leases of 200 ms are over, and nothing but their jobs keeps the holds; the third goes by its lease.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let mut found = Vec::new();
    for name in ["x", "y", "z"] {
        let mut crowded = Actor::start("crowded", &path, name);
        found.push((name, crowded.says("crowded"), crowded.says("again")));
    }
    for job in [job, its_job] {
        kill_process(job, Signal::KILL).unwrap();
    }
    for (name, crowded, again) in found {
        assert!(crowded.starts_with("[Queued") && crowded.ends_with("Released]"), "{name}: {crowded}");
        assert!(again.starts_with("Queued"), "{name}: {again}");
    }
}

#[tokio::test]
async fn a_release_wakes_a_waiter_in_another_process() {
    let (_place, path) = store();
    let me = Peer::open(&path);
    let name = name("x");
    let mut took = Vec::new();
    for _ in 0..10 {
        let owner = me.owner();
        assert!(matches!(me.ask(&name, owner).await, Reply::Granted { .. }));
        let mut waiter = Actor::start("wait", &path, "x");
        waiter.says("waits");
        let begun = Instant::now();
        me.release(&name, owner).await;
        waiter.says("held");
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    assert!(took[5] < Duration::from_millis(20), "{took:?}");
    println!("from release to the next holder's word: {:?} median, {:?} at most", took[5], took[9]);
}

/// A file system of this size, gone with the value.
struct Mount(TempDir);

impl Mount {
    fn tmpfs(options: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tenure-test"])
            .arg(place.path())
            .status()
            .expect("mount(8) is there");
        // A test that cannot run has not passed.
        assert!(mounted.success(), "this test mounts a file system: run it as root");
        Self(place)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_disk_without_room_for_the_store_is_said_so() {
    let disk = Mount::tmpfs("size=16m,mode=700");
    let path = disk.0.path().join("t");
    let fault = EmbeddedEngine::open(&Location::Directory(path.clone())).unwrap_err();
    let text = fault.to_string();
    assert_eq!(fault.kind, FaultKind::Refused);
    assert!(
        text.contains("64 MiB") && text.contains("No space left") && text.contains("TENURE_STORE_MIB"),
        "{text}"
    );
    assert_eq!(
        fs::read_dir(boot_directory(&path))
            .unwrap()
            .filter(|entry| { entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("store") })
            .count(),
        0
    );
}

#[tokio::test]
async fn a_disk_that_runs_full_later_changes_nothing() {
    let disk = Mount::tmpfs("size=70m,mode=700");
    let me = Peer::open(&disk.0.path().join("t"));
    let mut ballast = fs::File::create(disk.0.path().join("ballast")).unwrap();
    while ballast.write_all(&[1; 4096]).is_ok() {}
    for round in 0..1000 {
        let (name, owner) = (name(&format!("n{round}")), me.owner());
        assert!(matches!(me.ask(&name, owner).await, Reply::Granted { .. }));
        if round % 2 == 0 {
            assert_eq!(me.release(&name, owner).await, Reply::Released);
        }
    }
}

#[tokio::test]
async fn a_read_only_disk_is_said_so() {
    let disk = Mount::tmpfs("ro,size=1m,mode=700");
    for path in [disk.0.path().join("t"), disk.0.path().to_owned()] {
        let fault = EmbeddedEngine::open(&Location::Directory(path)).unwrap_err();
        let text = fault.to_string();
        assert_eq!(fault.kind, FaultKind::Refused);
        assert!(text.contains("Read-only file system") && text.contains("TENURE_DIR"), "{text}");
        assert!(text.contains(disk.0.path().to_str().unwrap()), "{text}");
    }
}

#[tokio::test]
async fn the_directory_of_somebody_else_is_refused() {
    let (_place, path) = store();
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&path, Some(65_534), None)
        .expect("this test gives a directory away: run it as root");
    let text = EmbeddedEngine::open(&Location::Directory(path)).unwrap_err().to_string();
    assert!(text.contains("belongs to user 65534") && text.contains("TENURE_DIR"), "{text}");
}

/// The account of uid 65534 has no home, whatever the environment says.
#[tokio::test]
async fn a_missing_home_is_said_so_and_home_variables_are_not_believed() {
    let (place, path) = store();
    let program = place.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let start = |uid: u32, variable: &str| {
        let mut command = Command::new(&program);
        command
            .uid(uid)
            .env("HOME", place.path())
            .env("XDG_STATE_HOME", place.path())
            .env("TENURE_DIR", variable);
        Actor::of(command, "default", &path, "x").says("fault")
    };
    let text = start(65_534, "");
    assert!(
        text.starts_with("Refused") && text.contains("does not exist") && text.contains("TENURE_DIR"),
        "{text}"
    );
    let text = start(3_999_999, "");
    assert!(text.contains("has no account") && text.contains("TENURE_DIR"), "{text}");
    let text = start(65_534, "relative");
    assert!(text.contains("TENURE_DIR is relative"), "{text}");
    let text = start(65_534, "/proc/nowhere");
    assert!(text.contains("/proc/nowhere"), "{text}");
}
