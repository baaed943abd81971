//! A Redis server of one's own, for a test or an experiment.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Names the server's program, where it isn't `redis-server` in PATH.
pub const PROGRAM_VARIABLE: &str = "TENURE_REDIS_SERVER";

const STARTS_WITHIN: Duration = Duration::from_secs(10);
const TRIES: u32 = 5;

/// There is no server.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program can't be run.
    #[error(
        "cannot run {program} ({error}); install it (`apt-get install redis-server`, `brew install redis`), or set {PROGRAM_VARIABLE} \
         to its path"
    )]
    Missing {
        /// Which program.
        program: String,
        /// Why.
        error: std::io::Error,
    },
    /// It ran, and did not answer.
    #[error("redis-server does not start; its log:\n{log}")]
    Silent {
        /// What it wrote.
        log: String,
    },
    /// The operating system refused something else.
    #[error("the operating system refused a directory or a port for redis-server: {0}")]
    System(#[from] std::io::Error),
}

/// What a server is started with besides the defaults.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A program and its first arguments that the server's command line is handed to.
    pub through: Vec<OsString>,
    /// Where its directory is made, if not among the system's temporary ones.
    pub inside: Option<PathBuf>,
    /// More arguments: `["--maxmemory", "2mb"]`.
    pub args: Vec<String>,
    /// Environment of the process.
    pub env: Vec<(String, String)>,
}

/// A running `redis-server` on a free port of 127.0.0.1, in a directory of its own, without persistence. Stopped
/// (by its process number) and removed when dropped.
///
/// A missing program is a failure, never a skipped test.
#[derive(Debug)]
pub struct RedisServer {
    child: Child,
    port: u16,
    options: Options,
    dir: TempDir,
}

impl RedisServer {
    /// A server with defaults.
    pub fn start() -> Self {
        Self::with(Options::default())
    }

    /// A server with these arguments besides the defaults.
    pub fn with_args(args: &[&str]) -> Self {
        Self::with(Options { args: args.iter().map(ToString::to_string).collect(), ..Options::default() })
    }

    /// A server with options. It also listens on [`RedisServer::unix_path`].
    ///
    /// # Panics
    /// When there is no `redis-server`, or it doesn't answer.
    pub fn with(options: Options) -> Self {
        Self::try_with(options).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`RedisServer::with`], for whom a missing server is no bug.
    pub fn try_with(options: Options) -> Result<Self, StartError> {
        let inside = options.inside.clone().unwrap_or_else(std::env::temp_dir);
        let dir = tempfile::Builder::new().prefix("tenure-redis-").tempdir_in(inside)?;
        for _ in 0..TRIES {
            // Free now; somebody may take it before the server does. Then another one is tried.
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            if let Some(child) = spawn(port, &options, dir.path())? {
                return Ok(Self { child, port, options, dir });
            }
        }
        Err(silent(dir.path()))
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT/0`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Its unix socket.
    pub fn unix_path(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Freezes it (SIGSTOP): it takes requests in and answers none.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Thaws it (SIGCONT): what it took in is carried out now.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills it and starts it again on the same port, with nothing in it.
    ///
    /// # Panics
    /// When it does not start again.
    pub fn restart_empty(&mut self) {
        self.try_restart_empty().unwrap_or_else(|error| panic!("{error}"));
    }

    /// As [`RedisServer::restart_empty`], for whom it is no bug if the port was taken meanwhile.
    pub fn try_restart_empty(&mut self) -> Result<(), StartError> {
        self.kill();
        self.child =
            spawn(self.port, &self.options, self.dir.path())?.ok_or_else(|| silent(self.dir.path()))?;
        Ok(())
    }

    /// Carries out one command over a connection of its own, as `redis-cli` would, and answers the raw reply.
    ///
    /// # Panics
    /// When the server hangs up.
    pub fn command(&self, words: &[&str]) -> String {
        command(self.port, words).expect("the server answers")
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process number");
        kill_process(pid, signal).expect("our own child can be signalled");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port of 127.0.0.1 that nobody listens on at the moment.
///
/// # Panics
/// When there is none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

fn silent(dir: &Path) -> StartError {
    StartError::Silent { log: std::fs::read_to_string(dir.join("log")).unwrap_or_default() }
}

/// Is there such a program? It may be run through another one, which would not tell.
fn found(program: &OsStr) -> std::io::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named = Path::new(program).components().count() > 1;
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(program));
    let found = if named { Path::new(program).is_file() } else { places.any(|place| place.is_file()) };
    if found { Ok(()) } else { Err(ErrorKind::NotFound.into()) }
}

/// `None`: it ended at once, or never answered.
fn spawn(port: u16, options: &Options, dir: &Path) -> Result<Option<Child>, StartError> {
    let program = std::env::var_os(PROGRAM_VARIABLE).unwrap_or_else(|| "redis-server".into());
    let missing = |error| StartError::Missing { program: program.display().to_string(), error };
    found(&program).map_err(missing)?;
    let _ = std::fs::remove_file(dir.join("sock"));
    let mut words = options.through.iter().chain([&program]);
    let mut child = Command::new(words.next().expect("there is the program"))
        .args(words)
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
        .args(["--unixsocket", "sock", "--logfile", "log", "--daemonize", "no", "--databases", "16", "--dir"])
        .arg(dir)
        .args(&options.args)
        .envs(options.env.iter().map(|(key, value)| (key, value)))
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(missing)?;
    let deadline = Instant::now() + STARTS_WITHIN;
    while Instant::now() < deadline {
        // Asked through its own socket, which it makes once it has the port: on the port another server may answer
        // that was quicker to take it. Any answer will do: with a password it is NOAUTH.
        let socket = UnixStream::connect(dir.join("sock")).ok();
        if socket
            .and_then(|socket| answer(socket, &["PING"]))
            .is_some_and(|answer| answer.starts_with(['+', '-']) && !answer.contains("LOADING"))
        {
            return Ok(Some(child));
        }
        if !matches!(child.try_wait(), Ok(None)) {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    Ok(None)
}

fn command(port: u16, words: &[&str]) -> Option<String> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    answer(stream, words)
}

fn answer(mut stream: impl Read + Write, words: &[&str]) -> Option<String> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        let _ = write!(request, "${}\r\n{word}\r\n", word.len());
    }
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = vec![0; 64 * 1024];
    let read = loop {
        match stream.read(&mut answer) {
            // A read with a time limit is not resumed by itself when a child process ends (SIGCHLD).
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => break read.ok().filter(|read| *read > 0)?,
        }
    };
    answer.truncate(read);
    Some(String::from_utf8_lossy(&answer).into_owned())
}
