use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tenure::Moment;

/// A timer on the clock of leases. The usual timers (poll, tokio) stand still while the machine is suspended: they
/// would let a job work on after the resume for as long as the lease still had to run before it.
pub(crate) struct Alarm(OwnedFd);

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK).map(Self)
    }

    /// Readable from `at` on, at once if that is past. Replaces what was set before.
    pub(crate) fn set(&self, at: Moment) -> io::Result<()> {
        let at = match at {
            Moment::NEVER => Timespec { tv_sec: 0, tv_nsec: 0 },
            // Zero would mean never.
            Moment(ms) => Timespec {
                tv_sec: (ms.max(1) / 1000).try_into().unwrap_or(i64::MAX),
                tv_nsec: (ms.max(1) % 1000 * 1_000_000).cast_signed(),
            },
        };
        let never_again = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: never_again, it_value: at };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec).map(drop)
    }

    /// Makes it unreadable until it rings again.
    pub(crate) fn silence(&self) {
        let _ = io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
