//! What to do when a lock is busy.

use std::time::Duration;

use tenure::Retry;

use crate::store::URL_VARIABLE;
use crate::{duration, exit_codes};

/// How often a busy lock is tried again where neither --retry-times nor --wait says when to give up.
const RETRY_TIMES: u32 = 3;

const RETRY_SLEEP: Duration = Duration::from_millis(200);

/// The options about it.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "If the lock is taken")]
pub(crate) struct WhenBusy {
    /// Don't wait if the lock is taken; the same as --on-busy fail
    #[arg(short, long = "no-wait", aliases = ["nonblock", "nb"], conflicts_with_all = ["wait", "on_busy"])]
    no_wait: bool,
    /// Wait this long; 0 is the same as -n. Without -n and -w: as long as it takes
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// What to do if the lock is taken
    #[arg(long, value_name = "WHAT", value_enum)]
    on_busy: Option<OnBusy>,
    /// With --on-busy retry: tries after the first one. Otherwise 3, or without limit if -w is given
    #[arg(long, value_name = "N")]
    retry_times: Option<u32>,
    /// With --on-busy retry: the pause before each of them. Otherwise 200ms
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    retry_sleep: Option<Duration>,
    /// With --on-busy retry: exponential backoff with jitter: pauses of random length, which may be twice as long each
    /// time, up to this
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    retry_max_sleep: Option<Duration>,
    /// With --on-busy defer: a variable that the job keeps, if it is set. May be repeated; everybody who can read the
    /// files of this account can read it
    #[arg(long, value_name = "NAME", value_parser = variable)]
    pub(crate) keep_env: Vec<String>,
    /// The exit code if the lock was not acquired. Otherwise 75
    #[arg(short = 'E', long, value_name = "N")]
    conflict_exit_code: Option<u8>,
}

/// What can be the name of a variable.
fn variable(name: &str) -> Result<String, String> {
    match name {
        "" => Err("a variable has a name".to_owned()),
        URL_VARIABLE => {
            Err("it may hold a password, and no job keeps it; set it for `tenure work`".to_owned())
        }
        name if name.contains('=') => Err("the name alone; its value is that of now".to_owned()),
        name => Ok(name.to_owned()),
    }
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum OnBusy {
    /// Wait in line, first come first served; -w sets a limit
    Wait,
    /// Try again now and then, without a place in the line: see --retry-times, --retry-sleep, -w
    Retry,
    /// Don't wait: say who holds it, and exit 75
    Fail,
    /// Don't wait: say nothing, and exit 0
    Skip,
    /// Don't wait: have `tenure work` run it on this host when the lock is free, and exit 0
    Defer,
}

/// What was decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    /// Wait in line, for this long at most.
    Wait(Option<Duration>),
    /// Try again now and then.
    Retry(Retry),
    /// Don't wait, and say so.
    Fail,
    /// Don't wait: that somebody else is at it is as good as doing it.
    Skip,
    /// Don't wait: a worker does it later.
    Defer,
}

impl Policy {
    /// Does it take time?
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::Wait(_) | Self::Retry(_))
    }

    /// Is it a mistake if the lock is held by the job around? Elsewhere that is a busy lock like any other.
    pub(crate) fn minds_its_own_job(self) -> bool {
        !matches!(self, Self::Skip | Self::Defer)
    }
}

impl WhenBusy {
    /// Reads the options, or says which of them don't go together.
    pub(crate) fn policy(&self) -> Result<Policy, String> {
        let on_busy = self.on_busy.unwrap_or(if self.no_wait { OnBusy::Fail } else { OnBusy::Wait });
        let waits = matches!(on_busy, OnBusy::Wait | OnBusy::Retry);
        if self.wait.is_some() && !waits {
            return Err("--wait goes with --on-busy wait or retry; the others don't wait".to_owned());
        }
        let retry_options = [
            ("--retry-times", self.retry_times.is_some()),
            ("--retry-sleep", self.retry_sleep.is_some()),
            ("--retry-max-sleep", self.retry_max_sleep.is_some()),
        ];
        if let Some((option, _)) = retry_options.iter().find(|(_, given)| *given && on_busy != OnBusy::Retry)
        {
            return Err(format!("{option} goes with --on-busy retry"));
        }
        if !self.keep_env.is_empty() && on_busy != OnBusy::Defer {
            return Err("--keep-env goes with --on-busy defer".to_owned());
        }
        if self.conflict_exit_code.is_some() && matches!(on_busy, OnBusy::Skip | OnBusy::Defer) {
            return Err(
                "--conflict-exit-code does not go with --on-busy skip or defer, which exit 0".to_owned()
            );
        }
        Ok(match on_busy {
            OnBusy::Wait if self.wait.is_some_and(|wait| wait.is_zero()) => Policy::Fail,
            OnBusy::Wait => Policy::Wait(self.wait),
            OnBusy::Retry => Policy::Retry(self.retry()),
            OnBusy::Fail => Policy::Fail,
            OnBusy::Skip => Policy::Skip,
            OnBusy::Defer => Policy::Defer,
        })
    }

