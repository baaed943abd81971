use std::fmt;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::lease::TTL_MS_MAX;
use tenure_core::{End, HolderId, Input, Lost, Moment, Name, Reply, Token};
use tenure_engine::Fault;

use crate::driver::Driver;
use crate::error::{AcquireError, ExtendError, Forked, ReleaseError, Released, until};
use crate::lock::checked_ttl;
use crate::session::Nest;
use crate::view::{LeaseState, LeaseWatch};

/// How long [`Guard::release`] waits for an answer.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);

/// A lock that is held, as the work under it sees it: it can be asked and watched, but not released. Clones look
/// at the same lease.
#[derive(Clone)]
pub struct Lease {
    driver: Arc<Driver>,
    serial: u32,
    name: Name,
    token: Token,
    view: LeaseWatch,
}

impl Lease {
    pub(crate) fn new(driver: Arc<Driver>, serial: u32, name: Name, token: Token, view: LeaseWatch) -> Self {
        Self { driver, serial, name, token, view }
    }

    /// The name of the lock.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The fencing token: larger than that of every earlier holder of this lock. Pass it to whatever the lock
    /// protects, and have it refuse smaller ones than it has seen: [`crate::fence`].
    pub fn fence(&self) -> u64 {
        self.token.0
    }

    /// The public id of this acquisition, as `tenure inspect` shows it.
    pub fn holder(&self) -> HolderId {
        self.driver.holder(self.serial)
    }

    /// May the caller act as holder at this moment? Reads the clock, asks nobody, and is right after any pause.
    pub fn holds(&self) -> bool {
        !self.driver.forked() && self.driver.holds(self.serial, self.token)
    }

    /// The moment until which [`Lease::holds`] is true, unless a renewal moves it: milliseconds of
    /// `CLOCK_BOOTTIME`, which goes on while the machine sleeps.
    pub fn deadline(&self) -> Moment {
        self.state().valid_until
    }

    /// How much is left until [`Lease::deadline`].
    pub fn remaining(&self) -> Duration {
        until(self.driver.now(), self.deadline())
    }

    /// Resolves when the holder must stop, with the reason: before anybody else can hold the lock, as long as the
    /// store keeps its word. Never resolves on a lock that was released.
    ///
    /// # Cancel safety
    /// Cancel safe: it only watches.
    pub async fn lost(&self) -> Lost {
        self.view.clone().find(|state| state.lost.clone()).await
    }

    /// The reason, if the holder must stop by now: what [`Lease::lost`] would resolve with. Does not wait.
    pub fn loss(&self) -> Option<Lost> {
        self.state().lost
    }

    fn state(&self) -> LeaseState {
        self.view.clone().state()
    }

    /// The state of the lease, and a way to wait for changes.
    pub fn watch(&self) -> LeaseWatch {
        self.view.clone()
    }

    /// Begins the lease anew with another length, which renewals keep. Returns the new [`Lease::deadline`].
    ///
    /// # Cancel safety
    /// The store may have begun the new lease or not; automatic renewal goes on with the new length.
    pub async fn extend(&self, ttl: Duration) -> Result<Moment, ExtendError> {
        let ttl_ms = checked_ttl(ttl)?;
        if self.driver.forked() {
            return Err(Forked.into());
        }
        let lost = |lease: &Self| ExtendError::Lost(lease.state().lost.unwrap_or(Lost::Expired));
        if !self.holds() {
            return Err(lost(self));
        }
        let guard_ms = self.driver.engine.guard_ms(ttl_ms);
        match self.driver.carry_inline(self.serial, Input::Extend { ttl_ms, guard_ms }).await {
            Some(Ok(Reply::Renewed)) if self.holds() => Ok(self.deadline()),
            Some(Err(fault)) => Err(ExtendError::Unknown(Arc::new(fault))),
            _ => Err(lost(self)),
        }
    }

    /// A file that makes the lock last as long as anybody has it open: pass it to a child process, and the lock
    /// is not free before the child and all of its children are gone. From then on the lease does not end by the
    /// clock; the caller keeps the file, too, until it releases. `None` where the store cannot see processes.
    ///
    /// # Errors
    /// The lock is not held any more: another may hold it, and a job must not begin.
    pub fn job_file(&self) -> Result<Option<OwnedFd>, Fault> {
        let lost = || Fault::refused(format!("the lock '{}' is not held any more", self.name));
        if !self.holds() {
            return Err(lost());
        }
        let file = self.driver.engine.job_file(self.holder())?;
        if file.is_some() {
            // From here on the store keeps the hold; the claim believes it only if its own lease has not ended.
            self.driver.post(self.serial, Input::Pin);
            if !self.holds() {
                return Err(lost());
            }
        }
        Ok(file)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name)
            .field("holder", &self.holder())
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}

/// A held lock. Released by [`Guard::release`], or in the background when dropped: at the end of a program that takes
/// [`crate::Client::close`], or the lock stays until its lease ends.
///
/// Two guards of one process exclude each other like any others, unless they belong to one [`crate::Session`]: those
/// share a hold, and the last one to go decides what becomes of it.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct Guard {
    lease: Lease,
    released: bool,
    /// Shared with the other guards of a session; `None`: there is no session.
    nest: Option<Arc<Nest>>,
}

impl Guard {
    pub(crate) fn new(lease: Lease) -> Self {
        Self { lease, released: false, nest: None }
    }

    pub(crate) fn sharing(mut self, nest: Arc<Nest>) -> Self {
        self.nest = Some(nest);
        self
    }

