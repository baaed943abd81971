//! Every example runs, and what it asserts is true.
#![cfg(feature = "embedded")]

use std::path::Path;
use std::process::Command;

#[test]
fn every_example_runs() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<String> = std::fs::read_dir(&sources)
        .expect("there are examples")
        .map(|entry| entry.expect("a file").path())
        .map(|path| path.file_stem().expect("a name").to_str().expect("text").to_owned())
        .collect();
    names.sort();
    let expected = ["blocking", "defer", "fail", "retry", "session", "skip", "template", "wait"];
    assert_eq!(names, expected, "an example is missing here or there");
    // Cargo builds the examples for `cargo test`, next to the folder of this test.
    let test = std::env::current_exe().expect("this test has a path");
    let built = test.ancestors().nth(2).expect("target/debug/deps/test").join("examples");
    for name in names {
        let ran = Command::new(built.join(&name)).output();
        let ran = ran.unwrap_or_else(|error| panic!("{name}: {error}; build it: cargo build --examples"));
        let told = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{name} ended with {}:\n{told}", ran.status);
    }
}
