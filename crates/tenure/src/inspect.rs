//! What people want to know of a lock: who holds it, since when, until when, who waits.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tenure_core::lease::TTL_MS_MAX;
use tenure_core::{HolderId, Name, ProcessId, Standing};
use tenure_engine::{Card, Engine, Fault, Look, unix_ms};

/// The most processes whose cards one inspection reads.
const CARDS_MAX: usize = 20;

/// Who holds a lock, as far as can be known. Displays as a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The name of the lock.
    pub name: String,
    /// The holder's public id; `None` if the lock is free by now or a foreign client holds it.
    pub id: Option<HolderId>,
    /// What lies under the name if a client holds it that does not speak Tenure: its type.
    pub foreign: Option<String>,
    /// `user@host`, once the process has told of itself.
    pub who: Option<String>,
    /// Its process number.
    pub pid: Option<u32>,
    /// What it runs.
    pub cmd: Option<String>,
    /// The label of its [`crate::Session`], if it has one.
    pub label: Option<String>,
    /// Since when, in milliseconds since 1970.
    pub since_unix_ms: Option<u64>,
    /// When the lease ends unless renewed, from now.
    pub lease_ends_in_ms: Option<u64>,
    /// When the lock is free at the latest unless renewed, from now.
    pub free_in_ms: Option<u64>,
    /// The store sees that the holder's job runs: the lock ends with it, whatever the clock says.
    pub kept_by_job: bool,
    /// The holder is gone, but processes of its job still run.
    pub orphaned: bool,
    /// How many wait.
    pub waiting: usize,
    /// Nobody holds the lock, and another task of the caller's [`crate::Session`] is acquiring it.
    pub mate_is_acquiring: bool,
}

impl Holder {
    /// Nobody holds the lock.
    pub(crate) fn is_free(&self) -> bool {
        self.id.is_none() && self.foreign.is_none()
    }

    /// A client that does not speak Tenure.
    #[cfg(feature = "redis")]
    pub(crate) fn foreign(name: &Name, kind: String, ends_in_ms: Option<u64>) -> Self {
        Self {
            name: name.to_string(),
            id: None,
            foreign: Some(kind),
            who: None,
            pid: None,
            cmd: None,
            label: None,
            since_unix_ms: None,
            lease_ends_in_ms: ends_in_ms,
            free_in_ms: ends_in_ms,
            kept_by_job: false,
            orphaned: false,
            waiting: 0,
            mate_is_acquiring: false,
        }
    }

    /// When the lock is free at the latest if its holder does not renew; zero if it is free by now. The holder may
    /// release it earlier, renew it, or others may come first. `None`: it has no end that is known.
    pub fn try_again_in(&self) -> Option<Duration> {
        if self.kept_by_job || self.mate_is_acquiring {
            return None;
        }
        let ms = if self.is_free() { Some(0) } else { self.free_in_ms.or(self.lease_ends_in_ms) };
        ms.map(Duration::from_millis)
    }

