//! What must be seen to happen somewhere in a scope: a world in which a danger never comes near proves nothing.

use crate::past::Belief;
use crate::promises::Step;
use crate::protocol::{End, Lost, Message, Notice, Occupant, Outcome, Phase, Reply, Request, Sight};
use crate::world::{Action, Body, World};

macro_rules! facts {
    ($($fact:ident: $words:literal,)*) => {
        /// Something that happens somewhere in a scope.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[expect(missing_docs, reason = "the words are the names")]
        pub enum Fact { $($fact,)* }

        impl Fact {
            /// Every fact.
            pub const ALL: &[Self] = &[$(Self::$fact,)*];

            /// In words.
            pub fn words(self) -> &'static str {
                match self { $(Self::$fact => $words,)* }
            }
        }
    };
}

facts! {
    HoldRanOut: "an unreleased hold ran out",
    HandOver: "a lock was handed over",
    HandOverHeard: "a caller began to hold by a message",
    HandOverCrossedAsk: "a hand-over was heard while an ask was under way",
    HandOverMetCancel: "a hand-over was heard by a caller that had just cancelled",
    HandOverTooLate: "a hand-over was heard too late and only asked for",
    HandOverNeverHeard: "a caller learnt from its next ask that it held",
    LateAsk: "an ask was carried out after the release of its claim",
    Ghost: "an ask was granted after the release of its claim",
    StaleAsk: "an ask came after its time and did nothing",
    StaleReply: "an answer came to a claim that did not wait for it any more",
    LateRenewal: "a renewal came after the hold had ended",
    RenewalLost: "a renewal had no answer",
    DidNotRun: "a request did not run",
    Refused: "a request was refused",
    Renewed: "a renewal was answered",
    Expired: "a holder was told that its lease ran out",
    Taken: "a holder was told by the store that the lock was not its own any more",
    NotHeld: "a release found that the lock was not held any more",
    ReleaseResent: "a release was sent again and found nothing",
    ReleaseUnknown: "a release was given up",
    PlaceRanOut: "a place in the queue ran out",
    DeadPassedOver: "a waiter who could not be told was passed over",
    HandOverToTheDead: "a lock was handed to somebody who was dead already",
    Busy: "an ask was answered busy",
    WaitElapsed: "a wait ended",
    AskedToStop: "a holder was asked to stop",
    Extended: "a lease was extended",
    Pinned: "a job kept a hold beyond its lease",
    Orphaned: "a dead holder's job kept the lock",
    Overlap: "two held at the same time",
    Refound: "a caller asked again and found that it held already",
}

