use tenure::{LeaseState, Lost, Moment};

use crate::supervise::Rules;

/// How long a job may go on when somebody else may hold already: enough for a handler of TERM to begin.
const SOON_MS: u64 = 500;

/// When the job has to be told to stop and when it has to be dead, as far as is known now. A renewal moves both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// TERM.
    pub(crate) terminate: Moment,
    /// KILL.
    pub(crate) kill: Moment,
}

impl Plan {
    pub(crate) fn of(lease: &LeaseState, rules: Rules, now: Moment) -> Self {
        Self::from_parts(lease.valid_until, lease.lost.as_ref(), rules, now)
    }

    fn from_parts(valid_until: Moment, lost: Option<&Lost>, rules: Rules, now: Moment) -> Self {
        let last_moment = if rules.kept { Moment::NEVER } else { valid_until };
        match lost {
            // Where the job itself keeps the lock, a lease may run out (a laptop slept, a job was stopped for a
            // while) and nobody else can hold for all that.
            None | Some(Lost::Expired) => {
                let terminate = match last_moment {
                    Moment::NEVER => Moment::NEVER,
                    last_moment => last_moment.minus(rules.kill_after_ms),
                };
                Self { terminate, kill: last_moment }
            }
            Some(Lost::Asked { .. }) => {
                Self { terminate: now, kill: now.plus(rules.kill_after_ms).min(last_moment) }
            }
            Some(Lost::Taken) => Self { terminate: now, kill: now.plus(rules.kill_after_ms.min(SOON_MS)) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(100_000);
    const END: Moment = Moment(120_000);

    fn plan(lost: Option<&Lost>, kept: bool) -> (u64, u64) {
        let Plan { terminate, kill } = Plan::from_parts(END, lost, Rules { kept, kill_after_ms: 5_000 }, NOW);
        (terminate.0, kill.0)
    }

    #[test]
    fn a_job_is_dead_before_its_lease_ends() {
        assert_eq!(plan(None, false), (115_000, 120_000));
        assert_eq!(plan(Some(&Lost::Expired), false), (115_000, 120_000));
    }

    #[test]
    fn a_lock_that_the_job_keeps_does_not_run_out() {
        assert_eq!(plan(None, true), (u64::MAX, u64::MAX));
        assert_eq!(plan(Some(&Lost::Expired), true), (u64::MAX, u64::MAX));
    }

    #[test]
    fn who_is_asked_to_stop_has_its_time_but_no_more_than_the_lease() {
        let asked = Lost::Asked { by: "root@web-1 (pid 7)".to_owned() };
        assert_eq!(plan(Some(&asked), false), (100_000, 105_000));
        assert_eq!(plan(Some(&asked), true), (100_000, 105_000));
        let late =
            Plan::from_parts(Moment(102_000), Some(&asked), Rules { kept: false, kill_after_ms: 5_000 }, NOW);
        assert_eq!(late.kill, Moment(102_000));
    }

    #[test]
    fn a_lock_that_somebody_else_may_hold_leaves_no_time() {
        assert_eq!(plan(Some(&Lost::Taken), false), (100_000, 100_500));
        assert_eq!(plan(Some(&Lost::Taken), true), (100_000, 100_500));
    }
}
