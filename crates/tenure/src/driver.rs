//! Feeds claims and carries out their orders. Holds no `if` about locks: what happens is decided in
//! [`tenure_core::Claim`], what a store does in its engine.
//!
//! Whoever acquires carries the first ask in its own task, so that a free lock costs one round trip and no hop
//! between tasks. Everything later (asking again, renewing, releasing a dropped guard) is carried by one background
//! task for all claims of the client, in batches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_core::{
    Attempt, Claim, HolderId, Input, Message, Moment, Name, Notice, Outcome, Output, Owner, Phase, Request,
    Terms, Token, lease,
};
use tenure_engine::{Answer, Card, CardHold, CardWait, Engine, Fault, Letter};
use tokio::sync::{Notify, mpsc};

use crate::telemetry;
use crate::view::{LeaseWatch, Stage, View};

/// How old a hold or a wait must be to show on the card of its process: short ones cost nothing.
const ON_CARD_AFTER_MS: u64 = 1000;

/// The most holds, and the most waits, that a card shows.
const ON_CARD_MAX: usize = 1000;

/// The most requests in one batch: they share one time limit.
const BATCH_MAX: usize = 1000;

/// How long the release of a grant that nobody wants may take.
const GIVE_BACK_MS: u64 = 2000;

/// How often a card is looked at, and how often it is refreshed although nothing changed.
const CARD_EVERY: Duration = Duration::from_secs(1);
const CARD_REFRESH_MS: u64 = 20_000;

/// A request of a claim, to be carried.
pub(crate) struct Errand {
    serial: u32,
    attempt: Attempt,
    name: Name,
    request: Request,
    limit_ms: u64,
}

struct Entry {
    claim: Claim,
    name: Name,
    note: Option<Arc<str>>,
    label: Option<Arc<str>>,
    view: View,
    /// As registered in [`Table::deadlines`].
    deadline: Option<Moment>,
    /// When it began to wait, or to hold.
    since: Moment,
    /// When the lease began last.
    renewed: Moment,
}

#[derive(Default)]
struct Table {
    entries: HashMap<u32, Entry>,
    deadlines: BTreeSet<(Moment, u32)>,
    /// Randomness that was fetched ahead.
    secrets: Vec<u128>,
    /// The background task sleeps until then at the latest.
    asleep_until: Option<Moment>,
    card: Posted,
}

#[derive(Default)]
struct Posted {
    /// The claims on the card that was posted last, and whether they held.
    shown: Vec<(u32, bool)>,
    at: Moment,
}

pub(crate) struct Driver {
    pub(crate) engine: Arc<dyn Engine>,
    /// Fork without exec makes a copy of this driver in another process; it must not act.
    pid: u32,
    next_serial: AtomicU32,
    table: Mutex<Table>,
    errands: mpsc::UnboundedSender<Vec<Errand>>,
    wake: Arc<Notify>,
    about: Card,
    announce_at_once: bool,
    /// Somebody began to wait or to hold, and wants it known.
    news: Arc<Notify>,
}

impl Driver {
    /// Starts the background task on the current runtime.
    pub(crate) fn start(engine: Arc<dyn Engine>, about: Card, announce_at_once: bool) -> Arc<Self> {
        let (errands, inbox) = mpsc::unbounded_channel();
        let wake = Arc::new(Notify::new());
        let news = Arc::new(Notify::new());
        let driver = Arc::new(Self {
            engine: engine.clone(),
            pid: std::process::id(),
            next_serial: AtomicU32::new(1),
            table: Mutex::default(),
            errands,
            wake: wake.clone(),
            about,
            announce_at_once,
            news: news.clone(),
        });
        let ear = Arc::downgrade(&driver);
        engine.listen(Arc::new(move |letter| {
            if let Some(driver) = ear.upgrade() {
                driver.hear(letter);
            }
        }));
        tokio::spawn(background(Arc::downgrade(&driver), engine, inbox, wake, news));
        driver
    }

