use std::io;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::kill_current_process_group;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};

use crate::files::awaitable;

/// What is read here. Everything else keeps its effect on us.
const READ: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
];

/// The signals that are sent to us, as a stream. They are blocked and read from a file: none interrupts anything,
/// none is lost before somebody looks, and the job, whose mask is emptied, finds every disposition as it was.
pub(crate) struct Signals {
    file: AsyncFd<SignalFd>,
    /// By a handler, not by the file: if our parent ignored SIGCHLD, the kernel would throw exit codes away.
    children: tokio::signal::unix::Signal,
}

/// Something was signalled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A child has changed its state.
    Child,
    /// Somebody sent us this.
    Sent(Signal),
}

impl Signals {
    /// From now on signals wait to be read. To be called before other threads start: they inherit what is blocked.
    pub(crate) fn take() -> io::Result<Self> {
        let ignored = ignored()?;
        let read: SigSet =
            READ.into_iter().filter(|&signal| ignored >> (signal as i32 - 1) & 1 == 0).collect();
        read.thread_block()?;
        let file = SignalFd::with_flags(&read, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { file: awaitable(file)?, children: signal(SignalKind::child())? })
    }

    /// The next one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Event {
        tokio::select! {
            Some(()) = self.children.recv() => Event::Child,
            signal = sent(&self.file) => Event::Sent(signal),
        }
    }

    /// The next one that ends what is going on. Stops us on Ctrl-Z meanwhile. Cancel safe.
    pub(crate) async fn ending(&mut self) -> Signal {
        loop {
            match self.next().await {
                Event::Sent(signal) if ends(signal) => return signal,
                Event::Sent(Signal::SIGTSTP) => stop_ourselves(),
                Event::Sent(_) | Event::Child => {}
            }
        }
    }
}

/// Is this one that asks us to end?
pub(crate) fn ends(signal: Signal) -> bool {
    matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT)
}

/// Stops our process group as Ctrl-Z does, and returns when it goes on. In a group that nobody could wake (no shell
/// above it) the kernel ignores SIGTSTP, and this returns at once.
pub(crate) fn stop_ourselves() {
    let mut tstp = SigSet::empty();
    tstp.add(Signal::SIGTSTP);
    // To the whole group: a shell that runs a script waits for all of it to stop.
    let _ = kill_current_process_group(rustix::process::Signal::TSTP);
    let _ = tstp.thread_unblock();
    let _ = tstp.thread_block();
}

async fn sent(file: &AsyncFd<SignalFd>) -> Signal {
    loop {
        let Ok(mut ready) = file.readable().await else { return std::future::pending().await };
        match file.get_ref().read_signal() {
            Ok(Some(info)) => {
                if let Ok(signal) = Signal::try_from(info.ssi_signo.cast_signed()) {
                    return signal;
                }
            }
            Ok(None) | Err(_) => ready.clear_ready(),
        }
    }
}

/// The signals that we were born to ignore, bit 0 being signal 1. They stay ignored, by us and by the job: `nohup`
/// and the background jobs of shells work by that.
fn ignored() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .ok_or_else(|| io::Error::other("/proc/self/status has no SigIgn"))
}
