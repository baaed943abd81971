//! `tenure run`: a command under a lock.

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::Duration;

use nix::sys::signal::Signal;
use tenure::{AcquireError, span};
use tenure_engine::boottime;

use crate::around::Hold;
use crate::busy::{Policy, WhenBusy};
use crate::failure::Failure;
use crate::job::Surroundings;
use crate::locks::{Held, Locks, Spoken};
use crate::orders::{Limits, Orders, label};
use crate::queue::{Deferred, Queue, QueueError};
use crate::signals::Signals;
use crate::store::Store;
use crate::text::Voice;
use crate::{exit_codes, waiting};

/// How long a place in the queue may take to be given up when a signal ends the wait.
pub(crate) const LEAVING: Duration = Duration::from_millis(150);

/// What a deferred job keeps of the environment, unless --keep-env names more; and what begins with LC_.
const KEPT_VARIABLES: [&str; 8] = ["PATH", "HOME", "SHELL", "USER", "LOGNAME", "LANG", "TZ", "TENURE_DIR"];
const KEPT_PREFIX: &str = "LC_";

const SAID: &str = "What is said about it";

/// Run a command while holding a lock
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP, after_long_help = AFTER_LONG_HELP)]
pub(crate) struct Args {
    /// The lock
    name: String,
    #[command(flatten)]
    when_busy: WhenBusy,
    #[command(flatten)]
    limits: Limits,
    /// If the job around this one holds the lock, run the command under that hold: as a part of that job, with its
    /// fencing token and its limits. Otherwise without effect
    #[arg(long, help_heading = "Which lock", conflicts_with_all = ["protocol", "max_hold"])]
    reenter: bool,
    /// Don't show the command's arguments to others
    #[arg(long, help_heading = SAID)]
    no_cmdline: bool,
    /// Say nothing about busy, waited for and lost locks
    #[arg(short, long, help_heading = SAID)]
    quiet: bool,
    /// Say how long it waited, what it got, and when a renewal fails
    #[arg(short, long, help_heading = SAID)]
    verbose: bool,
    #[command(flatten)]
    spoken: Spoken,
    #[command(flatten)]
    store: Store,
    /// A command line for $SHELL, or /bin/sh, instead of a command
    #[arg(short, long, value_name = "LINE", help_heading = "What is run", conflicts_with = "words")]
    command: Option<String>,
    /// The command and its arguments
    #[arg(
        last = true,
        value_name = "COMMAND",
        help_heading = "What is run",
        required_unless_present = "command"
    )]
    words: Vec<OsString>,
}

const AFTER_HELP: &str = "\
Examples:
  tenure run mail:daily -- php artisan mail:daily   wait for the lock, then run
  tenure run -n -q backup -- ./backup               in cron: not at all while another one runs
  tenure run -w 5m deploy -c 'git pull && make'     give up after five minutes

Exit code: the command's; 128+N if it died of signal N; 75 not acquired; 79 lock lost, command stopped; 124 stopped
by --max-hold; 69 store out of reach; 64 usage; 126, 127 command cannot be run, not found. More: tenure run --help";

const AFTER_LONG_HELP: &str = "\
Examples:
  tenure run mail:daily -- php artisan mail:daily   wait for the lock, then run
  tenure run -n -q backup -- ./backup               in cron: not at all while another one runs
  tenure run -w 5m deploy -c 'git pull && make'     give up after five minutes
  tenure run --on-busy skip tidy -- ./tidy          nothing at all while another one runs
  tenure run --on-busy defer index -- ./index       now, or by `tenure work` when the lock is free
  tenure run --max-hold 1h report -- ./report       stop it after an hour

The command finds in its environment: TENURE_NAME, the lock; TENURE_FENCE, its fencing token, which grows with every
holder: have the resource refuse smaller ones than it has seen; TENURE_HOLDER, the public id of this hold, as `tenure
inspect` shows it. TENURE_URL is removed, because it may hold a password.

Signals: TERM, INT, HUP, QUIT, USR1, USR2, CONT and WINCH go to the whole process group of the command. While waiting,
TERM, INT, HUP and QUIT give up the place in the queue, and end with 128+N.

When the lock is lost, the command's process group gets TERM, and KILL after --kill-after: in time for it to be dead
before its lease ends, by the clock, whether the store answers or not. The exit code is 79. At --max-hold it is the
same with 124; on file: only while `tenure run` is not stopped itself. There it also ends what the command has left
behind, as far as that is in its process group; until then `tenure run` does not end.

