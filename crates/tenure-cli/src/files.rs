use std::io;
use std::os::fd::AsRawFd;

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
