//! One list of cases for every engine of Tenure, and the faults to run them under.
//!
//! [`suite`] owns the list; an engine brings a [`subject::Subject`]. [`proxy`] does to connections what networks do,
//! [`faulty`] does it to any engine; [`server`] starts Redis servers of one's own, [`frozen_clock`] sets their time;
//! [`fleet`] starts programs that take other locks than Tenure's, [`newer`] makes a server newer than it is; and the
//! program `taker` takes locks in a process that can be killed.
#![forbid(unsafe_code)]

mod cancel;
mod crash;
mod exclusion;
pub mod faulty;
pub mod fleet;
pub mod frozen_clock;
mod lease;
mod loss;
mod messages;
pub mod newer;
mod order;
pub mod proxy;
mod redis;
mod resp;
mod session;
pub mod subject;
pub mod suite;
pub mod taker;
mod wire;

pub use tenure_own_redis as server;
