//! What one caller does to get one lock, keep it and give it back.
//!
//! [`Claim::step`] is the only transition: its `match` is the protocol, one arm for each thing that can happen in
//! each phase. Inputs are things that happened, outputs are orders.

use crate::ident::{Attempt, Moment, Owner, Token};
use crate::lease::{DOUBT_MS, lease_end, margin_ms, over_by};
use crate::request::{Message, Outcome, Reply, Request, Standing};

/// How long a caller puts up with a store that never answered.
const PATIENCE_MS: u64 = 3_000;

/// How long a caller waits for the first answer, however short its wait: before that nobody can say who holds.
const FIRST_ANSWER_MS: u64 = 500;

/// How often the first in line looks at a lock on which it expects a message. Bounds what a lost message costs.
const HEAD_LOOKS_MS: u64 = 2_000;

/// What the caller wants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Terms {
    /// Length of the lease.
    pub ttl_ms: u64,
    /// What the store adds to it.
    pub guard_ms: u64,
    /// Lease of a place in the queue; 0: don't queue.
    pub place_ms: u64,
    /// How long to wait; `None`: for ever.
    pub wait_ms: Option<u64>,
    /// Renew the lease until it is released.
    pub renew: bool,
}

/// Something that happened to the caller.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// The caller wants the lock.
    Acquire,
    /// An answer, or the lack of one.
    Reply {
        /// To which send.
        attempt: Attempt,
        /// What became of it.
        outcome: Outcome,
    },
    /// The store said something unasked.
    Message(Message),
    /// The caller wants a lease of another length, from now on.
    Extend {
        /// The new length.
        ttl_ms: u64,
        /// What the store adds to it.
        guard_ms: u64,
    },
    /// The store keeps the hold as long as the caller's job runs, whatever the clock says.
    Pin,
    /// The caller is done, has dropped its guard, or does not want to wait any more.
    Release,
    /// Time passed; see [`Claim::deadline`]. Harmless at any other time.
    Tick,
}

/// An order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Output {
    /// Carry this to the store and bring back what became of it.
    Send {
        /// Names the reply.
        attempt: Attempt,
        /// What to carry.
        request: Request,
    },
    /// Tell the caller.
    Tell(Notice),
}

/// Something the caller should know at once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Notice {
    /// It holds the lock.
    Granted {
        /// The fencing token of this hold.
        token: Token,
    },
    /// It holds the lock, but a renewal failed or is late.
    AtRisk,
    /// It must stop. Told before anybody else can hold, except where the store broke its word.
    Lost(Lost),
    /// This claim is over for the caller.
    Ended(End),
}

/// Why a holder must stop.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Lost {
    /// The lease ran out: no renewal was answered in time.
    Expired,
    /// The store says that the lock is not ours any more: it forgot, its clock stepped, or somebody deleted the key.
    Taken,
    /// Somebody asked us to stop. The lock stays ours until the lease ends.
    Asked {
        /// Who.
        by: String,
    },
}

/// How a claim ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// Given back.
    Released {
        /// False: the lock was somebody else's or nobody's when the store answered, because an earlier copy had
        /// released it or the release travelled for longer than the lease. It had left in time, so nobody overlapped if
        /// the store kept its word.
        confirmed: bool,
    },
    /// The lock was not ours when the release arrived: somebody else may have worked at the same time.
    NotHeld,
    /// Whether the release arrived is not known. The lock is free by `by` at the latest.
    ReleaseUnknown {
        /// On the caller's clock. A lease later if a renewal that was given up is carried out after all.
        by: Moment,
    },
    /// Somebody else holds, and the caller did not want to wait.
    Busy(Option<Standing>),
    /// The caller's wait is over.
    WaitElapsed(Option<Standing>),
    /// The queue is full.
    Full,
    /// The store was out of reach for too long.
    Unreachable,
    /// The store refuses.
    Refused,
    /// The caller went away while it waited.
    Cancelled,
}

/// A request under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flight {
    attempt: Attempt,
    /// Read before the first byte left. Every lease is measured from here.
    sent: Moment,
}

/// What a caller in line remembers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Line {
    give_up_at: Moment,
    /// The last ask that was answered with a place (or with a grant that came too late).
    place: Option<Flight>,
    head: bool,
    standing: Option<Standing>,
    /// Asks in a row without an answer, and since when.
    failures: u32,
    failing_since: Moment,
    /// Until then an ask whose fate is unknown may still be carried out; 0: there is none.
    doubt_until: Moment,
}