    /// The clock of leases.
    pub(crate) fn now(&self) -> Moment {
        self.engine.now()
    }

    pub(crate) fn forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// Enters a new claim that has not asked yet.
    pub(crate) fn enter(
        &self,
        name: &Name,
        terms: Terms,
        note: Option<Arc<str>>,
        label: Option<Arc<str>>,
    ) -> (u32, LeaseWatch) {
        let mut table = self.table();
        let serial = loop {
            let serial = self.next_serial.fetch_add(1, Relaxed);
            if !table.entries.contains_key(&serial) {
                break serial;
            }
        };
        let secret = table.secret(&*self.engine);
        let owner = Owner { holder: HolderId { process: self.engine.process(), serial }, secret };
        let view = View::new();
        let watch = view.watch();
        let now = self.now();
        let claim = Claim::new(owner, terms);
        let entry =
            Entry { claim, name: name.clone(), note, label, view, deadline: None, since: now, renewed: now };
        table.entries.insert(serial, entry);
        (serial, watch)
    }

    /// A random number.
    pub(crate) fn random(&self) -> u64 {
        self.table().secret(&*self.engine) as u64
    }

    /// Feeds one input and returns what has to be carried. A claim that is over or gone ignores it.
    pub(crate) fn step(&self, serial: u32, input: Input) -> Vec<Errand> {
        let mut table = self.table();
        let stood = self.announce_at_once.then(|| table.stands(serial));
        let errands = table.step(serial, self.now(), input);
        if stood.is_some_and(|stood| stood != table.stands(serial)) {
            self.news.notify_one();
        }
        let earliest = table.deadlines.first().map(|(at, _)| *at);
        // The background task finds out by itself that a deadline went away; only earlier ones must wake it.
        if earliest.is_some_and(|at| table.asleep_until.is_none_or(|asleep| at < asleep)) {
            table.asleep_until = earliest;
            self.wake.notify_one();
        }
        errands
    }

    /// Feeds one input from where nothing can be awaited: the background task carries what follows.
    pub(crate) fn post(&self, serial: u32, input: Input) {
        let errands = self.step(serial, input);
        if !errands.is_empty() {
            // Fails only when the runtime is gone: then nothing can be sent, and the lease ends by itself.
            let _ = self.errands.send(errands);
        }
    }

    /// Feeds one input and carries what follows in the caller's own task. Returns the last answer.
    ///
    /// Cancel safe: what was under way counts as unknown, and the background task goes on.
    pub(crate) async fn carry_inline(&self, serial: u32, input: Input) -> Option<Answer> {
        let mut errands = self.step(serial, input);
        let mut last = None;
        while let Some(errand) = errands.pop() {
            let mut flight = Flight { driver: self, serial, attempt: Some(errand.attempt) };
            let limit = Duration::from_millis(errand.limit_ms);
            let answer = self.engine.call(&errand.name, &errand.request, limit).await;
            flight.attempt = None;
            errands.extend(self.land(serial, errand.attempt, &answer));
            last = Some(answer);
        }
        last
    }

    /// Tells a claim what became of its request.
    fn land(&self, serial: u32, attempt: Attempt, answer: &Answer) -> Vec<Errand> {
        let outcome = match answer {
            Ok(reply) => Outcome::Answered(reply.clone()),
            Err(fault) => {
                telemetry::fault(fault.kind);
                if let Some(entry) = self.table().entries.get(&serial) {
                    let told = Fault { kind: fault.kind, what: fault.to_string(), hint: "", source: None };
                    entry.view.change(|state| state.fault = Some(Arc::new(told)));
                }
                fault.outcome()
            }
        };
        self.step(serial, Input::Reply { attempt, outcome })
    }

    fn hear(&self, letter: Letter) {
        let Letter { name, owner, message } = letter;
        if self.forked() {
            return;
        }
        if self.is_ours(&owner) {
            self.post(owner.holder.serial, Input::Message(message));
        } else if matches!(message, Message::Granted { .. }) {
            // Its claim is over: nobody would ever give that back.
            let request = Request::Release { owner };
            let errand = Errand {
                serial: owner.holder.serial,
                attempt: Attempt(0),
                name,
                request,
                limit_ms: GIVE_BACK_MS,
            };
            let _ = self.errands.send(vec![errand]);
        }
    }

