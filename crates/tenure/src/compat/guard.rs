use std::fmt;
use std::time::Duration;

use tenure_core::{HolderId, Lost, Moment};

use super::stamps::Stamp;
use crate::error::{ReleaseError, Released};
use crate::view::LeaseWatch;

/// A lock of other programs that is held. Released by [`Guard::release`], or in the background when dropped.
///
/// It has no fencing token. A lock with a stamp is not renewed: [`Guard::lost`] resolves when its time is over.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct Guard(Hold);

enum Hold {
    Classic(crate::Guard),
    Stamp(Stamp),
}

impl Guard {
    pub(super) fn classic(guard: crate::Guard) -> Self {
        Self(Hold::Classic(guard))
    }

    pub(super) fn stamp(stamp: Stamp) -> Self {
        Self(Hold::Stamp(stamp))
    }

    /// The name of the lock.
    pub fn name(&self) -> &str {
        match &self.0 {
            Hold::Classic(guard) => guard.name(),
            Hold::Stamp(stamp) => stamp.name(),
        }
    }

    /// The public id of this acquisition, which the key of a classic lock shows. `None`: a stamp names nobody.
    pub fn holder(&self) -> Option<HolderId> {
        match &self.0 {
            Hold::Classic(guard) => Some(guard.holder()),
            Hold::Stamp(_) => None,
        }
    }

    /// Is the lease renewed until the release? A stamp is not.
    pub fn is_renewed(&self) -> bool {
        matches!(self.0, Hold::Classic(_))
    }

    /// May the caller act as holder at this moment? Reads the clock, asks nobody, and is right after any pause.
    pub fn holds(&self) -> bool {
        match &self.0 {
            Hold::Classic(guard) => guard.holds(),
            Hold::Stamp(stamp) => stamp.holds(),
        }
    }

    /// The moment until which [`Guard::holds`] is true (milliseconds of `CLOCK_BOOTTIME`), unless a renewal moves it;
    /// a stamp is not renewed.
    pub fn deadline(&self) -> Moment {
        self.watch().state().valid_until
    }

    /// How much is left until [`Guard::deadline`].
    pub fn remaining(&self) -> Duration {
        match &self.0 {
            Hold::Classic(guard) => guard.remaining(),
            Hold::Stamp(stamp) => stamp.remaining(),
        }
    }

    /// Resolves when the holder must stop, with the reason. Never on a lock that was released.
    ///
    /// # Cancel safety
    /// Cancel safe: it only watches.
    pub async fn lost(&self) -> Lost {
        self.watch().find(|state| state.lost.clone()).await
    }

    /// The state of the lease, and a way to wait for changes.
    pub fn watch(&self) -> LeaseWatch {
        match &self.0 {
            Hold::Classic(guard) => guard.watch(),
            Hold::Stamp(stamp) => stamp.watch(),
        }
    }

    /// Gives the lock back.
    ///
    /// A release of a stamp is two commands (`GET`, `DEL`), each sent once: repeated, they could delete the lock of
    /// whoever came next. [`Released::Unconfirmed`] means there that the key had another stamp: somebody who tried to
    /// take over at the same time moved it (then the lock ends by that stamp), or somebody's clock is fast and it is
    /// taken. As its listing meant it ([`super::Listing::AsMeant`]), nothing is sent once the lease is over:
    /// [`ReleaseError::NotHeld`].
    ///
    /// # Cancel safety
    /// The lock is given back in any case; only the answer is lost.
    pub async fn release(self) -> Result<Released, ReleaseError> {
        match self.0 {
            Hold::Classic(guard) => guard.release().await,
            Hold::Stamp(stamp) => stamp.release().await,
        }
    }

    /// Releases after work that did not run to its end, unless its time is over.
    pub(super) async fn give_back(self) {
        if self.holds() {
            let _ = self.release().await;
        }
    }

    /// Goes away without a release: the lock ends by itself.
    pub fn leave(self) {
        match self.0 {
            Hold::Classic(guard) => guard.leave(),
            Hold::Stamp(stamp) => stamp.leave(),
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name())
            .field("holder", &self.holder())
            .finish_non_exhaustive()
    }
}
