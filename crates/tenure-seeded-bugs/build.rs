//! Makes a copy of the core in which each mistake of `src/bugs.rs` can be switched on: the right expression becomes
//! `if the mistake is on { the wrong one } else { the right one }`. The core itself knows nothing of this.

#[expect(dead_code, reason = "what the checker needs to know is of no use here")]
#[path = "src/bugs.rs"]
mod bugs;

use std::path::Path;
use std::{env, fs};

use bugs::{BUGS, Bug};

/// Stands for the switch until paths have been written anew.
const SWITCH: &str = "__is_on__";

fn main() {
    let core = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap()).join("../tenure-core/src");
    println!("cargo::rustc-cfg=seeded_bugs");
    println!("cargo::rerun-if-changed={}", core.display());
    println!("cargo::rerun-if-changed=src/bugs.rs");

    let mut copy = embeddable(&read(&core, "lib.rs"));
    while let Some((module, declaration)) = next_module(&copy) {
        let file = format!("{module}.rs");
        let mut text = read(&core, &file);
        for (number, bug) in BUGS.iter().enumerate().filter(|(_, bug)| bug.file == file) {
            text = seed(&text, number, bug);
        }
        copy = copy.replacen(&declaration, &format!("pub mod {module} {{\n{}}}", embeddable(&text)), 1);
    }
    let out = Path::new(&env::var("OUT_DIR").unwrap()).join("protocol.rs");
    fs::write(out, copy).unwrap();
}

fn read(core: &Path, file: &str) -> String {
    let path = core.join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The first module that is declared and not yet written out: its name and its declaration.
fn next_module(text: &str) -> Option<(String, String)> {
    let line = text
        .lines()
        .find(|line| line.trim_start_matches("pub ").starts_with("mod ") && line.ends_with(';'))?;
    let module = line.trim_start_matches("pub ").strip_prefix("mod ")?.trim_end_matches(';');
    Some((module.to_owned(), line.to_owned()))
}

/// One mistake, at the first place after its mark where the right expression stands.
fn seed(text: &str, number: usize, bug: &Bug) -> String {
    let from = text.find(bug.near).unwrap_or_else(|| panic!("{}: nothing like {:?}", bug.name, bug.near));
    let at =
        text[from..].find(bug.right).unwrap_or_else(|| panic!("{}: nothing like {:?}", bug.name, bug.right));
    let (before, rest) = text.split_at(from + at);
    let after = &rest[bug.right.len()..];
    let Bug { right, wrong, .. } = bug;
    format!("{before}(if {SWITCH}({number}) {{ {wrong} }} else {{ {right} }}){after}")
}

/// The text of a file as the body of a module in another crate: without its own tests and inner attributes. What is
/// switched at run time can't be constant.
fn embeddable(text: &str) -> String {
    text.split("#[cfg(test)]")
        .next()
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with("//!") && !line.starts_with("#!["))
        .map(|line| line.replace("const fn ", "fn ") + "\n")
        .collect::<String>()
        .replace("crate::", "crate::protocol::copy::")
        .replace(SWITCH, "crate::seeded::is_on")
}
