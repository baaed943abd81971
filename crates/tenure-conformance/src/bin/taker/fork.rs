//! The one place of the suite with unsafe code. After `fork` a copy of a process with several threads may only do
//! what a signal handler may; the taker runs on one thread, so its copy may go on as it is.
#![allow(unsafe_code)]

use std::time::Duration;

use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};
use tenure::{Client, Guard};
use tokio::runtime::{Builder, Runtime};

/// How long the parent's third lock lasts. Nobody renews it: longer than the case looks at it, and gone soon after.
const TTL: Duration = Duration::from_secs(6);

/// Takes the lock `whole` with a client and a runtime of its own. Then runs `work` in a copy of this process, which
/// drops all of that and ends, and waits for its end. In the parent the lock stays until the process ends.
pub(crate) fn in_a_copy(work: impl FnOnce()) {
    // One runtime cannot start inside another, so this takes a thread.
    let whole = std::thread::spawn(take_whole).join().expect("the third lock is free");
    let threads = std::fs::read_dir("/proc/self/task").expect("the kernel lists threads").count();
    assert_eq!(threads, 1, "only a process with one thread may be copied");
    // SAFETY: no other thread exists whose locks the copy could have inherited.
    match unsafe { fork() }.expect("there is room for another process") {
        ForkResult::Child => {
            work();
            let (guard, client, runtime) = whole;
            let inside = runtime.enter();
            drop(guard);
            drop(client);
            drop(inside);
            // Without waiting: this is a task of the other runtime. Every task of this one is dropped, nevertheless.
            runtime.shutdown_background();
            std::process::exit(0);
        }
        ForkResult::Parent { child } => {
            waitpid(child, None).expect("a child can be waited for");
            std::mem::forget(whole);
        }
    }
}

fn take_whole() -> (Guard, Client, Runtime) {
    let url = std::env::args().nth(1).expect("the taker was started with an address");
    let runtime = Builder::new_current_thread().enable_all().build().expect("there is room for a runtime");
    let (client, guard) = runtime.block_on(async {
        let client = Client::connect(&url).await.expect("the store answers");
        let guard = client.lock("whole").ttl(TTL).wait(Duration::ZERO).acquire().await.expect("it is free");
        (client, guard)
    });
    (guard, client, runtime)
}