What the command leaves behind in the background:
  file:     keeps the lock until it is gone, as with flock(1), also if `tenure run` itself is killed.
  redis://  is stopped (TERM, then KILL) before the lock is released. If `tenure run` is killed or stopped, a small
            process of its own kills the command in its place.
Not covered: processes that leave the command's process group (setsid, job control of an interactive shell), that run
as another user (sudo), or that the kernel cannot kill. On file: they keep the lock all the same, unless they close the
files that they inherit, as sudo does.

Inside the command, `tenure run` of the same lock ends at once with 64: it would wait for itself. With --reenter it
runs its command in its own place under the hold that is there: the outer `tenure run` watches over it, and the inner
--ttl and --kill-after have no effect. It is refused (64) to a process that the outer one could not stop: on redis://
one that has left the command's process group (setsid, timeout without --foreground, an interactive shell), on file:
one without the open file that keeps the lock. TENURE_HOLDERS alone, copied out of the job, enters nothing. In another
pid namespace (a container) the lock is busy.

--on-busy defer puts the command line into the queue of this account on this host, where `tenure work` finds it: with
its working directory, its mask of file modes (umask), the variables PATH, HOME, SHELL, USER, LOGNAME, LANG, LC_*, TZ,
TENURE_DIR and what --keep-env names, and nothing else. The queue is a directory beside the locks of file:, also if the
lock is on a server: a shared server is no way to run commands here.

--protocol takes the lock as programs without Tenure do, on the same Redis key: docs/compat.md says what each protocol
lacks. All of them: no fencing token (TENURE_FENCE is not set) and no queue (waiting is trying again and again). getset
and pid-lock: TENURE_HOLDER is not set either, and the command is stopped when --ttl is over.

Exit codes:
  the command's own; 128+N if it died of signal N
    0  also with --on-busy skip and defer, if the lock was taken
   64  usage, nothing was run
   69  the store is out of reach or refuses, nothing was run
   71  the operating system refused something
   75  the lock was not acquired (another one: -E); or the queue of deferred jobs is full
   79  the lock was lost and the command was stopped, or it ended but somebody else may have held the lock meanwhile
  124  the command held the lock for as long as --max-hold allows and was stopped, as with timeout(1)
  126  the command cannot be executed
  127  the command was not found";

pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    args.limits.check().map_err(Failure::usage)?;
    let policy = args.when_busy.policy().map_err(Failure::usage)?;
    args.spoken.check(policy).map_err(Failure::usage)?;
    let mut signals = Signals::take()?;
    let voice = Voice { quiet: args.quiet, verbose: args.verbose };
    let words = args.words();
    let label = label(&words, args.no_cmdline);
    let locks = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(exit_codes::of_signal(signal as i32)),
        locks = args.store.connect_to(args.spoken.protocol(), &label) => locks?,
    };
    if args.reenter || policy.minds_its_own_job() {
        match Hold::around_us(&locks, &args.name).await? {
            Some(hold) if args.reenter && hold.why_not_reentered().is_none() => {
                return Ok(hold.reenter(&words, &locks));
            }
            Some(hold) if policy.minds_its_own_job() => return Err(args.inside_itself(&hold)),
            _ => {}
        }
    }
    // Before the lock is asked for: what cannot be deferred is told at once, and not when it is busy one day.
    let deferral = match policy {
        Policy::Defer => Some((Queue::open()?, args.deferred(&words, &locks)?.draft()?)),
        _ => None,
    };
    let answer = match args.acquire(&locks, policy, &mut signals, &label, voice).await {
        Ok(answer) => answer,
        Err(failure) => {
            // Whatever was asked, or granted and refused by us, is taken back before this process ends.
            locks.close(LEAVING).await;
            return Err(failure);
        }
    };
    let hold = match answer {
        Answer::Granted(hold) => hold,
        Answer::Denied(_) if policy == Policy::Skip => return Ok(0),
        Answer::Denied(why) => {
            if let Some((queue, job)) = deferral {
                let id = queue.add(&job)?;
                voice.say(&format!("Deferred as job {id}. `tenure work` runs it; see: tenure jobs"));
                return Ok(0);
            }
            let code = args.when_busy.exit_code();
            voice.say(&format!("{why}. Not run (exit {code})"));
            return Ok(code);
        }
        Answer::Left(signal) => {
            locks.close(LEAVING).await;
            return Ok(exit_codes::of_signal(signal as i32));
        }
    };
    let orders = Orders { words: &words, limits: &args.limits, surroundings: None, voice };
    Ok(orders.carry_out(hold, &locks, &mut signals).await?.code)
}

