//! A program that takes the locks that Tenure joins, and knows nothing of Tenure: a Perl script of its own, written
//! from the descriptions of these locks.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::server::RedisServer;

/// A running client of the fleet. Killed when dropped.
#[derive(Debug)]
pub struct Fleet {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Fleet {
    /// A client of `protocol` (`classic`, `getset`, `pid-lock`); `ttl` in seconds for `getset`, else in milliseconds.
    ///
    /// # Panics
    /// When there is no perl.
    pub fn start(server: &RedisServer, protocol: &str, key: &str, ttl: u64) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("fleet/fleet.pl");
        let mut child = Command::new("perl")
            .arg(script)
            .args([&server.port().to_string(), protocol, key, &ttl.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("these tests need perl ({error}): apt-get install perl"));
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, input, output }
    }

    /// Says a line, and reads the answer to it.
    pub fn say(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    /// Says a line.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it listens");
    }

    /// Waits for the answer to a line.
    pub fn answer(&mut self) -> String {
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("it answers");
        answer.trim_end().to_owned()
    }

    /// One try.
    pub fn wins(&mut self) -> bool {
        self.say("try") == "won"
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where several take turns under one lock, and two at a time are seen.
#[derive(Debug)]
pub struct Ring {
    dir: PathBuf,
}

impl Ring {
    /// A ring in this directory.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The words that make a [`Fleet`] take turns.
    pub fn race(&self, letter: char, turns: usize) -> String {
        format!("race {letter} {turns} 2 {}", self.dir.display())
    }

    /// Who was inside so far, in their order.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Is it somebody else's turn?
    pub fn was_last(&self, letter: char) -> bool {
        self.log().ends_with(letter)
    }

    /// What is done under the lock.
    ///
    /// # Panics
    /// When somebody else is inside.
    pub fn turn(&self, letter: char) {
        let inside = self.dir.join("inside");
        match File::create_new(&inside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                panic!("two at a time, after {}", self.log())
            }
            made => drop(made.expect("a file can be made")),
        }
        let mut log =
            File::options().create(true).append(true).open(self.dir.join("log")).expect("there is a log");
        write!(log, "{letter}").expect("it can be written");
        std::thread::sleep(Duration::from_millis(1));
        fs::remove_file(inside).expect("nobody else was inside");
    }
}
