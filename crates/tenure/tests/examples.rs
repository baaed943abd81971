//! Every example runs, and what it asserts is true.
#![cfg(feature = "embedded")]

use std::path::Path;
use std::process::Command;

/// Whether a program is built, and no older than its sources: Cargo lists them next to it.
fn is_fresh(program: &Path) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    let (Some(built), Ok(list)) = (changed(program), std::fs::read_to_string(program.with_extension("d")))
    else {
        return false;
    };
    let sources = list.split_once(": ").expect("PROGRAM: SOURCE..").1.split_whitespace();
    sources.map(|source| changed(Path::new(source))).all(|source| source.is_some_and(|at| at <= built))
}

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
    // Plain `cargo test` builds the examples, next to the folder of this test; `--test examples` does not.
    let test = std::env::current_exe().expect("this test has a path");
    let built = test.ancestors().nth(2).expect("target/debug/deps/test").join("examples");
    for name in names {
        let program = built.join(&name);
        assert!(is_fresh(&program), "{name} is not built, or older than its sources: cargo build --examples");
        let ran = Command::new(program).output().expect("it starts");
        let told = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{name} ended with {}:\n{told}", ran.status);
    }
}
