//! The list of cases over the memory engine.

use std::process::ExitCode;

fn main() -> ExitCode {
    tenure_conformance::suite::run(tenure_conformance::subject::MEMORY, env!("CARGO_BIN_EXE_taker"))
}