/// What a holder remembers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Held {
    token: Token,
    /// The end of the lease, and how long before it the holder stops.
    ends: Moment,
    margin_ms: u64,
    /// When to renew; never while a renewal is under way.
    renew_at: Moment,
    flight: Option<Flight>,
    /// [`Notice::AtRisk`] was told since the last renewal.
    warned: bool,
    /// Who asked the holder to stop.
    stop: Option<String>,
    /// The store sees that the holder's job runs: the hold does not end by the clock, and neither does the belief.
    pinned: bool,
    /// Until then an ask whose fate is unknown may still be carried out.
    doubt_until: Moment,
}

/// What a caller remembers that is done.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Leaving {
    flight: Option<Flight>,
    /// When to send another copy of the release; never while one is under way.
    retry_at: Moment,
    first_sent: Moment,
    copies: u32,
    /// The end of the lease that is given up, until the caller is told what became of it; `None`: it never held.
    held_until: Option<Moment>,
    /// Until then an ask whose fate is unknown may still be carried out.
    doubt_until: Moment,
    /// No more than one ask was ever sent: a release that finds something to release shows that it was carried out.
    one_ask: bool,
    /// The store kept the hold for as long as its job ran: it may have ended with the job, and not by the clock.
    kept_by_job: bool,
    /// By then the store has freed the lock by itself.
    gone_by: Moment,
}

/// Where a claim stands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Nothing was asked yet.
    Idle,
    /// An ask is under way.
    Asking {
        /// It.
        flight: Flight,
        /// What is known of the queue.
        line: Line,
    },
    /// Somebody else holds.
    Waiting {
        /// When to ask again.
        ask_at: Moment,
        /// What is known of the queue.
        line: Line,
    },
    /// The caller holds.
    Held(Held),
    /// The caller held, and must not act any more. The key in the store stays until the caller is done or its TTL
    /// ends: whoever works on in spite of the loss is not joined by the next holder before that.
    Lost {
        /// The end of the lease, if it is not over yet.
        ends: Moment,
        /// As with a holder.
        doubt_until: Moment,
    },
    /// The caller is done; the store has to learn it.
    Leaving(Leaving),
    /// Over; the caller was told how.
    Ended,
}

/// One caller and one lock, from the wish to the end. A value: clone it, compare it, print it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Claim {
    owner: Owner,
    terms: Terms,
    /// The longest that the store keeps anything that was ever asked for: no later request shortens it.
    keep_ms: u64,
    phase: Phase,
    last_attempt: Attempt,
}

impl Claim {
    /// A claim that has not asked yet. `owner` must be fresh.
    pub fn new(owner: Owner, terms: Terms) -> Self {
        let keep_ms = terms.ttl_ms.max(terms.place_ms) + terms.guard_ms;
        Self { owner, terms, keep_ms, phase: Phase::Idle, last_attempt: Attempt(0) }
    }

