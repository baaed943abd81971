use super::{Article, Judge};
use crate::recovery::Recovery;

pub(super) const ARTICLE: Article = Article {
    name: "store-bounded",
    words: "No hold and no place stays in the store beyond its time.",
    judge: Judge::Recovery(judge),
};

fn judge(recovery: &Recovery) -> Result<(), String> {
    match &recovery.stays {
        Some(what) => Err(format!("the store still keeps {what}")),
        None => Ok(()),
    }
}
