//! What has to come of each check. A change of a form or of the world shows here first.

use super::Promise::{
    self, CrashFrees, Exclusion, KeyEnds, LivingStays, LossSurvived, OwnIdentity, OwnerOnly, StampStays,
    TokensRise, Told,
};
use super::check::Verdict;
use crate::promises::Promise as Kept;

/// The scopes in which Tenure's own protocol meets what the forms meet here (time that passes wherever it likes, a death,
/// clocks that differ) and lost answers besides.
pub const TENURE_SCOPES: [&str; 4] = ["timers", "crash", "lost-answers", "drift"];

/// The scope in which its store forgets.
pub const FORGETFUL_SCOPE: &str = "forget";

/// What they promise that the forms are judged by.
pub const TENURE_PROMISES: [Kept; 7] = [
    Kept::OneHolder,
    Kept::ToldFirst,
    Kept::DeadWaiters,
    Kept::StoreBounded,
    Kept::Progress,
    Kept::OwnerOnly,
    Kept::TokensRise,
];

/// A verdict, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pin {
    /// Kept, in so many states.
    Kept(usize),
    /// Broken, in so many steps.
    Broken(usize),
    /// There are no tokens.
    None,
}

impl Pin {
    /// What a verdict comes down to.
    pub fn of(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Kept { states } => Self::Kept(*states),
            Verdict::Broken(broken) => Self::Broken(broken.actions.len()),
            Verdict::InScope(_, counterexample) => Self::Broken(counterexample.actions.len()),
            Verdict::NoTokens => Self::None,
        }
    }
}

/// What is expected of a form.
pub struct Expected {
    /// Which.
    pub form: &'static str,
    /// Which of its broken promises it is known for.
    pub headline: Promise,
    /// Of each promise that concerns it: what becomes of it, and if it is broken, when.
    pub promises: &'static [(Promise, Pin, &'static str)],
}

/// What is expected of the form of this name.
///
/// # Panics
/// When there is no such form.
pub fn of(form: &str) -> &'static Expected {
    EXPECTED.iter().find(|expected| expected.form == form).expect("each form has a row")
}

impl Expected {
    /// What becomes of a promise, if it concerns this form.
    pub fn pin(&self, promise: Promise) -> Option<Pin> {
        self.promises.iter().find(|(one, ..)| *one == promise).map(|(_, pin, _)| *pin)
    }

    /// The promises that are broken.
    pub fn broken(&self) -> impl Iterator<Item = Promise> {
        self.promises.iter().filter(|(_, pin, _)| matches!(pin, Pin::Broken(_))).map(|(promise, ..)| *promise)
    }
}

/// The states of [`TENURE_SCOPES`].
const TENURE: Pin = Pin::Kept(4_838_576);

