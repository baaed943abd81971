//! A few callers, one store, the letters under way between them, and clocks that need not agree.
//!
//! [`World::act`] is the only transition. The checker tries every possible action, the walker picks one at a time, a
//! story names one in each line. What is decided is decided in [`Claim`] and [`Ledger`], the very code that runs in
//! production; the world only carries letters and lets time pass.

use crate::past::{Past, PastOf};
use crate::protocol::lease::ASK_WINDOW_MS;
use crate::protocol::{
    Attempt, Claim, End, HolderId, Input, Ledger, Message, Moment, Notice, Now, Occupant, Outcome, Output,
    Owner, Phase, Place, ProcessId, Reply, Request, Sight, Terms, Token, Witness,
};

/// Everything there is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    /// True time in milliseconds. Nobody in the world can read it.
    pub now: u64,
    /// Where the lock is kept.
    pub store: Store,
    /// Who wants it.
    pub callers: Vec<Caller>,
    /// What is under way.
    pub letters: Vec<Letter>,
    /// What no part of the system knows, but the promises are about.
    pub past: Past,
}

/// The ledger of the lock, and its clock.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Store {
    /// Who holds, who waits.
    pub ledger: Ledger<Vec<Place>>,
    /// How far its clock is ahead of true time.
    pub ahead_ms: i64,
}

/// One caller: its claim, its clock, and how it looks from the store.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Caller {
    /// The claim.
    pub claim: Claim,
    /// How far its clock is ahead of true time.
    pub ahead_ms: i64,
    /// It can still do something.
    pub alive: bool,
    /// Messages find a receiver (which may be a connection that nobody reads any more).
    pub reachable: bool,
    /// What the store can see of its process and its job.
    pub sight: Sight,
}

/// Something under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Letter {
    /// Whose request, or to whom.
    pub caller: usize,
    /// Which send of that caller; 0 for messages.
    pub attempt: Attempt,
    /// What it says.
    pub body: Body,
}

/// What a letter says.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// To the store; it left when the caller's clock showed `sent`.
    Request {
        /// Read before it left.
        sent: Moment,
        /// What it asks.
        request: Request,
    },
    /// The store's answer.
    Reply(Reply),
    /// Something the store said unasked.
    Message(Message),
}

/// Something that can happen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The caller wants the lock.
    Acquire(usize),
    /// The caller is done, or does not want to wait any more.
    Release(usize),
    /// The caller wants a lease of another length.
    Extend(usize, u64),
    /// The caller's timer fires, perhaps late.
    Tick(usize),
    /// This letter arrives. Index into [`World::letters`].
    Deliver(usize),
    /// This letter arrives, and a copy of it stays under way.
    Repeat(usize),
    /// This letter never arrives.
    Lose(usize),
    /// The caller's engine gives a request up, with this outcome (never `Answered`).
    Miss(usize, Attempt, Outcome),
    /// It is this moment now, in true time.
    Pass(u64),
    /// The caller's clock gains so much on true time.
    Drift(usize, i64),
    /// The store's clock is set.
    StoreClock(i64),
    /// The store is empty: restarted without its data, flushed, or failed over to a copy that has none.
    Forget,
    /// The caller's process is gone.
    Crash(usize),
    /// Messages find a receiver at the caller, or they don't.
    Reach(usize, bool),
    /// What the store can see of the caller's process and job.
    See(usize, Sight),
    /// The caller learns that the store keeps its hold as long as its job runs.
    Pin(usize),
    /// Somebody asks the caller to stop.
    Stop(usize, String),
    /// A client that does not speak Tenure has the lock, perhaps with an end after so many milliseconds.
    ForeignTakes(Option<u64>),
    /// It has left.
    ForeignLeaves,
}

/// What followed from one action.
#[derive(Clone, Default, Debug)]
pub struct Happened {
    /// A request was carried out.
    pub ran: Option<Ran>,
    /// Messages that the store sent meanwhile.
    pub told: Vec<(usize, Message)>,
    /// What a claim ordered.
    pub outputs: Vec<(usize, Output)>,
}

