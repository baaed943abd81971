//! `cad`: compare and delete in one script. The final form of the documents.

use crate::{Caller, Command, Done, Form, Next, Steps, Ttl, no_turns, send, take};

/// The form.
pub const FORM: Form = Form {
    name: "cad",
    acquires: "SET key token NX PX ms",
    releases: "EVAL compare-and-delete key token",
    breaks: "work that outlives the lock is not noticed; tokens from a small range collide",
    how: "As get-del, but a script on the server compares and deletes: nothing happens between the two.",
    after: Some("get-del"),
    changed: "The gap between GET and DEL is gone: nobody deletes another's lock, as long as no two tokens are the same. \
              Drawn from 1 to 100,000, the same token turns up among 400 callers with a chance of more than a half. What \
              is left is work that takes longer than the lock: nobody tells the holder, and nobody can refuse what it \
              writes.",
    advice: "Good enough where a second run costs time only. `tenure run --protocol classic` speaks it, and renews the \
             lock while the job runs.",
    nodes: 1,
    ends: true,
    stamped: false,
    few_tokens: Some(100_000),
    steps: Some(Steps { acquire, release, turns: no_turns }),
};

fn acquire(me: &mut Caller, _: u64, last: Option<&Done>) -> Next {
    let (value, ttl) = (me.token.clone(), Some(Ttl::Millis(me.ttl_ms)));
    take(me, value, ttl, last)
}

fn release(me: &mut Caller, _: u64, last: Option<&Done>) -> Next {
    match last {
        None => send(Command::DelIf { value: me.wrote.clone() }),
        Some(_) => Next::Over,
    }
}
