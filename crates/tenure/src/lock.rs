use std::convert::identity;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::lease::{PLACE_MS, TTL_MS_MAX, TTL_MS_MIN};
use tenure_core::{End, Input, Name, Standing, Terms, Token};

use crate::client::Client;
use crate::error::{AcquireError, BadInput, Forked, until};
use crate::guard::{Guard, Lease};
use crate::inspect::Holder;
use crate::retry::Retry;
use crate::session::Membership;
use crate::view::{LeaseWatch, Stage};
use crate::work::OnLoss;

/// The lease of a lock without a setting of its own.
pub(crate) const TTL_DEFAULT: Duration = Duration::from_secs(30);

/// How long `acquire` waits without a setting of its own.
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The longest wait that can be asked for.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How long a call that does not wait gives what its own program has under way (another task of the session that
/// acquires, a release): about as long as a store takes to answer.
const OWN_PATIENCE: Duration = Duration::from_millis(100);

/// How far a token may be ahead of this machine's clock.
const AHEAD_MAX: Duration = Duration::from_secs(60);

/// A lock by name, and how to take it. Made by [`Client::lock`]; can be used many times.
#[derive(Clone, Debug)]
#[must_use = "a lock is taken by `acquire`, `try_acquire` or `with`"]
pub struct Lock {
    client: Client,
    pub(crate) name: String,
    pub(crate) ttl: Duration,
    wait: Option<Duration>,
    renew: bool,
    note: Option<Arc<str>>,
    pub(crate) on_loss: OnLoss,
    session: Option<Membership>,
}

impl Lock {
    pub(crate) fn new(client: Client, name: &str) -> Self {
        Self {
            client,
            name: name.to_owned(),
            ttl: TTL_DEFAULT,
            wait: Some(WAIT_DEFAULT),
            renew: true,
            note: None,
            on_loss: OnLoss::Cancel,
            session: None,
        }
    }

    pub(crate) fn of(mut self, session: Membership) -> Self {
        self.session = Some(session);
        self
    }

    /// The length of the lease, 100 ms to 24 h; 30 s otherwise. It is renewed every third of it, so the work may
    /// take longer: it is how long others wait after a crash.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long [`Lock::acquire`] waits in the queue; 30 s otherwise. 0 is [`Lock::acquire_now`].
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// [`Lock::acquire`] waits until the lock is free, however long.
    pub fn wait_forever(mut self) -> Self {
        self.wait = None;
        self
    }

    /// Don't renew: the lease ends after one `ttl` unless [`Lease::extend`] is called.
    pub fn without_renewal(mut self) -> Self {
        self.renew = false;
        self
    }

    /// What is done under the lock, for people who inspect it.
    pub fn note(mut self, note: &str) -> Self {
        self.note = Some(note.into());
        self
    }

    /// What becomes of work ([`Lock::with`], [`Lock::run`]) when the lock is lost; it is cancelled otherwise.
    pub fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.on_loss = on_loss;
        self
    }

    /// Waits for the lock, first come first served, and takes it.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let tenure = tenure::Client::connect("memory:").await?;
    /// let guard = tenure.lock("orders:42").acquire().await?;
    /// println!("write with fencing token {}", guard.fence());
    /// guard.release().await?;
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue, and gives back a lock that was granted meanwhile.
    pub async fn acquire(&self) -> Result<Guard, AcquireError> {
        self.claim(PLACE_MS).await
    }

    /// Takes the lock if it is free and nobody waits for it. Busy is not an error. What this client itself is giving
    /// back just now is not busy: the call waits for that, up to 100 ms.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    pub async fn try_acquire(&self) -> Result<Option<Guard>, AcquireError> {
        match self.take(0).await {
            Ok(guard) => Ok(Some(guard)),
            Err(failure) if failure.is_busy() => Ok(None),
            Err(failure) => Err(self.explain(failure).await),
        }
    }

    /// Takes the lock as [`Lock::try_acquire`] does; if it is busy, the error says who holds it, which costs another
    /// round trip.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    pub async fn acquire_now(&self) -> Result<Guard, AcquireError> {
        self.claim(0).await
    }

    /// Tries as [`Lock::try_acquire`] does until it has the lock or `retry` says to give up; then the error says who
    /// holds it, which costs another round trip. Only a busy lock is tried again: a store out of reach was asked for
    /// three seconds already when a try fails, and other errors do not pass by themselves.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use tenure::Retry;
    /// # let tenure = tenure::Client::connect("memory:").await?;
    ///
    /// let guard = tenure.lock("x").acquire_retrying(Retry::times(3).every(Duration::from_millis(200))).await?;
    /// # guard.release().await?; Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    pub async fn acquire_retrying(&self, retry: Retry) -> Result<Guard, AcquireError> {
        retry.check()?;
        let driver = &self.client.driver;
        let begun = driver.now();
        let mut tries: u32 = 0;
        loop {
            let busy = match self.take(0).await {
                Ok(guard) => return Ok(guard),
                Err(failure) if failure.is_busy() => failure,
                Err(failure) => return Err(self.explain(failure).await),
            };
            tries = tries.saturating_add(1);
            let waited = until(begun, driver.now());
            let Some(pause) = retry.next(tries, waited, driver.random()) else {
                return Err(match self.explain(busy).await {
                    AcquireError::Busy(holder) => AcquireError::GaveUp { holder, tries, waited },
                    error => error,
                });
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn claim(&self, place_ms: u64) -> Result<Guard, AcquireError> {
        match self.take(place_ms).await {
            Ok(guard) => Ok(guard),
            Err(failure) => Err(self.explain(failure).await),
        }
    }

    #[tracing::instrument(name = "acquire", level = "debug", skip_all, fields(lock = %self.name))]
    async fn take(&self, place_ms: u64) -> Result<Guard, Failure> {
        let name = Name::new(&self.name).map_err(BadInput::Name)?;
        let terms = self.terms(place_ms)?;
        if self.client.driver.forked() {
            return Err(Failure::Early(Forked.into()));
        }
        match &self.session {
            None => self.take_alone(name, terms, None).await,
            Some(session) => self.take_in_session(name, terms, session).await,
        }
    }

    /// Takes the lock for a session: nests in what that holds already, or asks the store on its behalf.
    async fn take_in_session(
        &self,
        name: Name,
        terms: Terms,
        session: &Membership,
    ) -> Result<Guard, Failure> {
        let label = session.checked_label()?;
        let begun = self.client.driver.now();
        let slot = session.slot(&name);
        let waits = terms.place_ms > 0;
        let patience = if waits { self.wait } else { Some(OWN_PATIENCE) };
        let Some(turn) = slot.turn(patience).await else {
            return Err(Failure::Early(self.behind_a_mate(waits).await));
        };
        if let Some(guard) = turn.nested().map_err(Failure::Early)? {
            return Ok(guard);
        }
        let waited_ms = self.client.driver.now().since(begun);
        let wait_ms = terms.wait_ms.map(|wait_ms| wait_ms.saturating_sub(waited_ms).max(1));
        let guard = self.take_alone(name, Terms { wait_ms, ..terms }, label).await?;
        Ok(turn.share(guard))
    }

    /// Why there is no guard if another task of the session acquires for too long: what the store says of the lock.
    async fn behind_a_mate(&self, waits: bool) -> AcquireError {
        match self.holder(None).await {
            Ok(mut holder) => {
                holder.mate_is_acquiring = holder.is_free();
                if waits { self.wait_elapsed(holder) } else { AcquireError::Busy(holder) }
            }
            Err(error) => error,
        }
    }

    /// Takes the lock from the store. What this client is giving back at this moment is not busy.
    async fn take_alone(&self, name: Name, terms: Terms, label: Option<Arc<str>>) -> Result<Guard, Failure> {
        let taken = self.ask(&name, terms, label.clone()).await;
        let Err(Failure::Ended(End::Busy(Some(Standing { holder: Some(holder), .. })), _)) = taken else {
            return taken;
        };
        if self.client.driver.is_given_back(holder, OWN_PATIENCE).await {
            self.ask(&name, terms, label).await
        } else {
            taken
        }
    }

    async fn ask(&self, name: &Name, terms: Terms, label: Option<Arc<str>>) -> Result<Guard, Failure> {
        let driver = &self.client.driver;
        let (serial, mut view) = driver.enter(name, terms, self.note.clone(), label);
        let mut wish = Wish { client: &self.client, serial, fulfilled: false };
        let token = tokio::select! {
            biased;
            // The ask by itself decides nothing: its answer shows in the view.
            never = async {
                driver.carry_inline(serial, Input::Acquire).await;
                std::future::pending::<std::convert::Infallible>().await
            } => match never {},
            decided = decided(&mut view) => decided?,
        };
        wish.fulfilled = true;
        let lease = Lease::new(self.client.driver.clone(), serial, name.clone(), token, view);
        let guard = Guard::new(lease);
        let ahead =
            Duration::from_micros(token.0).saturating_sub(Duration::from_millis(driver.engine.unix_ms()));
        // A store without a guard time is on this very machine: there is one clock, and nothing to compare.
        let two_clocks = guard.two_clocks();
        if two_clocks && ahead > AHEAD_MAX {
            return Err(Failure::Early(AcquireError::ClockAhead { token: token.0, ahead }));
        }
        Ok(guard)
    }

    fn terms(&self, place_ms: u64) -> Result<Terms, BadInput> {
        let ttl_ms = checked_ttl(self.ttl)?;
        let place_ms = if self.wait == Some(Duration::ZERO) { 0 } else { place_ms };
        if let Some(wait) = self.wait
            && wait > WAIT_MAX
        {
            return Err(BadInput::Wait(wait));
        }
        Ok(Terms {
            ttl_ms,
            guard_ms: self.client.driver.engine.guard_ms(ttl_ms),
            place_ms,
            wait_ms: self.wait.map(|wait| wait.as_millis() as u64).filter(|_| place_ms > 0),
            renew: self.renew,
        })
    }

    /// Puts a claim's end into words, with what can be known of the holder.
    async fn explain(&self, failure: Failure) -> AcquireError {
        let (end, fault) = match failure {
            Failure::Early(error) => return error,
            Failure::Ended(end, fault) => (end, fault),
        };
        match end {
            End::Busy(standing) => self.holder(standing).await.map_or_else(identity, AcquireError::Busy),
            End::WaitElapsed(standing) => {
                self.holder(standing).await.map_or_else(identity, |holder| self.wait_elapsed(holder))
            }
            End::Full => AcquireError::Full,
            End::Unreachable if fault.is_none() => AcquireError::Backend(Arc::new(
                tenure_engine::Fault::unknown("the store did not answer before the wait was over"),
            )),
            _ => AcquireError::Backend(fault.unwrap_or_else(|| {
                Arc::new(tenure_engine::Fault::unknown("the wish for the lock was given up"))
            })),
        }
    }

    fn wait_elapsed(&self, holder: Box<Holder>) -> AcquireError {
        AcquireError::WaitElapsed { holder, waited: self.wait.unwrap_or_default() }
    }

    async fn holder(&self, standing: Option<Standing>) -> Result<Box<Holder>, AcquireError> {
        let name = Name::new(&self.name).map_err(BadInput::Name)?;
        let holder = crate::inspect::holder(&*self.client.driver.engine, &name, standing).await;
        holder.map(Box::new).map_err(|fault| AcquireError::Backend(Arc::new(fault)))
    }
}

pub(crate) fn checked_ttl(ttl: Duration) -> Result<u64, BadInput> {
    match u64::try_from(ttl.as_millis()) {
        Ok(ttl_ms @ TTL_MS_MIN..=TTL_MS_MAX) => Ok(ttl_ms),
        _ => Err(BadInput::Ttl(ttl)),
    }
}

/// Why there is no guard.
enum Failure {
    Early(AcquireError),
    Ended(End, Option<Arc<tenure_engine::Fault>>),
}

impl Failure {
    /// Somebody else has the lock.
    fn is_busy(&self) -> bool {
        matches!(self, Self::Ended(End::Busy(_), _) | Self::Early(AcquireError::Busy(_)))
    }
}

impl From<BadInput> for Failure {
    fn from(bad: BadInput) -> Self {
        Self::Early(bad.into())
    }
}

/// Waits until a claim holds or is over.
async fn decided(view: &mut LeaseWatch) -> Result<Token, Failure> {
    view.find(|state| match &state.stage {
        Stage::Held(token) => Some(Ok(*token)),
        Stage::Over(end) => Some(Err(Failure::Ended(end.clone(), state.fault.clone()))),
        Stage::Wanting => None,
    })
    .await
}

/// The wish for a lock: dropped unfulfilled, it is taken back.
struct Wish<'a> {
    client: &'a Client,
    serial: u32,
    fulfilled: bool,
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        if !self.fulfilled && !self.client.driver.forked() {
            self.client.driver.post(self.serial, Input::Release);
        }
    }
}
