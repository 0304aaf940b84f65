//! Everything that leaves: datagrams on their paths, and the flush.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use noq_proto::{SendDatagramError, Transmit};
use roadweave_proto::{Instant, PathId, UplinkId};

use super::upkeep::MEASURE_SENDING;
use super::{Connection, ConnectionPhase, Wish};
use crate::event::{PathError, SendError};
use crate::gate::{Gate, GateState};
use crate::meter::sent::{Fate, TrackedPayload};
use crate::outbox::{Ecn, Route};
use crate::path::Path;
use crate::payload::Payload;
use crate::virtual_address;

impl Connection {
    /// Sends a datagram on exactly this path, now or not at all.
    ///
    /// `token` comes back in [`Event::Acknowledged`](crate::Event::Acknowledged) or
    /// [`Event::Lost`](crate::Event::Lost), once.
    ///
    /// A datagram that starts with a byte of 0xfe or above costs one byte more and a copy.
    ///
    /// # Errors
    /// [`SendError::Blocked`] if window or pacer hold it back, [`SendError::NotUsable`],
    /// [`SendError::TooLarge`] and [`SendError::Closed`]; all give the datagram back.
    pub fn send_on(
        &mut self,
        now: Instant,
        path: PathId,
        datagram: Bytes,
        token: u64,
    ) -> Result<(), SendError> {
        let (index, datagram) = self.check(path, datagram)?;
        self.refresh(now);
        let snapshot = &self.paths.snapshots[index];
        if datagram.len() as u64 > snapshot.room() {
            self.paths.all[index].on_limited(now, snapshot, self.paths.pacing);
            return Err(SendError::Blocked(datagram));
        }
        self.send_data(now, index, datagram, token)
    }

    /// Sends a datagram on exactly this path regardless of window and pacer: for traffic that has
    /// congestion control of its own, around it or within it (RFC 8085 section 3.1.11).
    ///
    /// `token` comes back as with [`send_on`](Connection::send_on).
    ///
    /// # Errors
    /// As [`send_on`](Connection::send_on), but for `Blocked`.
    pub fn send_through(
        &mut self,
        now: Instant,
        path: PathId,
        datagram: Bytes,
        token: u64,
    ) -> Result<(), SendError> {
        let (index, datagram) = self.check(path, datagram)?;
        self.send_data(now, index, datagram, token)
    }

    fn send_data(
        &mut self,
        now: Instant,
        index: usize,
        datagram: Bytes,
        token: u64,
    ) -> Result<(), SendError> {
        self.hand_over(now, index, Payload::Data(datagram), Some(TrackedPayload::Datagram(token)))?;
        self.paths.all[index].stats.datagrams_sent += 1;
        self.timing.last_sent_data = now;
        self.signs.on_demand(now);
        self.timing.measure.get_or_insert(now + MEASURE_SENDING);
        Ok(())
    }

    /// Sends feedback on exactly this path, in one packet with the acknowledgements that wait.
    /// Window and pacer do not hold it back; its fate is not reported.
    ///
    /// # Errors
    /// As [`send_on`](Connection::send_on), but for `Blocked`.
    pub fn send_feedback_on(
        &mut self,
        now: Instant,
        path: PathId,
        datagram: Bytes,
    ) -> Result<(), SendError> {
        let (index, datagram) = self.check(path, datagram)?;
        self.let_timers_fire(now);
        self.hand_over(now, index, Payload::Feedback(datagram), None)?;
        self.paths.all[index].stats.feedback_sent += 1;
        self.timing.last_asked_back = now;
        self.on_feedback_left();
        Ok(())
    }

    /// Sends the waiting acknowledgements on exactly this path, when there is nothing else to send;
    /// with `datagram` if they ask for an answer.
    ///
    /// They ask each 10 ms on each path, which detects dead ones. Where packets overtake each other
    /// they ask less often: the library forgets what to acknowledge once newer acknowledgements are
    /// confirmed. Only our packets' reordering is visible here.
    ///
    /// # Errors
    /// As [`send_feedback_on`](Connection::send_feedback_on), when `datagram` was to go along.
    pub fn acknowledge_on(
        &mut self,
        now: Instant,
        path: PathId,
        datagram: Bytes,
    ) -> Result<(), SendError> {
        if !self.is_open() {
            return Err(SendError::Closed(datagram));
        }
        let index = self.paths.index(path);
        let Some(index) = index else { return Err(SendError::NotUsable(datagram)) };
        let is_late = self.paths.all.iter().any(|path| path.gate.meter().is_overtaken());
        let asks = match is_late {
            true => now - self.timing.last_asked_back >= ASK_BACK_OVERTAKEN,
            false => now - self.paths.all[index].last_asked >= ASK_BACK_INTERVAL,
        };
        if asks {
            return self.send_feedback_on(now, path, datagram);
        }
        self.let_timers_fire(now);
        self.paths.open_only(path);
        self.drain(now);
        self.paths.taken = None;
        self.on_feedback_left();
        Ok(())
    }

