//! Tenure's engine for Redis and its kin: a lock is a plain string under its own name, changed by small scripts.
//!
//! ```text
//!  Request ─▶ wire (which script, keys, arguments) ─▶ link (one connection) ─▶ the server runs the script
//!  Reply   ◀─ wire (what the script answered)      ◀─ classify (what an error means)
//!  Letter  ◀─ post ◀─ the channel of this process, on the same connection
//! ```
//!
//! What lies in the store and what travels is described in `docs/protocol.md`; the scripts are in `scripts/`. They
//! agree with [`tenure_core::Ledger`] request by request, which a differential test holds.
//!
//! [`ClassicEngine`] takes locks as programs without Tenure do, by plain commands over the same connection.
#![forbid(unsafe_code)]

mod classic;
mod classify;
mod engine;
#[cfg(test)]
mod fuzz;
mod keys;
mod link;
mod post;
mod together;
mod url;
mod wire;

pub use classic::ClassicEngine;
pub use engine::RedisEngine;