impl Fact {
    /// As one bit of a set.
    pub fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// The facts of one step, as a set.
pub fn of(step: &Step<'_>) -> u64 {
    let (before, after) = (step.before, step.after);
    let mut facts = 0;
    let mut seen = |fact: Fact, is: bool| facts |= if is { fact.bit() } else { 0 };
    if let Some(ran) = &step.happened.ran {
        let known = &before.callers[ran.caller];
        let over = known.alive && matches!(known.claim.phase(), Phase::Leaving(_) | Phase::Ended);
        let granted = matches!(ran.reply, Reply::Granted { .. });
        let ask = matches!(ran.request, Request::Ask { .. });
        let occupied = before.store.ledger.occupant.is_some();
        seen(Fact::HoldRanOut, occupied && !before.is_held());
        seen(Fact::LateAsk, ask && over);
        seen(Fact::Ghost, ask && over && granted);
        seen(Fact::StaleAsk, ran.reply == Reply::Stale);
        seen(Fact::Busy, matches!(ran.reply, Reply::Busy { .. }));
        let renewal = matches!(ran.request, Request::Renew { .. });
        seen(Fact::LateRenewal, renewal && ran.reply == Reply::NotHeld);
        seen(Fact::Refound, ask && granted && before.occupant() == Some(ran.caller) && before.is_held());
        let places = |world: &World| world.store.ledger.places.len();
        let lapsed = before.past.callers.iter().any(|past| past.place.is_some_and(|place| place.lapsed));
        seen(Fact::PlaceRanOut, lapsed && places(after) < places(before));
        let passed_over = before.callers.iter().enumerate().any(|(caller, known)| {
            let place = before.past.callers[caller].place;
            !known.reachable && place.is_some_and(|place| !place.lapsed && place.turn == 1)
        });
        let handed =
            step.happened.told.iter().find(|(_, message)| matches!(message, Message::Granted { .. }));
        seen(Fact::HandOver, handed.is_some());
        seen(Fact::DeadPassedOver, passed_over && (handed.is_some() || granted));
        seen(Fact::HandOverToTheDead, handed.is_some_and(|(to, _)| !before.callers[*to].alive));
        let orphaned = before.callers.iter().any(|known| known.sight == Sight::Orphaned);
        seen(Fact::Orphaned, orphaned && before.is_held() && !granted);
    }
    if let Action::Deliver(at) | Action::Repeat(at) = *step.action
        && let Some(letter) = before.letters.get(at)
    {
        let phase = before.callers[letter.caller].claim.phase();
        let now_holds = before.holds(letter.caller).is_none() && after.holds(letter.caller).is_some();
        match &letter.body {
            Body::Message(Message::Granted { .. }) => {
                seen(Fact::HandOverHeard, now_holds);
                seen(Fact::HandOverCrossedAsk, now_holds && matches!(phase, Phase::Asking { .. }));
                let never_held = before.past.callers[letter.caller].belief == Belief::NotYet;
                seen(Fact::HandOverMetCancel, matches!(phase, Phase::Leaving(_)) && never_held);
                seen(Fact::HandOverTooLate, matches!(phase, Phase::Waiting { .. }) && !now_holds);
            }
            Body::Reply(reply) => {
                let awaited = before.callers[letter.caller].claim.awaits() == Some(letter.attempt);
                seen(Fact::StaleReply, !awaited);
                seen(Fact::Renewed, awaited && *reply == Reply::Renewed);
                let waited = before.past.callers[letter.caller].belief == Belief::NotYet;
                let asked_again = letter.attempt.0 > 1;
                seen(Fact::HandOverNeverHeard, now_holds && waited && asked_again);
            }
            _ => {}
        }
    }
    if let Action::Miss(caller, _, Outcome::Unknown) = step.action {
        seen(Fact::RenewalLost, matches!(before.callers[*caller].claim.phase(), Phase::Held(_)));
    }
    if let Action::Miss(_, _, outcome) = step.action {
        seen(Fact::DidNotRun, *outcome == Outcome::NotRun);
        seen(Fact::Refused, *outcome == Outcome::Refused);
    }
    if let Action::Extend(caller, _) = step.action {
        seen(Fact::Extended, before.holds(*caller).is_some());
    }
    for (_, notice) in step.happened.notices() {
        seen(Fact::Expired, *notice == Notice::Lost(Lost::Expired));
        seen(Fact::Taken, *notice == Notice::Lost(Lost::Taken));
        seen(Fact::AskedToStop, matches!(notice, Notice::Lost(Lost::Asked { .. })));
        seen(Fact::NotHeld, *notice == Notice::Ended(End::NotHeld));
        seen(Fact::ReleaseResent, *notice == Notice::Ended(End::Released { confirmed: false }));
        seen(Fact::ReleaseUnknown, matches!(notice, Notice::Ended(End::ReleaseUnknown { .. })));
        seen(Fact::WaitElapsed, matches!(notice, Notice::Ended(End::WaitElapsed(_))));
    }
    if let Some(Occupant::Ours(hold)) = &after.store.ledger.occupant {
        let working = after.callers[hold.owner.holder.serial as usize].sight == Sight::Working;
        seen(Fact::Pinned, working && after.store_clock() > hold.ends);
    }
    seen(Fact::Overlap, after.holders().count() > 1);
    facts
}
