//! The test's end of a `taker` process.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::HolderId;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// How long a taker may take to say what it is asked for, unless the test says otherwise.
const PATIENCE: Duration = Duration::from_secs(20);

/// Another process that takes locks. Killed when dropped.
#[derive(Debug)]
pub struct Taker {
    child: Child,
    pid: Pid,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// Lines that came before somebody asked for them.
    kept: Vec<String>,
}

impl Taker {
    /// Starts one, connected to `url`.
    pub async fn start(program: &Path, url: &str) -> Self {
        let mut child = Command::new(program)
            .arg(url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the taker starts");
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut taker = Self { child, pid, input, output, kept: Vec::new() };
        assert_eq!(taker.hears("taker").await, "ready");
        taker
    }

    /// Tells it something.
    pub async fn say(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.expect("the taker reads");
    }

    /// What it says next under this tag.
    pub async fn hears(&mut self, tag: &str) -> String {
        self.hears_within(tag, PATIENCE).await
    }

    /// What it says next under this tag, soon.
    pub async fn hears_within(&mut self, tag: &str, limit: Duration) -> String {
        let mine = |line: &str| line.strip_prefix(tag)?.strip_prefix(' ').map(str::to_owned);
        if let Some(at) = self.kept.iter().position(|line| mine(line).is_some()) {
            return mine(&self.kept.remove(at)).expect("just found");
        }
        let next = async {
            loop {
                let line = self.output.next_line().await.expect("a pipe can be read");
                let line = line.expect("the taker lives");
                match mine(&line) {
                    Some(words) => return words,
                    None => self.kept.push(line),
                }
            }
        };
        timeout(limit, next)
            .await
            .unwrap_or_else(|_| panic!("the taker said nothing about {tag} in {limit:?}"))
    }

    /// Has it wait for a lock, without waiting for it here.
    pub async fn begins(&mut self, tag: &str, name: &str, ttl: Duration) {
        self.say(&format!("{tag} acquire {} {} {name}", ttl.as_millis(), PATIENCE.as_millis())).await;
    }

    /// The fencing token and the public id of what it has acquired.
    pub async fn has(&mut self, tag: &str) -> (u64, HolderId) {
        let words = self.hears(tag).await;
        let parts: Vec<_> = words.split(' ').collect();
        match parts[..] {
            ["acquired", fence, holder] => (fence.parse().expect("a number"), holder.parse().expect("an id")),
            _ => panic!("the taker did not acquire: {words}"),
        }
    }

    /// Has it take a lock.
    pub async fn takes(&mut self, tag: &str, name: &str, ttl: Duration) -> (u64, HolderId) {
        self.begins(tag, name, ttl).await;
        self.has(tag).await
    }

    /// Has it release what it took under this tag, and tells how that went.
    pub async fn releases(&mut self, tag: &str) -> String {
        self.say(&format!("{tag} release")).await;
        self.hears(tag).await
    }

    /// Ends it without a word (`kill -9`), and waits until it is gone.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("it can be killed");
    }

    /// Stops it until [`Taker::cont`]: a machine that hangs, a debugger, a suspend.
    pub fn stop(&self) {
        kill_process(self.pid, Signal::STOP).expect("it lives");
    }

    /// Lets it go on.
    pub fn cont(&self) {
        kill_process(self.pid, Signal::CONT).expect("it lives");
    }
}