    fn is_ours(&self, owner: &Owner) -> bool {
        self.table().entries.get(&owner.holder.serial).is_some_and(|entry| entry.claim.owner() == owner)
    }

    /// Does this claim hold at this moment?
    pub(crate) fn holds(&self, serial: u32, token: Token) -> bool {
        let held = self.table().entries.get(&serial).and_then(|entry| entry.claim.holds(self.now()));
        held == Some(token)
    }

    /// By when the store has freed the lock of a claim that is leaving.
    pub(crate) fn gone_by(&self, serial: u32) -> Option<Moment> {
        match self.table().entries.get(&serial)?.claim.phase() {
            Phase::Leaving(leaving) => Some(leaving.gone_by()),
            _ => None,
        }
    }

    pub(crate) fn holder(&self, serial: u32) -> HolderId {
        HolderId { process: self.engine.process(), serial }
    }

    /// Waits until the store has answered a release of this client that is under way. False: somebody else holds, or
    /// stays, or it takes too long.
    pub(crate) async fn is_given_back(&self, holder: HolderId, patience: Duration) -> bool {
        if holder.process != self.engine.process() {
            return false;
        }
        let mut leaving = match self.table().entries.get(&holder.serial) {
            None => return true,
            Some(entry) if matches!(entry.claim.phase(), Phase::Leaving(_)) => entry.view.watch(),
            Some(_) => return false,
        };
        tokio::time::timeout(patience, leaving.over()).await.is_ok()
    }

    /// Gives everything back: for the end of a client. The claims that are not over yet.
    pub(crate) fn release_all(&self) -> usize {
        let mut serials: Vec<u32> = self.table().entries.keys().copied().collect();
        serials.sort_unstable();
        for serial in &serials {
            self.post(*serial, Input::Release);
        }
        self.table().entries.len()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.table().entries.is_empty()
    }

