//! The forms of `tenure-forms` in every interleaving: two callers, a plain key-value store, a death, time that passes
//! wherever it likes, and clocks that differ.
//!
//! ```text
//!   Form ──▶ World ──▶ possible actions ──▶ World::act ──▶ Promise kept?
//!   (its steps, as     (callers, servers,   (the only
//!    the lab drives     clocks)              transition)
//!    a real server)
//! ```
//!
//! - [`World`]: callers, servers, clocks. [`World::act`] is the only transition.
//! - [`Promise`]: what a lock should keep.
//! - [`check`]: tries everything; [`Verdict`] is what came of it, [`pinned`] what has to come of it.
//! - [`diagram`]: a way to a broken promise, drawn.
//!
//! `tenure`'s own row comes from the scopes of this crate, in which the real claims and ledgers are checked.

pub mod check;
pub mod diagram;
pub mod pinned;
mod promise;
mod world;

pub use check::{Broken, Verdict, verdict, verdicts};
pub use promise::Promise;
pub use world::{Action, Doing, Happened, Player, STEPS_MAX, TTL_MS, World, worlds};
