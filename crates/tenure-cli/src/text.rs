//! What people read: one line for each thing, on stderr, with colour only on a terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};

use tenure::{HolderRow, Inspection, State, printable, span};

/// How much of a command line is shown.
const COMMAND_CHARS_MAX: usize = 120;

/// Prints one line on stderr, after our name.
pub(crate) fn say(text: &str) {
    // Nobody is left to be told if that fails.
    let _ = writeln!(std::io::stderr(), "tenure: {text}");
}

/// Prints data on stdout. A reader that went away (`| head`) is no error; a full disk is.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// How much a command says about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voice {
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

impl Voice {
    /// What everybody should know.
    pub(crate) fn say(self, text: &str) {
        if !self.quiet {
            say(text);
        }
    }

    /// What is asked for by `-v`.
    pub(crate) fn detail(self, text: &str) {
        if self.verbose && !self.quiet {
            say(text);
        }
    }
}

/// Is colour wanted on this stream? See <https://no-color.org>.
pub(crate) fn colourful(stream: &impl IsTerminal) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Rows under a header, for stdout.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = rows.collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].len()]).max().unwrap_or(0)
    });
    let line = |cells: [&str; N]| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let title = line(header);
    let bold = colourful(&std::io::stdout());
    let title = if bold { format!("\x1b[1m{}\x1b[0m\n", title.trim_end()) } else { title };
    rows.iter().fold(title, |text, row| text + &line(row.each_ref().map(String::as_str)))
}

/// Red where colour is wanted on stderr.
pub(crate) fn alarming(text: &str) -> String {
    if colourful(&std::io::stderr()) { format!("\x1b[1;31m{text}\x1b[0m") } else { text.to_owned() }
}

/// `user@host`, as far as it is known.
pub(crate) fn who(holder: &HolderRow) -> Option<String> {
    match (&holder.user, &holder.host) {
        (Some(user), Some(host)) => Some(printable(&format!("{user}@{host}"))),
        _ => None,
    }
}

/// `held by deploy@web-2 (pid 4121, php artisan mail:daily)`: who holds, in as many words as there are facts.
pub(crate) fn held_by(lock: &Inspection) -> String {
    let mut text = String::new();
    match (&lock.holder, &lock.foreign) {
        (Some(holder), _) => {
            let _ = write!(text, "held by {}", who(holder).unwrap_or_else(|| holder.id.clone()));
            match (holder.pid, &holder.cmd) {
                (Some(pid), Some(cmd)) => {
                    let _ = write!(text, " (pid {pid}, {})", shortened(&printable(cmd)));
                }
                (Some(pid), None) => {
                    let _ = write!(text, " (pid {pid})");
                }
                _ => {}
            }
        }
        (None, Some(kind)) => {
            let _ = write!(text, "held by a client that does not speak Tenure ({})", printable(kind));
        }
        (None, None) if lock.state == State::Free => text.push_str("free"),
        (None, None) => text.push_str("held"),
    }
    if lock.state == State::Orphaned {
        text.push_str(", which is gone, but processes of its job still run");
    }
    text
}

/// `lease ends in 24s unless renewed`: how long it can last.
pub(crate) fn until(lock: &Inspection) -> Option<String> {
    match (lock.state, lock.expires_in_ms, lock.free_in_ms) {
        (State::Free | State::Orphaned, ..) => None,
        (State::Foreign, Some(ms), _) => Some(format!("ends in {}", span(ms))),
        (State::Foreign, None, _) => Some("it has no end of its own".to_owned()),
        (State::Ending, _, Some(ms)) => Some(format!("lease is over, free in {} at the latest", span(ms))),
        (_, Some(ms), _) => Some(format!("lease ends in {} unless renewed", span(ms))),
        (_, None, _) => None,
    }
}

/// How long ago a moment in RFC 3339 is.
pub(crate) fn ago(since: Option<&str>) -> Option<String> {
    let since: jiff::Timestamp = since?.parse().ok()?;
    let ms = jiff::Timestamp::now().as_millisecond().saturating_sub(since.as_millisecond());
    Some(span(u64::try_from(ms).unwrap_or(0)))
}

/// A word of a command line that people may copy into a shell.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_.:/@%+=,".contains(c);
    let text = printable(text);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// As much of a text as fits into a line.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(COMMAND_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A command line as it may be shown: without passwords of addresses in it.
pub(crate) fn command_line<'a>(words: impl Iterator<Item = std::borrow::Cow<'a, str>>) -> String {
    let words: Vec<String> = words.map(|word| without_password(&word)).collect();
    shortened(&printable(&words.join(" ")))
}

/// `scheme://user:***@host`: everything between the address's `//` and its last `@` may hold a secret.
pub(crate) fn without_password(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, rest)) => match rest.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://***@{host}"),
            None => text.to_owned(),
        },
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_addresses_are_not_shown() {
        let words = ["load", "--from=mysql://u:p@ss@db/x", "mail@example.org", "https://plain/"];
        let shown = command_line(words.into_iter().map(Into::into));
        assert_eq!(shown, "load --from=mysql://***@db/x mail@example.org https://plain/");
    }

    #[test]
    fn names_can_be_copied_into_a_shell() {
        assert_eq!(quoted("mail:daily"), "mail:daily");
        assert_eq!(quoted("it's $(here)"), "'it'\\''s $(here)'");
    }

    #[test]
    fn escapes_do_not_reach_the_terminal() {
        assert_eq!(command_line(["\u{1b}[2Jx".into()].into_iter()), "\\u{1b}[2Jx");
    }
}
