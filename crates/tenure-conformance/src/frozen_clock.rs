//! A wall clock that a test sets, for a server of its own.
//!
//! A small C library, compiled with `cc` when it is needed and loaded into the server by `LD_PRELOAD`, answers
//! `gettimeofday`, `time` and `clock_gettime(CLOCK_REALTIME)` with what the test has written into a mapped file.
//! The monotonic clock goes on: the server's own timers run as ever. So a lease ends exactly when the test says,
//! and a test of a day takes a millisecond.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::server::Options;

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Microseconds since 1970, set by the test. */
static volatile int64_t *now_us;

static int64_t now(void) {
    if (!now_us) {
        int fd = open(getenv("TENURE_FROZEN_CLOCK"), O_RDONLY);
        if (fd < 0) _exit(97);
        void *map = mmap(0, sizeof *now_us, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) _exit(98);
        close(fd);
        now_us = map;
    }
    return *now_us;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
    (void)tz;
    int64_t us = now();
    tv->tv_sec = us / 1000000;
    tv->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *out) {
    time_t seconds = now() / 1000000;
    if (out) *out = seconds;
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *ts) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return syscall(SYS_clock_gettime, clock, ts);
    int64_t us = now();
    ts->tv_sec = us / 1000000;
    ts->tv_nsec = us % 1000000 * 1000;
    return 0;
}
"#;

/// A wall clock that stands still until it is set.
#[derive(Debug)]
pub struct FrozenClock {
    file: File,
    dir: TempDir,
}

impl FrozenClock {
    /// A clock that shows `now_us`, in microseconds since 1970.
    ///
    /// # Panics
    /// When there is no C compiler.
    pub fn new(now_us: u64) -> Self {
        let dir = tempfile::Builder::new().prefix("tenure-clock-").tempdir().expect("a temporary directory");
        let source = dir.path().join("clock.c");
        std::fs::write(&source, SOURCE).expect("the source can be written");
        let compiled = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .arg(dir.path().join("clock.so"))
            .arg(&source)
            .output()
            .unwrap_or_else(|error| {
                panic!(
                    "cannot run cc ({error}). This test needs a C compiler: install one (`apt-get install gcc`)."
                )
            });
        assert!(compiled.status.success(), "cc fails:\n{}", String::from_utf8_lossy(&compiled.stderr));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(dir.path().join("now"))
            .expect("the clock's file can be made");
        let clock = Self { file, dir };
        clock.set(now_us);
        clock
    }

    /// Sets the clock, forwards or backwards, to microseconds since 1970. Whatever the server does after this call
    /// sees it.
    ///
    /// # Panics
    /// When the file can't be written.
    pub fn set(&self, now_us: u64) {
        // Eight bytes within one page, written at once: a reader sees the old or the new moment.
        self.file.write_all_at(&now_us.to_ne_bytes(), 0).expect("the clock can be set");
    }

    /// Puts a server under this clock.
    #[must_use]
    pub fn over(&self, mut options: Options) -> Options {
        let path = |name: &str| -> String {
            let path: PathBuf = self.dir.path().join(name);
            path.to_str().expect("a temporary path is text").to_owned()
        };
        options.env.push(("LD_PRELOAD".to_owned(), path("clock.so")));
        options.env.push(("TENURE_FROZEN_CLOCK".to_owned(), path("now")));
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::RedisServer;

    #[test]
    fn the_server_sees_the_time_that_was_set() {
        let clock = FrozenClock::new(1_700_000_000_123_456);
        let server = RedisServer::with(clock.over(Options::default()));
        assert_eq!(server.command(&["TIME"]), "*2\r\n$10\r\n1700000000\r\n$6\r\n123456\r\n");
        assert_eq!(server.command(&["SET", "k", "v", "PX", "1000"]), "+OK\r\n");
        clock.set(1_700_000_001_123_999);
        assert_eq!(server.command(&["PTTL", "k"]), ":0\r\n", "the last millisecond of the lease");
        clock.set(1_700_000_001_124_000);
        assert_eq!(server.command(&["PTTL", "k"]), ":-2\r\n");
    }
}
