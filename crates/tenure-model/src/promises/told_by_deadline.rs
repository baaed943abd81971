use super::{Article, Judge, Step, called};
use crate::protocol::{Moment, lease::margin_ms};

pub(super) const ARTICLE: Article = Article {
    name: "told-by-deadline",
    words: "Nobody believes in its lease for longer than the store granted it, counted from the send of the request.",
    judge: Judge::Step(judge),
};

fn judge(step: &Step<'_>) -> Result<(), String> {
    for caller in step.after.holders() {
        let claim = &step.after.callers[caller].claim;
        let told = claim.valid_until().unwrap_or(Moment::NEVER);
        if told == Moment::NEVER {
            // Its job keeps it.
            continue;
        }
        let ends = told.plus(margin_ms(claim.terms().ttl_ms));
        let backed_until = step.after.past.callers[caller].backed_until;
        if ends > backed_until {
            return Err(format!(
                "{} believes until {}, but what the store granted ends at {}",
                called(caller),
                ends.0,
                backed_until.0
            ));
        }
    }
    Ok(())
}