/// What became of the wish for the lock.
enum Answer {
    Granted(Held),
    Denied(String),
    Left(Signal),
}

impl Args {
    fn words(&self) -> Vec<OsString> {
        match &self.command {
            Some(line) => {
                let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
                vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), line.into()]
            }
            None => self.words.clone(),
        }
    }

    fn inside_itself(&self, hold: &Hold) -> Failure {
        let next = match hold.why_not_reentered() {
            None => "Say --reenter to run the command under that hold, or name another lock".to_owned(),
            Some(why) if self.reenter => format!("--reenter is refused: {why}"),
            Some(_) => "Name another lock".to_owned(),
        };
        Failure::usage(format!(
            "'{}' is held by the very job that this runs in (holder {}): it would wait for itself. Nothing was run. {next}",
            self.name, hold.holder
        ))
    }

    async fn acquire(
        &self,
        locks: &Locks,
        policy: Policy,
        signals: &mut Signals,
        label: &str,
        voice: Voice,
    ) -> Result<Answer, Failure> {
        let begun = boottime();
        let lock = locks.lock(&self.name, self.limits.ttl, label);
        if let Some(how) = lock.waits_by().filter(|_| policy.waits()) {
            voice.detail(&how);
        }
        let teller = Voice { quiet: voice.quiet || !policy.waits(), ..voice };
        let hold = tokio::select! {
            biased;
            signal = signals.ending() => return Ok(Answer::Left(signal)),
            hold = lock.acquire(policy) => hold,
            never = waiting::tell(locks, &self.name, teller) => match never {},
        };
        match hold {
            Ok(hold) => {
                let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
                voice.detail(&format!(
                    "acquired '{}' after {} (fence {}, holder {})",
                    self.name,
                    span(boottime().since(begun)),
                    or_none(hold.fence().map(|fence| fence.to_string())),
                    or_none(hold.holder())
                ));
                Ok(Answer::Granted(hold))
            }
            Err(
                error @ (AcquireError::Busy(_)
                | AcquireError::WaitElapsed { .. }
                | AcquireError::GaveUp { .. }
                | AcquireError::Full),
            ) => Ok(Answer::Denied(error.to_string())),
            Err(error @ AcquireError::BadInput(_)) => Err(Failure::usage(error.to_string())),
            Err(error) => Err(Failure::backend(format!("{error}. Nothing was run"))),
        }
    }

    /// The command as a job for `tenure work`.
    fn deferred(&self, words: &[OsString], locks: &Locks) -> Result<Deferred, QueueError> {
        let text = |word: &OsStr| {
            let not_text = || QueueError::NotText(format!("{} is not UTF-8", word.display()));
            word.to_str().map(str::to_owned).ok_or_else(not_text)
        };
        let directory = std::env::current_dir().map_err(|error| QueueError::System {
            what: "find the working directory",
            path: ".".into(),
            error,
        })?;
        let is_kept = |name: &str| {
            let named =
                KEPT_VARIABLES.contains(&name) || self.when_busy.keep_env.iter().any(|kept| kept == name);
            named || name.starts_with(KEPT_PREFIX)
        };
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let variables = variables.filter(|(name, _)| is_kept(name));
        let variables = variables.map(|(name, value)| text(&value).map(|value| (name, value)));
        let unread = |error| QueueError::System { what: "read", path: "/proc/self/status".into(), error };
        let surroundings = Surroundings {
            directory,
            umask: umask().map_err(unread)?,
            variables: variables.collect::<Result<_, _>>()?,
        };
        let words = words.iter().map(|word| text(word)).collect::<Result<_, _>>()?;
        Ok(Deferred::new(
            &self.name,
            locks.scope(),
            self.spoken.protocol,
            words,
            surroundings,
            &self.limits,
            self.no_cmdline,
        ))
    }
}

/// The mask of file modes of this process. To be told by the system call it would have to be changed.
fn umask() -> io::Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .ok_or_else(|| io::Error::other("/proc/self/status has no Umask"))
}
