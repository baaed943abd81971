//! What people read: tables and paragraphs in plain text.

use std::io::{IsTerminal as _, Write as _};

use tenure_model::lab::{Promise, Verdict, pinned::Pin};

/// Prints text on stdout. A reader that went away (`| head`) is no error.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// As `println!`, for readers that may go away.
macro_rules! tell {
    ($($words:tt)*) => { $crate::report::print(&format!("{}\n", format_args!($($words)*))) };
}
pub(crate) use tell;

/// Says on a terminal what is going on.
pub(crate) fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("tenure: {text} ..");
    }
}

/// Width of a paragraph.
const WIDTH: usize = 100;

/// Text in lines of at most [`WIDTH`], each with this before it.
pub(crate) fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = String::new();
    let mut line = indent.to_owned();
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH && line.trim() != "" {
            lines.push_str(line.trim_end());
            lines.push('\n');
            indent.clone_into(&mut line);
        }
        line.push_str(word);
        line.push(' ');
    }
    lines.push_str(line.trim_end());
    lines.push('\n');
    lines
}

/// Rows of cells, each column as wide as its widest cell. The first row is the head.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}

/// A verdict in a word or two.
pub(crate) fn short(pin: Pin) -> String {
    match pin {
        Pin::Kept(_) => "kept".to_owned(),
        Pin::Broken(steps) => format!("BROKEN in {steps}"),
        Pin::None => "no tokens".to_owned(),
    }
}

/// A verdict in a sentence.
pub(crate) fn long(promise: Promise, verdict: &Verdict) -> String {
    let said = match verdict {
        Verdict::Kept { states } => format!("kept in all {} states", tenure_model::report::grouped(*states)),
        Verdict::Broken(broken) => {
            format!("BROKEN, in {} steps at the least: {}", broken.actions.len(), broken.what)
        }
        Verdict::InScope(scope, found) => {
            format!(
                "BROKEN, in {} steps at the least, where {}: {}",
                found.actions.len(),
                scope.about,
                found.what
            )
        }
        Verdict::NoTokens => "there are no tokens: nothing can refuse a late write".to_owned(),
    };
    format!("  {:<13} {said}\n", promise.name())
}