/// A request that was carried out.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Whose.
    pub caller: usize,
    /// Which of its sends; 0: somebody else's on its behalf.
    pub attempt: Attempt,
    /// What it asked.
    pub request: Request,
    /// What the store answered.
    pub reply: Reply,
}

impl World {
    /// Callers who have not asked yet, at `now`, with clocks that agree.
    pub fn new(now: u64, terms: &[Terms]) -> Self {
        let mut world = Self {
            now,
            store: Store::default(),
            callers: Vec::new(),
            letters: Vec::new(),
            past: Past::default(),
        };
        for terms in terms {
            world.enter(*terms);
        }
        world
    }

    /// One more caller. Its number.
    pub fn enter(&mut self, terms: Terms) -> usize {
        let number = self.callers.len();
        let holder = HolderId { process: ProcessId(1), serial: number as u32 };
        let owner = Owner { holder, secret: 7 * number as u128 };
        let claim = Claim::new(owner, terms);
        self.callers.push(Caller { claim, ahead_ms: 0, alive: true, reachable: true, sight: Sight::Unknown });
        self.past.callers.push(PastOf::default());
        number
    }

    /// The only transition. Total: an action that is not possible now changes nothing.
    pub fn act(&mut self, action: &Action) -> Happened {
        let mut happened = Happened::default();
        if let Some(chance) = self.chance(action) {
            let taken = &mut self.past.taken[chance as usize];
            *taken = taken.saturating_add(1);
        }
        match *action {
            Action::Acquire(caller) => self.feed(caller, Input::Acquire, &mut happened),
            Action::Release(caller) => {
                let holds = self.holds(caller).is_some();
                if let Some(past) = self.past.callers.get_mut(caller) {
                    past.left_in_time = holds;
                }
                if let Some(known) = self.callers.get_mut(caller) {
                    // Who is done has no job any more.
                    known.sight = Sight::Unknown;
                }
                self.feed(caller, Input::Release, &mut happened);
            }
            Action::Extend(caller, ttl_ms) => {
                let Some(known) = self.callers.get(caller) else { return happened };
                let guard_ms = known.claim.terms().guard_ms;
                self.feed(caller, Input::Extend { ttl_ms, guard_ms }, &mut happened);
            }
            Action::Tick(caller) => self.feed(caller, Input::Tick, &mut happened),
            Action::Deliver(at) => {
                if at < self.letters.len() {
                    let letter = self.letters.remove(at);
                    self.deliver(letter, &mut happened);
                }
            }
            Action::Repeat(at) => {
                if let Some(letter) = self.letters.get(at).cloned() {
                    self.deliver(letter, &mut happened);
                }
            }
            Action::Lose(at) => {
                if at < self.letters.len() {
                    self.letters.remove(at);
                }
            }
            Action::Miss(caller, attempt, ref outcome) => {
                if *outcome != Outcome::Unknown {
                    // Did not run, and never will.
                    self.letters.retain(|letter| !letter.is_request(caller, attempt));
                }
                self.past.callers[caller].unreleased |= *outcome == Outcome::Refused
                    && matches!(self.callers[caller].claim.phase(), Phase::Leaving(_));
                let outcome = outcome.clone();
                self.feed(caller, Input::Reply { attempt, outcome }, &mut happened);
            }
            Action::Pass(to) => self.now = self.now.max(to),
            Action::Drift(caller, by_ms) => {
                // A clock never goes back: one that loses time stands still while it passes.
                self.now += by_ms.min(0).unsigned_abs();
                self.callers[caller].ahead_ms += by_ms;
            }
            Action::StoreClock(by_ms) => self.store.ahead_ms += by_ms,
            Action::Forget => {
                // It takes longer than a microsecond, the unit of tokens.
                self.now += 1;
                self.store.ledger = Ledger::default();
                for past in &mut self.past.callers {
                    past.place = None;
                }
            }
            Action::Crash(caller) => {
                let terms = *self.callers[caller].claim.terms();
                let dead = &mut self.callers[caller];
                // What it believed is gone with it.
                dead.claim = Claim::new(*dead.claim.owner(), terms);
                dead.alive = false;
                dead.ahead_ms = 0;
                if dead.sight == Sight::Working {
                    dead.sight = Sight::Orphaned;
                }
                self.letters
                    .retain(|letter| letter.caller != caller || matches!(letter.body, Body::Request { .. }));
            }
            Action::Reach(caller, reachable) => self.callers[caller].reachable = reachable,
            Action::See(caller, sight) => self.callers[caller].sight = sight,
            Action::Pin(caller) => self.feed(caller, Input::Pin, &mut happened),
            Action::Stop(caller, ref by) => {
                let holder = self.callers[caller].claim.owner().holder;
                self.run(caller, Attempt(0), Request::Stop { holder, by: by.clone() }, None, &mut happened);
            }
            Action::ForeignTakes(ends_in_ms) => {
                let ends = ends_in_ms.map(|ms| self.store_clock().plus(ms));
                self.store.ledger.occupant = Some(Occupant::Foreign { ends });
            }
            Action::ForeignLeaves => {
                if matches!(self.store.ledger.occupant, Some(Occupant::Foreign { .. })) {
                    self.store.ledger.occupant = None;
                }
            }
        }
        self.remember();
        happened
    }

