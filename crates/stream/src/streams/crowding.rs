//! Readers that take nothing, and leave no room for the other streams.
//!
//! Credit cannot be withdrawn. While the session's buffer is full, readers that have taken next to
//! nothing for [`STALL_TIMEOUT`] and may hold far more than their share lose their streams, the
//! largest first, until there is room.
//!
//! A slow reader, or one that pauses with no more than its share, loses nothing: shares leave room.

use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::{ResetCode, StreamId};

use super::Streams;

/// How long a reader may take next to nothing. A slow one (250 kB/s) reads in lumps 7 seconds
/// apart: a kernel with room for 4 MiB asks for more when a third of that is gone.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Readers that stop together do so within a second or two, as their sockets fill.
const CROWDED: Duration = Duration::from_secs(12);
/// Readers that stopped later reach [`STALL_TIMEOUT`] one by one, and fill what others gave up.
const CROWDED_AGAIN: Duration = Duration::from_secs(1);
/// A timer later than this means that this process, and with it the readers, stood still.
const LATE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(crate) struct Crowd {
    pub(crate) look_at: Option<Instant>,
    looked: Option<Instant>,
}

impl Streams {
    pub(crate) fn note_crowding(&mut self, now: Instant) {
        let credit = &self.receive_credit;
        if credit.is_crowded() {
            let is_same = self.crowd.looked.is_some_and(|looked| now.since(looked) < CROWDED);
            self.crowd.look_at.get_or_insert(now + if is_same { CROWDED_AGAIN } else { CROWDED });
        } else if credit.has_some_room() {
            self.crowd.look_at = None;
        }
    }

    pub(crate) fn forgive_readers(&mut self, now: Instant) {
        let look_at = self.crowd.look_at.map(|_| now + CROWDED);
        self.crowd = Crowd { look_at, looked: None };
        self.table.values_mut().for_each(|stream| stream.forgive_reader(now));
    }

    pub(crate) fn make_room(&mut self, now: Instant) {
        let Some(at) = self.crowd.look_at.filter(|at| *at <= now) else { return };
        if now.since(at) > LATE {
            return self.forgive_readers(now);
        }
        self.crowd = Crowd { look_at: Some(now + CROWDED_AGAIN), looked: Some(now) };
        // What the unread streams may come to hold, since their peers go on sending.
        let mut unread: Vec<(u64, StreamId)> = Vec::new();
        let mut claimed = self.receive_credit.held();
        for (id, stream) in &self.table {
            let (held, claim) = (stream.receive.held(), stream.receive.claim());
            let share = self.receive_credit.share(held);
            let is_unread =
                stream.reading.unread.is_some_and(|(since, _)| since + STALL_TIMEOUT <= now);
            if is_unread && claim > share + share / 2 {
                unread.push((claim, *id));
                claimed += claim - held;
            }
        }
        unread.sort_unstable_by(|a, b| b.cmp(a));
        for (claim, id) in unread {
            if claimed <= self.receive_credit.window / 4 * 3 {
                break;
            }
            claimed -= claim;
            self.stats.unread += 1;
            self.end(now, id, ResetCode::Unread);
        }
    }
}
