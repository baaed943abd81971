use std::time::Duration;

use crate::error::BadInput;
use crate::lock::WAIT_MAX;

/// The pause without a setting of its own.
const PAUSE_DEFAULT: Duration = Duration::from_millis(200);

/// Shorter pauses flood the store, longer ones are no retrying.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How to try again while a lock is busy: how often, with which pauses, for how long.
///
/// Who retries has no place in the queue: anybody may come first. [`crate::Lock::acquire`] waits in line, and costs
/// less.
///
/// ```
/// use std::time::Duration;
/// use tenure::Retry;
///
/// let three_more = Retry::times(3).every(Duration::from_millis(200));
/// let growing = Retry::forever().backoff(Duration::from_millis(10), Duration::from_secs(2));
/// let patient = growing.within(Duration::from_secs(60));
/// # assert_ne!(three_more, patient);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "it says how to retry; `Lock::acquire_retrying` does it"]
pub struct Retry {
    /// After the first try. `None`: without limit.
    times: Option<u32>,
    pause: Pause,
    limit: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pause {
    Fixed(Duration),
    Backoff { first: Duration, max: Duration },
}

impl Retry {
    /// At most so many tries after the first one, every 200 ms unless said otherwise.
    pub fn times(times: u32) -> Self {
        Self { times: Some(times), pause: Pause::Fixed(PAUSE_DEFAULT), limit: None }
    }

    /// Any number of tries, every 200 ms unless said otherwise.
    pub fn forever() -> Self {
        Self { times: None, ..Self::times(0) }
    }

    /// The same pause before each retry, 1 ms to 24 h.
    pub fn every(mut self, pause: Duration) -> Self {
        self.pause = Pause::Fixed(pause);
        self
    }

    /// A pause of random length before each retry, so that many who retry spread out: at most `first` before the first
    /// one, then at most twice as long each time, at most `max` in the end. Both 1 ms to 24 h.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.pause = Pause::Backoff { first, max };
        self
    }

    /// No pause ends later than this after the beginning: the last try is made then. Up to 365 days.
    ///
    /// It is no limit on a try: the store answers each within milliseconds, or it is out of reach, and given up after
    /// three seconds. [`tokio::time::timeout`] around the whole is such a limit.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    pub(crate) fn check(self) -> Result<(), BadInput> {
        let (first, last) = match self.pause {
            Pause::Fixed(pause) => (pause, pause),
            Pause::Backoff { first, max } => (first, max),
        };
        for pause in [first, last] {
            if !(PAUSE_MIN..=PAUSE_MAX).contains(&pause) {
                return Err(BadInput::Pause(pause));
            }
        }
        if first > last {
            return Err(BadInput::Backoff { first, max: last });
        }
        match self.limit {
            Some(limit) if limit > WAIT_MAX => Err(BadInput::Wait(limit)),
            _ => Ok(()),
        }
    }

    /// The pause before the next try, or `None`: give up. `tries` were made so far, the last one `elapsed` after the
    /// beginning; `random` is any number.
    pub(crate) fn next(self, tries: u32, elapsed: Duration, random: u64) -> Option<Duration> {
        let retries = tries.saturating_sub(1);
        if self.times.is_some_and(|times| retries >= times) {
            return None;
        }
        let pause = match self.pause {
            Pause::Fixed(pause) => pause,
            Pause::Backoff { first, max } => {
                part(first.saturating_mul(1 << retries.min(31)).min(max), random).max(PAUSE_MIN)
            }
        };
        let left = self.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(elapsed));
        (!left.is_zero()).then(|| pause.min(left))
    }
}

/// As much of `most` as `random` is of `u64::MAX`.
fn part(most: Duration, random: u64) -> Duration {
    let nanos = most.as_nanos().saturating_mul(u128::from(random)) / u128::from(u64::MAX);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn so_many_retries_follow_the_first_try() {
        let retry = Retry::times(2).every(10 * MS);
        let pauses = [1, 2, 3, u32::MAX].map(|tries| retry.next(tries, Duration::MAX, 7));
        assert_eq!(pauses, [Some(10 * MS), Some(10 * MS), None, None]);
        assert_eq!(Retry::times(0).next(1, Duration::ZERO, 7), None);
        assert_eq!(Retry::forever().next(u32::MAX, Duration::MAX, 7), Some(200 * MS));
    }

    #[test]
    fn a_backoff_doubles_to_its_end_and_a_random_part_of_it_is_slept() {
        let retry = Retry::forever().backoff(10 * MS, 50 * MS);
        let at_most = [1, 2, 3, 4, u32::MAX].map(|tries| retry.next(tries, Duration::ZERO, u64::MAX));
        assert_eq!(at_most, [10, 20, 40, 50, 50].map(|ms| Some(ms * MS)));
        assert_eq!(retry.next(9, Duration::ZERO, 0), Some(PAUSE_MIN), "never none at all");
        let half = retry.next(9, Duration::ZERO, u64::MAX / 2).unwrap();
        assert!((24 * MS..=25 * MS).contains(&half), "{half:?}");
        // The longest that there is.
        let day = Retry::forever().backoff(PAUSE_MIN, PAUSE_MAX);
        assert_eq!(day.next(u32::MAX, Duration::ZERO, u64::MAX), Some(PAUSE_MAX));
    }

    #[test]
    fn no_pause_ends_after_the_limit_and_the_last_try_is_at_it() {
        for retry in [Retry::forever().every(40 * MS), Retry::forever().backoff(40 * MS, 40 * MS)] {
            let retry = retry.within(100 * MS);
            let pauses = [0, 40, 80, 99, 100, 101].map(|elapsed| retry.next(9, elapsed * MS, u64::MAX));
            assert_eq!(pauses, [Some(40 * MS), Some(40 * MS), Some(20 * MS), Some(MS), None, None]);
        }
        assert_eq!(Retry::forever().within(Duration::ZERO).next(1, Duration::ZERO, 0), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = [
            Retry::times(u32::MAX).every(PAUSE_MIN),
            Retry::forever().every(PAUSE_MAX).within(WAIT_MAX),
            Retry::times(0).backoff(MS, MS),
        ];
        for retry in good {
            retry.check().unwrap();
        }
        let bad = [
            Retry::times(1).every(Duration::ZERO),
            Retry::times(1).every(PAUSE_MAX + MS),
            Retry::times(1).backoff(Duration::ZERO, MS),
            Retry::times(1).backoff(MS, Duration::MAX),
            Retry::times(1).backoff(2 * MS, MS),
            Retry::times(1).within(Duration::MAX),
        ];
        let told: Vec<String> = bad.iter().map(|retry| retry.check().unwrap_err().to_string()).collect();
        assert_eq!(told[0], "a pause of 0ns between tries is outside 1 ms to 24 h");
        assert_eq!(told[4], "a pause can't grow from 2ms to 1ms; give the shorter one first");
    }
}
