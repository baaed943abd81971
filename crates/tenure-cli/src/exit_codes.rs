//! Every exit code of the command that is its own. Any other one is the job's, or 128 + N if the job, or the command
//! while it waited, died of signal N.

/// `release`: that holder does not hold the lock, so nobody was asked to stop.
pub(crate) const NOT_THE_HOLDER: u8 = 1;
/// `jobs`: there is no such job to be retried or removed, a worker is at it, or it makes no sense.
pub(crate) const NO_SUCH_JOB: u8 = 1;
/// `work --once` and `--drain`: a job failed.
pub(crate) const JOB_FAILED: u8 = 1;
/// Wrong usage; nothing was done. Also a `run` inside the job of the very lock that it wants (`EX_USAGE`).
pub(crate) const USAGE: u8 = 64;
/// The store is out of reach or refuses; nothing was run (`EX_UNAVAILABLE`).
pub(crate) const BACKEND: u8 = 69;
/// The operating system refused something that should work (`EX_OSERR`).
pub(crate) const SYSTEM: u8 = 71;
/// The lock was not acquired: busy, or the wait is over. Try later (`EX_TEMPFAIL`).
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// The job ran, the lock was lost and the job was stopped. The first number above those of `sysexits.h`, so that
/// it looks neither like success nor like the job.
pub(crate) const LOST: u8 = 79;
/// The job held the lock for as long as `--max-hold` allows and was stopped, as with timeout(1).
pub(crate) const MAX_HOLD: u8 = 124;
/// The command was found but cannot be executed, as in shells.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found, as in shells.
pub(crate) const NOT_FOUND: u8 = 127;

/// The code for a death of signal `signal`, as in shells.
pub(crate) fn of_signal(signal: i32) -> u8 {
    128_u8.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX))
}
