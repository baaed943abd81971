//! Locks whose key holds the moment at which they end: the steps of `getset` and `pid-lock`, carried to a server.
//!
//! They are no claims: a claim whose answer was lost asks again and is known by its owner, but a stamp names nobody.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Lost, Moment, Name, lease};
use tenure_engine::{Engine, Fault, FaultKind};
use tenure_forms::{Caller, Command, Done, Form, Next, Reply, pid_lock};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};

use super::Listing;
use crate::error::{AcquireError, Forked, ReleaseError, Released, until};
use crate::inspect::span;
use crate::view::{LeaseWatch, View};

/// How long a look may take.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// A stamp has no more digits than this.
const STAMP_DIGITS_MAX: usize = 20;

/// Takes locks by the steps of one form.
pub(super) struct Stamper {
    pub(super) engine: Arc<dyn Engine>,
    form: &'static Form,
    listing: Listing,
    /// Where it was made. What outlives a caller's future runs there.
    runtime: Handle,
    /// A copy of the process, made by fork, must not act.
    pid: u32,
    /// One more reference for each task under way.
    under_way: Arc<()>,
}

/// What came of one try.
pub(super) enum Try {
    Won(Stamp),
    Busy(Seen),
}

/// What lies under the key of a lock that somebody else has.
pub(super) enum Seen {
    Stamp { text: String, past_in_ms: u64 },
    Something,
}

/// The wall clock and the clock of leases, read together.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    unix_ms: u64,
    now: Moment,
}

impl Stamper {
    pub(super) fn new(engine: Arc<dyn Engine>, form: &'static Form, listing: Listing) -> Self {
        let (runtime, pid, under_way) = (Handle::current(), std::process::id(), Arc::default());
        Self { engine, form, listing, runtime, pid, under_way }
    }

    /// One try. It goes on in a task of its own if the caller goes away, and gives back what it wins.
    pub(super) async fn attempt(self: &Arc<Self>, name: &Name, ttl_ms: u64) -> Result<Try, AcquireError> {
        if self.forked() {
            return Err(Forked.into());
        }
        let (me, name, under_way) = (self.clone(), name.clone(), self.under_way.clone());
        let tried = self.runtime.spawn(async move {
            let tried = me.take(name, ttl_ms).await;
            // With it, so that somebody is under way until a lock that nobody wants any more is being given back.
            (tried, under_way)
        });
        let tried = match tried.await {
            Ok((tried, _)) => tried,
            Err(_) => Err(Fault::unknown("the runtime of the client is shutting down")),
        };
        tried.map_err(|fault| AcquireError::Backend(Arc::new(fault)))
    }

    async fn take(self: Arc<Self>, name: Name, ttl_ms: u64) -> Result<Try, Fault> {
        // Before the first byte leaves.
        let began = Clocks { unix_ms: self.engine.unix_ms(), now: self.engine.now() };
        let mut caller = Caller::new("", ttl_ms);
        caller.buffer_ms = pid_lock::release_buffer(self.as_written()).as_millis() as u64;
        let mut last: Option<Done> = None;
        loop {
            let unix_ms = self.engine.unix_ms();
            match self.form.acquire(&mut caller, unix_ms, last.as_ref()) {
                // A late end would cut the lock of whoever has taken it over since.
                Next::Send { command, .. }
                    if is_expire(&command) && self.engine.now() >= valid_until(self.form, &caller, began) =>
                {
                    return Err(self.in_doubt(too_late(), &caller.wrote));
                }
                // What is no stamp is some other lock, however small the number that it begins with.
                Next::Send { command: Command::GetSet { seen, .. }, .. }
                    if !self.as_written() && !is_stamp(&seen) =>
                {
                    return Ok(Try::Busy(Seen::Something));
                }
                Next::Send { node, command } => match self.send(&name, &command, ttl_ms).await {
                    Ok(reply) => last = Some(Done { node, command, reply }),
                    Err(fault) if is_expire(&command) && fault.kind != FaultKind::Unknown => {
                        // Won, and the server does not give it an end: nobody will work under it.
                        let lease = valid_until(self.form, &caller, began);
                        let given_back = self.clone().give_back(name, caller.clone(), lease).await;
                        return Err(match given_back {
                            Ok(_) => fault,
                            Err(_) => self.in_doubt(fault, &caller.wrote),
                        });
                    }
                    Err(fault) if may_be_written(&command, fault.kind) => {
                        return Err(self.in_doubt(fault, &caller.wrote));
                    }
                    Err(fault) => return Err(fault),
                },
                // The key was deleted before it was given an end.
                Next::Won { .. } if matches!(&last, Some(done) if done.reply == Reply::No) => {
                    return Ok(Try::Busy(Seen::Something));
                }
                Next::Won { .. } => return self.won(name, caller, began).map(Try::Won),
                Next::Busy | Next::Over => return Ok(Try::Busy(self.seen(last.as_ref(), unix_ms))),
            }
        }
    }

