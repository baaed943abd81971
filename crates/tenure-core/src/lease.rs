//! The lease rule: how long a caller may believe that it holds. One place, used everywhere.

use crate::ident::Moment;

/// Largest relative difference between the rates of two clocks, in parts per thousand. Quartz differs by 0.1,
/// a clock being slewed by 0.5; 1 % leaves a wide berth.
pub const RATE_ERROR_PER_MILLE: u64 = 10;

/// Taken off every lease for rounding to whole milliseconds on either side.
pub const ROUNDING_MS: u64 = 2;

/// Shortest lease: below it, the margins would eat it up.
pub const TTL_MS_MIN: u64 = 100;

/// Longest lease: a day. There is no endless one.
pub const TTL_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// How long a place in the queue outlives the ask that last refreshed it. Renewed every third of it.
pub const PLACE_MS: u64 = 30_000;

/// How late an ask may still be carried out by the store. A copy that was stuck somewhere for longer does nothing.
pub const ASK_WINDOW_MS: u64 = 5_000;

/// How long a caller reckons with an ask whose fate it does not know: [`ASK_WINDOW_MS`] by the store's clock, which an
/// engine knows from the last answer only, and a second for what the clocks have drifted apart since then.
pub const DOUBT_MS: u64 = ASK_WINDOW_MS + 1_000;

/// `D = t0 + ttl * (1 - rho) - delta`: the end of a lease of `ttl_ms` that was asked for at `sent`, read before the
/// first byte left. The store began to count later, so its key outlives this moment if rates differ by less than rho.
#[must_use]
pub const fn lease_end(sent: Moment, ttl_ms: u64) -> Moment {
    let drift_ms = ttl_ms.saturating_mul(RATE_ERROR_PER_MILLE).div_ceil(1000);
    sent.plus(ttl_ms.saturating_sub(drift_ms)).minus(ROUNDING_MS)
}

/// When a hold is over by itself that the store keeps for `keep_ms` and granted by `asked` at the latest: `keep_ms` on a
/// clock that is slower than the caller's by as much as [`lease_end`] allows, and a millisecond, because a hold stands in
/// its last one.
#[must_use]
pub const fn over_by(asked: Moment, keep_ms: u64) -> Moment {
    let drift_ms = keep_ms.saturating_mul(RATE_ERROR_PER_MILLE).div_ceil(1000);
    asked.plus(keep_ms + 1).plus(drift_ms).plus(ROUNDING_MS)
}

/// How long before a lease's end its holder stops: `clamp(ttl / 20, 20 ms, 1 s)`. `lost` is told then.
#[must_use]
pub const fn margin_ms(ttl_ms: u64) -> u64 {
    let twentieth = ttl_ms / 20;
    if twentieth < 20 {
        20
    } else if twentieth > 1000 {
        1000
    } else {
        twentieth
    }
}

/// The moment from which the caller must not act as holder any more: [`lease_end`] less [`margin_ms`].
#[must_use]
pub const fn valid_until(sent: Moment, ttl_ms: u64) -> Moment {
    lease_end(sent, ttl_ms).minus(margin_ms(ttl_ms))
}

/// What a store whose clock is not the caller's adds to a lease: `max(1 s, ttl / 10)`. A clean release frees at
/// once; a holder that died leaves the key for this much longer than its lease.
#[must_use]
pub const fn guard_ms(ttl_ms: u64) -> u64 {
    if ttl_ms / 10 > 1000 { ttl_ms / 10 } else { 1000 }
}

/// How long one request may take before its connection is given up: `clamp(ttl / 6, 50 ms, 2 s)`, so that a holder
/// has several tries between its first renewal at a third of the lease and its end.
#[must_use]
pub const fn call_limit_ms(ttl_ms: u64) -> u64 {
    let sixth = ttl_ms / 6;
    if sixth < 50 {
        50
    } else if sixth > 2000 {
        2000
    } else {
        sixth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_counted_from_the_send_and_less_the_drift() {
        assert_eq!(lease_end(Moment(1000), 30_000), Moment(1000 + 30_000 - 300 - 2));
        assert_eq!(valid_until(Moment(1000), 30_000), Moment(1000 + 30_000 - 300 - 2 - 1000));
        assert_eq!(valid_until(Moment(0), 100), Moment(100 - 1 - 2 - 20));
    }

    #[test]
    fn drift_is_rounded_up() {
        assert_eq!(lease_end(Moment(0), 101), Moment(101 - 2 - 2));
    }

    #[test]
    fn margins_and_guards_have_floors_and_ceilings() {
        assert_eq!((margin_ms(100), margin_ms(2000), margin_ms(600_000)), (20, 100, 1000));
        assert_eq!((guard_ms(100), guard_ms(30_000)), (1000, 3000));
    }
}
