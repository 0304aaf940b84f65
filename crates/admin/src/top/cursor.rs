//! Which uplink the keys are for.

use roadweave_device::history::History;

/// The place of an uplink among those of a history, which come and go.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor(usize);

impl Cursor {
    /// Moves it by so many uplinks, as far as there are some.
    pub(super) fn step(&mut self, history: &History, steps: isize) {
        let last = history.links.len().saturating_sub(1);
        self.0 = self.0.min(last).saturating_add_signed(steps).min(last);
    }

    /// The place of the uplink under it.
    pub(super) fn place(self, history: &History) -> usize {
        self.0.min(history.links.len().saturating_sub(1))
    }

    /// The uplink under it, and whether that is paused.
    pub(super) fn uplink(self, history: &History) -> Option<(String, bool)> {
        let (name, link) = history.links.iter().nth(self.place(history))?;
        Some((name.clone(), link.is_paused))
    }
}