    /// Gives up this guard's part of the hold. Of many that go at once, one is told that it is the last.
    fn give_up_part(&mut self) -> Part {
        let last = self.nest.take().is_none_or(|nest| Arc::into_inner(nest).is_some());
        if last { Part::Last } else { Part::Shared }
    }

    pub(crate) fn two_clocks(&self) -> bool {
        self.lease.driver.engine.guard_ms(TTL_MS_MAX) > 0
    }

    /// The lease of this guard, to be cloned into the work.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Gives the lock back, to the first in line if anybody waits. Waits up to five seconds for an answer; without
    /// one the release is repeated in the background until the lease is over. A guard of a session that has other
    /// guards of the same hold sends nothing, and says whether that still holds.
    ///
    /// # Cancel safety
    /// The lock is given back in any case; only the answer is lost.
    pub async fn release(mut self) -> Result<Released, ReleaseError> {
        self.released = true;
        if self.lease.driver.forked() {
            return Err(Forked.into());
        }
        // Asked as long as this guard has its part: afterwards the last one may release at any moment.
        let held = self.nest.is_none() || self.holds();
        let part = self.give_up_part();
        if part == Part::Shared {
            return if held { Ok(Released::StillHeld) } else { Err(ReleaseError::NotHeld) };
        }
        let Lease { driver, serial, view, .. } = &mut self.lease;
        driver.carry_inline(*serial, Input::Release).await;
        match tokio::time::timeout(RELEASE_PATIENCE, view.over()).await {
            Ok(End::Released { confirmed: true }) => Ok(Released::Confirmed),
            Ok(End::Released { confirmed: false }) => Ok(Released::Unconfirmed),
            Ok(End::ReleaseUnknown { by }) => Err(ReleaseError::Unknown { free_in: until(driver.now(), by) }),
            Ok(_) => Err(ReleaseError::NotHeld),
            Err(_) => {
                let gone_by = driver.gone_by(*serial).unwrap_or(Moment(0));
                Err(ReleaseError::Unknown { free_in: until(driver.now(), gone_by) })
            }
        }
    }
}

impl Guard {
    /// A guard under which work may begin. One that must stop already is given back.
    pub(crate) async fn fit_for_work(self) -> Result<Self, AcquireError> {
        match self.loss() {
            None if self.holds() => Ok(self),
            why => {
                self.give_back().await;
                Err(AcquireError::LostAtOnce(why.unwrap_or(Lost::Expired)))
            }
        }
    }

    /// Releases after work that did not run to its end. A lease that is over is not waited for: it frees the lock by
    /// itself.
    pub(crate) async fn give_back(self) {
        if self.holds() {
            let _ = self.release().await;
        }
    }

    /// Releases after work that ran to its end, and says whether the lock was lost under it.
    pub(crate) async fn settle(self) -> Option<Lost> {
        let (held, lost) = (self.holds(), self.loss());
        loss_of_work(held, lost, &self.release().await)
    }

    /// Goes away without a release: the lock stays with the job that has its [`Lease::job_file`], until the last
    /// process of it is gone. Without such a file it ends with the lease, which is not renewed any more once the
    /// client is gone. In a session the last guard of the hold decides: one that is released later releases it.
    pub fn leave(mut self) {
        self.released = true;
    }
}

/// Why the lock was lost under work that ran to its end, if it was. `held` and `lost` are as of that end: who was asked
/// to stop, and stopped while it held, has lost nothing, whether or not its release was answered.
pub(crate) fn loss_of_work(
    held: bool,
    lost: Option<Lost>,
    released: &Result<Released, ReleaseError>,
) -> Option<Lost> {
    match released {
        Err(ReleaseError::Forked(_)) => lost,
        _ if !held => Some(lost.unwrap_or(Lost::Expired)),
        Err(ReleaseError::NotHeld) => Some(Lost::Taken),
        Ok(_) | Err(_) => None,
    }
}

/// What share of a hold a guard had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// The hold goes with it.
    Last,
    /// Others have a part of it.
    Shared,
}

impl Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.lease).finish()
    }
}

/// Never blocks, works on any thread and while unwinding: the background task sends the release.
impl Drop for Guard {
    fn drop(&mut self) {
        if self.released || self.lease.driver.forked() {
            return;
        }
        let part = self.give_up_part();
        if part == Part::Last {
            self.lease.driver.post(self.lease.serial, Input::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_has_lost_its_lock_unless_it_held_to_the_end_and_the_store_agrees() {
        let (confirmed, unconfirmed) = (Ok(Released::Confirmed), Ok(Released::Unconfirmed));
        let still_held = Ok(Released::StillHeld);
        let unknown = Err(ReleaseError::Unknown { free_in: Duration::ZERO });
        let not_held = Err(ReleaseError::NotHeld);
        let asked = || Some(Lost::Asked { by: "ops".to_owned() });
        for lost in [None, asked()] {
            for fine in [&confirmed, &unconfirmed, &still_held, &unknown] {
                assert_eq!(loss_of_work(true, lost.clone(), fine), None, "{lost:?}, {fine:?}");
            }
            assert_eq!(loss_of_work(true, lost, &not_held), Some(Lost::Taken));
        }
        for released in [&confirmed, &unconfirmed, &unknown, &not_held] {
            assert_eq!(loss_of_work(false, None, released), Some(Lost::Expired), "{released:?}");
            assert_eq!(loss_of_work(false, Some(Lost::Taken), released), Some(Lost::Taken), "{released:?}");
            assert_eq!(loss_of_work(false, asked(), released), asked(), "{released:?}");
        }
        assert_eq!(loss_of_work(false, None, &Err(Forked.into())), None, "nothing was released");
    }
}
