//! House rules that a test can hold: the absences that `ARCHITECTURE.md` names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The files of the project, as git knows them or would after `git add`.
fn files(ending: &str) -> Vec<(String, String)> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the project's files");
    let listed = String::from_utf8(listed.stdout).unwrap();
    let files: Vec<_> = listed
        .lines()
        .filter(|path| path.ends_with(ending))
        .filter_map(|path| fs::read_to_string(root().join(path)).ok().map(|text| (path.to_owned(), text)))
        .collect();
    assert!(!files.is_empty(), "there are files that end with {ending:?}");
    files
}

fn code(text: &str) -> impl Iterator<Item = &str> {
    let before_tests = text.split("#[cfg(test)]").next().unwrap();
    before_tests.lines().map(|line| line.split("//").next().unwrap())
}

#[test]
fn the_core_has_no_clock_no_io_no_randomness_no_async() {
    let manifest = fs::read_to_string(root().join("crates/tenure-core/Cargo.toml")).unwrap();
    let dependencies =
        manifest.split("[dependencies]").nth(1).unwrap().split("[dev-dependencies]").next().unwrap();
    assert_eq!(dependencies.trim(), "", "tenure-core depends on nothing");
    let banned = [
        "std::time",
        "Instant",
        "SystemTime",
        "std::net",
        "std::fs",
        "std::io",
        "std::thread",
        "async ",
        "rand",
    ];
    for (path, text) in
        files(".rs").into_iter().filter(|(path, _)| path.starts_with("crates/tenure-core/src/"))
    {
        for line in code(&text) {
            for word in banned {
                assert!(!line.contains(word), "{path} has {word:?}: {line}");
            }
        }
    }
}

#[test]
fn a_lease_ends_where_one_function_says() {
    for (path, text) in files(".rs") {
        let allowed = ["crates/tenure-core/src/lease.rs", "crates/tenure-core/src/claim.rs"];
        // The model keeps an account of its own, which claims are held against; the seeded bugs name what they change.
        let checks =
            ["crates/tenure-model/", "crates/tenure-seeded-bugs/"].iter().any(|dir| path.starts_with(dir));
        if !checks
            && !allowed.contains(&path.as_str())
            && path.starts_with("crates/")
            && path.contains("/src/")
        {
            assert!(
                !code(&text).any(|line| line.contains("lease_end(")),
                "{path} computes the end of a lease"
            );
        }
    }
}

#[test]
fn the_driver_knows_no_replies() {
    let driver = fs::read_to_string(root().join("crates/tenure/src/driver.rs")).unwrap();
    for line in code(&driver) {
        assert!(!line.contains("Reply::"), "the driver looks into a reply: {line}");
    }
}

#[test]
fn engines_decide_nothing() {
    for (path, text) in files(".rs") {
        let engine =
            path.starts_with("crates/tenure-redis/src/") || path.starts_with("crates/tenure-embedded/src/");
        if engine {
            for word in ["Claim::", "lease_end(", "valid_until(", "margin_ms("] {
                assert!(
                    !code(&text).any(|line| line.contains(word)),
                    "{path} has {word}: that is for the claim"
                );
            }
        }
    }
}

#[test]
fn unsafe_code_is_forbidden_everywhere_else() {
    // The wrapper of LMDB, and the fork of the tests; their crates deny it elsewhere.
    let allowed = ["crates/tenure-embedded/src/lmdb.rs", "crates/tenure-conformance/src/bin/taker/fork.rs"];
    for (path, text) in files(".rs").into_iter().filter(|(path, _)| path != "xtask/tests/tidy.rs") {
        let lifts = ["allow(unsafe_code)", "expect(unsafe_code"].iter().any(|lift| text.contains(lift));
        assert_eq!(
            lifts,
            allowed.contains(&path.as_str()),
            "{path}: who lifts the ban is named here, and nobody else"
        );
        assert!(
            !lifts || text.lines().count() < 250,
            "{path} allows unsafe code and is too long to be read in one go"
        );
        let root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
        let has_allowed = allowed
            .iter()
            .any(|file| file.starts_with(path.rsplit_once("/src/").map_or(&*path, |(krate, _)| krate)));
        if root && !has_allowed {
            assert!(text.contains("#![forbid(unsafe_code)]"), "{path} forbids unsafe code");
        }
    }
}

#[test]
fn time_on_the_lease_clock_only() {
    for (path, text) in files(".rs") {
        if path.starts_with("crates/tenure/src/") {
            assert!(
                !code(&text).any(|line| line.contains("Instant::now")),
                "{path} reads a clock that stops while the machine sleeps"
            );
        }
    }
}

#[test]
fn scripts_say_what_they_take_and_return() {
    for (path, text) in files(".lua") {
        let header: String = text.lines().take_while(|line| line.starts_with("--")).collect();
        assert!(header.len() > 40, "{path} begins with a header");
    }
}

#[test]
fn no_path_of_one_machine() {
    // Written apart, so that this file does not hold them.
    let homes = [["/ro", "ot/"].concat(), ["/wo", "rk/"].concat(), ["/fa", "rm/"].concat()];
    for ending in [".rs", ".md", ".toml", ".lua", ".sh", ".txt", ".yml"] {
        let listed = std::panic::catch_unwind(|| files(ending)).unwrap_or_default();
        for (path, text) in listed {
            for home in &homes {
                assert!(!text.contains(home.as_str()), "{path} names {home}");
            }
        }
    }
}

#[test]
fn every_part_is_on_the_map() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for (path, text) in files("Cargo.toml") {
        let folder = path.trim_end_matches("/Cargo.toml");
        if text.contains("[package]") {
            assert!(map.contains(&format!("| `{folder}` |")), "ARCHITECTURE.md has no row for {folder}");
        }
    }
}

#[test]
fn links_lead_somewhere() {
    for (path, text) in files(".md") {
        let here = root().join(&path).parent().unwrap().to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap();
            let local = !target.is_empty() && !link.contains("://");
            assert!(!local || here.join(target).exists(), "{path} links to {target}, which is not there");
        }
    }
}
