use super::{Article, Judge, Step, called};
use crate::past::Belief;

pub(super) const ARTICLE: Article = Article {
    name: "no-resurrection",
    words: "Who has lost a lock does not hold it again, whatever arrives.",
    judge: Judge::Step(judge),
};

fn judge(step: &Step<'_>) -> Result<(), String> {
    for caller in step.after.holders() {
        if step.before.past.callers[caller].belief == Belief::Over {
            return Err(format!("{} holds again after it had lost the lock", called(caller)));
        }
    }
    Ok(())
}
