use std::convert::Infallible;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use rustix::stdio::stderr;
use rustix::termios::tcgetwinsize;
use tenure::{Inspection, printable};

use crate::locks::Locks;
use crate::text::{Voice, held_by, say, until};

/// Waiting in silence is what people complain of; for a moment it is what they want.
const SILENT_FOR: Duration = Duration::from_secs(1);

/// How often the line is brought up to date. Looking costs the store more than waiting does.
const LOOKS_EVERY: Duration = Duration::from_secs(5);

/// Tells what is waited for: one line, which on a terminal stays up to date. Never ends; drop it when the wait is
/// over.
pub(crate) async fn tell(locks: &Locks, name: &str, voice: Voice) -> Infallible {
    let mut line = std::io::stderr().is_terminal().then_some(LiveLine { shown: false });
    let mut told = voice.quiet;
    let mut pause = SILENT_FOR;
    while !told {
        tokio::time::sleep(pause).await;
        pause = LOOKS_EVERY;
        // Not seen this time: the acquire itself tells if the store is out of reach.
        let Ok(lock) = locks.inspect(name).await else { continue };
        if let Some(line) = &mut line {
            line.show(&sentence(&lock));
        } else {
            say(&sentence(&lock));
            told = true;
        }
    }
    std::future::pending().await
}

fn sentence(lock: &Inspection) -> String {
    let us = lock.waiters.iter().find(|waiter| waiter.pid == Some(std::process::id()));
    let queue = match us {
        Some(us) => format!(" (place {} of {})", us.place, lock.waiting),
        None => String::new(),
    };
    let until = until(lock).map_or_else(String::new, |until| format!("; {until}"));
    format!("waiting for '{}'{queue}, {}{until}", printable(&lock.name), held_by(lock))
}

/// A line of the terminal that is written over and over. Wiped when dropped.
struct LiveLine {
    shown: bool,
}

impl LiveLine {
    fn show(&mut self, text: &str) {
        // A terminal that does not know its width says 0.
        let width =
            tcgetwinsize(stderr()).ok().map(|size| size.ws_col).filter(|&width| width > 0).unwrap_or(80);
        let cut: String = format!("tenure: {text}").chars().take(usize::from(width) - 1).collect();
        let _ = write!(std::io::stderr(), "\r\x1b[K{cut}");
        self.shown = true;
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
