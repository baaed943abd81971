//! `getset`: the value is the moment at which the lock ends, and whoever finds it past takes the lock over.

use std::time::Duration;

use crate::get_del::release;
use crate::{Caller, Command, Done, Form, Next, Reply, Steps, WON, send, stamp};

/// How long it is tried, in seconds.
pub const WAIT_S: u64 = 10;

/// The pause between two tries.
pub const SLEEP: Duration = Duration::from_millis(10);

/// The form.
pub const FORM: Form = Form {
    name: "getset",
    acquires: "SETNX key stamp (seconds); else GET, and if that is past, GETSET key stamp and compare; EXPIRE after winning",
    releases: "GET key, compare with the stamp, DEL key",
    breaks: "clocks differ; a loser's GETSET moves the winner's stamp; equal stamps; a crash before EXPIRE leaves no end",
    how: "For servers without SET NX EX and without scripts. The value is the second at which the lock ends. Whoever finds \
          a stamp of the past writes its own with GETSET and has won if the old stamp comes back: of several that try, \
          only the first gets it. The stamp also is the holder's mark when it releases.",
    after: Some("setnx-del"),
    changed: "A key without an end is no trap any more: its stamp is read and taken over. The price is that the end is \
              judged by the callers' clocks. One that is fast takes a living lock; and who comes second with its GETSET \
              has lost, but its stamp stays, so the winner does not recognize its own lock when it releases.",
    advice: "Only to live with programs that use it already: `tenure run --protocol getset`.",
    nodes: 1,
    ends: true,
    stamped: true,
    few_tokens: None,
    steps: Some(Steps { acquire, release, turns }),
};

/// The second at which a lock ends that is taken now: one more than asked for, since seconds are counted whole.
fn ends(me: &Caller, now_ms: u64) -> String {
    (now_ms / 1000 + me.ttl_ms.div_ceil(1000) + 1).to_string()
}

fn acquire(me: &mut Caller, now_ms: u64, last: Option<&Done>) -> Next {
    match last.map(|done| (&done.command, &done.reply)) {
        None => {
            me.wrote = ends(me, now_ms);
            send(Command::SetNx { value: me.wrote.clone(), ttl: None })
        }
        Some((Command::SetNx { .. }, Reply::Yes)) => {
            send(Command::Expire { seconds: me.ttl_ms.div_ceil(1000) })
        }
        Some((Command::SetNx { .. }, _)) => send(Command::Get),
        Some((Command::Get, Reply::Value(Some(seen)))) if stamp(seen) < now_ms / 1000 => {
            me.wrote = ends(me, now_ms);
            send(Command::GetSet { value: me.wrote.clone(), seen: seen.clone() })
        }
        Some((Command::GetSet { seen, .. }, Reply::Value(Some(was)))) if was == seen => {
            send(Command::Expire { seconds: me.ttl_ms.div_ceil(1000) })
        }
        Some((Command::Expire { .. }, _)) => WON,
        Some(_) => Next::Busy,
    }
}

/// A stamp is past in the second after it.
fn turns(_: &Caller, value: &str) -> Vec<u64> {
    vec![stamp(value).saturating_add(1).saturating_mul(1000)]
}

/// How the listing waits: the moments at which it tries, counted from the first. As it was meant, a pause takes what it
/// took off the [`WAIT_S`] that are left; as it was written, a second.
pub fn tries(as_written: bool) -> impl Iterator<Item = Duration> {
    let cost = if as_written { Duration::from_secs(1) } else { SLEEP };
    let first = (Duration::ZERO, Duration::from_secs(WAIT_S));
    let next = move |(at, left): &(Duration, Duration)| Some((*at + SLEEP, left.checked_sub(cost)?));
    std::iter::successors(Some(first), next).map(|(at, _)| at)
}
