//! `set-nx-ex`: taken and given an end in one step, released by anybody.

use crate::setnx_del::release;
use crate::{Caller, Done, Form, Next, Steps, Ttl, no_turns, take};

/// The form.
pub const FORM: Form = Form {
    name: "set-nx-ex",
    acquires: "SET key 1 NX EX s",
    releases: "DEL key",
    breaks: "a holder that works longer than s deletes another's lock",
    how: "One command writes the key where nothing is, and gives it an end. The value says nothing.",
    after: Some("setnx-expire"),
    changed: "SETNX and EXPIRE became one step: no crash leaves a lock for ever. But DEL deletes whatever is there: a \
              holder that worked longer than the lock lasted deletes the next one's, and a third one enters.",
    advice: "Use cad instead: the same acquire with a random token, and a release that compares it.",
    nodes: 1,
    ends: true,
    stamped: false,
    few_tokens: None,
    steps: Some(Steps { acquire, release, turns: no_turns }),
};

fn acquire(me: &mut Caller, _: u64, last: Option<&Done>) -> Next {
    let (value, ttl) = ("1".to_owned(), Some(Ttl::Seconds(me.ttl_ms.div_ceil(1000))));
    take(me, value, ttl, last)
}