    /// Who claims.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// What is claimed; a lease that was extended shows its new length.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Where it stands.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The only transition. Total: a late, early or repeated input is legal in every phase and changes nothing.
    pub fn step(&mut self, now: Moment, input: Input, out: &mut Vec<Output>) {
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        self.phase = match (phase, input) {
            // ── wanting ─────────────────────────────────────────────────────────────────────────────────────
            (Phase::Idle, Input::Acquire) => {
                let line = Line::new(self.terms.wait_ms.map_or(Moment::NEVER, |wait_ms| now.plus(wait_ms)));
                self.ask(now, line, out)
            }
            (Phase::Asking { flight, line }, Input::Reply { attempt, outcome })
                if attempt == flight.attempt =>
            {
                self.asked(now, flight, line, &outcome, out)
            }
            (Phase::Asking { flight, line }, Input::Message(Message::Granted { token, attempt })) => {
                match line.lease_of(attempt, Some(flight), self.terms.place_ms, now) {
                    Some(ends) => self.take_over(now, token, ends, line.after(flight), out),
                    None => Phase::Asking { flight, line },
                }
            }
            (Phase::Waiting { line, .. }, Input::Message(Message::Granted { token, attempt })) => {
                match line.lease_of(attempt, None, self.terms.place_ms, now) {
                    Some(ends) => self.take_over(now, token, ends, line, out),
                    // Another ask, or too little is left of the place: asking shows, and begins the lease anew.
                    None => self.ask(now, line, out),
                }
            }
            (Phase::Asking { flight, mut line }, Input::Message(Message::Head { standing })) => {
                (line.head, line.standing) = (true, Some(standing));
                Phase::Asking { flight, line }
            }
            (Phase::Waiting { ask_at, mut line }, Input::Message(Message::Head { standing })) => {
                (line.head, line.standing) = (true, Some(standing));
                Phase::Waiting { ask_at: ask_at.min(self.look_at(now, &line)), line }
            }
            (Phase::Waiting { line, .. }, Input::Message(Message::Look)) => self.ask(now, line, out),
            (Phase::Asking { flight, line }, Input::Tick) if now >= line.gives_up_asking_at(flight) => {
                let end = line.end_of_wait();
                self.leave_line(now, line.after(flight), end, out)
            }
            (Phase::Waiting { line, .. }, Input::Tick) if now >= line.give_up_at => {
                let end = line.end_of_wait();
                self.leave_line(now, line, end, out)
            }
            (Phase::Waiting { ask_at, line }, Input::Tick) if now >= ask_at => self.ask(now, line, out),
            (Phase::Asking { flight, line }, Input::Release) => {
                self.leave_line(now, line.after(flight), End::Cancelled, out)
            }
            (Phase::Waiting { line, .. }, Input::Release) => self.leave_line(now, line, End::Cancelled, out),

            // ── holding ─────────────────────────────────────────────────────────────────────────────────────
            // The clock ends the belief, and nothing that arrives later brings it back.
            (Phase::Held(held), input) if input != Input::Release && now >= held.valid_until() => {
                out.push(Output::Tell(Notice::Lost(Lost::Expired)));
                Phase::Lost { ends: held.ends, doubt_until: held.doubt_until }
            }
            (Phase::Held(held), Input::Tick) if now >= held.renew_at => self.renew(now, held, out),
            (Phase::Held(held), Input::Tick) if now >= held.warn_at() => Phase::Held(held.at_risk(out)),
            (Phase::Held(held), Input::Reply { attempt, outcome }) if held.awaits(attempt) => {
                match outcome {
                    Outcome::Answered(Reply::Renewed) => self.renewed(held),
                    Outcome::Answered(Reply::Stopping { by }) => {
                        Phase::Held(Held { flight: None, ..held }.asked_to_stop(by, out))
                    }
                    Outcome::Answered(Reply::NotHeld) => {
                        out.push(Output::Tell(Notice::Lost(Lost::Taken)));
                        // It is over now, so a release that follows raises the alarm.
                        Phase::Lost { ends: now.min(held.ends), doubt_until: held.doubt_until }
                    }
                    // Without an answer the end of the lease does not move. There is time for two more tries.
                    Outcome::Answered(_) | Outcome::Unknown | Outcome::NotRun | Outcome::Refused => {
                        let again = now.plus(self.terms.ttl_ms.min(held.ends.since(now)) / 12);
                        let renew_at = if held.stop.is_some() { Moment::NEVER } else { again };
                        Phase::Held(Held { flight: None, renew_at, ..held.at_risk(out) })
                    }
                }
            }
            (Phase::Held(held), Input::Message(Message::Stop { by })) => {
                Phase::Held(held.asked_to_stop(by, out))
            }
            (Phase::Held(held), Input::Pin) => Phase::Held(Held { pinned: true, ..held }),
            (Phase::Held(held), Input::Extend { ttl_ms, guard_ms }) => {
                self.terms = Terms { ttl_ms, guard_ms, ..self.terms };
                self.keep_ms = self.keep_ms.max(ttl_ms + guard_ms);
                self.renew(now, held, out)
            }
            // Belief ends here, before the message leaves.
            (Phase::Held(Held { ends, doubt_until, pinned, .. }), Input::Release) => {
                let leaving = self.leave(now, Some(ends), doubt_until, out);
                Phase::Leaving(Leaving { kept_by_job: pinned, ..leaving })
            }
            (Phase::Lost { ends, doubt_until }, Input::Release) => {
                Phase::Leaving(self.leave(now, Some(ends), doubt_until, out))
            }

            // ── leaving ─────────────────────────────────────────────────────────────────────────────────────
            (Phase::Leaving(leaving), Input::Reply { attempt, outcome }) if leaving.awaits(attempt) => {
                match outcome {
                    Outcome::Answered(reply) => {
                        let one_ask_ran = leaving.one_ask && reply == Reply::Released;
                        if let Some(ends) = leaving.held_until {
                            tell_end(leaving.released(now, ends, &reply), out);
                        }
                        if leaving.is_in_doubt() && !one_ask_ran {
                            // An ask may still be on its way: the release is repeated when it can't be any more.
                            let retry_at = leaving.doubt_until;
                            Phase::Leaving(Leaving { flight: None, held_until: None, retry_at, ..leaving })
                        } else {
                            Phase::Ended
                        }
                    }
                    Outcome::Refused => leaving.give_up(out),
                    Outcome::Unknown | Outcome::NotRun => {
                        let retry_at = now.plus(self.backoff_ms(leaving.copies));
                        Phase::Leaving(Leaving { flight: None, retry_at, ..leaving })
                    }
                }
            }
            // An old ask has got a place after all, and its turn came: nobody is there to take it.
            (Phase::Leaving(leaving), Input::Message(Message::Granted { .. }))
                if leaving.flight.is_none() =>
            {
                Phase::Leaving(Leaving { retry_at: now, ..leaving })
            }
            (Phase::Leaving(leaving), Input::Tick) if now >= leaving.gone_by => leaving.give_up(out),
            (Phase::Leaving(leaving), Input::Tick) if now >= leaving.retry_at => {
                let flight = Some(self.send(now, Request::Release { owner: self.owner }, out));
                let copies = leaving.copies + 1;
                Phase::Leaving(Leaving { flight, copies, retry_at: Moment::NEVER, ..leaving })
            }

            // ── everything else is late, early or a repetition ──────────────────────────────────────────────
            (Phase::Idle, Input::Release) => Phase::Ended,
            (phase, _) => phase,
        };
    }

