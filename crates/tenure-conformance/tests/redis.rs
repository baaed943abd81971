//! The list of cases over the redis engine.

use std::process::ExitCode;

fn main() -> ExitCode {
    tenure_conformance::suite::run(tenure_conformance::subject::REDIS, env!("CARGO_BIN_EXE_taker"))
}
