//! What lies in the store, and under which keys. One sorted map holds everything; the first byte says what.
//!
//! | Key | Value |
//! |---|---|
//! | `!format` | number of this layout |
//! | `!last` | the largest token given out |
//! | `!swept` | the name at which the next sweep goes on |
//! | `h` name | [`Head`]: the hold and how many wait |
//! | `p` name 0 seq | [`PlaceRecord`]: one waiter |
//! | `o` secret name | the seq of that owner's place |
//! | `m` process seq | [`Mail`]: a letter for another process |
//!
//! Numbers in keys are big-endian, so that their order is that of the numbers. Names hold no zero byte.

use serde::{Deserialize, Serialize};
use tenure_core::{Attempt, Hold, HolderId, Message, Moment, Name, Owner, Place, ProcessId, Standing, Token};
use tenure_engine::Letter;

/// The number of the layout in this file. Changed with it.
pub(crate) const FORMAT: u32 = 1;

pub(crate) const FORMAT_KEY: &[u8] = b"!format";
pub(crate) const LAST_KEY: &[u8] = b"!last";
pub(crate) const SWEPT_KEY: &[u8] = b"!swept";

pub(crate) const HEADS: u8 = b'h';
pub(crate) const MAILS: u8 = b'm';

pub(crate) fn head_key(name: &str) -> Vec<u8> {
    [&[HEADS], name.as_bytes()].concat()
}

/// The lock that a head's key belongs to; `None`: the key is no head's.
pub(crate) fn name_of(head_key: &[u8]) -> Option<Name> {
    let (&HEADS, name) = head_key.split_first()? else { return None };
    Name::new(std::str::from_utf8(name).ok()?).ok()
}

pub(crate) fn place_key(name: &Name, seq: u64) -> Vec<u8> {
    [b"p", name.as_str().as_bytes(), &[0], &seq.to_be_bytes()].concat()
}

/// The `seq` of a place of this lock; `None`: the key is another one's.
pub(crate) fn seq_of(name: &Name, place_key: &[u8]) -> Option<u64> {
    let rest = place_key.strip_prefix(b"p")?.strip_prefix(name.as_str().as_bytes())?.strip_prefix(&[0])?;
    Some(u64::from_be_bytes(rest.try_into().ok()?))
}

pub(crate) fn owner_key(name: &Name, owner: &Owner) -> Vec<u8> {
    [b"o", &owner.secret.to_be_bytes()[..], name.as_str().as_bytes()].concat()
}

pub(crate) fn mail_key(process: ProcessId, seq: u64) -> Vec<u8> {
    [&[MAILS], &process.0.to_be_bytes()[..], &seq.to_be_bytes()].concat()
}

/// To whom a letter goes and its number; `None`: the key is no letter's.
pub(crate) fn addressee_of(mail_key: &[u8]) -> Option<(ProcessId, u64)> {
    let rest: &[u8; 16] = mail_key.strip_prefix(&[MAILS])?.try_into().ok()?;
    let (process, seq) = rest.split_at(8);
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    Some((ProcessId(number(process)), number(seq)))
}

