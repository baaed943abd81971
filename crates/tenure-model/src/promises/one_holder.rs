use super::{Article, Judge, Step, called};

pub(super) const ARTICLE: Article = Article {
    name: "one-holder",
    words: "At most one caller may act as holder at any moment.",
    judge: Judge::Step(judge),
};

fn judge(step: &Step<'_>) -> Result<(), String> {
    let mut holders = step.after.holders();
    match (holders.next(), holders.next()) {
        (Some(one), Some(other)) => {
            Err(format!("{} and {} hold at the same time", called(one), called(other)))
        }
        _ => Ok(()),
    }
}
