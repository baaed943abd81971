//! `pid-lock`: the same with milliseconds, no EXPIRE at all, and a release without a name.

use std::time::Duration;

use crate::{Caller, Command, Done, Form, Next, Reply, Steps, WON, send, stamp};

/// What is added to a stamp, in milliseconds (`buffer_time`).
pub const BUFFER_MS: u64 = 1;

/// A lock of which no more than this is left is not deleted: it could end between GET and DEL.
pub const RELEASE_BUFFER_MS: u64 = 3;

/// How often it is tried again (`retry_times`).
pub const RETRY_TIMES: u32 = 0;

/// The pause between two tries (`sleep_time`), in seconds as the listing says it.
pub const SLEEP_S: f64 = 0.2;

/// The form.
pub const FORM: Form = Form {
    name: "pid-lock",
    acquires: "SETNX key stamp (milliseconds); else GET, and if that is past, GETSET key stamp and compare; never EXPIRE",
    releases: "GET key; DEL key if more than 3 ms are left, otherwise it is left to be taken over",
    breaks: "a release has no identity: who is late deletes another's lock; and all that breaks getset",
    how: "As getset, but the key never has an end of its own, and the release does not compare: it deletes whatever has \
          more than 3 ms to go, and leaves alone what is nearly over, since that could end and be taken between GET and DEL.",
    after: Some("getset"),
    changed: "No EXPIRE is needed, so none can be missing; no GETSET of a loser keeps the winner from releasing. But a holder \
              that worked longer than its lock sees the next one's stamp, which has time to go, and deletes that.",
    advice: "Only to live with programs that use it already: `tenure run --protocol pid-lock`. SET NX never takes such a \
             lock over, since the key has no end.",
    nodes: 1,
    ends: true,
    stamped: true,
    few_tokens: None,
    steps: Some(Steps { acquire, release, turns }),
};

/// The millisecond at which a lock ends that is taken now.
fn ends(me: &Caller, now_ms: u64) -> String {
    (now_ms + me.ttl_ms + BUFFER_MS).to_string()
}

fn acquire(me: &mut Caller, now_ms: u64, last: Option<&Done>) -> Next {
    match last.map(|done| (&done.command, &done.reply)) {
        None => {
            me.wrote = ends(me, now_ms);
            send(Command::SetNx { value: me.wrote.clone(), ttl: None })
        }
        Some((Command::SetNx { .. }, Reply::Yes)) => WON,
        Some((Command::SetNx { .. }, _)) => send(Command::Get),
        Some((Command::Get, Reply::Value(Some(seen)))) if stamp(seen) < now_ms => {
            me.wrote = ends(me, now_ms);
            send(Command::GetSet { value: me.wrote.clone(), seen: seen.clone() })
        }
        Some((Command::GetSet { seen, .. }, Reply::Value(Some(was)))) if was == seen => WON,
        Some(_) => Next::Busy,
    }
}

fn release(me: &mut Caller, now_ms: u64, last: Option<&Done>) -> Next {
    match last.map(|done| (&done.command, &done.reply)) {
        None => send(Command::Get),
        Some((Command::Get, Reply::Value(Some(seen)))) if stamp(seen) > now_ms + me.buffer_ms => {
            send(Command::Del)
        }
        Some(_) => Next::Over,
    }
}

/// A stamp is nearly over, and then past.
fn turns(me: &Caller, value: &str) -> Vec<u64> {
    vec![stamp(value).saturating_sub(me.buffer_ms), stamp(value).saturating_add(1)]
}

/// The pause between two tries as the listing gets it: `sleep` of PHP counts whole seconds, and of 0.2 none is left.
pub fn pause(as_written: bool) -> Duration {
    if as_written { Duration::from_secs(SLEEP_S as u64) } else { Duration::from_secs_f64(SLEEP_S) }
}

/// The release's buffer as the listing gets it: it compares milliseconds with 0.003, which is 3 microseconds of them.
pub fn release_buffer(as_written: bool) -> Duration {
    if as_written { Duration::from_micros(3) } else { Duration::from_millis(RELEASE_BUFFER_MS) }
}