    /// When to feed [`Input::Tick`]. A function of the phase, so no timer can be forgotten or go stale.
    pub fn deadline(&self) -> Option<Moment> {
        let at = match &self.phase {
            Phase::Idle | Phase::Lost { .. } | Phase::Ended => Moment::NEVER,
            Phase::Asking { flight, line } => line.gives_up_asking_at(*flight),
            Phase::Waiting { ask_at, line } => line.give_up_at.min(*ask_at),
            Phase::Held(held) => held.valid_until().min(held.warn_at()).min(held.renew_at),
            Phase::Leaving(leaving) => leaving.gone_by.min(leaving.retry_at),
        };
        (at < Moment::NEVER).then_some(at)
    }

    /// May the caller act as holder at `now`? Right even if nothing has run for a minute.
    pub fn holds(&self, now: Moment) -> Option<Token> {
        match &self.phase {
            Phase::Held(held) if now < held.valid_until() => Some(held.token),
            _ => None,
        }
    }

    /// The moment from which [`Claim::holds`] answers no, unless a renewal moves it.
    pub fn valid_until(&self) -> Option<Moment> {
        match &self.phase {
            Phase::Held(held) => Some(held.valid_until()),
            _ => None,
        }
    }

    /// The send whose outcome this claim waits for. At most one at any time.
    pub fn awaits(&self) -> Option<Attempt> {
        let flight = match &self.phase {
            Phase::Asking { flight, .. } => Some(*flight),
            Phase::Held(held) => held.flight,
            Phase::Leaving(leaving) => leaving.flight,
            _ => None,
        };
        flight.map(|flight| flight.attempt)
    }

    /// Asserts what must be true after every step.
    ///
    /// # Panics
    /// When an invariant is broken: a bug in this file.
    pub fn check(&self, now: Moment) {
        let flight = match &self.phase {
            Phase::Asking { flight, .. } => Some(*flight),
            Phase::Held(held) => {
                assert!(
                    held.ends <= lease_end(now, self.terms.ttl_ms.max(self.terms.place_ms)),
                    "no belief reaches further than a lease sent just now"
                );
                assert!(held.flight.is_none() || held.renew_at == Moment::NEVER, "one renewal at a time");
                held.flight
            }
            Phase::Leaving(leaving) => {
                assert!(leaving.copies > 0, "who leaves has said so");
                assert!(
                    leaving.flight.is_none() || leaving.retry_at == Moment::NEVER,
                    "one release at a time"
                );
                leaving.flight
            }
            _ => None,
        };
        if let Some(flight) = flight {
            assert!(flight.attempt <= self.last_attempt && flight.sent <= now, "flights lie in the past");
        }
    }

