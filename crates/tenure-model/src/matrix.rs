//! What holds under which faults: the list of scopes as a table.

use std::fmt::Write as _;

use crate::promises::Promise;
use crate::scopes;

/// The table as it stands in `docs/guarantees.md`.
pub fn markdown() -> String {
    let mut text = String::from("| Promise | In words |\n|---|---|\n");
    for promise in Promise::ALL {
        let file = promise.name().replace('-', "_");
        let _ = writeln!(
            text,
            "| [`{}`](../crates/tenure-model/src/promises/{file}.rs) | {} |",
            promise.name(),
            promise.words()
        );
    }
    text.push_str("\n| What may happen (scope) | Kept in every state | Broken by nature: `cargo xtask check SCOPE --weakness PROMISE` shows how |\n|---|---|---|\n");
    for scope in scopes::ALL {
        let kept = if scope.broken.is_empty() { "all" } else { "all others" };
        let _ = writeln!(
            text,
            "| {} (`{}`) | {kept} | {} |",
            scope.about,
            scope.name,
            crate::report::names(&scope.broken.iter().map(|(promise, _)| *promise).collect::<Vec<_>>())
        );
    }
    text
}
