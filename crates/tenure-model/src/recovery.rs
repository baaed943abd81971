//! How a world goes on when the faults stop: letters arrive in the order in which they were written, timers fire in
//! time, and whoever gets the lock gives it back at once.
//!
//! A model checker's "eventually" does not see a world that goes in circles. This does: every state of a scope is
//! followed to its end.

use crate::past::Chance;
use crate::protocol::{End, Notice, Occupant, Outcome, Phase, Place, Sight};
use crate::world::{Action, Caller, World};

/// More steps than any recovery needs.
const STEPS_MAX: usize = 50_000;

/// The head looks at the store every two seconds, so that is what a message costs that was not heard.
const LOOKS_MS: u64 = 2_000;

/// What one caller may take besides: the longest pause between two copies of a request, and a look at a hold that has
/// just run out.
const ROUND_TRIPS_MS: u64 = 1_000 + 400;

/// What became of a world.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// Who waited without a limit, and how long until it was granted (or told that the store had been silent for too long
    /// before); `None`: never.
    pub waiters: Vec<(usize, Option<u64>)>,
    /// Whom messages do not reach: it is passed over, and looks for itself.
    pub deaf: Vec<usize>,
    /// How long until nobody had anything more to do; `None`: never.
    pub quiet_after_ms: Option<u64>,
    /// A living caller that is over and still has something in the store.
    pub left_behind: Option<usize>,
    /// What the store still keeps when the time of everything is over.
    pub stays: Option<String>,
    /// How long it may take until everybody was served: what the dead have left, and a look at the store each.
    pub may_take_ms: u64,
}

/// Follows a world to its end.
pub fn recover(world: &World) -> Recovery {
    let begun = world.now;
    let mut world = world.clone();
    let mut recovery = Recovery {
        waiters: waiters(&world).map(|caller| (caller, None)).collect(),
        deaf: (0..world.callers.len()).filter(|caller| !world.callers[*caller].reachable).collect(),
        quiet_after_ms: None,
        left_behind: None,
        stays: None,
        may_take_ms: may_take_ms(&world),
    };
    for _ in 0..STEPS_MAX {
        let Some(action) = next(&world) else {
            recovery.quiet_after_ms = Some(world.now - begun);
            break;
        };
        let happened = world.act(&action);
        for (caller, notice) in happened.notices() {
            // Who had no answer for so long that it gives up is told so.
            if matches!(notice, Notice::Granted { .. } | Notice::Ended(End::Unreachable))
                && let Some((_, waited_ms)) = recovery.waiters.iter_mut().find(|(who, _)| *who == caller)
            {
                *waited_ms = Some(world.now - begun);
            }
        }
    }
    recovery.left_behind = left_behind(&world);
    recovery.stays = stays(world);
    recovery
}

/// What happens next when nothing goes wrong. `None`: everybody is at rest.
fn next(world: &World) -> Option<Action> {
    if !world.letters.is_empty() {
        return Some(Action::Deliver(0));
    }
    let mut next: Option<u64> = None;
    for (caller, known) in world.callers.iter().enumerate() {
        if !known.alive {
            if known.sight == Sight::Orphaned {
                return Some(Action::See(caller, Sight::Gone));
            }
            continue;
        }
        if matches!(known.claim.phase(), Phase::Held(_) | Phase::Lost { .. }) {
            return Some(Action::Release(caller));
        }
        if let Some(attempt) = known.claim.awaits() {
            // No letter is left: its engine gives it up.
            return Some(Action::Miss(caller, attempt, Outcome::Unknown));
        }
        let Some(at) = known.claim.deadline() else { continue };
        if at <= world.clock(caller) {
            return Some(Action::Tick(caller));
        }
        let at = at.0.saturating_add_signed(-known.ahead_ms);
        next = Some(next.map_or(at, |next| next.min(at)));
    }
    next.map(Action::Pass)
}

fn waiters(world: &World) -> impl Iterator<Item = usize> {
    world
        .callers
        .iter()
        .enumerate()
        .filter(|(_, known)| {
            let waits = matches!(known.claim.phase(), Phase::Asking { .. } | Phase::Waiting { .. });
            let terms = known.claim.terms();
            known.alive && waits && terms.wait_ms.is_none() && terms.place_ms > 0
        })
        .map(|(caller, _)| caller)
}

/// What is left of the holds and places that nobody will give back (their owners are dead, or the store refuses the
/// release), what a request of theirs may bring that arrives at last, and a look at the store for each message that may
/// have been lost.
fn may_take_ms(world: &World) -> u64 {
    let now = world.store_clock();
    let left_ms = world.callers.iter().zip(&world.past.callers).enumerate().map(|(caller, (known, past))| {
        if known.alive && !past.unreleased {
            return 0;
        }
        let guard_ms = known.claim.terms().guard_ms;
        let hold_ms = match &world.store.ledger.occupant {
            Some(Occupant::Ours(hold)) if world.occupant() == Some(caller) => hold.ends.since(now),
            _ => 0,
        };
        let place = past.place.filter(|_| known.reachable);
        let place_ms = place.map_or(0, |place| place.until.since(now) + guard_ms);
        let under_way = world.letters.iter().any(|letter| letter.caller == caller);
        hold_ms + place_ms + if under_way { longest_ms(known) } else { 0 }
    });
    let taken = |chance: Chance| u64::from(world.past.taken[chance as usize]);
    let unheard =
        taken(Chance::Loss) + taken(Chance::Crash) + taken(Chance::Unreachable) + taken(Chance::Foreign);
    left_ms.sum::<u64>() + LOOKS_MS * unheard + ROUND_TRIPS_MS * world.callers.len() as u64
}

fn left_behind(world: &World) -> Option<usize> {
    let ledger = &world.store.ledger;
    world.callers.iter().zip(&world.past.callers).position(|(known, past)| {
        let over = matches!(known.claim.phase(), Phase::Ended);
        let owner = known.claim.owner();
        let holds = matches!(&ledger.occupant,
            Some(Occupant::Ours(hold)) if hold.owner == *owner);
        let stands = |place: &&Place| world.store_clock() <= place.until && place.owner == *owner;
        known.alive
            && over
            && !past.unreleased
            && (holds && world.is_held() || ledger.places.iter().any(|place| stands(&place)))
    })
}

/// What is in the store when every lease and place that was ever granted is over, and somebody looks.
fn stays(mut world: World) -> Option<String> {
    if world.callers.iter().any(|known| known.alive && known.sight == Sight::Working) {
        return None;
    }
    // Each touch may still hand the lock to somebody who is dead and not known to be.
    for _ in 0..=world.callers.len() {
        world.now += world.callers.iter().map(longest_ms).max().unwrap_or(0) + 1;
        world.touch();
    }
    let ledger = &world.store.ledger;
    (!ledger.is_blank()).then(|| format!("{:?} and {} places", ledger.occupant, ledger.places.len()))
}

/// The longest that one request of this caller keeps something in the store.
fn longest_ms(known: &Caller) -> u64 {
    let terms = known.claim.terms();
    terms.ttl_ms.max(terms.place_ms) + terms.guard_ms
}
