//! Readers that take nothing, and leave no room for the other streams.
//!
//! Credit cannot be withdrawn. While the session's buffer is full, readers that have taken next to
//! nothing for [`STALL_TIMEOUT`] and may hold far more than their share lose their streams, the
//! largest first, until there is room.
//!
//! A slow reader, or one that pauses with no more than its share, loses nothing: shares leave room.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::StreamId;

use crate::credit::ReceiveCredit;
use crate::stream::Stream;

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
pub(super) struct Crowd {
    pub(super) look_at: Option<Instant>,
    looked: Option<Instant>,
}

impl Crowd {
    pub(super) fn on_credit(&mut self, now: Instant, credit: &ReceiveCredit) {
        if credit.is_crowded() {
            let is_same = self.looked.is_some_and(|looked| now.since(looked) < CROWDED);
            self.look_at.get_or_insert(now + if is_same { CROWDED_AGAIN } else { CROWDED });
        } else if credit.has_some_room() {
            self.look_at = None;
        }
    }

    pub(super) fn forgive(&mut self, now: Instant, streams: &mut BTreeMap<StreamId, Box<Stream>>) {
        *self = Self { look_at: self.look_at.map(|_| now + CROWDED), looked: None };
        streams.values_mut().for_each(|stream| stream.forgive_reader(now));
    }

    /// Returns the streams that are to lose their place.
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        streams: &mut BTreeMap<StreamId, Box<Stream>>,
        credit: &ReceiveCredit,
    ) -> Vec<StreamId> {
        let Some(at) = self.look_at.filter(|at| *at <= now) else { return Vec::new() };
        if now.since(at) > LATE {
            self.forgive(now, streams);
            return Vec::new();
        }
        *self = Self { look_at: Some(now + CROWDED_AGAIN), looked: Some(now) };
        // What the unread streams may come to hold, since their peers go on sending.
        let mut unread: Vec<(u64, StreamId)> = Vec::new();
        let mut claimed = credit.held();
        for (id, stream) in streams {
            let (held, claim) = (stream.receive.held(), stream.receive.claim());
            let share = credit.share(held);
            let is_unread =
                stream.reading.unread.is_some_and(|(since, _)| since + STALL_TIMEOUT <= now);
            if is_unread && claim > share + share / 2 {
                unread.push((claim, *id));
                claimed += claim - held;
            }
        }
        unread.sort_unstable_by(|a, b| b.cmp(a));
        let ended = unread.into_iter().map_while(|(claim, id)| {
            let is_full = claimed > credit.window / 4 * 3;
            claimed -= if is_full { claim } else { 0 };
            is_full.then_some(id)
        });
        ended.collect()
    }
}
