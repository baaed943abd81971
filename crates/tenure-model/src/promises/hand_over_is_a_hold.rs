use super::{Article, Judge, Step, called};
use crate::protocol::Occupant;

pub(super) const ARTICLE: Article = Article {
    name: "hand-over-is-a-hold",
    words: "Who believes that it holds does hold in the store, with the same token, whatever messages were lost, late or doubled.",
    judge: Judge::Step(judge),
};

fn judge(step: &Step<'_>) -> Result<(), String> {
    for caller in step.after.holders() {
        let believed = step.after.holds(caller);
        let kept = match &step.after.store.ledger.occupant {
            Some(Occupant::Ours(hold))
                if hold.owner == *step.after.callers[caller].claim.owner() && step.after.is_held() =>
            {
                Some(hold.token)
            }
            _ => None,
        };
        if believed != kept {
            return Err(match kept {
                Some(token) => format!("{} believes in another token than {token}", called(caller)),
                None => format!("{} believes that it holds, but the store does not", called(caller)),
            });
        }
    }
    Ok(())
}
