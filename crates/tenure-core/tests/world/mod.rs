//! A few claims, one ledger, one clock, and whatever is under way between them. Stories tell it what happens next;
//! the property tests let chance decide.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::collections::BTreeSet;

use tenure_core::{
    Attempt, Claim, HolderId, Input, Ledger, Message, Moment, Notice, Now, Outcome, Output, Owner, Place,
    ProcessId, Reply, Request, Sight, Terms, Token, Witness,
};

#[derive(Default)]
pub struct World {
    pub now: Moment,
    pub claims: Vec<Claim>,
    pub ledger: Ledger<Vec<Place>>,
    /// Every request that was ever sent: any may arrive, at any time, any number of times.
    pub requests: Vec<(usize, Attempt, Request)>,
    /// Every answer that the store gave: any may arrive, any number of times.
    pub replies: Vec<(usize, Attempt, Reply)>,
    /// Every message that the store sent.
    pub messages: Vec<(usize, Message)>,
    /// What claims told their callers, in order.
    pub notices: Vec<(usize, Notice)>,
    /// Claims that no message reaches.
    pub unreachable: BTreeSet<usize>,
    /// Claims of which the store knows more than its clock.
    pub sights: Vec<Sight>,
    /// Tokens in the order in which the store granted them.
    pub granted: Vec<Token>,
}

struct Eyes<'a> {
    sights: &'a [Sight],
    unreachable: &'a BTreeSet<usize>,
    messages: &'a mut Vec<(usize, Message)>,
}

impl Witness for Eyes<'_> {
    fn sees(&mut self, owner: &Owner) -> Sight {
        self.sights[owner.holder.serial as usize]
    }

    fn tell(&mut self, owner: &Owner, message: Message) -> bool {
        let claim = owner.holder.serial as usize;
        let reached = !self.unreachable.contains(&claim) && self.sights[claim] != Sight::Gone;
        if reached {
            self.messages.push((claim, message));
        }
        reached
    }
}

impl World {
    pub fn enter(&mut self, terms: Terms) -> usize {
        let serial = self.claims.len();
        let holder = HolderId { process: ProcessId(1), serial: serial as u32 };
        self.claims.push(Claim::new(Owner { holder, secret: 7 * serial as u128 }, terms));
        self.sights.push(Sight::Unknown);
        serial
    }

    pub fn feed(&mut self, claim: usize, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        self.claims[claim].step(self.now, input, &mut out);
        self.claims[claim].check(self.now);
        for output in &out {
            match output.clone() {
                Output::Send { attempt, request } => self.requests.push((claim, attempt, request)),
                Output::Tell(notice) => self.notices.push((claim, notice)),
            }
        }
        out
    }

    /// The store carries one request out: its reply, and the messages it sent.
    pub fn arrive(&mut self, at: usize) -> (Reply, Vec<(usize, Message)>) {
        let (claim, attempt, request) = self.requests[at].clone();
        let told_before = self.messages.len();
        let last = self.ledger.last;
        let reply = self.apply(&request);
        if self.ledger.last > last {
            self.granted.push(self.ledger.last);
        }
        self.replies.push((claim, attempt, reply.clone()));
        (reply, self.messages[told_before..].to_vec())
    }

    pub fn apply(&mut self, request: &Request) -> Reply {
        let now = Now { lease: self.now, wall_us: self.now.0 * 1000 };
        let Self { ledger, sights, unreachable, messages, .. } = self;
        let reply = ledger.apply(now, request, &mut Eyes { sights, unreachable, messages });
        ledger.check();
        reply
    }

    /// An answer arrives.
    pub fn answer(&mut self, at: usize) -> Vec<Output> {
        let (claim, attempt, reply) = self.replies[at].clone();
        self.feed(claim, Input::Reply { attempt, outcome: Outcome::Answered(reply) })
    }

    pub fn holders(&self) -> Vec<usize> {
        (0..self.claims.len()).filter(|claim| self.claims[*claim].holds(self.now).is_some()).collect()
    }
}
