//! One list of cases for every engine of Tenure, and the faults to run them under.
//!
//! [`suite`] owns the list; an engine brings a [`subject::Subject`]. [`proxy`] does to connections what networks do,
//! [`faulty`] does it to any engine; [`server`] starts Redis servers of one's own, [`frozen_clock`] sets their time; and the program `taker` takes locks in a process that can be killed.
#![forbid(unsafe_code)]

pub mod faulty;
pub mod frozen_clock;
pub mod proxy;
mod resp;
pub mod server;
