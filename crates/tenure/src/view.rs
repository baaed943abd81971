//! What a caller sees of its claim: the latest state, and a way to wait for the next.

use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::{End, Lost, Moment, Token};
use tenure_engine::Fault;
use tokio::sync::Notify;

/// What is known of a lease at this moment.
#[derive(Clone, Debug)]
pub struct LeaseState {
    /// From this moment on (milliseconds of `CLOCK_BOOTTIME`; `Moment::NEVER` for a job that keeps its lock) the
    /// holder must not act as holder any more, unless a renewal moves it. The end of the lease less a margin.
    pub valid_until: Moment,
    /// A renewal failed or is late; more tries follow until `valid_until`.
    pub at_risk: bool,
    /// The holder must stop, and why.
    pub lost: Option<Lost>,
    pub(crate) stage: Stage,
    pub(crate) fault: Option<Arc<Fault>>,
}

impl LeaseState {
    /// Why the last request that failed got no answer.
    pub fn last_fault(&self) -> Option<&Fault> {
        self.fault.as_deref()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Wanting,
    Held(Token),
    Over(End),
}

#[derive(Debug)]
struct Shared {
    /// How often it has changed, and to what.
    state: Mutex<(u64, LeaseState)>,
    changed: Notify,
}

/// The driver's side. One allocation and one wake-up for each claim: `tokio::sync::watch`, made for crowds, took a
/// tenth of the time of an acquire.
#[derive(Debug)]
pub(crate) struct View(Arc<Shared>);

impl View {
    pub(crate) fn new() -> Self {
        let state = LeaseState {
            valid_until: Moment(0),
            at_risk: false,
            lost: None,
            stage: Stage::Wanting,
            fault: None,
        };
        Self(Arc::new(Shared { state: Mutex::new((0, state)), changed: Notify::new() }))
    }

    pub(crate) fn watch(&self) -> LeaseWatch {
        LeaseWatch { shared: self.0.clone(), seen: 0 }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.0.read(|_, state| state.valid_until)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut LeaseState)) {
        {
            let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 += 1;
            change(&mut state.1);
        }
        self.0.changed.notify_waiters();
    }
}

impl Shared {
    fn read<T>(&self, look: impl FnOnce(u64, &LeaseState) -> T) -> T {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        look(state.0, &state.1)
    }
}

/// The state of a lease, and a way to wait for changes. Clones wait on their own.
#[derive(Clone, Debug)]
pub struct LeaseWatch {
    shared: Arc<Shared>,
    seen: u64,
}

impl LeaseWatch {
    /// The state at this moment; [`LeaseWatch::changed`] waits for a newer one.
    pub fn state(&mut self) -> LeaseState {
        self.look(LeaseState::clone)
    }

    /// Resolves when the state is newer than the one looked at last. On a lock that was released it never does.
    ///
    /// # Cancel safety
    /// Cancel safe: it only watches.
    pub async fn changed(&mut self) {
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if self.shared.read(|version, _| version) != self.seen {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the claim is over for its caller.
    pub(crate) async fn over(&mut self) -> End {
        self.find(|state| match &state.stage {
            Stage::Over(end) => Some(end.clone()),
            Stage::Wanting | Stage::Held(_) => None,
        })
        .await
    }

    /// Waits until `found` finds something.
    pub(crate) async fn find<T>(&mut self, mut found: impl FnMut(&LeaseState) -> Option<T>) -> T {
        loop {
            if let Some(found) = self.look(&mut found) {
                return found;
            }
            self.changed().await;
        }
    }

    fn look<T>(&mut self, look: impl FnOnce(&LeaseState) -> T) -> T {
        let (version, seen) = self.shared.read(|version, state| (version, look(state)));
        self.seen = version;
        seen
    }
}
