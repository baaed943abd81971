use super::{Article, Judge, Step, called};
use crate::protocol::{End, Notice};

pub(super) const ARTICLE: Article = Article {
    name: "alarm-is-raised",
    words: "Who lost its lock to a store that forgot is not told that all was well, if its one release is answered in time.",
    judge: Judge::Step(judge),
};

fn judge(step: &Step<'_>) -> Result<(), String> {
    for (caller, notice) in step.happened.notices() {
        let past = &step.before.past.callers[caller];
        let in_time = step.after.clock(caller) < past.backed_until;
        // Of two copies the first may have released, and after the lease the hold may have run out. A release that was
        // confirmed found something: an ask that came late had taken the lock anew.
        let told_apart = past.releases == 1 && in_time;
        if past.unbacked && told_apart && *notice == Notice::Ended(End::Released { confirmed: false }) {
            return Err(format!("{} had lost its lock, and was told that it released it", called(caller)));
        }
    }
    Ok(())
}
