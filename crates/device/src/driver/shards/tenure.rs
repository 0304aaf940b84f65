//! The time for which one thread has a shard.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::edge::CutOff;

/// The time for which one thread has a shard: until the program ends, or until the thread stands
/// still and another one takes its place.
#[derive(Debug, Default)]
pub(super) struct Tenure {
    /// Turns of the thread, for whoever looks whether it goes on.
    turns: AtomicU64,
    /// Of the edges of all servers that the thread lets live.
    cut_off: CutOff,
}

impl Tenure {
    /// The thread goes on.
    pub(super) fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the thread has turned.
    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Another thread takes the shard: should this one wake up, it reads and sends nothing.
    pub(super) fn end(&self) {
        self.cut_off.cut();
    }

    /// Whether another thread has the shard, or will have it.
    pub(super) fn is_over(&self) -> bool {
        self.cut_off.is_cut()
    }

    /// What cuts off the edge of a server that the thread lets live.
    pub(super) fn cut_off(&self) -> CutOff {
        self.cut_off.clone()
    }
}