    fn asked(
        &mut self,
        now: Moment,
        flight: Flight,
        mut line: Line,
        outcome: &Outcome,
        out: &mut Vec<Output>,
    ) -> Phase {
        match *outcome {
            Outcome::Answered(Reply::Granted { token }) => {
                let ends = lease_end(flight.sent, self.terms.ttl_ms);
                let margin_ms = margin_ms(self.terms.ttl_ms);
                if now >= ends.minus(margin_ms) {
                    // The answer took as long as the lease. The hold is ours: ask again and begin it anew.
                    return self.ask(now, Line { place: Some(flight), failures: 0, ..line }, out);
                }
                out.push(Output::Tell(Notice::Granted { token }));
                let renew_at = self.renew_at(flight.sent);
                Phase::Held(Held {
                    token,
                    ends,
                    margin_ms,
                    renew_at,
                    flight: None,
                    warned: false,
                    stop: None,
                    pinned: false,
                    doubt_until: line.doubt_until,
                })
            }
            Outcome::Answered(Reply::Queued { head, standing }) => {
                line = Line { place: Some(flight), head, standing, failures: 0, ..line };
                Phase::Waiting { ask_at: self.look_at(now, &line), line }
            }
            Outcome::Answered(Reply::Busy { standing }) => {
                self.leave_line(now, line, End::Busy(standing), out)
            }
            Outcome::Answered(Reply::Full) => self.leave_line(now, line, End::Full, out),
            Outcome::Refused => self.leave_line(now, line, End::Refused, out),
            Outcome::Unknown | Outcome::Answered(_) | Outcome::NotRun => {
                let did_not_run = matches!(outcome, Outcome::NotRun | Outcome::Answered(Reply::Stale));
                if !did_not_run {
                    line = line.after(flight);
                }
                if line.failures == 0 {
                    line.failing_since = flight.sent;
                }
                line.failures += 1;
                let place_ms = if line.place.is_some() { self.terms.place_ms } else { 0 };
                let patience_ms = place_ms.max(PATIENCE_MS);
                if now.since(line.failing_since) >= patience_ms {
                    return self.leave_line(now, line, End::Unreachable, out);
                }
                Phase::Waiting { ask_at: now.plus(self.backoff_ms(line.failures)), line }
            }
        }
    }

    fn ask(&mut self, now: Moment, line: Line, out: &mut Vec<Output>) -> Phase {
        let Terms { ttl_ms, guard_ms, place_ms, .. } = self.terms;
        let attempt = Attempt(self.last_attempt.0 + 1);
        let request =
            Request::Ask { owner: self.owner, ttl_ms, guard_ms, place_ms, attempt, not_after: None };
        Phase::Asking { flight: self.send(now, request, out), line }
    }

    /// The lock was handed over. The rest of the place is the lease, until the renewal that leaves now sets it right.
    fn take_over(
        &mut self,
        now: Moment,
        token: Token,
        ends: Moment,
        line: Line,
        out: &mut Vec<Output>,
    ) -> Phase {
        out.push(Output::Tell(Notice::Granted { token }));
        let margin_ms = margin_ms(self.terms.ttl_ms);
        let held = Held {
            token,
            ends,
            margin_ms,
            renew_at: Moment::NEVER,
            flight: None,
            warned: false,
            stop: None,
            pinned: false,
            doubt_until: line.doubt_until,
        };
        self.renew(now, held, out)
    }

    fn renew(&mut self, now: Moment, held: Held, out: &mut Vec<Output>) -> Phase {
        let Terms { ttl_ms, guard_ms, .. } = self.terms;
        let flight = Some(self.send(now, Request::Renew { owner: self.owner, ttl_ms, guard_ms }, out));
        let renewing = Held { flight, renew_at: Moment::NEVER, ..held };
        // A renewal may shorten a lease, and its answer may be lost: believe the shorter one from now on.
        let ends = lease_end(now, ttl_ms);
        Phase::Held(if ends < renewing.ends {
            Held { ends, margin_ms: margin_ms(ttl_ms), ..renewing }
        } else {
            renewing
        })
    }