    /// Feeds `Tick` to every claim whose time has come, and says how long the background task may sleep.
    fn tick(&self) -> (Vec<Errand>, Duration) {
        let mut table = self.table();
        let now = self.now();
        let due: Vec<u32> =
            table.deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, serial)| *serial).collect();
        let errands = due.into_iter().flat_map(|serial| table.step(serial, now, Input::Tick)).collect();
        let next = table.deadlines.first().map(|(at, _)| *at);
        table.asleep_until = next;
        let ms = next.map_or(u64::MAX, |at| at.since(now));
        // The timer's clock stands still while the machine sleeps: look at the clock of leases every second.
        (errands, Duration::from_millis(ms.min(if next.is_some() { 1000 } else { 60_000 })))
    }

    /// The card to post now, if there is anything new to tell.
    fn card(&self) -> Option<Card> {
        let mut table = self.table();
        let now = self.now();
        let on_card_after_ms = if self.announce_at_once { 0 } else { ON_CARD_AFTER_MS };
        let mut shown: Vec<(&u32, &Entry)> =
            table.entries.iter().filter(|(_, entry)| now.since(entry.since) >= on_card_after_ms).collect();
        shown.sort_by_key(|(serial, entry)| (entry.since, **serial));
        let held = |entry: &Entry| matches!(entry.claim.phase(), Phase::Held(_));
        let gist: Vec<(u32, bool)> = shown.iter().map(|(serial, entry)| (**serial, held(entry))).collect();
        let fresh = now.since(table.card.at) < CARD_REFRESH_MS;
        if gist == table.card.shown && (fresh || gist.is_empty()) {
            return None;
        }
        let unix_now_ms = self.engine.unix_ms();
        let on_the_wall = |at: Moment| unix_now_ms.saturating_sub(now.since(at));
        let mut card = self.about.clone();
        for (serial, entry) in shown {
            let holder = self.holder(*serial).to_string();
            let name = entry.name.to_string();
            let label = entry.label.as_deref().map(str::to_owned);
            match entry.claim.phase() {
                Phase::Held(held) if card.holds.len() < ON_CARD_MAX => card.holds.push(CardHold {
                    name,
                    holder,
                    fence: held.token().0,
                    since_ms: on_the_wall(entry.since),
                    renewed_ms: on_the_wall(entry.renewed),
                    ttl_ms: entry.claim.terms().ttl_ms,
                    cmd: entry.note.as_deref().map(str::to_owned),
                    label,
                }),
                Phase::Asking { .. } | Phase::Waiting { .. } if card.waits.len() < ON_CARD_MAX => {
                    card.waits.push(CardWait { name, holder, since_ms: on_the_wall(entry.since), label });
                }
                _ => {}
            }
        }
        table.card = Posted { shown: gist, at: now };
        Some(card)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing below panics half-way through a change, so a poisoned table is still whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn secret(&mut self, engine: &dyn Engine) -> u128 {
        if self.secrets.is_empty() {
            self.secrets = engine.secrets();
        }
        self.secrets.pop().expect("there are some")
    }

    /// Whether a claim waits or holds, as its card tells it.
    fn stands(&self, serial: u32) -> (bool, bool) {
        match self.entries.get(&serial).map(|entry| entry.claim.phase()) {
            Some(Phase::Waiting { .. }) => (true, false),
            Some(Phase::Held(_)) => (false, true),
            _ => (false, false),
        }
    }

    fn step(&mut self, serial: u32, now: Moment, input: Input) -> Vec<Errand> {
        let Some(entry) = self.entries.get_mut(&serial) else { return Vec::new() };
        let mut outputs = Vec::new();
        entry.claim.step(now, input, &mut outputs);
        entry.claim.check(now);
        let (mut errands, mut notices) = (Vec::new(), Vec::new());
        for output in outputs {
            match output {
                Output::Send { attempt, request } => errands.push(Errand {
                    serial,
                    attempt,
                    name: entry.name.clone(),
                    request,
                    limit_ms: lease::call_limit_ms(entry.claim.terms().ttl_ms),
                }),
                Output::Tell(notice) => notices.push(notice),
            }
        }
        entry.show(now, &notices);
        let deadline = entry.claim.deadline();
        let over = matches!(entry.claim.phase(), Phase::Ended);
        if deadline != entry.deadline {
            if let Some(at) = entry.deadline {
                self.deadlines.remove(&(at, serial));
            }
            if let Some(at) = deadline {
                self.deadlines.insert((at, serial));
            }
            entry.deadline = deadline;
        }
        if over {
            self.entries.remove(&serial);
        }
        errands
    }
}

impl Entry {
    /// Shows what a step has changed, all at once.
    fn show(&mut self, now: Moment, notices: &[Notice]) {
        let valid_until = self.claim.valid_until();
        let renewed = valid_until.is_some_and(|at| self.view.valid_until() != at);
        if notices.is_empty() && !renewed {
            return;
        }
        for notice in notices {
            telemetry::notice(&self.name, self.claim.owner().holder, now.since(self.since), notice);
        }
        if renewed {
            self.renewed = now;
        }
        if notices.iter().any(|notice| matches!(notice, Notice::Granted { .. })) {
            self.since = now;
        }
        self.view.change(|state| {
            if let Some(valid_until) = valid_until {
                // A lease that began anew is out of danger.
                state.at_risk &= valid_until <= state.valid_until;
                state.valid_until = valid_until;
            }
            for notice in notices {
                match notice {
                    Notice::Granted { token } => state.stage = Stage::Held(*token),
                    Notice::AtRisk => state.at_risk = true,
                    Notice::Lost(lost) => {
                        state.lost.get_or_insert_with(|| lost.clone());
                    }
                    Notice::Ended(end) => state.stage = Stage::Over(end.clone()),
                }
            }
        });
    }
}

