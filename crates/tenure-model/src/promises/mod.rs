//! What must never happen, one file each. A promise is judged after every step of a world, or (how it goes on when
//! the faults stop) in every state.

mod alarm_is_raised;
mod dead_waiters;
mod first_come;
mod hand_over_is_a_hold;
mod no_false_alarm;
mod no_resurrection;
mod nothing_left;
mod one_holder;
mod owner_only;
mod patience;
mod progress;
mod store_bounded;
mod tokens_rise;
mod told_by_deadline;
mod told_first;

use crate::recovery::Recovery;
use crate::world::{Action, Happened, World};

/// One step of a world.
pub struct Step<'a> {
    /// As it was.
    pub before: &'a World,
    /// What happened.
    pub action: &'a Action,
    /// As it is.
    pub after: &'a World,
    /// What followed.
    pub happened: &'a Happened,
}

/// How a promise is judged. The error says in words what went wrong.
enum Judge {
    /// After every step.
    Step(fn(&Step<'_>) -> Result<(), String>),
    /// In every state, by what becomes of it when the faults stop.
    Recovery(fn(&Recovery) -> Result<(), String>),
}

/// A promise in words, and its judge.
struct Article {
    name: &'static str,
    words: &'static str,
    judge: Judge,
}

/// One promise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[expect(missing_docs, reason = "the words are in the files")]
pub enum Promise {
    OneHolder,
    TokensRise,
    ToldFirst,
    ToldByDeadline,
    NoResurrection,
    OwnerOnly,
    NoFalseAlarm,
    AlarmIsRaised,
    FirstCome,
    HandOverIsAHold,
    Patience,
    NothingLeft,
    DeadWaiters,
    Progress,
    StoreBounded,
}

impl Promise {
    /// Every promise.
    pub const ALL: [Self; 15] = [
        Self::OneHolder,
        Self::TokensRise,
        Self::ToldFirst,
        Self::ToldByDeadline,
        Self::NoResurrection,
        Self::OwnerOnly,
        Self::NoFalseAlarm,
        Self::AlarmIsRaised,
        Self::FirstCome,
        Self::HandOverIsAHold,
        Self::Patience,
        Self::NothingLeft,
        Self::DeadWaiters,
        Self::Progress,
        Self::StoreBounded,
    ];

    fn article(self) -> &'static Article {
        match self {
            Self::OneHolder => &one_holder::ARTICLE,
            Self::TokensRise => &tokens_rise::ARTICLE,
            Self::ToldFirst => &told_first::ARTICLE,
            Self::ToldByDeadline => &told_by_deadline::ARTICLE,
            Self::NoResurrection => &no_resurrection::ARTICLE,
            Self::OwnerOnly => &owner_only::ARTICLE,
            Self::NoFalseAlarm => &no_false_alarm::ARTICLE,
            Self::AlarmIsRaised => &alarm_is_raised::ARTICLE,
            Self::Patience => &patience::ARTICLE,
            Self::FirstCome => &first_come::ARTICLE,
            Self::HandOverIsAHold => &hand_over_is_a_hold::ARTICLE,
            Self::NothingLeft => &nothing_left::ARTICLE,
            Self::DeadWaiters => &dead_waiters::ARTICLE,
            Self::Progress => &progress::ARTICLE,
            Self::StoreBounded => &store_bounded::ARTICLE,
        }
    }

    /// What the command calls it.
    pub fn name(self) -> &'static str {
        self.article().name
    }

    /// The promise.
    pub fn words(self) -> &'static str {
        self.article().words
    }

    /// As one bit of a set.
    pub fn bit(self) -> u64 {
        1 << self as u64
    }

    /// It is judged by how a world goes on when the faults stop.
    pub fn needs_recovery(self) -> bool {
        matches!(self.article().judge, Judge::Recovery(_))
    }

    /// Did this step keep it? Promises about recovery are kept by every step.
    pub fn judge_step(self, step: &Step<'_>) -> Result<(), String> {
        match self.article().judge {
            Judge::Step(judge) => judge(step),
            Judge::Recovery(_) => Ok(()),
        }
    }

    /// Does it go on as promised? Promises about steps are kept by every recovery.
    pub fn judge_recovery(self, recovery: &Recovery) -> Result<(), String> {
        match self.article().judge {
            Judge::Step(_) => Ok(()),
            Judge::Recovery(judge) => judge(recovery),
        }
    }
}

/// The caller who was granted the lock in this step, if somebody was.
fn granted(step: &Step<'_>) -> Option<usize> {
    let (before, after) = (&step.before.store.ledger, &step.after.store.ledger);
    let token = |ledger: &crate::protocol::Ledger<_>| match &ledger.occupant {
        Some(crate::protocol::Occupant::Ours(hold)) => Some((hold.owner, hold.token)),
        _ => None,
    };
    (token(after).is_some() && token(after) != token(before)).then(|| step.after.occupant())?
}

/// How callers are called.
pub(crate) fn called(caller: usize) -> char {
    char::from(b'a' + caller as u8)
}
