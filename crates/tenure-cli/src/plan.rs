use tenure::{LeaseState, Lost, Moment};

/// How long a job may go on when somebody else may hold already: enough for a handler of TERM to begin.
const SOON_MS: u64 = 500;

/// How the lease binds the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The lock lasts as long as the job: its lease has no end that matters.
    pub(crate) kept: bool,
    /// The time between TERM and KILL.
    pub(crate) kill_after_ms: u64,
    /// When the job has held the lock for as long as it may.
    pub(crate) limit: Moment,
    /// A signal that asks us to end ends the job as well: KILL follows it.
    pub(crate) ends_with_us: bool,
}

/// Why a job has to be stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// The lock was lost, or is about to be.
    Lost(Lost),
    /// It has held the lock for as long as it may.
    MaxHold,
}

/// When the job has to be told to stop and when it has to be dead, as far as is known now. A renewal moves both, but not
/// over the limit of the hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// TERM.
    pub(crate) terminate: Moment,
    /// KILL.
    pub(crate) kill: Moment,
    /// Why, once the moment of TERM has come.
    pub(crate) cause: Cause,
}

impl Plan {
    pub(crate) fn of(lease: &LeaseState, rules: Rules, now: Moment) -> Self {
        Self::from_parts(lease.valid_until, lease.lost.as_ref(), rules, now)
    }

    fn from_parts(valid_until: Moment, lost: Option<&Lost>, rules: Rules, now: Moment) -> Self {
        let last_moment = if rules.kept { Moment::NEVER } else { valid_until };
        let (terminate, kill) = match lost {
            // Where the job itself keeps the lock, a lease may run out (a laptop slept, a job was stopped for a
            // while) and nobody else can hold for all that.
            None | Some(Lost::Expired) => match last_moment {
                Moment::NEVER => (Moment::NEVER, Moment::NEVER),
                last_moment => (last_moment.minus(rules.kill_after_ms), last_moment),
            },
            Some(Lost::Asked { .. }) => (now, now.plus(rules.kill_after_ms).min(last_moment)),
            Some(Lost::Taken) => (now, now.plus(rules.kill_after_ms.min(SOON_MS))),
        };
        // Of a loss that the store has told, people have to know, however late it is.
        let told = matches!(lost, Some(Lost::Asked { .. } | Lost::Taken));
        let cause = if rules.limit < terminate && !told {
            Cause::MaxHold
        } else {
            Cause::Lost(lost.cloned().unwrap_or(Lost::Expired))
        };
        let killed_by = rules.limit.plus(rules.kill_after_ms);
        Self { terminate: terminate.min(rules.limit), kill: kill.min(killed_by), cause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(100_000);
    const END: Moment = Moment(120_000);

    fn rules(kept: bool, limit: Moment) -> Rules {
        Rules { kept, kill_after_ms: 5_000, limit, ends_with_us: false }
    }

    fn plan(lost: Option<&Lost>, kept: bool) -> (u64, u64) {
        let plan = Plan::from_parts(END, lost, rules(kept, Moment::NEVER), NOW);
        assert_eq!(plan.cause, Cause::Lost(lost.cloned().unwrap_or(Lost::Expired)));
        (plan.terminate.0, plan.kill.0)
    }

    fn limited(lost: Option<&Lost>, kept: bool, limit: u64) -> (u64, u64, Cause) {
        let plan = Plan::from_parts(END, lost, rules(kept, Moment(limit)), NOW);
        (plan.terminate.0, plan.kill.0, plan.cause)
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
        let late = Plan::from_parts(Moment(102_000), Some(&asked), rules(false, Moment::NEVER), NOW);
        assert_eq!(late.kill, Moment(102_000));
    }

    #[test]
    fn a_lock_that_somebody_else_may_hold_leaves_no_time() {
        assert_eq!(plan(Some(&Lost::Taken), false), (100_000, 100_500));
        assert_eq!(plan(Some(&Lost::Taken), true), (100_000, 100_500));
    }

    #[test]
    fn a_job_is_stopped_at_the_limit_of_its_hold() {
        assert_eq!(limited(None, true, 110_000), (110_000, 115_000, Cause::MaxHold));
        assert_eq!(limited(None, false, 103_000), (103_000, 108_000, Cause::MaxHold));
    }

    #[test]
    fn a_job_at_its_limit_is_still_dead_before_its_lease_ends() {
        assert_eq!(limited(None, false, 114_999), (114_999, 119_999, Cause::MaxHold));
        assert_eq!(limited(None, false, 117_000), (115_000, 120_000, Cause::Lost(Lost::Expired)));
    }

    #[test]
    fn a_lease_that_ran_out_after_the_limit_was_not_the_reason() {
        assert_eq!(limited(Some(&Lost::Expired), false, 90_000), (90_000, 95_000, Cause::MaxHold));
    }

    #[test]
    fn a_limit_hides_no_loss_that_the_store_has_told() {
        for lost in [Lost::Taken, Lost::Asked { by: "root@web-1 (pid 7)".to_owned() }] {
            let (terminate, kill, cause) = limited(Some(&lost), false, 90_000);
            assert_eq!((terminate, kill), (90_000, 95_000));
            assert_eq!(cause, Cause::Lost(lost));
        }
    }
}