    /// The lease counts from the send of the renewal, whenever its answer came.
    fn renewed(&self, held: Held) -> Phase {
        let sent = held.flight.map_or(Moment(0), |flight| flight.sent);
        let ttl_ms = self.terms.ttl_ms;
        let renew_at = if held.stop.is_some() { Moment::NEVER } else { self.renew_at(sent) };
        Phase::Held(Held {
            ends: lease_end(sent, ttl_ms),
            margin_ms: margin_ms(ttl_ms),
            renew_at,
            flight: None,
            warned: false,
            ..held
        })
    }

    fn leave_line(&mut self, now: Moment, line: Line, end: End, out: &mut Vec<Output>) -> Phase {
        tell_end(end, out);
        if line.has_left_nothing() {
            return Phase::Ended;
        }
        let one_ask = self.last_attempt == Attempt(1);
        let leaving = self.leave(now, None, line.doubt_until, out);
        Phase::Leaving(Leaving { one_ask, ..leaving })
    }

    fn leave(
        &mut self,
        now: Moment,
        held_until: Option<Moment>,
        doubt_until: Moment,
        out: &mut Vec<Output>,
    ) -> Leaving {
        let flight = self.send(now, Request::Release { owner: self.owner }, out);
        let gone_by = over_by(now.max(doubt_until), self.keep_ms);
        Leaving {
            flight: Some(flight),
            retry_at: Moment::NEVER,
            first_sent: now,
            copies: 1,
            held_until,
            doubt_until,
            one_ask: false,
            kept_by_job: false,
            gone_by,
        }
    }

    fn send(&mut self, now: Moment, request: Request, out: &mut Vec<Output>) -> Flight {
        self.last_attempt.0 += 1;
        let flight = Flight { attempt: self.last_attempt, sent: now };
        out.push(Output::Send { attempt: flight.attempt, request });
        flight
    }

    /// A third of the lease after the last one was asked for, give or take a tenth.
    fn renew_at(&self, sent: Moment) -> Moment {
        if !self.terms.renew {
            return Moment::NEVER;
        }
        let third = self.terms.ttl_ms / 3;
        in_step(sent.plus(self.jitter(third - third / 10, third + third / 10)), self.terms.ttl_ms)
    }

    /// When a waiter looks at the lock again. Whoever waits for a message looks too: messages may be lost.
    fn look_at(&self, now: Moment, line: &Line) -> Moment {
        let keep_place_ms = self.terms.place_ms / 3;
        let look_ms = match (&line.standing, line.head) {
            (None, true) => self.jitter(50, 250),
            (None, false) => self.jitter(1000, 2000),
            (Some(standing), true) if standing.quiet => {
                let poll_ms = self.jitter(50, 250);
                standing.free_in_ms.map_or(poll_ms, |free_in_ms| poll_ms.min(free_in_ms + 1))
            }
            (Some(Standing { free_in_ms, .. }), true) => {
                let poll_ms = self.jitter(HEAD_LOOKS_MS * 9 / 10, HEAD_LOOKS_MS);
                free_in_ms.map_or(poll_ms, |free_in_ms| poll_ms.min(free_in_ms + 1))
            }
            // Everybody looks when the hold has ended: the first in line may be dead.
            (Some(Standing { free_in_ms, .. }), false) => {
                free_in_ms.map_or(keep_place_ms, |free_in_ms| free_in_ms + self.jitter(100, 400))
            }
        };
        let keep_at =
            in_step(now.plus(self.jitter(keep_place_ms - keep_place_ms / 10, keep_place_ms)), keep_place_ms);
        now.plus(look_ms).min(keep_at).max(now.plus(1))
    }

    fn backoff_ms(&self, failures: u32) -> u64 {
        let most = (50 << failures.min(5)).min(1000);
        self.jitter(most / 2, most)
    }

    /// A number in `low..=high` that differs between owners and attempts, so that a crowd does not move in step.
    fn jitter(&self, low: u64, high: u64) -> u64 {
        // splitmix64, Steele, Lea, Flood 2014
        let mut z = (self.owner.secret as u64)
            .wrapping_add(u64::from(self.last_attempt.0).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        low + (z ^ (z >> 31)) % (high - low + 1)
    }
}

/// The moment rounded down to a hundredth of `span_ms`, so that the many leases of one process fall due together and
/// travel in one batch.
fn in_step(at: Moment, span_ms: u64) -> Moment {
    Moment(at.0 - at.0 % (span_ms / 100).max(1))
}

fn tell_end(end: End, out: &mut Vec<Output>) {
    out.push(Output::Tell(Notice::Ended(end)));
}

impl Held {
    /// The fencing token.
    pub fn token(&self) -> Token {
        self.token
    }

