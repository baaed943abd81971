//! Which of the known mistakes is switched on, in the copy of the protocol that has them.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static ON: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Switches one mistake on, and all others off.
pub fn switch_on(number: usize) {
    ON.store(number, Relaxed);
}

/// Switches all mistakes off.
pub fn switch_off() {
    ON.store(usize::MAX, Relaxed);
}

/// This one is switched on.
pub fn is_on(number: usize) -> bool {
    ON.load(Relaxed) == number
}
