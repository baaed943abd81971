//! Drops futures of the library wherever they wait, and knows where that was: what a future waits for is what its call
//! to the engine is about, and without one what its claim is at.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tenure_core::HolderId;
use tokio::time::sleep;

use crate::network::Verb;
use crate::world::{Sim, World, locked};

/// An operation of the library that is awaited.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[expect(missing_docs)]
pub enum Op {
    Acquire,
    TryAcquire,
    AcquireNow,
    With,
    Extend,
    Lost,
    Changed,
    Release,
    Inspect,
    List,
    AskToStop,
    Close,
}

/// What a future waited for when it was dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[expect(missing_docs)]
pub enum Where {
    NotYetPolled,
    FirstAsk,
    InLine,
    AskingAgain,
    LookingWhoHolds,
    ReadingACard,
    ReadingTheNames,
    AtWork,
    Renewing,
    WatchingTheLease,
    FirstRelease,
    ReleasingAgain,
    AskingToStop,
    Closing,
}

/// Every await of the library: each is cancelled at some seed.
pub const AWAITS: [(Op, Where); 38] = [
    (Op::Acquire, Where::NotYetPolled),
    (Op::Acquire, Where::FirstAsk),
    (Op::Acquire, Where::InLine),
    (Op::Acquire, Where::AskingAgain),
    (Op::Acquire, Where::LookingWhoHolds),
    (Op::Acquire, Where::ReadingACard),
    (Op::TryAcquire, Where::NotYetPolled),
    (Op::TryAcquire, Where::FirstAsk),
    (Op::TryAcquire, Where::InLine),
    (Op::TryAcquire, Where::AskingAgain),
    (Op::TryAcquire, Where::LookingWhoHolds),
    (Op::AcquireNow, Where::NotYetPolled),
    (Op::AcquireNow, Where::FirstAsk),
    (Op::AcquireNow, Where::LookingWhoHolds),
    (Op::AcquireNow, Where::ReadingACard),
    (Op::With, Where::NotYetPolled),
    (Op::With, Where::FirstAsk),
    (Op::With, Where::InLine),
    (Op::With, Where::AskingAgain),
    (Op::With, Where::LookingWhoHolds),
    (Op::With, Where::AtWork),
    (Op::With, Where::FirstRelease),
    (Op::With, Where::ReleasingAgain),
    (Op::Extend, Where::NotYetPolled),
    (Op::Extend, Where::Renewing),
    (Op::Lost, Where::WatchingTheLease),
    (Op::Changed, Where::WatchingTheLease),
    (Op::Release, Where::NotYetPolled),
    (Op::Release, Where::FirstRelease),
    (Op::Release, Where::ReleasingAgain),
    (Op::Inspect, Where::LookingWhoHolds),
    (Op::Inspect, Where::ReadingACard),
    (Op::List, Where::ReadingTheNames),
    (Op::List, Where::LookingWhoHolds),
    (Op::List, Where::ReadingACard),
    (Op::AskToStop, Where::AskingToStop),
    (Op::Close, Where::NotYetPolled),
    (Op::Close, Where::Closing),
];

/// How often a future was dropped where.
#[derive(Clone, Default, Debug)]
pub struct Awaits(BTreeMap<(Op, Where), u64>);

impl Awaits {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds what another seed has seen.
    pub fn add(&mut self, other: &Self) {
        for (at, times) in &other.0 {
            *self.0.entry(*at).or_default() += times;
        }
    }

    /// How often a future was dropped there.
    pub fn times(&self, at: (Op, Where)) -> u64 {
        self.0.get(&at).copied().unwrap_or_default()
    }

    /// Of [`AWAITS`], those at which none was.
    pub fn missing(&self) -> Vec<(Op, Where)> {
        AWAITS.into_iter().filter(|at| self.times(*at) == 0).collect()
    }
}

/// A future of the workload.
pub(crate) struct Running {
    op: Op,
    pub(crate) holder: Option<HolderId>,
    pub(crate) at_work: bool,
    pub(crate) has_worked: bool,
}

impl World {
    fn place_of(&self, id: u64) -> (Op, Where) {
        let Running { op, holder, at_work, has_worked } = self.running[&id];
        let carried = self.calls.iter().find(|call| call.within == Some(id)).map(|call| call.verb);
        let asks = |call: &&crate::network::Call| call.verb == Verb::Ask && call.holder == holder;
        let place = match carried {
            Some(Verb::Ask) => Where::FirstAsk,
            Some(Verb::Renew) => Where::Renewing,
            Some(Verb::Release) => Where::FirstRelease,
            Some(Verb::Stop) => Where::AskingToStop,
            Some(Verb::Look) => Where::LookingWhoHolds,
            Some(Verb::Card) => Where::ReadingACard,
            Some(Verb::Names) => Where::ReadingTheNames,
            None => match op {
                Op::With if at_work => Where::AtWork,
                Op::With if has_worked => Where::ReleasingAgain,
                Op::Release => Where::ReleasingAgain,
                Op::Lost | Op::Changed => Where::WatchingTheLease,
                Op::Close => Where::Closing,
                _ if holder.is_some() && self.calls.iter().find(asks).is_some() => Where::AskingAgain,
                _ => Where::InLine,
            },
        };
        (op, place)
    }
}

/// When to drop a future.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    Endless,
    /// When it has been polled so often.
    Polls(u64),
    Ms(u64),
}

/// What a closure panics with on purpose.
pub(crate) struct OnPurpose;

/// Drives a future of the library until it is done, its patience is over, or it panics on purpose: `None` then.
pub(crate) async fn drive<T>(
    sim: &Sim,
    op: Op,
    patience: Patience,
    start: impl FnOnce(u64) -> T,
) -> Option<T::Output>
where
    T: Future,
{
    let id = {
        let mut world = locked(sim);
        let id = world.fresh_id();
        world.running.insert(id, Running { op, holder: None, at_work: false, has_worked: false });
        id
    };
    let _running = Forget { sim, id };
    let mut future = pin!(start(id));
    let mut alarm = pin!(match patience {
        Patience::Ms(ms) => Some(sleep(Duration::from_millis(ms))),
        _ => None,
    });
    let mut polls = 0;
    let done = poll_fn(|cx| {
        if patience == Patience::Polls(polls) {
            return Poll::Ready(None);
        }
        polls += 1;
        let outer = locked(sim).polled.replace(id);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        locked(sim).polled = outer;
        match polled {
            Ok(Poll::Ready(done)) => return Poll::Ready(Some(Ok(done))),
            Ok(Poll::Pending) => {}
            Err(panic) => return Poll::Ready(Some(Err(panic))),
        }
        let over = alarm.as_mut().as_pin_mut().is_some_and(|alarm| alarm.poll(cx).is_ready());
        if over || patience == Patience::Polls(polls) { Poll::Ready(None) } else { Poll::Pending }
    })
    .await;
    match done {
        Some(Ok(done)) => Some(done),
        Some(Err(panic)) => on_purpose(panic),
        None => {
            let mut world = locked(sim);
            let (op, mut place) = world.place_of(id);
            if polls == 0 {
                place = Where::NotYetPolled;
            }
            *world.awaits.0.entry((op, place)).or_default() += 1;
            world.note(format_args!("{op:?} is dropped: {place:?}"));
            None
        }
    }
}

fn on_purpose<T>(panic: Box<dyn Any + Send>) -> Option<T> {
    if panic.is::<OnPurpose>() { None } else { resume_unwind(panic) }
}

struct Forget<'a> {
    sim: &'a Sim,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        locked(self.sim).running.remove(&self.id);
    }
}
