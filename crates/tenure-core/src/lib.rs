//! The protocol of Tenure, and nothing else: no clock, no socket, no randomness, no async. Time and outcomes are
//! arguments, so that the model checker forks these very values and production feeds them.
//!
//! ```text
//!  caller              Claim                      an engine              Ledger
//!  acquire ─────────▶  step ─▶ Send(Ask) ───────▶ carries ────────────▶  apply
//!  guard   ◀─ Granted  step ◀─ Reply{attempt,..} ◀ Answered | Unknown ◀─ Granted | Queued | Busy
//!  lost()  ◀─ Lost     step ◀─ Tick at deadline()                        tells waiters: Granted, Head
//! ```
//!
//! - [`Claim`]: what one caller does.
//! - [`Ledger`]: what one store does with one lock.
//! - [`lease`]: how long a caller may believe.
//! - [`Request`], [`Reply`], [`Outcome`], [`Message`]: what travels between the two.
#![forbid(unsafe_code)]

mod claim;
mod ident;
pub mod lease;
mod ledger;
mod request;

pub use claim::{Claim, End, Flight, Held, Input, Leaving, Line, Lost, Notice, Output, Phase, Terms};
pub use ident::{
    Attempt, BadName, FAR_FUTURE, HolderId, Moment, NAME_BYTES_MAX, Name, NotAnId, Owner, ProcessId,
    RESERVED_PREFIX, Token,
};
pub use ledger::{
    Hold, LOOK_AGAIN_MS, LOOKED_AT_MAX, Ledger, Now, Occupant, PASSED_OVER_MAX, Place, Places, Sight,
    Snapshot, WAITERS_MAX, Waiter, Witness,
};
pub use request::{BY_BYTES_MAX, Message, Outcome, Reply, Request, Standing};