    /// The last words of an error: when to try again.
    pub(crate) fn again(&self) -> String {
        let Some(pause) = self.try_again_in() else { return "try again when that is over".to_owned() };
        let ms = pause.as_millis() as u64;
        if self.waiting > 0 {
            // They come first, and nobody knows how long they take.
            "try again later".to_owned()
        } else if ms == 0 {
            "try again at once".to_owned()
        } else if self.id.is_some() && self.lease_ends_in_ms > Some(0) {
            format!("try again in {} if it was not renewed", span_at_least(ms))
        } else {
            format!("try again in {}", span_at_least(ms))
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' ", self.name)?;
        match (&self.foreign, &self.id) {
            (Some(kind), _) => write!(f, "is held by a client that does not speak Tenure ({kind})")?,
            (None, None) if self.mate_is_acquiring => {
                return write!(f, "is being acquired by another task of this session");
            }
            (None, None) if self.waiting > 0 => {
                return write!(f, "is free at this moment, but others come first");
            }
            (None, None) => return write!(f, "is free at this moment"),
            (None, Some(id)) => match &self.who {
                Some(who) => {
                    write!(f, "is held by {}", printable(who))?;
                    let pid = self.pid.map(|pid| format!("pid {pid}"));
                    let session = self.label.as_ref().map(|label| format!("session {}", printable(label)));
                    let facts = [pid, self.cmd.as_deref().map(printable), session];
                    let facts: Vec<String> = facts.into_iter().flatten().collect();
                    if !facts.is_empty() {
                        write!(f, " ({})", facts.join(", "))?;
                    }
                }
                None if self.orphaned => {
                    write!(f, "is held by {id}, which is gone, but processes of its job still run")?;
                }
                None => write!(f, "is held by {id}")?,
            },
        }
        if let Some(since_ms) = self.since_unix_ms {
            let held_ms = unix_ms().saturating_sub(since_ms);
            write!(f, " since {} ({})", clock_time(since_ms), span(held_ms))?;
        }
        match (self.lease_ends_in_ms, self.free_in_ms) {
            _ if self.kept_by_job => f.write_str("; it ends with its job")?,
            (Some(ends_in_ms), _) if self.foreign.is_some() => {
                write!(f, "; it ends in {}", span(ends_in_ms))?;
            }
            (Some(0), Some(free_in_ms)) => {
                write!(f, "; its lease is over, free in {} at the latest", span(free_in_ms))?;
            }
            (Some(ends_in_ms), _) => write!(f, "; lease ends in {} unless renewed", span(ends_in_ms))?,
            (None, _) => f.write_str("; it has no end of its own")?,
        }
        match self.waiting {
            0 => Ok(()),
            waiting => write!(f, "; {waiting} waiting"),
        }
    }
}

/// Text of others as it may be written to a terminal: control characters and direction marks escaped.
pub fn printable(text: &str) -> String {
    let hostile = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        if hostile(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
        shown
    })
}

/// A span of time in words: `850ms`, `24s`, `3m12s`, `2h5m`.
pub fn span(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms}ms"),
        1000..60_000 => format!("{}s", ms / 1000),
        60_000..3_600_000 => format!("{}m{}s", ms / 60_000, ms / 1000 % 60),
        _ => format!("{}h{}m", ms / 3_600_000, ms / 60_000 % 60),
    }
}

/// A span of time in words, rounded up: whoever comes after it is not too early.
fn span_at_least(ms: u64) -> String {
    let unit = match ms {
        0..1000 => 1,
        1000..3_600_000 => 1000,
        _ => 60_000,
    };
    span(ms.next_multiple_of(unit))
}

/// The time of day in UTC, as RFC 3339.
fn clock_time(unix_ms: u64) -> String {
    jiff::Timestamp::from_millisecond(unix_ms.cast_signed()).map_or_else(
        |_| "unknown".to_owned(),
        |at| format!("{:.0}", at.round(jiff::Unit::Second).unwrap_or(at)),
    )
}

/// One lock, as `tenure inspect --json` prints it. Fields are only ever added.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// Format of this row: 1.
    pub v: u32,
    /// The name.
    pub name: String,
    /// Always `exclusive` so far.
    pub mode: &'static str,
    /// Whether it can be had.
    pub state: State,
    /// The holder's fencing token.
    pub fence: Option<u64>,
    /// The length of the holder's lease.
    pub ttl_ms: Option<u64>,
    /// When the lease ends unless renewed.
    pub expires_in_ms: Option<u64>,
    /// When the lock is free at the latest unless renewed.
    pub free_in_ms: Option<u64>,
    /// What lies under the name if it isn't Tenure's.
    pub foreign: Option<String>,
    /// Who asked the holder to stop.
    pub stop_asked_by: Option<String>,
    /// Who holds.
    pub holder: Option<HolderRow>,
    /// The first 100 who wait, in order.
    pub waiters: Vec<WaiterRow>,
    /// How many wait in all.
    pub waiting: usize,
    /// When this was read (RFC 3339, UTC).
    pub as_of: String,
    /// The store, without secrets.
    pub scope: String,
}

