use super::{Article, Judge, Step, called};
use crate::protocol::{End, Notice};

pub(super) const ARTICLE: Article = Article {
    name: "patience",
    words: "Nobody gives the store up before it has been silent for three seconds, or the wait is over.",
    judge: Judge::Step(judge),
};

/// As long as a caller puts up with silence.
const PATIENCE_MS: u64 = 3_000;

fn judge(step: &Step<'_>) -> Result<(), String> {
    for (caller, notice) in step.happened.notices() {
        let limited = step.after.callers[caller].claim.terms().wait_ms.is_some();
        if *notice != Notice::Ended(End::Unreachable) || limited {
            continue;
        }
        let silent_since = step.before.past.callers[caller].silent_since;
        let silent_ms = silent_since.map_or(0, |since| step.after.clock(caller).since(since));
        if silent_ms < PATIENCE_MS {
            return Err(format!("{} gave up after {silent_ms} ms of silence", called(caller)));
        }
    }
    Ok(())
}
