//! The one place of the suite with unsafe code. After `fork` a copy of a process with several threads may only do
//! what a signal handler may; the taker runs on one thread, so its copy may go on as it is.
#![allow(unsafe_code)]

use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

/// Runs `work` in a copy of this process, which ends with it, and waits for that.
pub(crate) fn in_a_copy(work: impl FnOnce()) {
    let threads = std::fs::read_dir("/proc/self/task").expect("the kernel lists threads").count();
    assert_eq!(threads, 1, "only a process with one thread may be copied");
    // SAFETY: no other thread exists whose locks the copy could have inherited.
    match unsafe { fork() }.expect("there is room for another process") {
        ForkResult::Child => {
            work();
            std::process::exit(0);
        }
        ForkResult::Parent { child } => {
            waitpid(child, None).expect("a child can be waited for");
        }
    }
}
