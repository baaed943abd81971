//! Tenure's engines without a server.
//!
//! - [`EmbeddedEngine`]: all processes of one user on one host, through a file that they share.
//! - [`MemoryEngine`]: the tasks of one process.
//!
//! Both run the ledger of `tenure-core` itself; what is here brings it to a file and to other processes:
//!
//! ```text
//! engine ─▶ guard ─▶ store ─▶ book ─▶ Ledger          records   what lies where
//!    │                 │        └─▶ lmdb               fence     tokens outlive the store
//!    └─▶ member        └─▶ processes                   directory where, and is it safe there
//!        ear, watch        who is alive                location  which store
//! ```

mod book;
mod directory;
mod engine;
mod fence;
#[cfg(test)]
mod fuzz;
mod guard;
mod lmdb;
mod location;
mod member;
mod memory;
mod processes;
mod records;
mod store;
#[cfg(test)]
mod tests;

pub use engine::EmbeddedEngine;
pub use location::Location;
pub use memory::MemoryEngine;