    /// If the lock was not acquired.
    pub(crate) fn exit_code(&self) -> u8 {
        self.conflict_exit_code.unwrap_or(exit_codes::NOT_ACQUIRED)
    }

    fn retry(&self) -> Retry {
        let retry = match (self.retry_times, self.wait) {
            (Some(times), _) => Retry::times(times),
            (None, Some(_)) => Retry::forever(),
            (None, None) => Retry::times(RETRY_TIMES),
        };
        let sleep = self.retry_sleep.unwrap_or(RETRY_SLEEP);
        let retry = match self.retry_max_sleep {
            // A first pause that nobody asked for does not stand in the way of a short one.
            Some(max) if self.retry_sleep.is_none() => retry.backoff(sleep.min(max), max),
            Some(max) => retry.backoff(sleep, max),
            None => retry.every(sleep),
        };
        match self.wait {
            Some(wait) => retry.within(wait),
            None => retry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        when_busy: WhenBusy,
    }

    fn policy(line: &str) -> Result<Policy, String> {
        let words = ["tenure"].into_iter().chain(line.split_whitespace());
        let line: Line = clap::Parser::try_parse_from(words).map_err(|error| error.to_string())?;
        line.when_busy.policy()
    }

    #[test]
    fn options_become_a_policy() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        for (line, expected) in [
            ("", Policy::Wait(None)),
            ("--on-busy wait -w 60", Policy::Wait(Some(minute))),
            ("-w 0", Policy::Fail),
            ("-n", Policy::Fail),
            ("--on-busy fail", Policy::Fail),
            ("--on-busy skip", Policy::Skip),
            ("--on-busy defer --keep-env A --keep-env B", Policy::Defer),
            ("--on-busy retry", Policy::Retry(Retry::times(3).every(RETRY_SLEEP))),
            ("--on-busy retry -w 1m", Policy::Retry(Retry::forever().every(RETRY_SLEEP).within(minute))),
            (
                "--on-busy retry -w 1m --retry-times 7 --retry-sleep 1s",
                Policy::Retry(Retry::times(7).every(second).within(minute)),
            ),
            (
                "--on-busy retry --retry-max-sleep 60",
                Policy::Retry(Retry::times(3).backoff(RETRY_SLEEP, minute)),
            ),
            (
                "--on-busy retry --retry-max-sleep .1",
                Policy::Retry(Retry::times(3).backoff(RETRY_SLEEP / 2, RETRY_SLEEP / 2)),
            ),
        ] {
            assert_eq!(policy(line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn options_that_would_do_nothing_are_refused() {
        for (line, why) in [
            ("-n --on-busy skip", "cannot be used with"),
            ("--on-busy skip -w 5", "--wait goes with --on-busy wait or retry"),
            ("--retry-times 3", "--retry-times goes with --on-busy retry"),
            ("--on-busy wait --retry-sleep 3", "--retry-sleep goes with"),
            ("--on-busy skip --keep-env A", "--keep-env goes with --on-busy defer"),
            ("--on-busy defer --keep-env TENURE_URL", "no job keeps it"),
            ("--on-busy defer --keep-env A=b", "the name alone"),
            ("--on-busy defer --keep-env=", "has a name"),
            ("--on-busy defer -E 3", "which exit 0"),
            ("--on-busy skip -E 3", "which exit 0"),
            ("-n --retry-max-sleep 3", "--retry-max-sleep goes with"),
            ("--on-busy perhaps", "[possible values: wait, retry, fail, skip, defer]"),
        ] {
            let error = policy(line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
