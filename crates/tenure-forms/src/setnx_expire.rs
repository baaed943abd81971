//! `setnx-expire`: a lock that ends, unless its holder dies at the wrong moment.

use crate::setnx_del::release;
use crate::{Caller, Command, Done, Form, Next, Reply, Steps, WON, no_turns, send};

/// The form.
pub const FORM: Form = Form {
    name: "setnx-expire",
    acquires: "SETNX key random, then EXPIRE key s (only if won)",
    releases: "DEL key",
    breaks: "a crash between the two commands blocks everybody for ever",
    how: "As setnx-del, but the winner gives the key an end with a second command, so that a holder that dies later \
          blocks the others for that long only.",
    after: Some("setnx-del"),
    changed: "The end. It comes in a command of its own: a process that dies between the two (or loses its connection \
              there) leaves a key without an end. And a lock that ends by itself brings a new fault: whoever works longer \
              than that deletes the next one's lock.",
    advice: "Never use it: SET key value NX EX seconds does both in one step since Redis 2.6.12 (2013).",
    nodes: 1,
    ends: true,
    stamped: false,
    few_tokens: None,
    steps: Some(Steps { acquire, release, turns: no_turns }),
};

fn acquire(me: &mut Caller, _: u64, last: Option<&Done>) -> Next {
    match last.map(|done| (&done.command, &done.reply)) {
        None => {
            me.wrote.clone_from(&me.token);
            send(Command::SetNx { value: me.wrote.clone(), ttl: None })
        }
        Some((Command::SetNx { .. }, Reply::Yes)) => {
            send(Command::Expire { seconds: me.ttl_ms.div_ceil(1000) })
        }
        Some((Command::SetNx { .. }, _)) => Next::Busy,
        Some(_) => WON,
    }
}