    fn won(self: Arc<Self>, name: Name, caller: Caller, began: Clocks) -> Result<Stamp, Fault> {
        let valid_until = valid_until(self.form, &caller, began);
        if self.engine.now() >= valid_until {
            return Err(self.in_doubt(too_late(), &caller.wrote));
        }
        let view = View::new();
        view.change(|state| state.valid_until = valid_until);
        let watch = view.watch();
        let alarm = self.runtime.spawn(tell_at(self.engine.clone(), valid_until, view)).abort_handle();
        Ok(Stamp { stamper: self, name, caller, valid_until, watch, alarm, is_given_back: false })
    }

    async fn give_back(
        self: Arc<Self>,
        name: Name,
        mut caller: Caller,
        valid_until: Moment,
    ) -> Result<Released, ReleaseError> {
        let mut last: Option<Done> = None;
        while let Next::Send { node, command } =
            self.form.release(&mut caller, self.engine.unix_ms(), last.as_ref())
        {
            if command == Command::Del && !self.may_delete(&caller, last.as_ref()) {
                break;
            }
            // Looked at before each command: the key may be somebody else's as soon as the lease is over.
            if !self.may_release(valid_until) {
                return Err(ReleaseError::NotHeld);
            }
            match self.send(&name, &command, caller.ttl_ms).await {
                Ok(reply) => last = Some(Done { node, command, reply }),
                Err(fault) => {
                    let free_in = Duration::from_millis(self.past_in_ms(&caller.wrote));
                    return Err(ReleaseError::Unanswered { why: fault.to_string(), free_in });
                }
            }
        }
        released(last.as_ref())
    }

