//! What the tests of Tenure's engines share: servers of their own, and the faults to run them under.
#![forbid(unsafe_code)]

pub mod frozen_clock;
pub mod server;