/// Whether a lock can be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// Yes.
    Free,
    /// Somebody holds it.
    Held,
    /// The holder's lease is over; the store keeps the lock a little longer, to be safe.
    Ending,
    /// A client holds it that does not speak Tenure.
    Foreign,
    /// The holder is gone, but processes of its job still run.
    Orphaned,
}

/// The holder in an [`Inspection`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct HolderRow {
    /// Public id.
    pub id: String,
    /// Account.
    pub user: Option<String>,
    /// Machine.
    pub host: Option<String>,
    /// Process number.
    pub pid: Option<u32>,
    /// What it runs.
    pub cmd: Option<String>,
    /// Why, in the holder's words; not used so far.
    pub reason: Option<String>,
    /// `session`: the label of the session that holds, if it has one.
    pub labels: HashMap<String, String>,
    /// Since when (RFC 3339, UTC).
    pub since: Option<String>,
    /// When the lease was last renewed, as of the holder's last card.
    pub renewed: Option<String>,
    /// Its version of Tenure.
    pub version: Option<String>,
}

/// A waiter in an [`Inspection`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct WaiterRow {
    /// Public id.
    pub id: String,
    /// Account.
    pub user: Option<String>,
    /// Machine.
    pub host: Option<String>,
    /// Process number.
    pub pid: Option<u32>,
    /// How long it waits.
    pub waited_ms: Option<u64>,
    /// 1 is next.
    pub place: usize,
    /// `session`: the label of the session that waits, if it has one.
    pub labels: HashMap<String, String>,
}

impl Inspection {
    /// Nobody holds it and nobody waits.
    pub fn is_free(&self) -> bool {
        self.state == State::Free && self.waiting == 0
    }
}

pub(crate) async fn inspect(engine: &dyn Engine, name: &Name) -> Result<Inspection, Fault> {
    let look = engine.look(name).await?;
    let standing = look.snapshot.standing;
    let holder = standing.and_then(|standing| standing.holder);
    let mut cards: HashMap<ProcessId, Option<Card>> = HashMap::new();
    let ids = holder.into_iter().chain(look.snapshot.waiters.iter().map(|waiter| waiter.holder));
    for id in ids {
        if cards.len() < CARDS_MAX && !cards.contains_key(&id.process) {
            // A card that can't be read says nothing; locks never depend on it.
            cards.insert(id.process, engine.card(id.process).await.ok().flatten());
        }
    }
    let card = |id: HolderId| cards.get(&id.process).and_then(Option::as_ref);
    let kept = kept_by_job(engine, &look);
    let state = match standing {
        None => State::Free,
        Some(_) if look.orphaned => State::Orphaned,
        Some(Standing { holder: None, .. }) => State::Foreign,
        Some(Standing { lease_ends_in_ms: Some(0), .. }) if !kept => State::Ending,
        Some(_) => State::Held,
    };
    let fence = standing.and_then(|standing| standing.token).map(|token| token.0);
    let ttl_ms = holder.and_then(|id| hold_on(card(id)?, id)).map(|hold| hold.ttl_ms);
    let waiters = look.snapshot.waiters.iter().enumerate().map(|(at, waiter)| {
        let id = waiter.holder.to_string();
        let card = card(waiter.holder);
        let wait = card.and_then(|card| card.waits.iter().find(|wait| wait.holder == id));
        WaiterRow {
            user: card.map(|card| card.user.clone()),
            host: card.map(|card| card.host.clone()),
            pid: card.map(|card| card.pid),
            waited_ms: wait.map(|wait| engine.unix_ms().saturating_sub(wait.since_ms)),
            labels: labels(wait.and_then(|wait| wait.label.as_ref())),
            place: at + 1,
            id,
        }
    });
    Ok(Inspection {
        v: 1,
        name: name.to_string(),
        mode: "exclusive",
        state,
        fence,
        ttl_ms,
        // What ends with a job has no end that a clock could tell.
        expires_in_ms: standing.and_then(|standing| standing.lease_ends_in_ms).filter(|_| !kept),
        free_in_ms: standing.and_then(|standing| standing.free_in_ms).filter(|_| !kept),
        foreign: look.foreign,
        stop_asked_by: look.snapshot.stop,
        holder: holder.map(|id| holder_row(id, card(id), fence)),
        waiters: waiters.collect(),
        waiting: look.snapshot.waiting,
        as_of: clock_time(engine.unix_ms()),
        scope: engine.scope(),
    })
}

