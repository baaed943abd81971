//! Messages that arrive, and who waits for some.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use redis::{PushInfo, PushKind};
use tenure_core::{Message, Name, Owner};
use tenure_engine::{Ear, Letter};

use crate::wire;

/// More waiters of one process are not remembered; they ask again by themselves, only later.
const REMEMBERED_MAX: usize = 100_000;

/// Takes messages in and passes them on; knows who waits, to wake them when messages may have been missed.
#[derive(Default)]
pub(crate) struct Post {
    prefix: String,
    ear: OnceLock<Ear>,
    waiting: Mutex<HashMap<Owner, Name>>,
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

    pub(crate) fn remember(&self, owner: Owner, name: &Name) {
        let mut waiting = self.lock();
        if waiting.len() < REMEMBERED_MAX || waiting.contains_key(&owner) {
            waiting.insert(owner, name.clone());
        }
    }

    pub(crate) fn forget(&self, owner: &Owner) {
        self.lock().remove(owner);
    }

    pub(crate) fn somebody_waits(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Messages may have been missed: whoever waits shall look.
    pub(crate) fn wake_all(&self) {
        let waiting: Vec<_> = self.lock().iter().map(|(owner, name)| (*owner, name.clone())).collect();
        for (owner, name) in waiting {
            self.pass_on(Letter { name, owner, message: Message::Look });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Owner, Name>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