    /// Waits up to `limit` until nothing is under way.
    pub(super) async fn settle(&self, limit: Duration) -> bool {
        let end = self.engine.now().plus(limit.as_millis() as u64);
        while Arc::strong_count(&self.under_way) > 1 {
            if self.forked() || self.engine.now() >= end {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        true
    }

    async fn send(&self, name: &Name, command: &Command, ttl_ms: u64) -> Result<Reply, Fault> {
        self.engine.plain(name, command, Duration::from_millis(lease::call_limit_ms(ttl_ms))).await
    }

    /// As its listing meant it, whoever is late keeps its hands off the key.
    fn may_release(&self, valid_until: Moment) -> bool {
        self.as_written() || self.engine.now() < valid_until
    }

    /// As its listing meant it, a release deletes the stamp that it wrote and no other.
    fn may_delete(&self, caller: &Caller, last: Option<&Done>) -> bool {
        let found = last.map(|done| &done.reply);
        self.as_written() || matches!(found, Some(Reply::Value(Some(stamp))) if *stamp == caller.wrote)
    }

    fn as_written(&self) -> bool {
        self.listing == Listing::AsWritten
    }

    fn forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// In how many milliseconds a stamp counts as past.
    fn past_in_ms(&self, stamp: &str) -> u64 {
        past_ms(self.form, stamp).saturating_sub(self.engine.unix_ms())
    }

    /// When the stamp under the key is past, if there is one. The key itself may have no end.
    pub(super) async fn ends_in_ms(&self, name: &Name) -> Result<Option<u64>, Fault> {
        Ok(match self.engine.plain(name, &Command::Get, LOOK_LIMIT).await? {
            Reply::Value(Some(text)) if is_stamp(&text) => Some(self.past_in_ms(&text)),
            _ => None,
        })
    }

    /// Our stamp may be under the key, and nobody works under it.
    fn in_doubt(&self, fault: Fault, stamp: &str) -> Fault {
        let past = span(self.past_in_ms(stamp));
        let what = format!(
            "{}; the lock may have been taken all the same, and ends by itself in {past}",
            fault.what
        );
        Fault { what, ..fault }
    }

    fn seen(&self, last: Option<&Done>, unix_ms: u64) -> Seen {
        match last.map(|done| &done.reply) {
            Some(Reply::Value(Some(text))) if is_stamp(text) => Seen::Stamp {
                text: text.clone(),
                past_in_ms: past_ms(self.form, text).saturating_sub(unix_ms),
            },
            _ => Seen::Something,
        }
    }
}

/// A lock that is held by a stamp. Given back when dropped.
pub(super) struct Stamp {
    stamper: Arc<Stamper>,
    name: Name,
    caller: Caller,
    valid_until: Moment,
    watch: LeaseWatch,
    alarm: AbortHandle,
    is_given_back: bool,
}

impl Stamp {
    pub(super) fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(super) fn holds(&self) -> bool {
        !self.stamper.forked() && self.stamper.engine.now() < self.valid_until
    }

    pub(super) fn remaining(&self) -> Duration {
        until(self.stamper.engine.now(), self.valid_until)
    }

    pub(super) fn watch(&self) -> LeaseWatch {
        self.watch.clone()
    }

    pub(super) fn leave(mut self) {
        self.is_given_back = true;
    }

    pub(super) async fn release(mut self) -> Result<Released, ReleaseError> {
        if self.stamper.forked() {
            return Err(Forked.into());
        }
        let free_in = Duration::from_millis(self.stamper.past_in_ms(&self.caller.wrote));
        let gone = |_| {
            let why = "the runtime of the client is shutting down".to_owned();
            Err(ReleaseError::Unanswered { why, free_in })
        };
        self.start_release().await.unwrap_or_else(gone)
    }

    fn start_release(&mut self) -> JoinHandle<Result<Released, ReleaseError>> {
        self.is_given_back = true;
        self.alarm.abort();
        let (stamper, under_way) = (self.stamper.clone(), self.stamper.under_way.clone());
        let (name, caller, valid_until) = (self.name.clone(), self.caller.clone(), self.valid_until);
        self.stamper.runtime.spawn(async move {
            let released = stamper.give_back(name, caller, valid_until).await;
            drop(under_way);
            released
        })
    }
}

impl Drop for Stamp {
    fn drop(&mut self) {
        self.alarm.abort();
        if !self.is_given_back && !self.stamper.forked() {
            self.start_release();
        }
    }
}

/// Tells the watchers of a lock when its time is over.
async fn tell_at(engine: Arc<dyn Engine>, at: Moment, view: View) {
    while engine.now() < at {
        // The timer's clock stands still while the machine sleeps: look at the clock of leases every second.
        let left = until(engine.now(), at);
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
    }
    view.change(|state| state.lost = Some(Lost::Expired));
}

/// The moment from which a holder must not act: its key and its stamp last for the ttl, whichever ends first, and they
/// were written after `began`.
fn valid_until(form: &Form, caller: &Caller, began: Clocks) -> Moment {
    let stamp_ms = past_ms(form, &caller.wrote).saturating_sub(began.unix_ms);
    lease::valid_until(began.now, stamp_ms.min(caller.ttl_ms))
}

/// When others take a stamp for past.
fn past_ms(form: &Form, stamp: &str) -> u64 {
    form.turns(&Caller::new("", 0), stamp).last().copied().unwrap_or(u64::MAX)
}

/// A bare number: what a client of these forms writes.
fn is_stamp(text: &str) -> bool {
    !text.is_empty() && text.len() <= STAMP_DIGITS_MAX && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn too_late() -> Fault {
    Fault::unknown("the answers took longer than the lock lasts")
}

fn is_expire(command: &Command) -> bool {
    matches!(command, Command::Expire { .. })
}

/// May the key hold our stamp after this command got no answer?
fn may_be_written(command: &Command, kind: FaultKind) -> bool {
    kind == FaultKind::Unknown
        && matches!(command, Command::SetNx { .. } | Command::GetSet { .. } | Command::Expire { .. })
}

/// What became of a release, by its last step.
fn released(last: Option<&Done>) -> Result<Released, ReleaseError> {
    match last.map(|done| (&done.command, &done.reply)) {
        Some((Command::Del, Reply::Yes)) => Ok(Released::Confirmed),
        // Another stamp than ours, or one that is nearly over: left as it is.
        Some((Command::Get, Reply::Value(Some(_)))) => Ok(Released::Unconfirmed),
        _ => Err(ReleaseError::NotHeld),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Mutex;

    use tenure_core::{HolderId, ProcessId, Request};
    use tenure_engine::{Answer, BoxFuture, Card, Ear, Look};
    use tenure_forms::{Slot, getset};

    use super::*;

    /// One key in memory. After each `SETNX` its caller is stopped for a minute, in which `next` takes the key over.
    #[derive(Debug)]
    struct Oversleeper {
        next: String,
        key: Mutex<(Moment, Slot)>,
    }

    impl Oversleeper {
        fn run(&self, command: &Command) -> Reply {
            let (now, slot) = &mut *self.key.lock().unwrap();
            let reply = slot.run(now.0, command);
            if matches!(command, Command::SetNx { .. }) {
                *now = now.plus(60_000);
                slot.run(now.0, &Command::GetSet { value: self.next.clone(), seen: String::new() });
            }
            reply
        }
    }

    impl Engine for Oversleeper {
        fn plain<'a>(
            &'a self,
            _: &'a Name,
            command: &'a Command,
            _: Duration,
        ) -> BoxFuture<'a, Result<Reply, Fault>> {
            Box::pin(async { Ok(self.run(command)) })
        }

        fn now(&self) -> Moment {
            self.key.lock().unwrap().0
        }

        fn unix_ms(&self) -> u64 {
            BEGAN.unix_ms + self.now().0
        }

        fn call<'a>(&'a self, _: &'a Name, _: &'a Request, _: Duration) -> BoxFuture<'a, Answer> {
            unreachable!("stamps are no claims")
        }

        fn call_many<'a>(&'a self, _: &'a [(Name, Request)], _: Duration) -> BoxFuture<'a, Vec<Answer>> {
            unreachable!("stamps are no claims")
        }

        fn listen(&self, _: Ear) {}

        fn process(&self) -> ProcessId {
            unreachable!("a stamp names nobody")
        }

        fn guard_ms(&self, _: u64) -> u64 {
            0
        }

        fn scope(&self) -> String {
            String::new()
        }

        fn look<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<Look, Fault>> {
            unreachable!("nobody looks")
        }

        fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Fault>> {
            unreachable!("nobody looks")
        }

        fn card(&self, _: ProcessId) -> BoxFuture<'_, Result<Option<Card>, Fault>> {
            unreachable!("nobody looks")
        }