    /// What this caller's clock shows.
    pub fn clock(&self, caller: usize) -> Moment {
        Moment(self.now.saturating_add_signed(self.callers[caller].ahead_ms))
    }

    /// What the store's clock shows.
    pub fn store_clock(&self) -> Moment {
        Moment(self.now.saturating_add_signed(self.store.ahead_ms))
    }

    /// The token under which a living caller may act as holder.
    pub fn holds(&self, caller: usize) -> Option<Token> {
        let known = self.callers.get(caller).filter(|caller| caller.alive)?;
        known.claim.holds(self.clock(caller))
    }

    /// Everybody who may act as holder.
    pub fn holders(&self) -> impl Iterator<Item = usize> {
        (0..self.callers.len()).filter(|caller| self.holds(*caller).is_some())
    }

    /// The caller whose hold the store keeps, ended or not.
    pub fn occupant(&self) -> Option<usize> {
        match &self.store.ledger.occupant {
            Some(Occupant::Ours(hold)) => Some(hold.owner.holder.serial as usize),
            _ => None,
        }
    }

    /// The store keeps a hold that has not ended.
    pub fn is_held(&self) -> bool {
        match &self.store.ledger.occupant {
            None => false,
            Some(Occupant::Foreign { ends }) => ends.is_none_or(|ends| self.store_clock() <= ends),
            Some(Occupant::Ours(hold)) => match self.callers[hold.owner.holder.serial as usize].sight {
                Sight::Gone => false,
                Sight::Working | Sight::Orphaned => true,
                Sight::Unknown => self.store_clock() <= hold.ends,
            },
        }
    }

    /// Somebody asks the store for something that concerns nobody: what is over goes away.
    pub fn touch(&mut self) {
        let holder = HolderId { process: ProcessId(0), serial: 0 };
        let request = Request::Stop { holder, by: String::new() };
        self.run(0, Attempt(0), request, None, &mut Happened::default());
    }

    fn feed(&mut self, caller: usize, input: Input, happened: &mut Happened) {
        let now = self.clock(caller);
        let known = &mut self.callers[caller];
        if !known.alive {
            return;
        }
        let mut outputs = Vec::new();
        known.claim.step(now, input, &mut outputs);
        known.claim.check(now);
        for output in outputs {
            if let Output::Send { attempt, request } = &output {
                let mut request = request.clone();
                // The engine's part: the store refuses asks that were under way for too long.
                if let Request::Ask { not_after, .. } = &mut request {
                    *not_after = Some(self.store_clock().plus(ASK_WINDOW_MS));
                }
                self.post(Letter { caller, attempt: *attempt, body: Body::Request { sent: now, request } });
            }
            self.witness(caller, &output, now);
            self.past.callers[caller].unreleased |=
                matches!(output, Output::Tell(Notice::Ended(End::ReleaseUnknown { .. })));
            happened.outputs.push((caller, output));
        }
        if matches!(self.callers[caller].claim.phase(), Phase::Ended) {
            // Nobody reads what comes for a claim that is over.
            self.letters
                .retain(|letter| letter.caller != caller || matches!(letter.body, Body::Request { .. }));
        }
    }

