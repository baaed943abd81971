//! The library, its driver and all, on paused time: every seed is one history of a few processes that take a few
//! locks over a network and a store that can fail in every way the port allows, and in which futures are dropped
//! wherever they wait. What must be true is checked at every step; the same seed gives the same bytes.
//!
//! One file for each job: `swarm` draws what a seed is about, `clock` keeps each process's time, `store` keeps
//! the locks, `network` carries what travels, `engine` shows it to the library as an engine, `work` uses the
//! library, `awaits` drops futures and knows where they were, `oracle` says what must be true, `run` puts one
//! seed together.
//!
//! A crate of its own, because paused time slows tokio's clock down wherever it is built in, and because it needs no
//! real engine.
#![forbid(unsafe_code)]

mod awaits;
mod clock;
mod engine;
mod network;
mod oracle;
mod random;
mod run;
mod store;
mod swarm;
mod work;
mod world;

pub use awaits::{AWAITS, Awaits, Op, Where};
pub use oracle::Rule;
pub use run::{Failure, History, simulate};
pub use store::Sabotage;
