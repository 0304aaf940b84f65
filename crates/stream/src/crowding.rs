//! Readers that take nothing, and leave no room for the streams of others.
//!
//! Credit cannot be taken back. Streams that were read well may each hold half of the session's,
//! and when a machine behind a box falls asleep all of its readers stop at once: what lies there
//! for them is all that the session may hold, and nobody else is sent anything. So readers that
//! have taken nothing for [`PATIENCE`] while that lasts lose their streams, those that hold most
//! first, until there is room.

use std::time::Duration;

use roadweave_types::Instant;
use roadweave_wire::{ResetCode, StreamId};

use crate::streams::Streams;

/// How long a reader may take nothing while the others have no room: somewhat more than a WiFi
/// needs to change from one access point to the next.
const PATIENCE: Duration = Duration::from_secs(3);

impl Streams {
    /// When [`Streams::make_room`] may have something to do.
    pub(crate) fn crowding_timeout(&self) -> Option<Instant> {
        self.crowded_since.map(|since| since + PATIENCE)
    }

    /// Something was received or read.
    pub(crate) fn note_crowding(&mut self, now: Instant) {
        let since = self.crowded_since.unwrap_or(now);
        self.crowded_since = self.receive_credit.is_crowded().then_some(since);
    }

    /// Ends streams that nobody reads, if they have left no room for too long.
    pub(crate) fn make_room(&mut self, now: Instant) {
        if self.crowding_timeout().is_none_or(|at| at > now) {
            return;
        }
        let unread = self.table.iter().filter(|(_, stream)| {
            stream.unread_since().is_some_and(|since| since + PATIENCE <= now)
        });
        let mut unread: Vec<(u64, StreamId)> =
            unread.map(|(id, stream)| (stream.receive.held(), *id)).collect();
        unread.sort_unstable_by(|a, b| b.cmp(a));
        for (_, id) in unread {
            if self.receive_credit.has_room() {
                break;
            }
            self.stats.unread += 1;
            self.end(now, id, ResetCode::TooMany);
        }
        // Readers that are slow, or stopped later, are looked at anew.
        self.crowded_since = self.receive_credit.is_crowded().then_some(now);
    }
}
