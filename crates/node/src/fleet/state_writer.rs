//! When a member's state is written: soon after a change, but seldom enough for slow disks.

use std::time::Duration;

use roadweave_linux::Clock;
use roadweave_proto::Instant;
use serde::Serialize;

use super::store::StateStore;

const WRITE_INTERVAL: Duration = Duration::from_millis(200);
/// The part of the time that is spent on writing is at most one of this many.
const WRITE_SHARE: u32 = 20;
const WRITE_AGAIN: Duration = Duration::from_secs(30);
const WRITE_AGAIN_URGENT: Duration = Duration::from_secs(1);

pub(super) struct StateWriter {
    clock: Clock,
    pub(super) store: StateStore,
    is_dirty: bool,
    is_urgent: bool,
    writing: Writing,
    mark: u64,
    next_write: Instant,
    written_at: Instant,
    write_took: Duration,
}

#[derive(Clone, Copy)]
struct Writing {
    began: Instant,
    is_urgent: bool,
    mark: u64,
}

impl StateWriter {
    pub(super) fn new(clock: Clock, store: StateStore) -> Self {
        Self {
            clock,
            store,
            is_dirty: false,
            is_urgent: false,
            writing: Writing { began: Instant::ZERO, is_urgent: false, mark: 0 },
            mark: 0,
            next_write: Instant::ZERO,
            written_at: Instant::ZERO,
            write_took: Duration::ZERO,
        }
    }

    pub(super) fn on_changed(&mut self) {
        self.is_dirty = true;
    }

    pub(super) fn on_urgent(&mut self) {
        (self.is_dirty, self.is_urgent) = (true, true);
        let rest = self.rest(!self.store.is_failing);
        self.next_write = self.next_write.min(self.written_at + rest);
    }

    /// Begins a due write; `done` is called at its end. Returns the last `mark` entirely on disk.
    pub(super) fn write_due(
        &mut self,
        now: Instant,
        mark: u64,
        persisted: &impl Serialize,
        done: impl FnOnce() + Send + 'static,
    ) -> u64 {
        if let Some(is_written) = self.store.poll() {
            let Writing { began, is_urgent, mark } = self.writing;
            match is_written {
                true => self.mark = mark,
                false => (self.is_dirty, self.is_urgent) = (true, self.is_urgent || is_urgent),
            }
            self.on_written(began, is_written);
        }
        if self.is_dirty && !self.store.is_writing() && now >= self.next_write {
            let is_urgent = std::mem::take(&mut self.is_urgent);
            self.writing = Writing { began: now, is_urgent, mark };
            self.is_dirty = false;
            self.store.begin(persisted, done);
        }
        if self.is_written() {
            self.mark = mark;
        }
        self.mark
    }

    pub(super) fn is_written(&self) -> bool {
        !self.is_dirty && !self.store.is_writing()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        (self.is_dirty && !self.store.is_writing()).then_some(self.next_write)
    }

    pub(super) fn write(&mut self, now: Instant, persisted: &impl Serialize) -> bool {
        let is_written = self.store.write(persisted);
        self.is_dirty = !is_written;
        self.is_urgent &= !is_written;
        self.on_written(now, is_written);
        is_written
    }

    fn on_written(&mut self, began: Instant, is_written: bool) {
        self.written_at = self.clock.now();
        self.write_took = self.written_at.since(began);
        self.next_write = self.written_at + self.rest(is_written);
    }

    fn rest(&self, is_written: bool) -> Duration {
        let rest = (self.write_took * WRITE_SHARE).max(WRITE_INTERVAL);
        match (is_written, self.is_urgent) {
            (true, false) => rest,
            // After a restart a proxy must not admit keys whose sessions it has reported as ended.
            (true, true) => WRITE_INTERVAL,
            (false, false) => WRITE_AGAIN,
            (false, true) => rest.clamp(WRITE_AGAIN_URGENT, WRITE_AGAIN),
        }
    }
}
