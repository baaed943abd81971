//! What no part of the system knows, but the promises are about: an account of its own, kept from what is sent, carried
//! out and told.

use crate::protocol::lease::lease_end;
use crate::protocol::{
    Lost, Message, Moment, Notice, Occupant, Outcome, Output, Phase, Reply, Request, Token,
};
use crate::world::{Action, Body, Ran, World};

/// What the promises have to remember.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Past {
    /// The largest token ever granted.
    pub highest: Token,
    /// One for each caller.
    pub callers: Vec<PastOf>,
    /// How often each [`Chance`] was taken.
    pub taken: [u8; Chance::KINDS],
}

/// What happens only so often in a scope.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs)]
pub enum Chance {
    Loss,
    /// A request or an answer arrives twice.
    Repeat,
    /// A message arrives twice.
    Echo,
    Miss,
    /// A request did not run, and the caller is told.
    Failure,
    Cancel,
    Extend,
    Drift,
    Crash,
    Unreachable,
    Stop,
    Job,
    Forget,
    StoreClock,
    Foreign,
}

impl Chance {
    /// How many kinds there are.
    pub const KINDS: usize = Self::Foreign as usize + 1;
}

/// What the promises remember of one caller.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct PastOf {
    /// Until when, on its own clock, a grant that the store really made lets it believe.
    pub backed_until: Moment,
    /// Its place in the queue, by the last ask that got one.
    pub place: Option<PastPlace>,
    /// Whether it ever held by its own account.
    pub belief: Belief,
    /// It held when it said that it was done.
    pub left_in_time: bool,
    /// It believed at a moment at which the store kept no hold of its own, or was told that its lock was taken.
    pub unbacked: bool,
    /// How many copies of its release have left.
    pub releases: u8,
    /// When the first ask left to which, and since which, nothing was answered.
    pub silent_since: Option<Moment>,
    /// A renewal of its own was carried out after it had said that it was done.
    pub renewed_late: bool,
    /// It was told that nobody knows whether its release arrived, or the store refused the release: what it holds has to
    /// run out.
    pub unreleased: bool,
}

/// A place in the queue, as the promises see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PastPlace {
    /// Its turn among those who wait, from 1.
    pub turn: u8,
    /// When the ask left that last refreshed it, on the caller's clock.
    pub sent: Moment,
    /// Until when it stands, on the store's clock.
    pub until: Moment,
    /// It has ended before: it has no right to its turn any more, though it may have kept it.
    pub lapsed: bool,
}

/// A belief begins once and ends once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(missing_docs)]
pub enum Belief {
    #[default]
    NotYet,
    Now,
    Over,
}

impl World {
    /// What the promises have to know of an order of a claim.
    pub(crate) fn witness(&mut self, caller: usize, output: &Output, now: Moment) {
        let past = &mut self.past.callers[caller];
        match output {
            Output::Send { request: Request::Ask { .. }, .. } => {
                past.silent_since = past.silent_since.or(Some(now));
            }
            Output::Send { request: Request::Release { .. }, .. } => {
                past.releases = past.releases.saturating_add(1);
            }
            Output::Tell(Notice::Lost(Lost::Taken)) => past.unbacked = true,
            _ => {}
        }
    }

    /// What the promises have to know of a request that was carried out.
    pub(crate) fn note(&mut self, ran: &Ran, sent: Option<Moment>, told: &[(usize, Message)]) {
        let store_clock = self.store_clock();
        let last_turn = self.past.callers.iter().filter_map(|past| past.place).map(|place| place.turn).max();
        let leaving = matches!(self.callers[ran.caller].claim.phase(), Phase::Leaving(_));
        let past = &mut self.past.callers[ran.caller];
        match (&ran.request, &ran.reply, sent) {
            (Request::Ask { ttl_ms, .. }, Reply::Granted { .. }, Some(sent))
            | (Request::Renew { ttl_ms, .. }, Reply::Renewed, Some(sent)) => {
                past.backed_until = past.backed_until.max(lease_end(sent, *ttl_ms));
                past.place = None;
                past.renewed_late |= leaving && ran.reply == Reply::Renewed;
            }
            (Request::Ask { place_ms, .. }, Reply::Queued { .. }, Some(sent)) => {
                let until = store_clock.plus(*place_ms);
                let new = PastPlace { turn: last_turn.unwrap_or(0) + 1, sent, until, lapsed: false };
                past.place = Some(past.place.map_or(new, |place| PastPlace { sent, until, ..place }));
            }
            (Request::Ask { .. }, Reply::Busy { .. }, _) | (Request::Release { .. }, Reply::Released, _) => {
                past.place = None;
            }
            _ => {}
        }
        for (to, message) in told {
            if matches!(message, Message::Granted { .. }) {
                let place_ms = self.callers[*to].claim.terms().place_ms;
                let past = &mut self.past.callers[*to];
                if let Some(place) = past.place.take() {
                    past.backed_until = past.backed_until.max(lease_end(place.sent, place_ms));
                }
            }
        }
    }

    /// What the promises have to know after every action.
    pub(crate) fn remember(&mut self) {
        if let Some(Occupant::Ours(hold)) = &self.store.ledger.occupant {
            self.past.highest = self.past.highest.max(hold.token);
        }
        let store_clock = self.store_clock();
        for caller in 0..self.callers.len() {
            let holds = self.holds(caller).is_some();
            let known = &self.callers[caller];
            let over = matches!(known.claim.phase(), Phase::Ended);
            let backed = self.occupant() == Some(caller) && self.is_held();
            let past = &mut self.past.callers[caller];
            if let Some(place) = &mut past.place {
                place.lapsed |= store_clock > place.until;
            }
            if over || !known.alive {
                let PastOf { place, unreleased, .. } = *past;
                *past = PastOf { place, unreleased, ..PastOf::default() };
            } else {
                past.unbacked |= holds && !backed;
                past.belief = match past.belief {
                    Belief::NotYet if holds => Belief::Now,
                    Belief::Now if !holds => Belief::Over,
                    belief => belief,
                };
            }
        }
        // Turns count from one again, so that histories that differ in nothing else are one state.
        let mut turns: Vec<u8> =
            self.past.callers.iter().filter_map(|past| past.place).map(|place| place.turn).collect();
        turns.sort_unstable();
        for place in self.past.callers.iter_mut().filter_map(|past| past.place.as_mut()) {
            place.turn = turns.iter().position(|turn| *turn == place.turn).map_or(0, |at| at as u8 + 1);
        }
    }

    /// Which chance an action takes, if any.
    pub(crate) fn chance(&self, action: &Action) -> Option<Chance> {
        Some(match action {
            Action::Lose(_) => Chance::Loss,
            Action::Repeat(at) => match self.letters.get(*at)?.body {
                Body::Message(_) => Chance::Echo,
                _ => Chance::Repeat,
            },
            Action::Miss(_, _, Outcome::Unknown) => Chance::Miss,
            Action::Miss(..) => Chance::Failure,
            Action::Extend(..) => Chance::Extend,
            Action::Drift(..) => Chance::Drift,
            Action::Crash(_) => Chance::Crash,
            Action::Reach(..) => Chance::Unreachable,
            Action::Stop(..) => Chance::Stop,
            Action::See(..) => Chance::Job,
            Action::Forget => Chance::Forget,
            Action::StoreClock(_) => Chance::StoreClock,
            Action::ForeignTakes(_) => Chance::Foreign,
            Action::Release(caller) => match self.callers[*caller].claim.phase() {
                Phase::Asking { .. } | Phase::Waiting { .. } => Chance::Cancel,
                _ => return None,
            },
            _ => return None,
        })
    }
}