/// Everything that is expected, in the order of history.
pub static EXPECTED: [Expected; 9] = [
    Expected {
        form: "setnx-del",
        headline: CrashFrees,
        promises: &[
            (Exclusion, Pin::Kept(33), ""),
            (Told, Pin::Kept(33), ""),
            (CrashFrees, Pin::Broken(2), "its holder dies"),
            (OwnerOnly, Pin::Kept(33), ""),
            (TokensRise, Pin::None, ""),
            (LossSurvived, Pin::Broken(3), "the key is gone, and the next one takes it"),
            (OwnIdentity, Pin::Kept(33), ""),
            (KeyEnds, Pin::Broken(2), "its holder dies"),
        ],
    },
    Expected {
        form: "setnx-expire",
        headline: CrashFrees,
        promises: &[
            (Exclusion, Pin::Broken(8), "a late release deletes the next one's lock, and a third one enters"),
            (Told, Pin::Broken(5), "the work takes longer than the lock lasts"),
            (CrashFrees, Pin::Broken(2), "its holder dies between SETNX and EXPIRE"),
            (
                OwnerOnly,
                Pin::Broken(5),
                "the work takes longer than the lock lasts: DEL deletes the next one's",
            ),
            (TokensRise, Pin::None, ""),
            (LossSurvived, Pin::Broken(5), "the key is gone, and the next one takes it"),
            (OwnIdentity, Pin::Kept(575), ""),
            (KeyEnds, Pin::Broken(2), "its holder dies between SETNX and EXPIRE"),
        ],
    },
    Expected {
        form: "set-nx-ex",
        headline: OwnerOnly,
        promises: &[
            (Exclusion, Pin::Broken(5), "a late release deletes the next one's lock, and a third one enters"),
            (Told, Pin::Broken(3), "the work takes longer than the lock lasts"),
            (CrashFrees, Pin::Kept(321), ""),
            (
                OwnerOnly,
                Pin::Broken(4),
                "the work takes longer than the lock lasts: DEL deletes the next one's",
            ),
            (TokensRise, Pin::None, ""),
            (LossSurvived, Pin::Broken(3), "the key is gone, and the next one takes it"),
            (OwnIdentity, Pin::Broken(3), "all write 1"),
            (KeyEnds, Pin::Kept(321), ""),
        ],
    },
    Expected {
        form: "get-del",
        headline: OwnerOnly,
        promises: &[
            (Exclusion, Pin::Broken(6), "a release that deleted the next one's lock let a third one in"),
            (Told, Pin::Broken(3), "the work takes longer than the lock lasts"),
            (CrashFrees, Pin::Kept(535), ""),
            (OwnerOnly, Pin::Broken(5), "the key ends and is taken between GET and DEL"),
            (TokensRise, Pin::None, ""),
            (LossSurvived, Pin::Broken(3), "the key is gone, and the next one takes it"),
            (OwnIdentity, Pin::Kept(535), ""),
            (KeyEnds, Pin::Kept(535), ""),
        ],
    },
    Expected {
        form: "cad",
        headline: Told,
        promises: &[
            (Exclusion, Pin::Kept(289), ""),
            (Told, Pin::Broken(3), "the work takes longer than the lock lasts"),
            (CrashFrees, Pin::Kept(289), ""),
            (OwnerOnly, Pin::Kept(289), ""),
            (TokensRise, Pin::None, ""),
            (LossSurvived, Pin::Broken(3), "the key is gone, and the next one takes it"),
            (OwnIdentity, Pin::Broken(3), "tokens come from so small a range that two are the same"),
            (KeyEnds, Pin::Kept(289), ""),
        ],
    },
    Expected {
        form: "getset",
        headline: LivingStays,
        promises: &[
            (Exclusion, Pin::Broken(9), "a release that deleted the next one's lock let a third one in"),
            (Told, Pin::Broken(5), "the work takes longer than the lock lasts"),
            (CrashFrees, Pin::Kept(95_900), ""),
            (OwnerOnly, Pin::Broken(6), "the key ends and is taken between GET and DEL"),
            (TokensRise, Pin::None, ""),
            (LossSurvived, Pin::Broken(5), "the key is gone, and the next one takes it"),
            (OwnIdentity, Pin::Broken(9), "two take the lock in the same second"),
            (LivingStays, Pin::Broken(5), "a clock is fast: it finds a living stamp past"),
            (StampStays, Pin::Broken(10), "a loser's GETSET comes after the winner's"),
            (KeyEnds, Pin::Broken(2), "its holder dies before EXPIRE, or a loser's GETSET took the end away"),
        ],
    },
    Expected {
        form: "pid-lock",
        headline: OwnerOnly,
        promises: &[
            (Exclusion, Pin::Broken(9), "a release that deleted the next one's lock let a third one in"),
            (Told, Pin::Broken(7), "the work takes longer than the lock lasts"),
            (CrashFrees, Pin::Kept(374_628), ""),
            (
                OwnerOnly,
                Pin::Broken(8),
                "the lock ends and is taken over before DEL, which does not ask whose it is",
            ),
            (TokensRise, Pin::None, ""),
            (LossSurvived, Pin::Broken(3), "the key is gone, and the next one takes it"),
            (OwnIdentity, Pin::Broken(9), "two take the lock in the same millisecond"),
            (LivingStays, Pin::Broken(4), "a clock is fast: it finds a living stamp past"),
            (StampStays, Pin::Broken(14), "a loser's GETSET comes after the winner's"),
            (KeyEnds, Pin::Broken(2), "its holder dies, or leaves the last 3 ms alone"),
        ],
    },
    Expected {
        form: "redlock",
        headline: LossSurvived,
        promises: &[
            (Exclusion, Pin::Kept(13_779), ""),
            (Told, Pin::Kept(13_779), ""),
            (CrashFrees, Pin::Kept(13_779), ""),
            (OwnerOnly, Pin::Kept(13_779), ""),
            (TokensRise, Pin::None, ""),
            (LossSurvived, Pin::Broken(7), "one of the majority forgets, and its vote is given again"),
            (OwnIdentity, Pin::Kept(13_779), ""),
            (KeyEnds, Pin::Kept(13_779), ""),
        ],
    },
    Expected {
        form: "tenure",
        headline: LossSurvived,
        promises: &[
            (Exclusion, TENURE, ""),
            (Told, TENURE, ""),
            (CrashFrees, TENURE, ""),
            (OwnerOnly, TENURE, ""),
            (TokensRise, TENURE, ""),
            (
                LossSurvived,
                Pin::Broken(7),
                "its store forgets: until the next renewal two can hold; tokens rise all the same",
            ),
        ],
    },
];
