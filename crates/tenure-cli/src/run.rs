//! `tenure run`: a command under a lock.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::fs::{FlockOperation, flock};
use rustix::process::WaitStatus;
use tenure::{AcquireError, Client, Guard, Lost, Moment, ReleaseError, span};
use tenure_core::lease;
use tenure_engine::boottime;

use crate::failure::Failure;
use crate::job::{Job, Recipe};
use crate::signals::Signals;
use crate::store::{SCOPE_VARIABLE, Store, URL_VARIABLE};
use crate::supervise::{Loss, Rules, Verdict, supervise};
use crate::text::{Voice, alarming, command_line};
use crate::{duration, exit_codes, store, waiting};

/// Shortest lease of a job: below it, no time would be left for TERM before KILL.
const TTL_MIN: Duration = Duration::from_secs(2);

/// How long the release of a lock that was lost may take: its lease is as good as over anyway.
const LATE_RELEASE: Duration = Duration::from_secs(1);

/// How long a place in the queue may take to be given up when a signal ends the wait.
const LEAVING: Duration = Duration::from_millis(150);

/// In a job's environment: the public ids of all the locks around it, outermost first.
const HOLDERS_VARIABLE: &str = "TENURE_HOLDERS";

/// Run a command while holding a lock
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP, after_long_help = AFTER_LONG_HELP)]
pub(crate) struct Args {
    /// The lock
    name: String,
    /// Don't wait if the lock is taken
    #[arg(short, long = "no-wait", aliases = ["nonblock", "nb"], conflicts_with = "wait")]
    no_wait: bool,
    /// Wait this long; 0 is the same as -n. Without -n and -w: as long as it takes
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// The length of the lease, 2s to 24h. It is renewed while the command runs: it is how long others wait after
    /// this host died
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s")]
    ttl: Duration,
    /// The time between TERM and KILL when the lock is lost; a sixth of the ttl, a third at most
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    kill_after: Option<Duration>,
    /// The exit code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "N", default_value_t = exit_codes::NOT_ACQUIRED)]
    conflict_exit_code: u8,
    /// Don't show the command's arguments to others
    #[arg(long)]
    no_cmdline: bool,
    /// Say nothing about busy, waited for and lost locks
    #[arg(short, long)]
    quiet: bool,
    /// Say how long it waited, what it got, and when a renewal fails
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    store: Store,
    /// A command line for $SHELL, or /bin/sh, instead of a command
    #[arg(short, long, value_name = "LINE", conflicts_with = "words")]
    command: Option<String>,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "command")]
    words: Vec<OsString>,
}

const AFTER_HELP: &str = "\
Examples:
  tenure run mail:daily -- php artisan mail:daily   wait for the lock, then run
  tenure run -n -q backup -- ./backup               in cron: not at all while another one runs
  tenure run -w 5m deploy -c 'git pull && make'     give up after five minutes

Exit code: the command's; 128+N if it died of signal N; 75 not acquired; 79 lock lost, command stopped; 69 store out
of reach; 64 usage; 126, 127 command cannot be run, not found. More: tenure run --help";

const AFTER_LONG_HELP: &str = "\
Examples:
  tenure run mail:daily -- php artisan mail:daily   wait for the lock, then run
  tenure run -n -q backup -- ./backup               in cron: not at all while another one runs
  tenure run -w 5m deploy -c 'git pull && make'     give up after five minutes

The command finds in its environment: TENURE_NAME, the lock; TENURE_FENCE, its fencing token, which grows with every
holder: have the resource refuse smaller ones than it has seen; TENURE_HOLDER, the public id of this hold, as `tenure
inspect` shows it. TENURE_URL is removed, because it may hold a password.

Signals: TERM, INT, HUP, QUIT, USR1, USR2, CONT and WINCH go to the whole process group of the command. While waiting,
TERM, INT, HUP and QUIT give up the place in the queue, and end with 128+N.

When the lock is lost, the command's process group gets TERM, and KILL after --kill-after: in time for it to be dead
before its lease ends, by the clock, whether the store answers or not. The exit code is 79.

What the command leaves behind in the background:
  file:     keeps the lock until it is gone, as with flock(1), also if `tenure run` itself is killed.
  redis://  is stopped (TERM, then KILL) before the lock is released. If `tenure run` is killed or stopped, a small
            process of its own kills the command in its place.
Not covered: processes that leave the command's process group (setsid, job control of an interactive shell), that run
as another user (sudo), or that the kernel cannot kill. On file: they keep the lock all the same, unless they close the
files that they inherit, as sudo does.

Inside the command, `tenure run` of the same lock ends at once with 64: it would wait for itself.

Exit codes:
  the command's own; 128+N if it died of signal N
   64  usage, nothing was run
   69  the store is out of reach or refuses, nothing was run
   71  the operating system refused something
   75  the lock was not acquired (another one: -E)
   79  the lock was lost and the command was stopped, or it ended but somebody else may have held the lock meanwhile
  126  the command cannot be executed
  127  the command was not found";

pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    args.check()?;
    let mut signals = Signals::take()?;
    let voice = Voice { quiet: args.quiet, verbose: args.verbose };
    let words = args.words();
    let label = args.label(&words);
    let client = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(exit_codes::of_signal(signal as i32)),
        client = args.store.connect(Some(&label)) => client?,
    };
    let answer = match args.acquire(&client, &mut signals, &label, voice).await {
        Ok(answer) => answer,
        Err(failure) => {
            // Whatever was asked, or granted and refused by us, is taken back before this process ends.
            client.close(LEAVING).await;
            return Err(failure);
        }
    };
    let guard = match answer {
        Answer::Granted(guard) => guard,
        Answer::Denied(why) => {
            voice.say(&format!("{why}. Not run (exit {})", args.conflict_exit_code));
            return Ok(args.conflict_exit_code);
        }
        Answer::Left(signal) => {
            client.close(LEAVING).await;
            return Ok(exit_codes::of_signal(signal as i32));
        }
    };
    let file = match guard.job_file() {
        Ok(file) => file,
        Err(fault) => {
            drop(guard);
            client.close(LEAVING).await;
            return Err(Failure::backend(format!("{fault}. Nothing was run")));
        }
    };
    let recipe = Recipe {
        words: &words,
        set: environment(&guard, &client),
        unset: &[URL_VARIABLE],
        file: file.as_ref(),
        last_moment: if file.is_some() { Moment::NEVER } else { guard.deadline() },
    };
    let mut job = match Job::start(&recipe) {
        Ok(job) => job,
        Err(error) => {
            let _ = guard.release().await;
            let text = format!("the command could not be started: {error}. Nothing was run");
            return Err(Failure { code: exit_codes::SYSTEM, text });
        }
    };
    let rules = Rules { kept: file.is_some(), kill_after_ms: args.kill_after_ms() };
    let verdict = supervise(&mut job, &mut guard.watch(), &mut signals, rules, voice).await?;
    job.close(verdict.gone);
    Ok(args.conclude(guard, file, verdict, &mut signals, voice).await)
}

/// What became of the wish for the lock.
enum Answer {
    Granted(Guard),
    Denied(String),
    Left(Signal),
}

impl Args {
    fn check(&self) -> Result<(), Failure> {
        if self.ttl < TTL_MIN || self.ttl.as_millis() as u64 > lease::TTL_MS_MAX {
            return Err(Failure::usage(format!("--ttl {:?} is outside 2s to 24h", self.ttl)));
        }
        match self.kill_after {
            Some(kill_after) if kill_after > self.ttl / 3 => Err(Failure::usage(format!(
                "--kill-after {kill_after:?} is more than a third of --ttl {:?}: too little would be left for renewals",
                self.ttl
            ))),
            _ => Ok(()),
        }
    }

    fn kill_after_ms(&self) -> u64 {
        self.kill_after.unwrap_or(self.ttl / 6).as_millis() as u64
    }

