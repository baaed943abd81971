use super::{Article, Judge, Step, called, granted};
use crate::protocol::{Moment, Phase, lease::margin_ms};

pub(super) const ARTICLE: Article = Article {
    name: "told-first",
    words: "A holder has had its margin of time to stop before anybody else is granted the lock.",
    judge: Judge::Step(judge),
};

fn judge(step: &Step<'_>) -> Result<(), String> {
    let Some(new) = granted(step) else { return Ok(()) };
    for (old, known) in step.before.callers.iter().enumerate() {
        if old == new || !known.alive {
            continue;
        }
        let must_have_stopped_by = match known.claim.phase() {
            Phase::Held(_) => {
                known.claim.valid_until().map(|told| told.plus(margin_ms(known.claim.terms().ttl_ms)))
            }
            Phase::Lost { ends, .. } => Some(*ends),
            _ => None,
        };
        let clock = step.after.clock(old);
        if must_have_stopped_by.is_some_and(|by| by == Moment::NEVER || clock < by) {
            return Err(format!(
                "{} was granted the lock while {}'s lease still ran",
                called(new),
                called(old)
            ));
        }
    }
    Ok(())
}
