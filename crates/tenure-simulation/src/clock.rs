//! The time of one process: as fast as its quartz, and standing still while the process is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tenure_core::Moment;
use tokio::time::Instant;

/// Two clocks of one simulation differ by less than this in rate, as the lease rule allows.
pub(crate) const DRIFT_PER_MILLE_MAX: u64 = 9;

/// A timer of a stopped process fires so late after it goes on, at the worst: it trusts its timers for a second.
const LATE_MS: u64 = 1_100;

/// Wall clocks begin here, in milliseconds since 1970.
pub(crate) const WALL_MS: u64 = 1_800_000_000_000;

#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    base_ms: u64,
    per_mille: i64,
    /// How far its wall clock is behind.
    wall_behind_ms: u64,
    stopped_from: AtomicU64,
    stopped_until: AtomicU64,
    /// Nobody but the oracle looks just now: it sees through a stop.
    truth: Arc<AtomicBool>,
}

impl Clock {
    pub(crate) fn new(
        start: Instant,
        base_ms: u64,
        per_mille: i64,
        wall_behind_ms: u64,
        truth: Arc<AtomicBool>,
    ) -> Self {
        let (stopped_from, stopped_until) = Default::default();
        Self { start, base_ms, per_mille, wall_behind_ms, stopped_from, stopped_until, truth }
    }

    /// Milliseconds since the simulation began: the clock of the store.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// The process's clock of leases. A stopped process sees no time pass: whatever of it runs meanwhile counts as
    /// having run just before, and what it sends is kept back ([`Clock::goes_on`]).
    pub(crate) fn now(&self) -> Moment {
        let mut at = self.elapsed_ms();
        if at < self.stopped_until.load(Relaxed) && !self.truth.load(Relaxed) {
            at = self.stopped_from.load(Relaxed);
        }
        Moment(self.base_ms + at.saturating_add_signed(at.cast_signed() * self.per_mille / 1000))
    }

    pub(crate) fn unix_ms(&self) -> u64 {
        WALL_MS + self.elapsed_ms() - self.wall_behind_ms
    }

    pub(crate) fn stop(&self, ms: u64) {
        let now = self.elapsed_ms();
        if now >= self.stopped_until.load(Relaxed) {
            self.stopped_from.store(now, Relaxed);
            self.stopped_until.store(now + ms, Relaxed);
        }
    }

    /// For how long the process stays stopped.
    pub(crate) fn stopped_ms(&self) -> u64 {
        self.stopped_until.load(Relaxed).saturating_sub(self.elapsed_ms())
    }

    /// It is stopped, or has gone on so lately that its timers may be late.
    pub(crate) fn is_late(&self) -> bool {
        let until = self.stopped_until.load(Relaxed);
        until > 0 && self.elapsed_ms() < until + LATE_MS
    }

    /// Waits until the process is not stopped.
    pub(crate) async fn goes_on(&self) {
        while self.stopped_ms() > 0 {
            tokio::time::sleep(Duration::from_millis(self.stopped_ms())).await;
        }
    }
}
