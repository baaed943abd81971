use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Makes a file awaitable. `T` must be the sole owner of one descriptor for as long as it lives, as all of ours are.
#[expect(
    deprecated,
    reason = "its successor is unsafe to call, for the sake of types that change their descriptor"
)]
pub(crate) fn awaitable<T: AsRawFd>(file: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(file, Interest::READABLE)
}

/// Locks a file for us alone (flock). False: somebody else has locked it, perhaps just to see whether it is locked.
pub(crate) fn try_lock_alone(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Locks a file for us alone (flock). False: somebody else has locked it for longer than a look takes.
pub(crate) fn lock_alone(file: &File) -> bool {
    (0..5).any(|_| {
        let locked = try_lock_alone(file);
        if !locked {
            std::thread::sleep(Duration::from_millis(2));
        }
        locked
    })
}
