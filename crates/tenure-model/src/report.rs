//! Numbers and findings as people and programs read them.

use serde::Serialize;

use crate::check::Counterexample;
use crate::promises::Promise;
use crate::scope::Scope;
use crate::story;

/// A number with its thousands apart: 1,234,567.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let (head, tail) = digits.split_at(first);
    let mut groups: Vec<&str> = if head.is_empty() { Vec::new() } else { vec![head] };
    groups.extend((0..tail.len() / 3).map(|at| &tail[3 * at..3 * at + 3]));
    groups.join(",")
}

/// The names of promises, or a dash.
pub fn names(promises: &[Promise]) -> String {
    if promises.is_empty() {
        return "–".to_owned();
    }
    promises.iter().map(|promise| promise.name()).collect::<Vec<_>>().join(", ")
}

/// A counterexample for programs. `story` is a story that can be replayed.
#[derive(Serialize)]
struct Telling<'a> {
    scope: &'a str,
    promise: &'a str,
    what: &'a str,
    steps: usize,
    story: Vec<&'a str>,
}

/// A counterexample as JSON.
pub fn json(scope: &Scope, found: &Counterexample) -> String {
    let told = story::tell(scope, &found.actions);
    let telling = Telling {
        scope: scope.name,
        promise: found.promise.name(),
        what: &found.what,
        steps: found.actions.len(),
        story: told.lines().collect(),
    };
    serde_json::to_string_pretty(&telling).unwrap_or_default()
}

/// The story in the JSON of a counterexample, as text that can be replayed.
///
/// # Errors
/// What is wrong with the JSON.
pub fn story_of(json: &str) -> Result<String, serde_json::Error> {
    let value: serde_json::Value = serde_json::from_str(json)?;
    let lines = value["story"].as_array().map(Vec::as_slice).unwrap_or_default();
    let lines: Vec<&str> = lines.iter().filter_map(|line| line.as_str()).collect();
    Ok(lines.join("\n") + "\n")
}
