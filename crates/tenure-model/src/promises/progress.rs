use super::{Article, Judge, called};
use crate::recovery::Recovery;

pub(super) const ARTICLE: Article = Article {
    name: "progress",
    words: "When the faults stop, everybody who is alive and waits gets the lock.",
    judge: Judge::Recovery(judge),
};

fn judge(recovery: &Recovery) -> Result<(), String> {
    for (caller, waited_ms) in &recovery.waiters {
        if waited_ms.is_none() {
            return Err(format!("{} waits for ever", called(*caller)));
        }
    }
    Ok(())
}
