use tenure_forms::Form;

use super::world::{Happened, World};

/// What a lock should keep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Promise {
    /// No two callers have the lock at once for the time that they asked for.
    Exclusion,
    /// Nobody works on beside the next holder without having been told when to stop.
    Told,
    /// A lock whose holder died can be had again.
    CrashFrees,
    /// Nobody deletes a lock that is not its own.
    OwnerOnly,
    /// Each grant has a larger token than all before.
    TokensRise,
    /// No two callers have the lock at once although a server forgot it.
    LossSurvived,
    /// What two holders write under the key differs.
    OwnIdentity,
    /// A lock whose time is not over is not taken over.
    LivingStays,
    /// A winner's stamp stays as it wrote it.
    StampStays,
    /// No key without an end is left behind.
    KeyEnds,
}

impl Promise {
    /// All of them; the first six are the columns of the table.
    pub const ALL: [Self; 10] = [
        Self::Exclusion,
        Self::Told,
        Self::CrashFrees,
        Self::OwnerOnly,
        Self::TokensRise,
        Self::LossSurvived,
        Self::OwnIdentity,
        Self::LivingStays,
        Self::StampStays,
        Self::KeyEnds,
    ];

    /// Those that every lock is judged by.
    pub const COLUMNS: [Self; 6] = [
        Self::Exclusion,
        Self::Told,
        Self::CrashFrees,
        Self::OwnerOnly,
        Self::TokensRise,
        Self::LossSurvived,
    ];

    /// Its name in commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusion => "exclusion",
            Self::Told => "told",
            Self::CrashFrees => "crash-frees",
            Self::OwnerOnly => "owner-only",
            Self::TokensRise => "tokens-rise",
            Self::LossSurvived => "loss-survived",
            Self::OwnIdentity => "own-identity",
            Self::LivingStays => "living-stays",
            Self::StampStays => "stamp-stays",
            Self::KeyEnds => "key-ends",
        }
    }

    /// The promise of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|promise| promise.name() == name)
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Exclusion => "No two callers have the lock at once within the time that they asked for.",
            Self::Told => "Nobody works on beside the next holder without having been told when to stop.",
            Self::CrashFrees => "A lock whose holder died can be had again.",
            Self::OwnerOnly => "Nobody deletes a lock that is not its own.",
            Self::TokensRise => {
                "Each grant has a larger token than all before, so that a late write can be refused."
            }
            Self::LossSurvived => {
                "The same although a server forgets: it restarts empty, or its clock jumps."
            }
            Self::OwnIdentity => "What two holders write under the key differs, so that each knows its own.",
            Self::LivingStays => "A lock whose time is not over is not taken over.",
            Self::StampStays => "A winner's stamp stays as it wrote it.",
            Self::KeyEnds => "No key without an end is left behind, which SET NX would never take.",
        }
    }

    /// Does it mean anything for this form? Stamps are a matter of the timestamp forms.
    pub fn concerns(self, form: &Form) -> bool {
        match self {
            Self::OwnIdentity | Self::KeyEnds => form.steps.is_some(),
            Self::LivingStays | Self::StampStays => form.stamped,
            _ => true,
        }
    }

    /// Is it kept in this state, reached by what happened? Otherwise what went wrong, in words.
    pub fn judge(self, world: &World, happened: &Happened) -> Result<(), String> {
        let now_ms = world.now_ms;
        match self {
            Self::Exclusion | Self::LossSurvived => {
                at_most_one(world, |at| world.players[at].is_valid(now_ms))
                    .map_err(|(a, b)| format!("{a} and {b} both have the lock, and neither is over its time"))
            }
            Self::Told => at_most_one(world, |at| world.players[at].believes(now_ms)).map_err(|(a, b)| {
                format!("{a} and {b} both work under the lock, and neither was told when to stop")
            }),
            Self::CrashFrees if world.later().can_be_had() => Ok(()),
            Self::CrashFrees => Err("when everybody else is gone, nobody gets the lock any more".to_owned()),
            Self::OwnerOnly => match happened.freed {
                Some(whose) => Err(format!("the lock of {} was deleted by another caller", called(whose))),
                None => Ok(()),
            },
            // Judged by `verdict`: a form either has tokens or has none.
            Self::TokensRise => Ok(()),
            Self::OwnIdentity => at_most_one(world, |at| {
                let one = &world.players[at];
                world
                    .players
                    .iter()
                    .filter(|other| other.has_won() && other.caller.wrote == one.caller.wrote)
                    .count()
                    > 1
            })
            .map_err(|(a, b)| {
                format!("{a} and {b} have written the same: neither can tell its lock from the other's")
            }),
            Self::LivingStays => match happened.robbed {
                Some(whose) => {
                    Err(format!("the lock of {} was taken over while its time ran", called(whose)))
                }
                None => Ok(()),
            },
            Self::StampStays => match happened.moved {
                Some(whose) if world.players[whose].has_won() => {
                    Err(format!("the stamp of {} was replaced by one who did not win", called(whose)))
                }
                _ => Ok(()),
            },
            Self::KeyEnds => {
                let endless = world.later().nodes.iter().any(|node| node.slot.look(u64::MAX).is_some());
                if endless { Err("the key stays, and has no end of its own".to_owned()) } else { Ok(()) }
            }
        }
    }
}

/// At most one player is so; otherwise the first two, by name.
fn at_most_one(world: &World, is_so: impl Fn(usize) -> bool) -> Result<(), (String, String)> {
    let mut so = (0..world.players.len()).filter(|at| world.players[*at].has_won() && is_so(*at));
    match (so.next(), so.next()) {
        (Some(a), Some(b)) => Err((called(a), called(b))),
        _ => Ok(()),
    }
}

/// What a caller is called.
pub fn called(who: usize) -> String {
    char::from(b'A' + who as u8).to_string()
}
