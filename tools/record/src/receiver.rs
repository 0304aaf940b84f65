//! One direction's receiver: it logs arrivals and reports them to the sender.
//!
//! ```text
//!  packet ─> entries: deliveries by the millisecond, probes ─> LogSender (server), Arrivals (client)
//!         └> report, 20 ms after data, 200 ms after a probe, at once after a tail
//! ```

use std::time::Duration;

use roadweave_proto::Instant;

use crate::log::LogEntry;
use crate::message::{Packet, PacketKind, Report};
use crate::plan::PlanClock;

#[derive(Debug)]
pub(crate) struct Receiver {
    clock: PlanClock,
    header_bytes: u16,
    highest: u32,
    /// When the last packet was sent, us since the sender's start, and when it arrived.
    last: Option<(u64, Instant)>,
    /// Bytes received while the link was saturated, as IP packets.
    pub bytes: u64,
    /// The cycle of the data arriving now.
    saturating: Option<u16>,
    /// The current millisecond: cycle, ms, bytes.
    open: Option<(u16, u32, u32)>,
    pub report_due: Option<Instant>,
    reported_at: Option<Instant>,
}

impl Receiver {
    pub fn new(clock: PlanClock, header_bytes: u16) -> Self {
        Self {
            clock,
            header_bytes,
            highest: 0,
            last: None,
            bytes: 0,
            saturating: None,
            open: None,
            report_due: None,
            reported_at: None,
        }
    }

    pub fn handle_packet(&mut self, now: Instant, packet: &Packet, log: &mut impl FnMut(LogEntry)) {
        self.highest = self.highest.max(packet.number);
        self.last = Some((packet.sent_us, now));
        let report_within = match packet.kind {
            PacketKind::Data => {
                self.saturating = Some(packet.cycle);
                self.count(now, packet.cycle, packet.payload_bytes, log);
                REPORT_DATA_AFTER
            }
            PacketKind::Tail => Duration::ZERO,
            PacketKind::Probe => {
                self.saturating = None;
                self.close_millisecond(log);
                log(LogEntry::Probe {
                    cycle: packet.cycle,
                    sent_us: packet.sent_us,
                    received_us: self.clock.elapsed_us(now),
                    probes: packet.probes,
                });
                REPORT_PROBE_AFTER
            }
        };
        self.due_at(now + report_within);
    }

    /// Counts a report of the other side of this many bytes of UDP payload: between data it takes
    /// up capacity, 3 % of a megabit per second.
    pub fn on_report(
        &mut self,
        now: Instant,
        payload_bytes: usize,
        log: &mut impl FnMut(LogEntry),
    ) {
        if let Some(cycle) = self.saturating {
            self.count(now, cycle, payload_bytes, log);
        }
    }

    /// Makes a report due at `at`, unless one is due earlier.
    pub fn due_at(&mut self, at: Instant) {
        // Reports have a minimum interval, even in a flood of tails.
        let earliest = self.reported_at.map_or(Instant::ZERO, |at| at + REPORT_APART);
        let at = at.max(earliest);
        self.report_due = Some(self.report_due.map_or(at, |due| due.min(at)));
    }

    pub fn poll_report(&mut self, now: Instant, log: &mut impl FnMut(LogEntry)) -> Option<Report> {
        if self.report_due.is_none_or(|due| due > now) {
            return None;
        }
        self.report_due = None;
        self.reported_at = Some(now);
        if self.open.is_some_and(|(_, at_ms, _)| at_ms != self.elapsed_ms(now)) {
            self.close_millisecond(log);
        }
        let (sent_us, came) = self.last?;
        Some(Report {
            highest: self.highest,
            sent_us,
            received_us: self.clock.elapsed_us(came),
            held_us: u32::try_from(now.since(came).as_micros()).unwrap_or(u32::MAX),
            bytes: self.bytes,
            ..Report::default()
        })
    }

    pub fn close_millisecond(&mut self, log: &mut impl FnMut(LogEntry)) {
        if let Some((cycle, at_ms, bytes)) = self.open.take() {
            log(LogEntry::Delivery { cycle, at_ms, bytes });
        }
    }

    fn count(
        &mut self,
        now: Instant,
        cycle: u16,
        payload_bytes: usize,
        log: &mut impl FnMut(LogEntry),
    ) {
        let bytes = u32::try_from(payload_bytes).unwrap_or(u32::MAX);
        let bytes = bytes.saturating_add(self.header_bytes.into());
        self.bytes = self.bytes.saturating_add(bytes.into());
        let place = (cycle, self.elapsed_ms(now));
        match &mut self.open {
            Some((open_cycle, at_ms, sum)) if (*open_cycle, *at_ms) == place => {
                *sum = sum.saturating_add(bytes);
            }
            _ => {
                self.close_millisecond(log);
                self.open = Some((place.0, place.1, bytes));
            }
        }
    }

    fn elapsed_ms(&self, at: Instant) -> u32 {
        u32::try_from(self.clock.elapsed(at).as_millis()).unwrap_or(u32::MAX)
    }
}

const REPORT_DATA_AFTER: Duration = Duration::from_millis(20);
const REPORT_PROBE_AFTER: Duration = Duration::from_millis(200);
const REPORT_APART: Duration = Duration::from_millis(5);
