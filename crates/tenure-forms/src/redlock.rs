//! `redlock`: the final form on several servers that know nothing of each other.

use crate::{Caller, Command, Done, Form, Next, Reply, Steps, Ttl, no_turns};

/// How many servers it asks here.
pub const NODES: usize = 3;

/// A majority of them.
pub const QUORUM: usize = NODES / 2 + 1;

/// The form.
pub const FORM: Form = Form {
    name: "redlock",
    acquires: "SET key token NX PX ms on N servers; won with a majority, for what is left of the ttl less the drift",
    releases: "EVAL compare-and-delete key token on all of them",
    breaks: "a server that restarts empty or whose clock jumps; pauses: nothing refuses what a late holder writes",
    how: "The lock is taken on a majority of independent servers, one after the other. The holder counts its validity from \
          before the first command, by its own clock, and must stop when it is over. Who gets no majority takes back what \
          it has.",
    after: Some("cad"),
    changed: "One server may be down, and the holder is told when to stop (by arithmetic on its own clock, which the forms \
              before could have done as well). But a server that comes back empty, or whose clock \
              jumps, gives the lock a second time while the first holder's validity runs; and a holder that is stopped \
              between looking at its clock and writing still writes, with nothing that a resource could refuse it by.",
    advice: "Don't rely on it where a second run does harm: use fencing tokens.",
    nodes: NODES,
    ends: true,
    stamped: false,
    few_tokens: None,
    steps: Some(Steps { acquire, release, turns: no_turns }),
};

/// When a holder that began at `began_ms` has to stop: 1 % and 2 ms of drift are taken off.
fn until(me: &Caller) -> u64 {
    (me.began_ms + me.ttl_ms).saturating_sub(me.ttl_ms / 100 + 2)
}

fn acquire(me: &mut Caller, now_ms: u64, last: Option<&Done>) -> Next {
    let take = |me: &Caller, node| Next::Send {
        node,
        command: Command::SetNx { value: me.wrote.clone(), ttl: Some(Ttl::Millis(me.ttl_ms)) },
    };
    match last {
        None => {
            (me.began_ms, me.votes) = (now_ms, 0);
            me.wrote.clone_from(&me.token);
            take(me, 0)
        }
        Some(Done { node, command: Command::SetNx { .. }, reply }) => {
            me.votes += usize::from(*reply == Reply::Yes);
            match node + 1 {
                next if next < NODES => take(me, next),
                _ if me.votes >= QUORUM && now_ms < until(me) => Next::Won { until_ms: Some(until(me)) },
                // What it has is of no use to it, and in the way of others.
                _ => give_back(me, 0),
            }
        }
        Some(Done { node, .. }) if node + 1 < NODES => give_back(me, node + 1),
        Some(_) => Next::Busy,
    }
}

fn release(me: &mut Caller, _: u64, last: Option<&Done>) -> Next {
    match last.map_or(0, |done| done.node + 1) {
        node if node < NODES => give_back(me, node),
        _ => Next::Over,
    }
}

fn give_back(me: &Caller, node: usize) -> Next {
    Next::Send { node, command: Command::DelIf { value: me.wrote.clone() } }
}
