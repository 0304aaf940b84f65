//! One side of a session: it sends its direction and receives the other.

use roadweave_proto::Instant;

use crate::log::LogEntry;
use crate::message::{Message, Packet, Report};
use crate::plan::{PlanClock, RecordPlan};
use crate::receiver::Receiver;
use crate::sender::Sender;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub token: u64,
    pub sender: Sender,
    pub receiver: Receiver,
    pub heard_at: Instant,
}

impl Endpoint {
    pub fn new(
        now: Instant,
        token: u64,
        plan: &RecordPlan,
        clock: PlanClock,
        saturates: bool,
        header_bytes: u16,
    ) -> Self {
        Self {
            token,
            sender: Sender::new(now, plan.clone(), clock, saturates, header_bytes),
            receiver: Receiver::new(clock, header_bytes),
            heard_at: now,
        }
    }

    pub fn handle_packet(&mut self, now: Instant, packet: &Packet, log: &mut impl FnMut(LogEntry)) {
        self.on_heard(now);
        self.receiver.handle_packet(now, packet, log);
    }

    /// Handles a report of these bytes of UDP payload; returns whether it acknowledges new packets.
    pub fn handle_report(
        &mut self,
        now: Instant,
        report: &Report,
        payload_bytes: usize,
        log: &mut impl FnMut(LogEntry),
    ) -> bool {
        self.on_heard(now);
        self.receiver.on_report(now, payload_bytes, log);
        self.sender.handle_report(now, report)
    }

    pub fn on_heard(&mut self, now: Instant) {
        self.heard_at = self.heard_at.max(now);
        self.sender.on_heard(now);
    }

    pub fn poll_packet(&mut self, now: Instant, confirmed: u32) -> Option<Vec<u8>> {
        let packet = self.sender.poll_transmit(now)?;
        Some(Message::Packet(Packet { token: self.token, confirmed, ..packet }).encode())
    }

    pub fn poll_timeout(&self, now: Instant) -> Instant {
        let report = self.receiver.report_due.unwrap_or(Instant::FAR_FUTURE);
        self.sender.poll_timeout(now).min(report)
    }
}

pub(crate) const fn header_bytes(is_ipv4: bool) -> u16 {
    if is_ipv4 { 28 } else { 48 }
}
