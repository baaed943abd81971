use super::{Article, Judge, Step, called};
use crate::protocol::{Occupant, Request};

pub(super) const ARTICLE: Article = Article {
    name: "owner-only",
    words: "Nobody frees or extends a lock that somebody else holds.",
    judge: Judge::Step(judge),
};

fn judge(step: &Step<'_>) -> Result<(), String> {
    let Some(ran) = &step.happened.ran else { return Ok(()) };
    if !step.before.is_held() || matches!(ran.request, Request::Stop { .. }) {
        return Ok(());
    }
    let theirs = match &step.before.store.ledger.occupant {
        Some(Occupant::Ours(hold)) => hold.owner != *step.before.callers[ran.caller].claim.owner(),
        Some(Occupant::Foreign { .. }) => true,
        None => false,
    };
    if theirs && step.after.store.ledger.occupant != step.before.store.ledger.occupant {
        return Err(format!("a request of {} changed somebody else's hold", called(ran.caller)));
    }
    Ok(())
}
