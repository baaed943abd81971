//! Every interleaving of Tenure's protocol, checked from the code that runs.
//!
//! ```text
//!   Scope ──▶ World ──▶ possible actions ──▶ World::act ──▶ Promises kept? Facts reached?
//!   (which callers,     (the Claims and      (the only
//!    faults, times)      Ledger of             transition)
//!                        tenure-core)
//! ```
//!
//! - [`World`]: callers, a store, letters under way, clocks. [`World::act`] is the only transition.
//! - [`Scope`]: a small world and what may happen in it; [`scopes`] is the list that is checked.
//! - [`past`]: what the promises have to remember, kept beside the claims.
//! - [`promises`]: what must never happen, one file each, with the words of the promise.
//! - [`recovery`]: how a world goes on when the faults stop; promises about "at last" are judged by it.
//! - [`facts`]: what must be seen to happen somewhere in a scope, so that the promises mean something there.
//! - [`check`]: tries everything that can happen in a scope.
//! - [`walk`]: takes one way after another at random, through worlds that are too large for that.
//! - [`story`] and [`diagram`]: any way through a world, in words that can be replayed, and drawn.
//! - [`protocol`]: the code under check.
//! - `lab`: the historical forms of the lock, checked in a plainer world.
#![forbid(unsafe_code)]

pub mod check;
pub mod diagram;
pub mod facts;
#[cfg(not(seeded_bugs))]
pub mod lab;
pub mod matrix;
pub mod past;
pub mod promises;
pub mod protocol;
pub mod recovery;
pub mod report;
pub mod scope;
pub mod scopes;
#[cfg(seeded_bugs)]
pub mod seeded;
pub mod story;
pub mod walk;
pub mod world;

pub use scope::Scope;
pub use world::{Action, Happened, World};
