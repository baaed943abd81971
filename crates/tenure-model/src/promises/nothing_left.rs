use super::{Article, Judge, called};
use crate::protocol::lease::DOUBT_MS;
use crate::recovery::Recovery;

pub(super) const ARTICLE: Article = Article {
    name: "nothing-left",
    words: "A cancelled, dropped or ended claim leaves no hold and no place behind, after a bounded time.",
    judge: Judge::Recovery(judge),
};

fn judge(recovery: &Recovery) -> Result<(), String> {
    if let Some(caller) = recovery.left_behind {
        return Err(format!("{} is over and has left something in the store", called(caller)));
    }
    match recovery.quiet_after_ms {
        None => Err("the callers never come to rest".to_owned()),
        Some(ms) if ms > recovery.may_take_ms + DOUBT_MS => {
            Err(format!("the callers come to rest after {ms} ms only"))
        }
        Some(_) => Ok(()),
    }
}
