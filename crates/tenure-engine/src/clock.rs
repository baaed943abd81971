use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tenure_core::Moment;

/// The clock of leases: `CLOCK_BOOTTIME`, which goes on while the machine is suspended. `std::time::Instant` stops
/// then, and a lease that ended during the sleep would look alive.
pub fn boottime() -> Moment {
    let now = clock_gettime(ClockId::Boottime);
    Moment(now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000)
}

/// Milliseconds since 1970, for people to read. Decides nothing.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
