//! The locks that were built on Redis before, step by step.
//!
//! Each [`Form`] is one small file: two functions, acquire and release, that are told what the server answered to the
//! command before and say what comes next. They have no clock, no network and no randomness, so the same code is
//! checked in every interleaving (`tenure-model`), driven over a real server (`tenure lab`), and spoken with the
//! programs that still use it (`tenure::compat`).
//!
//! ```
//! use tenure_forms::{Caller, Command, Done, Next, Reply, Slot, cad};
//!
//! let mut server = Slot::default();
//! let mut me = Caller::new("5f2c", 30_000);
//! let mut last = None;
//! let held = loop {
//!     match cad::FORM.acquire(&mut me, 0, last.as_ref()) {
//!         Next::Send { node, command } => {
//!             let reply = server.run(0, &command);
//!             last = Some(Done { node, command, reply });
//!         }
//!         Next::Won { .. } => break true,
//!         Next::Busy | Next::Over => break false,
//!     }
//! };
//! assert!(held);
//! assert_eq!(server.run(30_000, &Command::Get), Reply::Value(None), "it ends by itself");
//! ```
#![forbid(unsafe_code)]

pub mod cad;
pub mod get_del;
pub mod getset;
pub mod pid_lock;
pub mod redlock;
pub mod set_nx_ex;
pub mod setnx_del;
pub mod setnx_expire;
pub mod slips;
mod store;
pub mod tenure;

pub use slips::Slip;
pub use store::{Command, Reply, SCRIPT, Slot, Ttl};

/// Every form, in the order of history.
pub const FORMS: [&Form; 9] = [
    &setnx_del::FORM,
    &setnx_expire::FORM,
    &set_nx_ex::FORM,
    &get_del::FORM,
    &cad::FORM,
    &getset::FORM,
    &pid_lock::FORM,
    &redlock::FORM,
    &tenure::FORM,
];

/// The form of this name.
pub fn form(name: &str) -> Option<&'static Form> {
    FORMS.into_iter().find(|form| form.name == name)
}

/// A way to take and give back a lock, and the words about it.
#[derive(Debug)]
pub struct Form {
    /// As the command shows it.
    pub name: &'static str,
    /// What is sent to acquire, in a line.
    pub acquires: &'static str,
    /// What is sent to release, in a line.
    pub releases: &'static str,
    /// What breaks, in a line.
    pub breaks: &'static str,
    /// How it works, for people.
    pub how: &'static str,
    /// Which form it grew out of.
    pub after: Option<&'static str>,
    /// What it changed there, and what that cost.
    pub changed: &'static str,
    /// What is worth doing about it.
    pub advice: &'static str,
    /// How many servers it asks.
    pub nodes: usize,
    /// Does a lock that was taken end by itself?
    pub ends: bool,
    /// Its value is the moment at which it ends, which callers hold against their own clocks.
    pub stamped: bool,
    /// From how many tokens the documents' listing draws, if they are few.
    pub few_tokens: Option<u32>,
    /// The steps. `None`: not made of single commands; the claims and ledgers of `tenure-core` are its steps.
    pub steps: Option<Steps>,
}

/// The steps of a form: each says what comes after what was done before.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    acquire: fn(&mut Caller, u64, Option<&Done>) -> Next,
    release: fn(&mut Caller, u64, Option<&Done>) -> Next,
    /// Moments, by a caller's clock, from which on a value under the key means something else to it.
    turns: fn(&Caller, &str) -> Vec<u64>,
}

impl Form {
    /// What a caller does next to acquire; `last` is `None` at first. `now_ms` is its own wall clock.
    ///
    /// # Panics
    /// For the form `tenure`, which has no steps of this kind.
    pub fn acquire(&self, me: &mut Caller, now_ms: u64, last: Option<&Done>) -> Next {
        (self.steps.expect("a form of single commands").acquire)(me, now_ms, last)
    }

    /// What a caller that holds does next to release; `last` is `None` at first.
    ///
    /// # Panics
    /// For the form `tenure`, which has no steps of this kind.
    pub fn release(&self, me: &mut Caller, now_ms: u64, last: Option<&Done>) -> Next {
        (self.steps.expect("a form of single commands").release)(me, now_ms, last)
    }

    /// The moments, by a caller's clock, from which on `value` under the key means something else to it: when a stamp
    /// counts as past.
    pub fn turns(&self, me: &Caller, value: &str) -> Vec<u64> {
        self.steps.map_or_else(Vec::new, |steps| (steps.turns)(me, value))
    }

    /// The slips of the documents' listings of this form.
    pub fn slips(&self) -> impl Iterator<Item = &'static Slip> {
        slips::SLIPS.iter().filter(|slip| slip.form == self.name)
    }
}

/// Forms are the same if they have the same name.
impl PartialEq for Form {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Form {}

/// Who wants the lock, and what it keeps in mind between two commands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Caller {
    /// Its random token, for forms that use one.
    pub token: String,
    /// How long the lock is to last.
    pub ttl_ms: u64,
    /// What it wrote under the key.
    pub wrote: String,
    /// `pid-lock`: a lock of which no more than this is left is not deleted, but left to be taken over.
    pub buffer_ms: u64,
    /// When it began to acquire, by its own clock.
    began_ms: u64,
    /// How many servers gave it the lock.
    votes: usize,
}

impl Caller {
    /// A caller that has done nothing yet.
    pub fn new(token: &str, ttl_ms: u64) -> Self {
        Self {
            token: token.to_owned(),
            ttl_ms,
            wrote: String::new(),
            buffer_ms: pid_lock::RELEASE_BUFFER_MS,
            began_ms: 0,
            votes: 0,
        }
    }
}

/// A command that was carried out, and what the server answered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Done {
    /// Which server, from 0.
    pub node: usize,
    /// The command.
    pub command: Command,
    /// Its reply.
    pub reply: Reply,
}

/// What a caller does next.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Next {
    /// It sends a command.
    Send {
        /// To which server, from 0.
        node: usize,
        /// The command.
        command: Command,
    },
    /// It has the lock.
    Won {
        /// From when on, by its own clock, it knows that the lock may be somebody else's, if the form tells.
        until_ms: Option<u64>,
    },
    /// Somebody else has the lock.
    Busy,
    /// It is done with the release.
    Over,
}

/// Sends a command to the only server.
fn send(command: Command) -> Next {
    Next::Send { node: 0, command }
}

/// The acquire of all forms that decide with one command: whoever writes the key where nothing is has the lock.
fn take(me: &mut Caller, value: String, ttl: Option<Ttl>, last: Option<&Done>) -> Next {
    match last.map(|done| &done.reply) {
        None => {
            me.wrote.clone_from(&value);
            send(Command::SetNx { value, ttl })
        }
        Some(Reply::Yes) => WON,
        Some(_) => Next::Busy,
    }
}

/// Has the lock, and never learns of its end.
const WON: Next = Next::Won { until_ms: None };

/// The number that a value begins with, as PHP and C read it; 0 if there is none.
pub fn stamp(value: &str) -> u64 {
    let digits = value.find(|c: char| !c.is_ascii_digit()).map_or(value, |end| &value[..end]);
    // Longer than any time: the far future.
    if digits.is_empty() { 0 } else { digits.parse().unwrap_or(u64::MAX) }
}

/// A value under the key means the same at all times.
fn no_turns(_: &Caller, _: &str) -> Vec<u64> {
    Vec::new()
}
