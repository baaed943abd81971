use super::{Article, Judge, called};
use crate::recovery::Recovery;

pub(super) const ARTICLE: Article = Article {
    name: "dead-waiters",
    words: "A dead holder or waiter delays the others by what is left of its lease or place and its guard, and no longer.",
    judge: Judge::Recovery(judge),
};

fn judge(recovery: &Recovery) -> Result<(), String> {
    for (caller, waited_ms) in &recovery.waiters {
        let told = !recovery.deaf.contains(caller);
        if let Some(ms) = waited_ms.filter(|ms| told && *ms > recovery.may_take_ms) {
            return Err(format!(
                "{} was granted the lock {ms} ms after the faults stopped; {} are enough",
                called(*caller),
                recovery.may_take_ms
            ));
        }
    }
    Ok(())
}
