//! Messages that arrive, and who waits for some.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use redis::{PushInfo, PushKind};
use tenure_core::{Message, Moment, Name, Owner};
use tenure_engine::{Ear, Letter};

use crate::wire;

/// More waiters of one process are not remembered; they ask again by themselves, only later.
const REMEMBERED_MAX: usize = 100_000;

/// A waiter is remembered for so long after its place has run out: the server may count slower than we do.
const SLACK_MS: u64 = 10_000;

/// How often those whose place has run out are looked for.
const PURGE_EVERY_MS: u64 = 5_000;

/// Who waits, and until when: a wish may end without a word to the engine, as when its last answer is lost.
#[derive(Default)]
struct Waiting {
    places: HashMap<Owner, (Name, Moment)>,
    next_purge: Moment,
}

impl Waiting {
    fn purge(&mut self, now: Moment) {
        if now >= self.next_purge {
            self.places.retain(|_, (_, until)| *until > now);
            self.next_purge = now.plus(PURGE_EVERY_MS);
        }
    }
}

/// Takes messages in and passes them on; knows who waits, to wake them when messages may have been missed.
#[derive(Default)]
pub(crate) struct Post {
    prefix: String,
    ear: OnceLock<Ear>,
    waiting: Mutex<Waiting>,
}

impl Post {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..Self::default() }
    }

    /// The first ear stays.
    pub(crate) fn listen(&self, ear: Ear) {
        let _ = self.ear.set(ear);
    }

    /// Called by the connection's driver for whatever the server sends unasked.
    pub(crate) fn deliver(&self, push: &PushInfo) {
        if push.kind != PushKind::Message {
            return;
        }
        let Some(payload) = push.data.get(1).and_then(wire::bytes) else { return };
        if let Some(letter) = wire::read_message(payload, &self.prefix) {
            if matches!(letter.message, Message::Granted { .. }) {
                self.forget(&letter.owner);
            }
            self.pass_on(letter);
        }
    }

    fn pass_on(&self, letter: Letter) {
        if let Some(ear) = self.ear.get() {
            ear(letter);
        }
    }

    /// It waits for the next `place_ms`, unless it asks again.
    pub(crate) fn remember(&self, now: Moment, owner: Owner, name: &Name, place_ms: u64) {
        let mut waiting = self.lock();
        waiting.purge(now);
        if waiting.places.len() < REMEMBERED_MAX || waiting.places.contains_key(&owner) {
            let until = now.plus(place_ms).plus(SLACK_MS);
            waiting.places.insert(owner, (name.clone(), until));
        }
    }

    pub(crate) fn forget(&self, owner: &Owner) {
        self.lock().places.remove(owner);
    }

    pub(crate) fn somebody_waits(&self, now: Moment) -> bool {
        let mut waiting = self.lock();
        waiting.purge(now);
        !waiting.places.is_empty()
    }

    /// Messages may have been missed: whoever waits shall look.
    pub(crate) fn wake_all(&self) {
        let waiting: Vec<_> =
            self.lock().places.iter().map(|(owner, (name, _))| (*owner, name.clone())).collect();
        for (owner, name) in waiting {
            self.pass_on(Letter { name, owner, message: Message::Look });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::HolderId;
    use tenure_engine::{random_owner, random_process};

    use super::*;

    #[test]
    fn who_never_said_goodbye_is_forgotten_after_its_place() {
        let (post, name) = (Post::new(""), Name::new("x").unwrap());
        let owner = |serial| random_owner(HolderId { process: random_process(), serial });
        let (one, two) = (owner(1), owner(2));
        post.remember(Moment(0), one, &name, 30_000);
        post.remember(Moment(20_000), two, &name, 30_000);
        assert!(post.somebody_waits(Moment(39_000)));
        post.forget(&two);
        assert!(post.somebody_waits(Moment(39_000)), "one may still be told");
        // It asks again, and then never.
        post.remember(Moment(39_000), one, &name, 30_000);
        assert!(post.somebody_waits(Moment(78_999)));
        assert!(!post.somebody_waits(Moment(84_000)));
    }
}
