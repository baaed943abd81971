//! What has to come of each check. A change of a form or of the world shows here first.

use super::Promise::{
    self, CrashFrees, Exclusion, KeyEnds, LivingStays, OwnIdentity, OwnerOnly, StampStays, TokensRise, Told,
};
use super::check::Verdict;
use crate::promises::Promise as Kept;

/// The scopes in which Tenure's own protocol meets what the forms meet here: time that passes wherever it likes, a death,
/// a lost answer, clocks that differ.
pub const TENURE_SCOPES: [&str; 4] = ["timers", "crash", "lost-answers", "drift"];

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

/// Which of its broken promises a form is known for.
pub fn headline(form: &str) -> Promise {
    match form {
        "setnx-del" | "setnx-expire" => CrashFrees,
        "set-nx-ex" | "get-del" | "pid-lock" => OwnerOnly,
        "cad" => Told,
        "getset" => LivingStays,
        "tenure" => TokensRise,
        _ => Exclusion,
    }
}

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
            Verdict::NoTokens => Self::None,
        }
    }
}

/// What is expected of a form.
pub fn of(form: &str, promise: Promise) -> Option<Pin> {
    let (_, pins) = PINS.iter().find(|(name, _)| *name == form)?;
    pins.iter().find(|(one, _)| *one == promise).map(|(_, pin)| *pin)
}

/// The states of [`TENURE_SCOPES`].
const TENURE: Pin = Pin::Kept(4_838_576);

/// Everything that is expected.
pub const PINS: [(&str, &[(Promise, Pin)]); 9] = [
    (
        "setnx-del",
        &[
            (Exclusion, Pin::Kept(33)),
            (Told, Pin::Kept(33)),
            (CrashFrees, Pin::Broken(2)),
            (OwnerOnly, Pin::Kept(33)),
            (TokensRise, Pin::None),
            (OwnIdentity, Pin::Kept(33)),
            (KeyEnds, Pin::Broken(2)),
        ],
    ),
    (
        "setnx-expire",
        &[
            (Exclusion, Pin::Broken(8)),
            (Told, Pin::Broken(5)),
            (CrashFrees, Pin::Broken(2)),
            (OwnerOnly, Pin::Broken(5)),
            (TokensRise, Pin::None),
            (OwnIdentity, Pin::Kept(575)),
            (KeyEnds, Pin::Broken(2)),
        ],
    ),
    (
        "set-nx-ex",
        &[
            (Exclusion, Pin::Broken(5)),
            (Told, Pin::Broken(3)),
            (CrashFrees, Pin::Kept(321)),
            (OwnerOnly, Pin::Broken(4)),
            (TokensRise, Pin::None),
            (OwnIdentity, Pin::Broken(3)),
            (KeyEnds, Pin::Kept(321)),
        ],
    ),
    (
        "get-del",
        &[
            (Exclusion, Pin::Broken(6)),
            (Told, Pin::Broken(3)),
            (CrashFrees, Pin::Kept(535)),
            (OwnerOnly, Pin::Broken(5)),
            (TokensRise, Pin::None),
            (OwnIdentity, Pin::Kept(535)),
            (KeyEnds, Pin::Kept(535)),
        ],
    ),
    (
        "cad",
        &[
            (Exclusion, Pin::Kept(289)),
            (Told, Pin::Broken(3)),
            (CrashFrees, Pin::Kept(289)),
            (OwnerOnly, Pin::Kept(289)),
            (TokensRise, Pin::None),
            (OwnIdentity, Pin::Broken(3)),
            (KeyEnds, Pin::Kept(289)),
        ],
    ),
    (
        "getset",
        &[
            (Exclusion, Pin::Broken(6)),
            (Told, Pin::Broken(5)),
            (CrashFrees, Pin::Kept(95_900)),
            (OwnerOnly, Pin::Broken(6)),
            (TokensRise, Pin::None),
            (OwnIdentity, Pin::Broken(5)),
            (LivingStays, Pin::Broken(5)),
            (StampStays, Pin::Broken(9)),
            (KeyEnds, Pin::Broken(2)),
        ],
    ),
    (
        "pid-lock",
        &[
            (Exclusion, Pin::Broken(4)),
            (Told, Pin::Broken(4)),
            (CrashFrees, Pin::Kept(374_628)),
            (OwnerOnly, Pin::Broken(6)),
            (TokensRise, Pin::None),
            (OwnIdentity, Pin::Broken(9)),
            (LivingStays, Pin::Broken(4)),
            (StampStays, Pin::Broken(8)),
            (KeyEnds, Pin::Broken(2)),
        ],
    ),
    (
        "redlock",
        &[
            (Exclusion, Pin::Broken(7)),
            (Told, Pin::Broken(7)),
            (CrashFrees, Pin::Kept(38_270)),
            (OwnerOnly, Pin::Kept(38_270)),
            (TokensRise, Pin::None),
            (OwnIdentity, Pin::Kept(38_270)),
            (KeyEnds, Pin::Kept(38_270)),
        ],
    ),
    (
        "tenure",
        &[
            (Exclusion, TENURE),
            (Told, TENURE),
            (CrashFrees, TENURE),
            (OwnerOnly, TENURE),
            (TokensRise, TENURE),
        ],
    ),
];
