//! `setnx-del`: the first form.

use crate::{Caller, Command, Done, Form, Next, Steps, no_turns, send, take};

/// The form.
pub const FORM: Form = Form {
    name: "setnx-del",
    acquires: "SETNX key random",
    releases: "DEL key",
    breaks: "a crash blocks everybody for ever",
    how: "Whoever writes the key first has the lock: SETNX writes only where nothing is. The holder deletes the key when \
          it is done.",
    after: None,
    changed: "It is the first. Before it, each process looked whether the key was there (EXISTS) and then wrote it (SET), and \
              two could look before either wrote.",
    advice: "Never use it: no lock without an end.",
    nodes: 1,
    ends: false,
    stamped: false,
    few_tokens: None,
    steps: Some(Steps { acquire, release, turns: no_turns }),
};

fn acquire(me: &mut Caller, _: u64, last: Option<&Done>) -> Next {
    let (value, ttl) = (me.token.clone(), None);
    take(me, value, ttl, last)
}

/// Also the release of the forms after it.
pub(crate) fn release(_: &mut Caller, _: u64, last: Option<&Done>) -> Next {
    match last {
        None => send(Command::Del),
        Some(_) => Next::Over,
    }
}