    fn valid_until(&self) -> Moment {
        if self.pinned { Moment::NEVER } else { self.ends.minus(self.margin_ms) }
    }

    fn warn_at(&self) -> Moment {
        if self.warned || self.pinned { Moment::NEVER } else { self.ends.minus(2 * self.margin_ms) }
    }

    fn awaits(&self, attempt: Attempt) -> bool {
        self.flight.is_some_and(|flight| flight.attempt == attempt)
    }

    fn at_risk(self, out: &mut Vec<Output>) -> Self {
        if !self.warned {
            out.push(Output::Tell(Notice::AtRisk));
        }
        Self { warned: true, ..self }
    }

    /// The lease is not renewed any more; until it ends the holder may put things in order.
    fn asked_to_stop(self, by: String, out: &mut Vec<Output>) -> Self {
        if self.stop.is_none() {
            out.push(Output::Tell(Notice::Lost(Lost::Asked { by: by.clone() })));
        }
        Self { renew_at: Moment::NEVER, stop: Some(by), ..self }
    }
}

impl Leaving {
    fn awaits(&self, attempt: Attempt) -> bool {
        self.flight.is_some_and(|flight| flight.attempt == attempt)
    }

    /// What a holder is told when its release was answered. The alarm is for a lease that was over when the first copy
    /// left, and for a store that does not know of the hold although the lease still runs: it has lost it. In all
    /// other cases, if the store kept its word, the belief had ended before anybody else could hold.
    fn released(&self, now: Moment, ends: Moment, reply: &Reply) -> End {
        match reply {
            Reply::Released => End::Released { confirmed: true },
            _ if self.first_sent >= ends && !self.kept_by_job => End::NotHeld,
            _ if self.copies == 1 && now < ends => End::NotHeld,
            _ => End::Released { confirmed: false },
        }
    }

    /// The copy that is under way left while an ask could still be carried out after it.
    fn is_in_doubt(&self) -> bool {
        self.flight.is_some_and(|flight| flight.sent < self.doubt_until)
    }

    /// No more copies of the release: the hold ends by itself.
    fn give_up(self, out: &mut Vec<Output>) -> Phase {
        if self.held_until.is_some() {
            tell_end(End::ReleaseUnknown { by: self.gone_by }, out);
        }
        Phase::Ended
    }

    /// By then the store has freed the lock by itself.
    pub fn gone_by(&self) -> Moment {
        self.gone_by
    }
}

impl Line {
    fn new(give_up_at: Moment) -> Self {
        Self {
            give_up_at,
            place: None,
            head: false,
            standing: None,
            failures: 0,
            failing_since: Moment(0),
            doubt_until: Moment(0),
        }
    }

    /// What the caller is told when its wait is over: who holds, or that nobody answered.
    fn end_of_wait(&self) -> End {
        if self.failures > 0 || self.place.is_none() {
            End::Unreachable
        } else {
            End::WaitElapsed(self.standing)
        }
    }

    fn gives_up_asking_at(&self, flight: Flight) -> Moment {
        let unanswered = self.place.is_none() && self.failures == 0;
        if unanswered { self.give_up_at.max(flight.sent.plus(FIRST_ANSWER_MS)) } else { self.give_up_at }
    }

    /// No ask got a place, and none has an unknown fate: it may have run and left a hold.
    fn has_left_nothing(&self) -> bool {
        self.place.is_none() && self.doubt_until == Moment(0)
    }

    /// The line after an ask whose fate is unknown.
    fn after(self, flight: Flight) -> Self {
        Self { doubt_until: self.doubt_until.max(flight.sent.plus(DOUBT_MS)), ..self }
    }

    /// The end of the lease that a hand-over naming `attempt` brings; `None` if that is not an ask that refreshed
    /// our place, or if less than a third of the place is left. The store carried that ask out after it was sent,
    /// so the hold outlives this moment.
    fn lease_of(
        &self,
        attempt: Attempt,
        flight: Option<Flight>,
        place_ms: u64,
        now: Moment,
    ) -> Option<Moment> {
        let ask = [flight, self.place].into_iter().flatten().find(|ask| ask.attempt == attempt)?;
        let ends = lease_end(ask.sent, place_ms);
        (ends.since(now) >= place_ms / 3).then_some(ends)
    }
}
