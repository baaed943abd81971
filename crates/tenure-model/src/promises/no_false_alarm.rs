use super::{Article, Judge, Step, called};
use crate::protocol::{End, Lost, Notice};

pub(super) const ARTICLE: Article = Article {
    name: "no-false-alarm",
    words: "Nobody is told of an overlap where there was none: who released in time released.",
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
            _ => {}
        }
    }
    Ok(())
}