fn hold_on(card: &Card, id: HolderId) -> Option<&tenure_engine::CardHold> {
    let id = id.to_string();
    card.holds.iter().find(|hold| hold.holder == id)
}

fn holder_row(id: HolderId, card: Option<&Card>, fence: Option<u64>) -> HolderRow {
    let hold = card.and_then(|card| hold_on(card, id));
    // A fencing token is the store's clock in microseconds unless that clock had stepped back.
    let since_ms = hold.map(|hold| hold.since_ms).or(fence.map(|fence| fence / 1000));
    HolderRow {
        id: id.to_string(),
        user: card.map(|card| card.user.clone()),
        host: card.map(|card| card.host.clone()),
        pid: card.map(|card| card.pid),
        cmd: hold.and_then(|hold| hold.cmd.clone()).or(card.map(|card| card.cmd.clone())),
        reason: None,
        labels: labels(hold.and_then(|hold| hold.label.as_ref())),
        since: since_ms.map(clock_time),
        renewed: hold.map(|hold| clock_time(hold.renewed_ms)),
        version: card.map(|card| card.version.clone()),
    }
}

/// The labels of a row: its session's, if that has one.
fn labels(session: Option<&String>) -> HashMap<String, String> {
    session.map(|label| ("session".to_owned(), label.clone())).into_iter().collect()
}

/// The holder for an error: as much as can be learnt. `standing` is what is known already.
///
/// # Errors
/// Nothing is known, and the store does not answer.
pub(crate) async fn holder(
    engine: &dyn Engine,
    name: &Name,
    standing: Option<Standing>,
) -> Result<Holder, Fault> {
    let mut look = match engine.look(name).await {
        Ok(look) => look,
        Err(_) if standing.is_some() => Look::default(),
        Err(fault) => return Err(fault),
    };
    let standing = look.snapshot.standing.or(standing);
    look.snapshot.standing = standing;
    let id = standing.and_then(|standing| standing.holder);
    let card = match id {
        Some(id) => engine.card(id.process).await.ok().flatten(),
        None => None,
    };
    let foreign = match standing {
        Some(Standing { holder: None, .. }) => {
            Some(look.foreign.clone().unwrap_or_else(|| "unknown type".to_owned()))
        }
        _ => None,
    };
    let hold = id.and_then(|id| hold_on(card.as_ref()?, id));
    let token_ms = standing.and_then(|standing| standing.token).map(|token| token.0 / 1000);
    Ok(Holder {
        name: name.to_string(),
        id,
        foreign,
        who: card.as_ref().map(|card| format!("{}@{}", card.user, card.host)),
        pid: card.as_ref().map(|card| card.pid),
        cmd: hold.and_then(|hold| hold.cmd.clone()).or(card.as_ref().map(|card| card.cmd.clone())),
        label: hold.and_then(|hold| hold.label.clone()),
        since_unix_ms: hold.map(|hold| hold.since_ms).or(token_ms),
        lease_ends_in_ms: standing.and_then(|standing| standing.lease_ends_in_ms),
        free_in_ms: standing.and_then(|standing| standing.free_in_ms),
        kept_by_job: kept_by_job(engine, &look),
        orphaned: look.orphaned,
        waiting: look.snapshot.waiting,
        mate_is_acquiring: false,
    })
}

