//! `tenure`: this project's own lock. Its steps are the claims and ledgers of `tenure-core`; here are the words.

use crate::Form;

/// The form.
pub const FORM: Form = Form {
    name: "tenure",
    acquires: "one script: SET key token NX PX lease + guard, a fencing token, or a place in the queue",
    releases: "one script: compare, and hand over to the first in line",
    breaks: "nothing within its stated assumptions: docs/guarantees.md",
    how: "The final form, and what it leaves open: the lease is renewed while the work runs; the holder is told by its own \
          clock, before anybody else can hold, that it must stop; each grant has a larger fencing token than all before, so \
          that a resource can refuse a holder that overslept; who waits stands in a queue, and the lock is handed over.",
    after: Some("cad"),
    changed: "Told, fenced, first come first served; and what a lost answer means is known at all times.",
    advice: "Pass the fencing token on to what the lock protects: docs/overrun.md.",
    nodes: 1,
    ends: true,
    stamped: false,
    few_tokens: None,
    steps: None,
};
