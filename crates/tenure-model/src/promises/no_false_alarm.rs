use super::{Article, Judge, Step, called};
use crate::protocol::{End, Lost, Notice};

pub(super) const ARTICLE: Article = Article {
    name: "no-false-alarm",
    words: "Nobody is told of an overlap where there was none, or that its lock is free while the store still keeps it.",
    judge: Judge::Step(judge),
};

fn judge(step: &Step<'_>) -> Result<(), String> {
    for (caller, notice) in step.happened.notices() {
        let in_time = step.before.past.callers[caller].left_in_time;
        match notice {
            Notice::Lost(Lost::Taken) => {
                return Err(format!("{} was told that its lock was taken", called(caller)));
            }
            Notice::Ended(End::NotHeld) if in_time => {
                return Err(format!(
                    "{} released in time, and was told that it did not hold any more",
                    called(caller)
                ));
            }
            Notice::Ended(End::ReleaseUnknown { by }) => {
                let late = step.after.past.callers[caller].renewed_late
                    || step.before.past.callers[caller].renewed_late;
                let stands = step.after.occupant() == Some(caller) && step.after.is_held();
                if stands && !late && step.after.clock(caller) >= *by {
                    return Err(format!(
                        "{} was told that its lock is free, and the store keeps it",
                        called(caller)
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
}
