//! Readers that take nothing, and leave no room for the streams of others.
//!
//! Credit cannot be taken back. Streams that were read well may each hold half of the session's,
//! and when a machine behind a box falls asleep all of its readers stop at once: what lies there
//! for them is all that the session may hold, and nobody else is sent anything. So while that
//! lasts, readers that have taken next to nothing for [`PATIENCE`] and may have far more than their
//! share of it lose their streams, those that may have most first, until there is room.
//!
//! A reader that is merely slow, or pauses with no more than its share, loses nothing, however many
//! there are: shares are such that room is left.

use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::{ResetCode, StreamId};

use crate::streams::Streams;

/// How long a reader may take next to nothing while the others have no room. A slow one, 250 kB/s,
/// takes in lumps 7 seconds apart: a kernel that has room for 4 MiB asks for more when a third of
/// them is gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the others have no room until somebody is to blame: readers that stop together stop
/// within a second or two, as their sockets fill.
const CROWDED: Duration = Duration::from_secs(12);
/// How long from then on, as long as it is the same crowd: those that stopped later come of age one
/// by one, and what others had to give up they fill.
const CROWDED_AGAIN: Duration = Duration::from_secs(1);
/// Who is called so much later was held up itself, and the readers with it.
const LATE: Duration = Duration::from_millis(500);

/// Whether the others have no room, and what was done about it.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// While it is so: when somebody may be to blame.
    look_at: Option<Instant>,
    /// When readers were last looked at.
    looked: Option<Instant>,
}

impl Crowd {
    /// It is so, since now or longer.
    fn begin(&mut self, now: Instant) {
        let is_same = self.looked.is_some_and(|looked| now.since(looked) < CROWDED);
        self.look_at.get_or_insert(now + if is_same { CROWDED_AGAIN } else { CROWDED });
    }

    /// From now on it is a crowd like any other.
    fn forgive(&mut self, now: Instant) {
        self.look_at = self.look_at.map(|_| now + CROWDED);
        self.looked = None;
    }

    fn on_looked(&mut self, now: Instant) {
        *self = Self { look_at: Some(now + CROWDED_AGAIN), looked: Some(now) };
    }
}

impl Streams {
    /// When [`Streams::make_room`] may have something to do.
    pub(crate) fn crowding_timeout(&self) -> Option<Instant> {
        self.crowd.look_at
    }

    /// Something was received or read.
    pub(crate) fn note_crowding(&mut self, now: Instant) {
        let credit = &self.receive_credit;
        if credit.is_crowded() {
            self.crowd.begin(now);
        } else if credit.has_some_room() {
            self.crowd.look_at = None;
        }
    }

    /// The readers could not read: only from now on does it count that they do not.
    pub(crate) fn forgive_readers(&mut self, now: Instant) {
        self.crowd.forgive(now);
        self.table.values_mut().for_each(|stream| stream.forgive_reader(now));
    }

    /// Ends streams that nobody reads, if they have left no room for too long.
    pub(crate) fn make_room(&mut self, now: Instant) {
        let Some(at) = self.crowding_timeout().filter(|at| *at <= now) else { return };
        if now.since(at) > LATE {
            return self.forgive_readers(now);
        }
        self.crowd.on_looked(now);
        // What those would hold that are to blame, since their peers go on sending.
        let mut unread: Vec<(u64, StreamId)> = Vec::new();
        let mut claimed = self.receive_credit.held();
        for (id, stream) in &self.table {
            let (held, claim) = (stream.receive.held(), stream.receive.claim());
            let share = self.receive_credit.share(held);
            let is_unread = stream.unread_since().is_some_and(|since| since + PATIENCE <= now);
            if is_unread && claim > share + share / 2 {
                unread.push((claim, *id));
                claimed += claim - held;
            }
        }
        unread.sort_unstable_by(|a, b| b.cmp(a));
        for (claim, id) in unread {
            if claimed <= self.receive_credit.window() / 4 * 3 {
                break;
            }
            claimed -= claim;
            self.stats.unread += 1;
            self.end(now, id, ResetCode::Unread);
        }
    }
}
