//! Delivers the frames of each video of a lane whole and in order, until the next one is due.
//!
//! ```text
//! packet ─► its RTP source ─► RtpStream: its frames by number ─► whole, in order          ─► out
//!            │                          │ not whole when the next is due: as it is ─► out
//!            └ none: out at once        └ behind a later frame: discarded
//! ```
//!
//! A frame waits for missing packets until the deadline of the next frame minus the decoding time,
//! so that the decoder gets it late rather than not at all. The deadline counts from the sender's
//! stamp ([`Stamp`]), without the unknown delay of the quickest path. Packets behind a later frame
//! are discarded; receivers that sort by themselves use a lane with `pass`.
//!
//! Nothing waits longer than max_buffer. Sources, and their waiting packets and bytes, are bounded:
//! the source with the most gives up its oldest frame, so endless frames harm only their source.
//!
//! Source: LoLa section 3.5.
//!
//! [`Stamp`]: roadweave_proto::wire::Stamp

mod candidates;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::{InnerPacket, RtpHeader};

use super::gaps::Gaps;
use super::{ExtendedId, Outlet, Placed, Turn};
use candidates::Candidates;
use stream::RtpStream;

/// Sources kept in order, at most; packets of others go out as they come.
const SOURCES_MAX: usize = 256;
/// A source silent for this long is evicted when others need its place.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// Bytes of a source, including a leaf of each of its trees.
const SOURCE_OVERHEAD: usize = 2560;

/// 5-tuple hash and synchronization source (RFC 3550 section 5.1).
type Source = (u64, u32);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) deadline: Duration,
    pub(super) decode: Duration,
    pub(super) max_buffer: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Frames {
    times: Times,
    missing: Gaps,
    candidates: Candidates,
    streams: BTreeMap<Source, RtpStream>,
    due: BTreeSet<(Instant, Source)>,
    held: usize,
}

impl Frames {
    pub(super) fn new(begin: ExtendedId, times: Times) -> Self {
        Self { times, missing: Gaps::new(begin), ..Self::default() }
    }

    pub(super) fn set_times(&mut self, times: Times) {
        self.times = times;
        let due = |(source, stream): (&Source, &RtpStream)| Some((stream.due(&times)?, *source));
        self.due = self.streams.iter().filter_map(due).collect();
    }

    pub(super) fn len(&self) -> usize {
        self.held
    }

    pub(super) fn memory(&self) -> usize {
        let streams = self.streams.len() * SOURCE_OVERHEAD;
        streams + self.missing.memory() + self.candidates.memory()
    }

    pub(super) fn handle(&mut self, placed: Placed, out: &mut Outlet<'_>) -> Turn {
        let now = placed.since;
        while self.missing.pop_old(now, self.times.max_buffer).is_some() {}
        self.missing.on_arrival(now, placed.first, placed.last);
        let Some((source, header)) = rtp(&placed) else {
            out.release(placed);
            return Turn::Kept;
        };
        if !self.streams.contains_key(&source) {
            self.meet(now, source, &header, placed.last);
            out.release(placed);
            return Turn::Kept;
        }
        let deadline = self.times.deadline;
        let mut turn = Turn::Kept;
        self.change(source, |stream, missing| {
            turn = stream.handle(placed, &header, deadline, missing, out);
        });
        self.handle_timeout(now, out);
        turn
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Outlet<'_>) {
        while let Some((at, source)) = self.due.first().copied()
            && at <= now
        {
            out.counts.timeouts += 1;
            self.change(source, |stream, missing| _ = stream.give_up(missing, out));
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    pub(super) fn release_oldest(&mut self, out: &mut Outlet<'_>) -> bool {
        let waiting = self.streams.iter().filter(|(_, stream)| stream.len() > 0);
        let largest = waiting.max_by_key(|(_, stream)| stream.memory());
        let Some((source, _)) = largest else { return false };
        out.counts.forced += 1;
        self.change(*source, |stream, missing| _ = stream.give_up(missing, out));
        true
    }

    pub(super) fn forget_sources(&mut self) {
        self.streams.retain(|_, stream| stream.len() > 0);
    }

    /// A packet of an unknown source. Once the source is proven, what follows is kept in order.
    fn meet(&mut self, now: Instant, source: Source, header: &RtpHeader, id: ExtendedId) {
        if !self.candidates.is_proven(source, header.sequence) {
            return;
        }
        if self.streams.len() >= SOURCES_MAX {
            self.streams
                .retain(|_, stream| stream.len() > 0 || now.since(stream.heard) <= SILENT_MAX);
        }
        if self.streams.len() < SOURCES_MAX {
            self.streams.insert(source, RtpStream::new(now, header, id));
        }
    }

    fn change(&mut self, source: Source, what: impl FnOnce(&mut RtpStream, &Gaps)) {
        let Some(stream) = self.streams.get_mut(&source) else { return };
        let (held, due) = (stream.len(), stream.due(&self.times));
        what(stream, &self.missing);
        self.held = self.held - held + stream.len();
        let now_due = stream.due(&self.times);
        if due == now_due {
            return;
        }
        due.into_iter().for_each(|at| _ = self.due.remove(&(at, source)));
        self.due.extend(now_due.map(|at| (at, source)));
    }
}

fn rtp(placed: &Placed) -> Option<(Source, RtpHeader)> {
    let packet = InnerPacket::parse(placed.unit.packet.as_deref()?).ok()?;
    let header = RtpHeader::of(&packet)?;
    Some(((packet.flow_hash(), header.ssrc), header))
}

#[cfg(test)]
mod tests;
