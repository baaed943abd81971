//! Real processes of the command under test, each test with a store of its own.
#![allow(dead_code, unreachable_pub)]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longer than anything here takes, even on a busy machine; a test that runs into it has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A store, and what runs on it.
pub struct Bench {
    pub dir: tempfile::TempDir,
    url: Option<String>,
}

impl Bench {
    /// An embedded store.
    pub fn embedded() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory"), url: None }
    }

    /// A store on a server.
    pub fn on(url: &str) -> Self {
        Self { url: Some(url.to_owned()), ..Self::embedded() }
    }

    /// `tenure` with these arguments.
    pub fn tenure(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command
            .args(arguments)
            .env("TENURE_DIR", self.dir.path())
            .env_remove("TENURE_URL")
            .env_remove("TENURE_SCOPE")
            .env_remove("TENURE_HOLDERS")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(url) = &self.url {
            command.env("TENURE_URL", url);
        }
        command
    }

    /// Runs it to the end.
    pub fn output(&self, arguments: &[&str]) -> Output {
        self.tenure(arguments).output().expect("tenure runs")
    }

    /// Runs it to the end; its exit code and what it wrote to stderr.
    pub fn code(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.output(arguments);
        (code(output.status), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Starts it.
    pub fn start(&self, arguments: &[&str]) -> Running {
        Running(self.tenure(arguments).spawn().expect("tenure starts"))
    }

    /// Starts `tenure run` of a job and waits until the job runs: until it has made the file `sign`.
    pub fn start_job(&self, arguments: &[&str], sign: &Path) -> Running {
        let mut running = self.start(arguments);
        wait_for("the job begins", || sign.exists() || running.0.try_wait().expect("our child").is_some());
        assert!(sign.exists(), "the job does not begin: {}", running.finish().1);
        running
    }

    /// A path in the bench's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `tenure inspect --json`.
    pub fn inspect(&self, name: &str) -> serde_json::Value {
        let output = self.output(&["inspect", name, "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }
}

/// A started `tenure`, killed when dropped.
pub struct Running(pub Child);

impl Running {
    pub fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    pub fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("our child can be signalled");
    }

    /// Waits for the end; exit code and stderr.
    pub fn finish(mut self) -> (i32, String) {
        wait_for("tenure ends", || self.0.try_wait().expect("our child").is_some());
        let status = self.0.wait().expect("our child");
        let mut text = String::new();
        // Whatever the job left behind may have it open: what is there is enough.
        if let Some(mut stderr) = self.0.stderr.take() {
            let mut bytes = vec![0; 65_536];
            let read = stderr.read(&mut bytes).unwrap_or(0);
            text = String::from_utf8_lossy(&bytes[..read]).into_owned();
        }
        (code(status), text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As a shell sees it.
pub fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().expect("killed"))
}

/// Does this process run? A zombie does not.
pub fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The process number in a file, once it is there.
pub fn pid_in(path: &Path) -> i32 {
    let mut pid = None;
    wait_for("a process number appears", || {
        pid = std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'));
        pid.is_some()
    });
    pid.and_then(|text| text.trim().parse().ok()).expect("a process number")
}

/// Waits until something is so. How long it took.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
    begun.elapsed()
}

/// A path as a word of a shell line.
pub fn word(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