    fn words(&self) -> Vec<OsString> {
        match &self.command {
            Some(line) => {
                let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
                vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), line.into()]
            }
            None => self.words.clone(),
        }
    }

    /// What others see of the command.
    fn label(&self, words: &[OsString]) -> String {
        let shown = if self.no_cmdline { 1 } else { words.len() };
        command_line(words.iter().take(shown).map(|word| word.to_string_lossy()))
    }

    async fn acquire(
        &self,
        client: &Client,
        signals: &mut Signals,
        label: &str,
        voice: Voice,
    ) -> Result<Answer, Failure> {
        self.not_inside_itself(client).await?;
        let begun = boottime();
        let lock = client.lock(&self.name).ttl(self.ttl).note(label);
        let at_once = self.no_wait || self.wait.is_some_and(|wait| wait.is_zero());
        let acquire = async {
            match self.wait {
                _ if at_once => lock.acquire_now().await,
                Some(wait) => lock.wait(wait).acquire().await,
                None => lock.wait_forever().acquire().await,
            }
        };
        let guard = tokio::select! {
            biased;
            signal = signals.ending() => return Ok(Answer::Left(signal)),
            guard = acquire => guard,
            never = waiting::tell(client, &self.name, voice) => match never {},
        };
        match guard {
            Ok(guard) => {
                voice.detail(&format!(
                    "acquired '{}' after {} (fence {}, holder {})",
                    self.name,
                    span(boottime().since(begun)),
                    guard.fence(),
                    guard.holder()
                ));
                Ok(Answer::Granted(guard))
            }
            Err(error @ (AcquireError::Busy(_) | AcquireError::WaitElapsed { .. } | AcquireError::Full)) => {
                Ok(Answer::Denied(error.to_string()))
            }
            Err(error @ AcquireError::BadInput(_)) => Err(Failure::usage(error.to_string())),
            Err(error) => Err(Failure::backend(format!("{error}. Nothing was run"))),
        }
    }

    /// A lock that one of the jobs around us holds would be waited for in vain: that job waits for us.
    async fn not_inside_itself(&self, client: &Client) -> Result<(), Failure> {
        let Ok(around) = std::env::var(HOLDERS_VARIABLE) else { return Ok(()) };
        let lock = client.inspect(&self.name).await.map_err(|error| store::not_seen(&error))?;
        match lock.holder {
            Some(holder) if around.split(' ').any(|id| id == holder.id) => Err(Failure::usage(format!(
                "'{}' is held by the very job that this runs in (holder {}): it would wait for itself. Nothing was \
                 run. Run the command without `tenure run`, or under another lock",
                self.name, holder.id
            ))),
            _ => Ok(()),
        }
    }

    /// Gives the lock back and says how it went.
    async fn conclude(
        &self,
        guard: Guard,
        file: Option<OwnedFd>,
        verdict: Verdict,
        signals: &mut Signals,
        voice: Voice,
    ) -> u8 {
        let code = verdict.ended.map_or(exit_codes::LOST, code_of);
        if let Some(loss) = verdict.lost {
            voice.say(&self.loss(&loss, guard.deadline(), verdict.gone));
            if verdict.gone {
                // Whether it arrives or not: the lease is over, or as good as over.
                let _ = tokio::time::timeout(LATE_RELEASE, guard.release()).await;
            }
            return exit_codes::LOST;
        }
        if file.is_none() && !verdict.gone {
            voice.say(&format!(
                "'{}': the command ended, but processes that it started could not be killed. The lock is not \
                 released, and ends with its lease",
                self.name
            ));
            guard.leave();
            return code;
        }
        // Kept until the lock is released: without it, a lease that ran out meanwhile would count.
        let _file = match file.map(for_us_alone) {
            Some(None) => {
                voice.detail("the command ended, but processes that it started still run and keep the lock");
                // Not released, not even by its drop: the lock is theirs now.
                guard.leave();
                return code;
            }
            file => file,
        };
        let released = tokio::select! {
            biased;
            released = guard.release() => released,
            // Somebody is in a hurry: what is not released now ends with its lease.
            _ = signals.ending() => return code,
        };
        match released {
            Ok(_) => code,
            Err(ReleaseError::NotHeld) => {
                voice.say(&format!(
                    "{} '{}': the command ended (exit {code}), but the lock was not held any more by then. Somebody \
                     else may have worked at the same time. Exit {}",
                    alarming("LOST"),
                    self.name,
                    exit_codes::LOST
                ));
                exit_codes::LOST
            }
            Err(error) => {
                voice.say(&format!("'{}': {error}", self.name));
                code
            }
        }
    }

    fn loss(&self, loss: &Loss, valid_until: Moment, gone: bool) -> String {
        let ttl_ms = self.ttl.as_millis() as u64;
        let why = match &loss.why {
            Lost::Expired => {
                let renewed = valid_until.minus(lease::valid_until(Moment(0), ttl_ms).0);
                format!("no renewal was answered for {}", span(loss.at.since(renewed)))
            }
            Lost::Taken => "the store says that it is held by somebody else or nobody".to_owned(),
            Lost::Asked { by } => format!("asked to stop by {}", tenure::printable(by)),
        };
        let how = if loss.killed {
            format!("TERM, {}, KILL", span(self.kill_after_ms()))
        } else {
            "TERM".to_owned()
        };
        let end = valid_until.plus(lease::margin_ms(ttl_ms));
        let when = match (&loss.why, gone) {
            (_, false) => ", but some of it could not be killed".to_owned(),
            (Lost::Expired, true) if loss.dead_at <= end => {
                format!(" {} before its lease ended", span(end.since(loss.dead_at)))
            }
            (Lost::Expired, true) => format!(" {} after its lease ended", span(loss.dead_at.since(end))),
            _ => String::new(),
        };
        format!(
            "{} '{}': {why}. Stopped the job ({how}){when}. Exit {}",
            alarming("LOST"),
            self.name,
            exit_codes::LOST
        )
    }
}

/// What the job finds in its environment.
fn environment(guard: &Guard, client: &Client) -> Vec<(&'static str, String)> {
    let holder = guard.holder().to_string();
    let around = std::env::var(HOLDERS_VARIABLE).map(|around| format!("{around} {holder}"));
    vec![
        ("TENURE_NAME", guard.name().to_owned()),
        ("TENURE_FENCE", guard.fence().to_string()),
        (HOLDERS_VARIABLE, around.unwrap_or_else(|_| holder.clone())),
        ("TENURE_HOLDER", holder),
        (SCOPE_VARIABLE, client.scope()),
    ]
}

fn code_of(ended: WaitStatus) -> u8 {
    match (ended.exit_status(), ended.terminating_signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => exit_codes::of_signal(signal),
        (None, None) => exit_codes::SYSTEM,
    }
}

/// The job's file, locked by us alone; `None`: others have it open.
fn for_us_alone(file: OwnedFd) -> Option<File> {
    // The lock on it belongs to what all of the job inherited. One that is opened anew can be locked when the last of
    // them is gone; we go first.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = File::options().read(true).write(true).open(path);
    drop(file);
    // Whoever just looks whether the job runs holds it for a moment.
    let alone = |again: &File| {
        (0..5).any(|_| {
            let locked = flock(again, FlockOperation::NonBlockingLockExclusive).is_ok();
            if !locked {
                std::thread::sleep(Duration::from_millis(2));
            }
            locked
        })
    };
    again.ok().filter(alone)
}