    fn deliver(&mut self, letter: Letter, happened: &mut Happened) {
        let Letter { caller, attempt, body } = letter;
        match body {
            Body::Request { sent, request } => self.run(caller, attempt, request, Some(sent), happened),
            Body::Reply(reply) => {
                let answers = reply != Reply::Stale && self.callers[caller].claim.awaits() == Some(attempt);
                if answers {
                    self.past.callers[caller].silent_since = None;
                }
                let outcome = Outcome::Answered(reply);
                self.feed(caller, Input::Reply { attempt, outcome }, happened);
            }
            Body::Message(message) => self.feed(caller, Input::Message(message), happened),
        }
    }

    /// The store carries one request out.
    fn run(
        &mut self,
        caller: usize,
        attempt: Attempt,
        request: Request,
        sent: Option<Moment>,
        happened: &mut Happened,
    ) {
        let now = Now { lease: self.store_clock(), wall_us: self.store_clock().0 * 1000 };
        let mut witness = Onlooker { callers: &self.callers, told: &mut happened.told };
        let reply = self.store.ledger.apply(now, &request, &mut witness);
        self.store.ledger.check();
        for (to, message) in happened.told.clone() {
            self.post(Letter { caller: to, attempt: Attempt(0), body: Body::Message(message) });
        }
        if attempt != Attempt(0) {
            self.post(Letter { caller, attempt, body: Body::Reply(reply.clone()) });
        }
        let ran = Ran { caller, attempt, request, reply };
        self.note(&ran, sent, &happened.told);
        happened.ran = Some(ran);
    }

    /// Letters are kept in an order of their own, so that it does not matter which was written first.
    fn post(&mut self, letter: Letter) {
        let reader = &self.callers[letter.caller];
        let over = !reader.alive || matches!(reader.claim.phase(), Phase::Ended);
        if over && !matches!(letter.body, Body::Request { .. }) {
            return;
        }
        let key = |letter: &Letter| (letter.caller, letter.body.rank(), letter.attempt);
        let at = self.letters.partition_point(|known| key(known) <= key(&letter));
        self.letters.insert(at, letter);
    }
}

impl Letter {
    /// It is this request, still under way to the store.
    pub fn is_request(&self, caller: usize, attempt: Attempt) -> bool {
        (self.caller, self.attempt) == (caller, attempt) && matches!(self.body, Body::Request { .. })
    }
}

impl Body {
    /// Requests before answers before messages.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Request { .. } => 0,
            Self::Reply(_) => 1,
            Self::Message(_) => 2,
        }
    }
}

impl Happened {
    /// What claims told their callers.
    pub fn notices(&self) -> impl Iterator<Item = (usize, &Notice)> {
        self.outputs.iter().filter_map(|(caller, output)| match output {
            Output::Tell(notice) => Some((*caller, notice)),
            Output::Send { .. } => None,
        })
    }
}

/// The store's eyes and voice in this world.
struct Onlooker<'a> {
    callers: &'a [Caller],
    told: &'a mut Vec<(usize, Message)>,
}

impl Witness for Onlooker<'_> {
    fn sees(&mut self, owner: &Owner) -> Sight {
        self.callers[owner.holder.serial as usize].sight
    }

    fn tell(&mut self, owner: &Owner, message: Message) -> bool {
        let caller = owner.holder.serial as usize;
        let reached = self.callers[caller].reachable && self.callers[caller].sight != Sight::Gone;
        if reached {
            self.told.push((caller, message));
        }
        reached
    }
}