/// One lock.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) hold: Option<HoldRecord>,
    pub(crate) waiting: u32,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct HoldRecord {
    owner: OwnerRecord,
    token: u64,
    ttl_ms: u64,
    guard_ms: u64,
    ends: u64,
    stop: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct OwnerRecord {
    process: u64,
    serial: u32,
    secret: u128,
}

/// One waiter; its `seq` is in the key.
#[derive(Serialize, Deserialize)]
pub(crate) struct PlaceRecord {
    owner: OwnerRecord,
    until: u64,
    attempt: u32,
    guard_ms: u64,
}

/// One letter; the process that reads it is in the key.
#[derive(Serialize, Deserialize)]
pub(crate) struct Mail {
    name: String,
    owner: OwnerRecord,
    message: MessageRecord,
}

#[derive(Serialize, Deserialize)]
enum MessageRecord {
    Granted { token: u64, attempt: u32 },
    Head(StandingRecord),
    Stop { by: String },
    Look,
}

#[derive(Serialize, Deserialize)]
struct StandingRecord {
    holder: Option<(u64, u32)>,
    token: Option<u64>,
    lease_ends_in_ms: Option<u64>,
    free_in_ms: Option<u64>,
    quiet: bool,
}

impl From<&Owner> for OwnerRecord {
    fn from(owner: &Owner) -> Self {
        Self { process: owner.holder.process.0, serial: owner.holder.serial, secret: owner.secret }
    }
}

impl From<OwnerRecord> for Owner {
    fn from(OwnerRecord { process, serial, secret }: OwnerRecord) -> Self {
        Self { holder: HolderId { process: ProcessId(process), serial }, secret }
    }
}

impl From<&Hold> for HoldRecord {
    fn from(hold: &Hold) -> Self {
        Self {
            owner: (&hold.owner).into(),
            token: hold.token.0,
            ttl_ms: hold.ttl_ms,
            guard_ms: hold.guard_ms,
            ends: hold.ends.0,
            stop: hold.stop.clone(),
        }
    }
}

impl From<HoldRecord> for Hold {
    fn from(HoldRecord { owner, token, ttl_ms, guard_ms, ends, stop }: HoldRecord) -> Self {
        Self { owner: owner.into(), token: Token(token), ttl_ms, guard_ms, ends: Moment(ends), stop }
    }
}

impl From<&Place> for PlaceRecord {
    fn from(place: &Place) -> Self {
        Self {
            owner: (&place.owner).into(),
            until: place.until.0,
            attempt: place.attempt.0,
            guard_ms: place.guard_ms,
        }
    }
}

impl PlaceRecord {
    pub(crate) fn at(self, seq: u64) -> Place {
        Place {
            seq,
            owner: self.owner.into(),
            until: Moment(self.until),
            attempt: Attempt(self.attempt),
            guard_ms: self.guard_ms,
        }
    }
}

impl Mail {
    pub(crate) fn new(name: &Name, owner: &Owner, message: Message) -> Self {
        Self { name: name.as_str().to_owned(), owner: owner.into(), message: message.into() }
    }

    /// `None`: the name is none.
    pub(crate) fn letter(self) -> Option<Letter> {
        let name = Name::new(&self.name).ok()?;
        Some(Letter { name, owner: self.owner.into(), message: self.message.into() })
    }
}

impl From<Message> for MessageRecord {
    fn from(message: Message) -> Self {
        match message {
            Message::Granted { token, attempt } => Self::Granted { token: token.0, attempt: attempt.0 },
            Message::Head { standing } => Self::Head(StandingRecord {
                holder: standing.holder.map(|holder| (holder.process.0, holder.serial)),
                token: standing.token.map(|token| token.0),
                lease_ends_in_ms: standing.lease_ends_in_ms,
                free_in_ms: standing.free_in_ms,
                quiet: standing.quiet,
            }),
            Message::Stop { by } => Self::Stop { by },
            Message::Look => Self::Look,
        }
    }
}

impl From<MessageRecord> for Message {
    fn from(message: MessageRecord) -> Self {
        match message {
            MessageRecord::Granted { token, attempt } => {
                Self::Granted { token: Token(token), attempt: Attempt(attempt) }
            }
            MessageRecord::Head(standing) => Self::Head {
                standing: Standing {
                    holder: standing
                        .holder
                        .map(|(process, serial)| HolderId { process: ProcessId(process), serial }),
                    token: standing.token.map(Token),
                    lease_ends_in_ms: standing.lease_ends_in_ms,
                    free_in_ms: standing.free_in_ms,
                    quiet: standing.quiet,
                },
            },
            MessageRecord::Stop { by } => Self::Stop { by },
            MessageRecord::Look => Self::Look,
        }
    }
}
