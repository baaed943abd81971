//! The protocol under check: [`tenure_core`] itself. (The crate `tenure-seeded-bugs` compiles the model against a copy of
//! it in which known mistakes can be switched on.)

#[cfg(not(seeded_bugs))]
pub use tenure_core::*;

#[cfg(seeded_bugs)]
mod copy {
    #![allow(
        dead_code,
        missing_docs,
        unused_parens,
        unreachable_pub,
        rustdoc::all,
        clippy::all,
        clippy::pedantic
    )]
    include!(concat!(env!("OUT_DIR"), "/protocol.rs"));
}

#[cfg(seeded_bugs)]
pub use copy::*;