    fn on_feedback_left(&mut self) {
        self.timing.feedback_owed = None;
        self.timing.feedback_count += 1;
        self.timing.acknowledge = None;
    }

    /// Sends what is due at `now` besides datagrams: messages, acknowledgements and control frames
    /// on the best path, probes and challenges on their own. The `handle_*` methods call it; call
    /// it after `send_message` and the like. It costs next to nothing when nothing is due.
    pub fn flush(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.timing.flush) || due(self.timing.acknowledge) {
            self.flush_all(now);
        }
    }

    pub(super) fn flush_all(&mut self, now: Instant) {
        self.timing.flush = None;
        self.timing.acknowledge = None;
        self.run_library_timers(now);
        self.scan_paths(now);
        self.open_wished_paths(now);
        self.send_fragments(now);
        self.ask_with_acknowledgements(now);
        if matches!(self.phase, ConnectionPhase::Handshake { .. }) {
            self.paths.set_all_gates(GateState::Open);
            self.drain(now);
        } else {
            if let Some(outlet) = self.paths.best().or_else(|| self.paths.moved()) {
                self.paths.open_only(outlet);
                self.drain(now);
            }
            self.paths.set_all_gates(GateState::Closed);
            self.drain(now);
        }
        self.process(now);
        self.take_snapshots(now);
    }

    fn check(&mut self, path: PathId, datagram: Bytes) -> Result<(usize, Bytes), SendError> {
        if !self.is_open() {
            return Err(SendError::Closed(datagram));
        }
        let Some(index) = self.paths.index(path).filter(|&at| self.paths.all[at].validated) else {
            return Err(SendError::NotUsable(datagram));
        };
        let max = self.max_datagram_size;
        if datagram.len() > max {
            return Err(SendError::TooLarge { max, datagram });
        }
        Ok((index, datagram))
    }

    fn hand_over(
        &mut self,
        now: Instant,
        index: usize,
        payload: Payload,
        tracked: Option<TrackedPayload>,
    ) -> Result<(), SendError> {
        let id = self.paths.all[index].id;
        self.write_off_unsent();
        if let Err(error) = self.quic.datagrams().send(payload.encode(), false) {
            return Err(match error {
                SendDatagramError::Blocked(payload) => SendError::Blocked(original(payload)),
                // Size and state were checked, so the connection has just ended.
                _ => SendError::Closed(Bytes::new()),
            });
        }
        self.outgoing.unsent.push_back((id, tracked));
        self.paths.open_only(id);
        if !self.pump(now, index) {
            // The library does not send on this path: better late on another than never.
            self.stats.delayed_in_library += 1;
            self.paths.taken = None;
            for other in 0..self.paths.all.len() {
                if other != index && self.paths.all[other].validated {
                    self.paths.open_only(self.paths.all[other].id);
                    if self.pump(now, other) {
                        break;
                    }
                }
            }
        }
        self.paths.after_sending(now, index);
        Ok(())
    }

    /// Polls until the library holds no datagram any more; `false` if it keeps some.
    fn pump(&mut self, now: Instant, index: usize) -> bool {
        let mut space = self.quic.datagrams().send_buffer_space();
        for _ in 0..PUMP_MAX {
            self.paths.all[index].gate.meter().disclaim();
            if !self.transmit_one(now) {
                return false;
            }
            let left = self.quic.datagrams().send_buffer_space();
            if left > space {
                space = left;
                self.attribute(index);
            }
            if self.outgoing.unsent.is_empty() {
                return true;
            }
        }
        false
    }

    fn attribute(&mut self, index: usize) {
        let Some((intended, tracked)) = self.outgoing.unsent.pop_front() else { return };
        if self.paths.all[index].gate.meter().claim(tracked) {
            if self.paths.all[index].id != intended {
                self.stats.on_wrong_path += 1;
            }
            return;
        }
        self.stats.on_wrong_path += 1;
        if !self.paths.all.iter().any(|path| path.gate.meter().claim(tracked)) {
            self.on_fate(intended, tracked, Fate::Lost);
        }
    }

    fn write_off_unsent(&mut self) {
        if self.outgoing.unsent.is_empty()
            || self.quic.datagrams().send_buffer_space() < self.outgoing.empty_queue_space
        {
            return;
        }
        while let Some((path, tracked)) = self.outgoing.unsent.pop_front() {
            self.on_fate(path, tracked, Fate::Lost);
        }
    }

    fn drain(&mut self, now: Instant) {
        for _ in 0..DRAIN_MAX {
            if !self.outgoing.unsent.is_empty() {
                self.paths.all.iter().for_each(|path| path.gate.meter().disclaim());
            }
            let space = self.quic.datagrams().send_buffer_space();
            if !self.transmit_one(now) {
                return;
            }
            // It may contain a datagram that was left behind.
            if self.quic.datagrams().send_buffer_space() > space {
                self.attribute(0);
            }
        }
        self.want_flush(now);
    }

    fn transmit_one(&mut self, now: Instant) -> bool {
        let mut scratch = std::mem::take(&mut self.outgoing.scratch);
        scratch.clear();
        let std_now = self.epoch.to_std(now);
        // One packet: two small datagrams would share one, and their numbers would be ambiguous. A
        // close has a packet for each encryption level, and the library wants room for all of them.
        let packets =
            if self.phase == ConnectionPhase::Closed { CLOSE_PACKETS } else { NonZeroUsize::MIN };
        let transmit = self.quic.poll_transmit(std_now, packets, &mut scratch);
        if let Some(transmit) = &transmit {
            let size = transmit.segment_size.unwrap_or(transmit.size).max(1);
            for packet in scratch[..transmit.size].chunks(size) {
                self.post(now, transmit, packet);
            }
        }
        self.outgoing.scratch = scratch;
        transmit.is_some()
    }

    fn post(&mut self, now: Instant, transmit: &Transmit, packet: &[u8]) {
        let uplink = if self.is_client { self.paths.uplink_of(transmit.src_ip) } else { None };
        let mut route = Route {
            uplink,
            destination: transmit.destination,
            source: if self.is_client { None } else { transmit.src_ip },
            ecn: transmit.ecn.and_then(|ecn| Ecn::from_bits(ecn as u8)),
        };
        let is_client = self.is_client;
        let path = self.paths.all.iter_mut().rev().find(|path| match is_client {
            true => path.uplink == uplink,
            false => path.remote == transmit.destination,
        });
        if let Some(path) = path {
            path.stats.packets_sent += 1;
            path.stats.bytes_sent += packet.len() as u64;
            path.last_sent = now;
            path.on_sent(now, packet.len() as u64);
            let marks = path.marks(now, route.ecn.is_some());
            route.ecn = route.ecn.filter(|_| marks);
        }
        self.timing.sent_under_key += 1;
        self.outgoing.outbox.push(route, packet);
    }

    fn send_fragments(&mut self, now: Instant) {
        if !self.is_open() {
            return;
        }
        self.messages.sender.handle_timeout(now);
        while let Some((number, fragment)) = self.messages.sender.next()
            && let Some(index) = self.paths.best().and_then(|id| self.paths.index(id))
            && self.paths.all[index].validated
        {
            let tracked = Some(TrackedPayload::Fragment(number));
            if self.hand_over(now, index, Payload::Fragment(fragment), tracked).is_err() {
                return;
            }
            let pto = self.paths.snapshots[index].pto;
            self.messages.sender.on_sent(number, |attempts| {
                now + (pto * (1 << attempts.min(10))).min(FRAGMENT_TIMEOUT_MAX)
            });
        }
    }

    fn open_wished_paths(&mut self, now: Instant) {
        while self.phase == ConnectionPhase::Open
            && let Some(&Wish { uplink, server, .. }) = self.wishes.front()
        {
            match self.try_open(now, uplink, server) {
                Ok(()) => self.wishes.pop_front(),
                // The peer has not yet granted an ID; the request stays.
                Err(_) => return,
            };
        }
    }

    fn try_open(
        &mut self,
        now: Instant,
        uplink: UplinkId,
        server: SocketAddr,
    ) -> Result<(), PathError> {
        let network = noq_proto::FourTuple::new(server, Some(virtual_address::of(uplink)));
        let std_now = self.epoch.to_std(now);
        let available = noq_proto::PathStatus::Available;
        let quic_id =
            self.quic.open_path(network, available, std_now).map_err(|_| PathError::TooMany)?;
        let gate = Gate::of(&self.quic, quic_id).ok_or(PathError::Unknown)?;
        self.add_path(now, quic_id, Some(uplink), server, gate);
        Ok(())
    }

    pub(super) fn add_path(
        &mut self,
        now: Instant,
        quic_id: noq_proto::PathId,
        uplink: Option<UplinkId>,
        remote: SocketAddr,
        gate: Arc<Gate>,
    ) {
        // The library shows the number of a path only as text.
        let Ok(number) = quic_id.to_string().parse() else { return };
        gate.meter().start_tracking();
        let path = Path::new(now, PathId(number), uplink, remote, gate);
        self.paths.insert(path);
        self.take_snapshots(now);
    }
}

fn original(payload: Bytes) -> Bytes {
    match Payload::decode(payload) {
        Some(Payload::Data(datagram) | Payload::Feedback(datagram)) => datagram,
        Some(Payload::Fragment(_)) | None => Bytes::new(),
    }
}

const FRAGMENT_TIMEOUT_MAX: Duration = Duration::from_secs(1);
const CLOSE_PACKETS: NonZeroUsize = NonZeroUsize::new(3).expect("3 is not 0");
/// How often acknowledgements ask for an answer on a path.
const ASK_BACK_INTERVAL: Duration = Duration::from_millis(10);
/// How often they do, on any path, where packets overtake each other.
const ASK_BACK_OVERTAKEN: Duration = Duration::from_millis(25);
const PUMP_MAX: usize = 8;
const DRAIN_MAX: usize = 128;