        fn post<'a>(&'a self, _: &'a Card) -> BoxFuture<'a, Result<(), Fault>> {
            unreachable!("stamps have no card")
        }

        fn job_file(&self, _: HolderId) -> Result<Option<OwnedFd>, Fault> {
            Ok(None)
        }
    }

    #[tokio::test]
    async fn who_oversleeps_before_expire_leaves_the_lock_of_the_next_one_alone() {
        let next = (BEGAN.unix_ms / 1000 + 600).to_string();
        let engine = Arc::new(Oversleeper { next: next.clone(), key: Mutex::default() });
        let stamper = Arc::new(Stamper::new(engine.clone(), &getset::FORM, Listing::AsMeant));
        let tried = stamper.attempt(&Name::new("x").unwrap(), 10_000).await;
        let Err(AcquireError::Backend(fault)) = tried else { panic!("it is too late") };
        assert_eq!(fault.kind, FaultKind::Unknown);
        let (now, slot) = &mut *engine.key.lock().unwrap();
        *now = now.plus(10_001);
        assert_eq!(slot.run(now.0, &Command::Get), Reply::Value(Some(next)), "it has no end");
    }

    const BEGAN: Clocks = Clocks { unix_ms: 1_795_266_682_710, now: Moment(50_000) };

    fn ends(form: &Form, wrote: &str, ttl_ms: u64) -> Moment {
        let mut caller = Caller::new("", ttl_ms);
        wrote.clone_into(&mut caller.wrote);
        valid_until(form, &caller, BEGAN)
    }

    #[test]
    fn a_holder_stops_before_its_key_and_its_stamp_end() {
        let lease = lease::valid_until(BEGAN.now, 10_000);
        assert_eq!(ends(&getset::FORM, "1795266693", 10_000), lease, "EXPIRE ends first");
        assert_eq!(ends(&pid_lock::FORM, "1795266692711", 10_000), lease);
    }

    #[test]
    fn a_stamp_by_a_clock_that_was_set_back_is_believed() {
        // A second less than at the beginning.
        let lease = lease::valid_until(BEGAN.now, 9_002);
        assert_eq!(ends(&pid_lock::FORM, "1795266691711", 10_000), lease);
    }

    #[test]
    fn a_late_holder_has_nothing_left() {
        assert!(ends(&pid_lock::FORM, "17", 10_000) <= BEGAN.now);
    }

    #[test]
    fn a_stamp_is_a_bare_number() {
        assert!(is_stamp("1795266682"));
        for text in ["", "9999999999999-0000000000001.1-0", "17.5", &"9".repeat(21)] {
            assert!(!is_stamp(text), "{text}");
        }
    }

    #[test]
    fn a_release_says_what_it_found() {
        let done = |command, reply| Done { node: 0, command, reply };
        let last = done(Command::Del, Reply::Yes);
        assert_eq!(released(Some(&last)), Ok(Released::Confirmed));
        let last = done(Command::Get, Reply::Value(Some("17".to_owned())));
        assert_eq!(released(Some(&last)), Ok(Released::Unconfirmed));
        for last in [
            done(Command::Del, Reply::No),
            done(Command::Get, Reply::Value(None)),
            done(Command::Get, Reply::No),
        ] {
            assert_eq!(released(Some(&last)), Err(ReleaseError::NotHeld), "{last:?}");
        }
    }
}