/// A store that sees processes and still shows a holder whose lease is over keeps the lock for its job.
fn kept_by_job(engine: &dyn Engine, look: &Look) -> bool {
    let over = look.snapshot.standing.is_some_and(|standing| standing.lease_ends_in_ms == Some(0));
    look.orphaned || (over && engine.guard_ms(TTL_MS_MAX) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_reads_as_a_sentence() {
        let now = unix_ms();
        let holder = Holder {
            name: "mail".to_owned(),
            id: "0000000000001.1".parse().ok(),
            foreign: None,
            who: Some("deploy@web-2".to_owned()),
            pid: Some(4121),
            cmd: Some("php\u{1b}[31m".to_owned()),
            label: None,
            since_unix_ms: Some(now - 192_000),
            lease_ends_in_ms: Some(24_500),
            free_in_ms: Some(27_500),
            kept_by_job: false,
            orphaned: false,
            waiting: 2,
            mate_is_acquiring: false,
        };
        let text = holder.to_string();
        assert!(
            text.starts_with("'mail' is held by deploy@web-2 (pid 4121, php\\u{1b}[31m) since "),
            "{text}"
        );
        assert!(text.ends_with("(3m12s); lease ends in 24s unless renewed; 2 waiting"), "{text}");
        let text = crate::AcquireError::Busy(Box::new(holder.clone())).to_string();
        assert!(text.ends_with("; lease ends in 24s unless renewed; 2 waiting; try again later"), "{text}");
        let alone = Holder { waiting: 0, label: Some("import\u{1b}7".to_owned()), ..holder };
        let text = crate::AcquireError::Busy(Box::new(alone.clone())).to_string();
        assert!(text.contains(" (pid 4121, php\\u{1b}[31m, session import\\u{1b}7) since "), "{text}");
        assert!(
            text.ends_with("; lease ends in 24s unless renewed; try again in 28s if it was not renewed"),
            "{text}"
        );
        let over = Holder { lease_ends_in_ms: Some(0), ..alone };
        let text = crate::AcquireError::Busy(Box::new(over)).to_string();
        assert!(text.ends_with("; its lease is over, free in 27s at the latest; try again in 28s"), "{text}");
    }

    #[test]
    fn a_foreign_holder_without_an_end_is_told_as_such() {
        let holder = Holder {
            name: "x".to_owned(),
            id: None,
            foreign: Some("string".to_owned()),
            who: None,
            pid: None,
            cmd: None,
            label: None,
            since_unix_ms: None,
            lease_ends_in_ms: None,
            free_in_ms: None,
            kept_by_job: false,
            orphaned: false,
            waiting: 0,
            mate_is_acquiring: false,
        };
        assert_eq!(
            holder.to_string(),
            "'x' is held by a client that does not speak Tenure (string); it has no end of its own"
        );
        assert_eq!((holder.try_again_in(), &*holder.again()), (None, "try again when that is over"));
        let ends = Holder { lease_ends_in_ms: Some(850), ..holder.clone() };
        assert_eq!(ends.again(), "try again in 850ms");
        let kept = Holder { free_in_ms: Some(0), kept_by_job: true, ..holder.clone() };
        assert_eq!(kept.try_again_in(), None);
        let free = Holder { foreign: None, ..holder };
        assert_eq!((&*free.to_string(), &*free.again()), ("'x' is free at this moment", "try again at once"));
        let others = Holder { waiting: 1, ..free };
        assert_eq!(others.to_string(), "'x' is free at this moment, but others come first");
        assert_eq!(others.again(), "try again later");
    }

    #[test]
    fn spans_are_short() {
        let words = [850, 24_000, 192_000, 7_500_000].map(span);
        assert_eq!(words, ["850ms", "24s", "3m12s", "2h5m"]);
        let at_least = [850, 24_001, 192_000, 3_599_001, 7_500_001].map(span_at_least);
        assert_eq!(at_least, ["850ms", "25s", "3m12s", "1h0m", "2h6m"]);
    }
}
