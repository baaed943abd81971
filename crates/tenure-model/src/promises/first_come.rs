use super::{Article, Judge, Step, called, granted};
use crate::protocol::{Request, Sight};

pub(super) const ARTICLE: Article = Article {
    name: "first-come",
    words: "Of those who wait, are alive and can be told, the one that came first gets the lock.",
    judge: Judge::Step(judge),
};

fn judge(step: &Step<'_>) -> Result<(), String> {
    let Some(new) = granted(step) else { return Ok(()) };
    // Who leaves in this very step does not wait.
    let leaves = step.happened.ran.as_ref().filter(|ran| matches!(ran.request, Request::Release { .. }));
    let turn = step.before.past.callers[new].place.map_or(u8::MAX, |place| place.turn);
    for (other, known) in step.before.callers.iter().enumerate() {
        let waits = leaves.is_none_or(|ran| ran.caller != other)
            && known.alive
            && known.reachable
            && known.sight != Sight::Gone;
        if let Some(place) = step.before.past.callers[other].place
            && waits
            && place.turn < turn
            && !place.lapsed
        {
            return Err(format!(
                "{} was granted the lock before {}, who came first",
                called(new),
                called(other)
            ));
        }
    }
    Ok(())
}
