//! `get-del`: the holder looks whose lock it is before it deletes it.

use crate::{Caller, Command, Done, Form, Next, Reply, Steps, Ttl, no_turns, send, take};

/// The form.
pub const FORM: Form = Form {
    name: "get-del",
    acquires: "SET key token NX EX s",
    releases: "GET key, compare with the token, DEL key",
    breaks: "the key ends between GET and DEL, and DEL deletes the next one's lock",
    how: "The value is the holder's random token. To release, the holder reads the key and deletes it only if its token \
          is there.",
    after: Some("set-nx-ex"),
    changed: "The token: a holder that is late sees somebody else's and keeps its hands off. But it looks and deletes in \
              two commands, and the key can end and be taken between them.",
    advice: "Use cad instead: the same token, compared and deleted in one step.",
    nodes: 1,
    ends: true,
    stamped: false,
    few_tokens: None,
    steps: Some(Steps { acquire, release, turns: no_turns }),
};

fn acquire(me: &mut Caller, _: u64, last: Option<&Done>) -> Next {
    let (value, ttl) = (me.token.clone(), Some(Ttl::Seconds(me.ttl_ms.div_ceil(1000))));
    take(me, value, ttl, last)
}

/// Also the release of `getset`, whose token is its stamp.
pub(crate) fn release(me: &mut Caller, _: u64, last: Option<&Done>) -> Next {
    match last.map(|done| (&done.command, &done.reply)) {
        None => send(Command::Get),
        Some((Command::Get, Reply::Value(Some(value)))) if *value == me.wrote => send(Command::Del),
        Some(_) => Next::Over,
    }
}
