//! Every example runs, and what it asserts is true.

use std::process::Command;

fn told_by(program: &str) -> String {
    let ran = Command::new(program).output().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{program} ended with {}:\n{errors}", ran.status);
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn a_late_write_is_refused_by_a_table() {
    let told = told_by(env!("CARGO_BIN_EXE_overrun_sqlite"));
    assert!(told.ends_with("The write of A is refused: the balance is 120\n"), "{told}");
}

#[test]
fn a_late_write_is_refused_by_redis() {
    let told = told_by(env!("CARGO_BIN_EXE_overrun_redis"));
    assert!(told.ends_with("The write of A is refused: the balance is 120\n"), "{told}");
}
