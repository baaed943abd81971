//! The list of cases over the embedded engine.

use std::process::ExitCode;

fn main() -> ExitCode {
    tenure_conformance::suite::run(tenure_conformance::subject::EMBEDDED, env!("CARGO_BIN_EXE_taker"))
}