/// A request under way in a future that may be dropped. A claim waits for each of its requests, so somebody has to
/// say when no answer will come.
struct Flight<'a> {
    driver: &'a Driver,
    serial: u32,
    attempt: Option<Attempt>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt
            && !self.driver.forked()
        {
            self.driver.post(self.serial, Input::Reply { attempt, outcome: Outcome::Unknown });
        }
    }
}

/// Ticks what is due, sleeps to the next deadline, carries. Ends when the driver is gone and its last errands are
/// carried.
async fn background(
    driver: Weak<Driver>,
    engine: Arc<dyn Engine>,
    mut inbox: mpsc::UnboundedReceiver<Vec<Errand>>,
    wake: Arc<Notify>,
    news: Arc<Notify>,
) {
    let mut cards = tokio::time::interval(CARD_EVERY);
    cards.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let pid = std::process::id();
    loop {
        // In a forked copy this task goes on where the fork left it, over sockets that are not its own.
        if std::process::id() != pid {
            return;
        }
        // In every round, whatever woke it: no flood of errands can keep a deadline waiting.
        let (errands, sleep) =
            driver.upgrade().map_or((Vec::new(), Duration::from_secs(60)), |driver| driver.tick());
        carry(&driver, &engine, errands);
        tokio::select! {
            // In this order, so that a run can be repeated: what is ready once a second at the most before what may
            // always be, and what can wait for the next second last.
            biased;
            _ = cards.tick() => post_card(&driver, &engine),
            errands = inbox.recv() => {
                let Some(mut errands) = errands else { return };
                // What has gathered meanwhile travels together.
                while let Ok(more) = inbox.try_recv() {
                    errands.extend(more);
                }
                carry(&driver, &engine, errands);
            }
            () = tokio::time::sleep(sleep) => {}
            () = wake.notified() => {}
            () = news.notified() => post_card(&driver, &engine),
        }
    }
}

fn post_card(driver: &Weak<Driver>, engine: &Arc<dyn Engine>) {
    if let Some(card) = driver.upgrade().and_then(|driver| driver.card()) {
        let (driver, engine) = (driver.clone(), engine.clone());
        tokio::spawn(async move {
            if let Err(fault) = engine.post(&card).await {
                tracing::debug!(%fault, "the card of this process could not be posted");
                if let Some(driver) = driver.upgrade() {
                    // Not known, not posted: the next round tries again.
                    driver.table().card = Posted::default();
                }
            }
        });
    }
}

/// Carries errands in a task of its own, one batch for each time limit, so that the clock is never kept waiting.
fn carry(driver: &Weak<Driver>, engine: &Arc<dyn Engine>, errands: Vec<Errand>) {
    let mut batches: BTreeMap<u64, Vec<Vec<Errand>>> = BTreeMap::new();
    for errand in errands {
        let batches = batches.entry(errand.limit_ms).or_default();
        match batches.last_mut() {
            Some(batch) if batch.len() < BATCH_MAX => batch.push(errand),
            _ => batches.push(vec![errand]),
        }
    }
    for (limit_ms, batch) in
        batches.into_iter().flat_map(|(ms, all)| all.into_iter().map(move |one| (ms, one)))
    {
        let (driver, engine) = (driver.clone(), engine.clone());
        tokio::spawn(async move {
            let limit = Duration::from_millis(limit_ms);
            let (ids, calls): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .map(|errand| ((errand.serial, errand.attempt), (errand.name, errand.request)))
                .unzip();
            let started = engine.now();
            let answers = engine.call_many(&calls, limit).await;
            telemetry::batch(calls.len(), engine.now().since(started));
            let Some(driver) = driver.upgrade() else { return };
            for ((serial, attempt), answer) in ids.into_iter().zip(answers) {
                let errands = driver.land(serial, attempt, &answer);
                if !errands.is_empty() {
                    let _ = driver.errands.send(errands);
                }
            }
        });
    }
}
