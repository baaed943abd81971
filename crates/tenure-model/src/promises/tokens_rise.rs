use super::{Article, Judge, Step, called, granted};
use crate::protocol::Occupant;

pub(super) const ARTICLE: Article = Article {
    name: "tokens-rise",
    words: "Each grant of a lock has a larger token than every grant before.",
    judge: Judge::Step(judge),
};

fn judge(step: &Step<'_>) -> Result<(), String> {
    let Some(caller) = granted(step) else { return Ok(()) };
    let Some(Occupant::Ours(hold)) = &step.after.store.ledger.occupant else { return Ok(()) };
    let highest = step.before.past.highest;
    if hold.token > highest {
        return Ok(());
    }
    Err(format!("{} was granted token {} after token {highest}", called(caller), hold.token))
}
