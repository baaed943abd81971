//! Who may take a lock again that it holds already.
//!
//! A session knows a [`Slot`] for each lock that it holds or is taking, and no others. Who acquires takes its turn at
//! the slot; who finds a [`Nest`] there, and not an empty slot, shares it. The guards of one hold share its nest, so
//! the count of them is the count of its references: who drops the last one releases.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tenure_core::Name;
use tokio::sync::MutexGuard;

use crate::client::Client;
use crate::error::{AcquireError, BadInput};
use crate::guard::{Guard, Lease};
use crate::lock::Lock;

const LABEL_BYTES_MAX: usize = 120;

/// An identity under which locks are taken: what it holds already it gets again at once. Made by [`Client::session`].
///
/// A lock that is taken again nests: the store knows one hold, and all guards of it have the same fencing token, the
/// same lease and the same end. The store's hold is released when the last guard goes, whichever that is, wherever it
/// is: as long as guards overlap, others wait. Other sessions of the same client, and locks without a session, are
/// others as ever.
///
/// Clones are the same session. What is held stays held as long as its guards live, even if the session is dropped.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::Released;
/// # let tenure = tenure::Client::connect("memory:").await?;
/// let import = tenure.session().label("import-7");
/// let outer = import.lock("orders").acquire().await?;
/// let inner = import.lock("orders").acquire().await?;       // at once
/// assert_eq!(outer.fence(), inner.fence());
/// assert!(tenure.lock("orders").try_acquire().await?.is_none());
///
/// assert_eq!(outer.release().await?, Released::StillHeld);
/// assert_eq!(inner.release().await?, Released::Confirmed);
/// # Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
/// ```
///
/// # Terms
/// A hold keeps the terms of its first acquire (ttl, renewal, note, label): those of later ones are not looked at.
/// [`Lease::extend`] on any guard is for all of them.
///
/// # Waiting
/// Of two tasks of a session that acquire the same lock at once, the second waits for the first, in line and within its
/// own [`Lock::wait`], and nests; if the first fails or is dropped, the second acquires by itself. Only the first
/// stands in the queue of the store: whoever takes over joins at its end. A future that was polled and then put aside
/// keeps its turn; drop what you don't poll.
///
/// A call that does not wait ([`Lock::try_acquire`], [`Lock::acquire_now`], each try of a retry) gives the first
/// 100 ms. Then it says what the store says of the lock: who holds it, or that nobody does yet and a task of the
/// session is acquiring it, or that the store does not answer.
#[derive(Clone, Debug)]
pub struct Session {
    client: Client,
    membership: Membership,
}

impl Session {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, membership: Membership { label: None, slots: Arc::default() } }
    }

    /// What people see of it who inspect a lock that it holds: up to 120 bytes without control characters, which is
    /// checked by the acquire. Clones and locks that were made before stay as they are.
    #[must_use = "it is the session that has the label"]
    pub fn label(mut self, label: &str) -> Self {
        self.membership.label = Some(label.into());
        self
    }

    /// The lock of this name, taken by this session.
    pub fn lock(&self, name: &str) -> Lock {
        self.client.lock(name).of(self.membership.clone())
    }
}

/// What a lock knows of the session that it belongs to.
#[derive(Clone)]
pub(crate) struct Membership {
    label: Option<Arc<str>>,
    slots: Arc<Slots>,
}

impl Membership {
    /// The label, if it is one.
    pub(crate) fn checked_label(&self) -> Result<Option<Arc<str>>, BadInput> {
        match &self.label {
            Some(label) if label.len() > LABEL_BYTES_MAX || label.chars().any(char::is_control) => {
                Err(BadInput::Label(label.to_string()))
            }
            label => Ok(label.clone()),
        }
    }

    /// The slot of a lock.
    pub(crate) fn slot(&self, name: &Name) -> Arc<Slot> {
        let mut slots = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(name).and_then(Weak::upgrade) {
            return slot;
        }
        let slot = Arc::new(Slot {
            name: name.clone(),
            nest: tokio::sync::Mutex::default(),
            slots: self.slots.clone(),
        });
        slots.insert(name.clone(), Arc::downgrade(&slot));
        slot
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.label).finish()
    }
}

/// The slots in use, by name. Each removes itself.
#[derive(Default)]
struct Slots(Mutex<HashMap<Name, Weak<Slot>>>);

/// One lock in a session: lives as long as somebody takes it or holds it.
pub(crate) struct Slot {
    name: Name,
    /// Locked by whoever acquires, so that one asks the store while the others wait for what it gets.
    nest: tokio::sync::Mutex<Weak<Nest>>,
    slots: Arc<Slots>,
}

impl Slot {
    /// Waits for the turn to acquire. `None`: the patience is over.
    ///
    /// Cancel safe: only the place in line is lost.
    pub(crate) async fn turn(self: &Arc<Self>, patience: Option<Duration>) -> Option<Turn<'_>> {
        let nest = match patience {
            Some(patience) => tokio::time::timeout(patience, self.nest.lock()).await.ok()?,
            None => self.nest.lock().await,
        };
        Some(Turn { slot: self, nest })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have a successor by now.
        if slots.get(&self.name).is_some_and(|slot| slot.strong_count() == 0) {
            slots.remove(&self.name);
        }
    }
}

/// The right to acquire a lock for a session.
pub(crate) struct Turn<'a> {
    slot: &'a Arc<Slot>,
    nest: MutexGuard<'a, Weak<Nest>>,
}

impl Turn<'_> {
    /// Another guard of what the session holds already, if it does.
    pub(crate) fn nested(&self) -> Result<Option<Guard>, AcquireError> {
        let Some(nest) = self.nest.upgrade() else { return Ok(None) };
        // A guard even if it is of no use: should the others go meanwhile, this one is the last.
        let guard = Guard::new(nest.lease.clone()).sharing(nest);
        if guard.holds() && guard.loss().is_none() {
            Ok(Some(guard))
        } else {
            Err(AcquireError::OldGuards { name: self.slot.name.to_string() })
        }
    }

    /// Lets the session share what was just acquired.
    pub(crate) fn share(mut self, guard: Guard) -> Guard {
        let nest = Arc::new(Nest { lease: guard.lease().clone(), _slot: self.slot.clone() });
        *self.nest = Arc::downgrade(&nest);
        guard.sharing(nest)
    }
}

/// What the guards of one hold share. The hold is released by whoever drops it.
pub(crate) struct Nest {
    lease: Lease,
    /// As long as there is something to share, the session finds it.
    _slot: Arc<Slot>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_session_remembers_what_it_holds_and_nothing_else() {
        let client = Client::over(tenure_embedded::MemoryEngine::new()).unwrap();
        let session = client.session();
        let known = || session.membership.slots.0.lock().unwrap().len();
        for _ in 0..3 {
            let (outer, inner) = (session.lock("x").acquire().await.unwrap(), session.lock("x"));
            let (inner, other) = (inner.acquire().await.unwrap(), session.lock("y").acquire().await.unwrap());
            assert_eq!(known(), 2);
            drop((outer, other));
            assert_eq!(known(), 1);
            inner.release().await.unwrap();
            assert_eq!(known(), 0);
        }
        let _taken = client.lock("x").acquire().await.unwrap();
        for number in 0..100 {
            assert!(session.lock("x").try_acquire().await.unwrap().is_none());
            drop(session.lock(&format!("free-{number}")).acquire().await.unwrap());
        }
        assert_eq!(known(), 0);
    }
}
