//! `reliable`: a lost packet is sent again until it is acknowledged, as QUIC does with stream data.
//!
//! With the min-RTT scheduler this is vanilla multipath QUIC, the yardstick of CellFusion (section
//! 8). Lost: as QUIC says, or after a probe timeout that doubles (RFC 9002 section 6.2).

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::{Instant, PacketId, PathId, PathOffer, PathSnapshot};

use crate::flight::{Flight, PacketState};
use crate::{Recovery, RecoveryConfig, RecoveryStats, Repair, SentCopy};

const BACKOFF_MAX: u32 = 6;

/// Sends again until acknowledged.
#[derive(Debug)]
pub struct Reliable {
    flight: Flight<Instant>,
    lost: VecDeque<PacketId>,
    give_up: Duration,
    ack_delay: Duration,
    stats: RecoveryStats,
}

impl Reliable {
    /// The age at which it gives up, unless its lane wants that sooner: memory is bounded.
    pub const GIVE_UP: Duration = Duration::from_secs(10);

    /// A recovery for one lane; the deadline is ignored.
    pub fn new(config: RecoveryConfig) -> Self {
        Self {
            flight: Flight::new(),
            lost: VecDeque::new(),
            give_up: config.expire_after,
            ack_delay: Duration::ZERO,
            stats: RecoveryStats::default(),
        }
    }

    /// Waits for acknowledgements longer than a path's probe timeout does.
    #[must_use]
    pub fn with_ack_delay(self, ack_delay: Duration) -> Self {
        Self { ack_delay, ..self }
    }

    pub(crate) fn flight(&self) -> &Flight<Instant> {
        &self.flight
    }
}

impl Recovery for Reliable {
    fn on_sent(&mut self, now: Instant, packet: SentCopy, paths: &[PathSnapshot]) {
        let pto = paths
            .iter()
            .find(|path| path.id == packet.path)
            .map_or(Duration::from_secs(1), |path| path.pto + self.ack_delay);
        if self.flight.on_sent(now, packet.id, packet.path, pto, now).is_some() {
            self.stats.abandoned += 1;
        }
    }

    fn on_waiting(&mut self, now: Instant, packet: SentCopy, _paths: &[PathSnapshot]) {
        if self.flight.on_waiting(packet.id, packet.path, now).is_some() {
            self.stats.abandoned += 1;
        }
    }

    fn on_acknowledged(&mut self, _now: Instant, id: PacketId) {
        if let Some((PacketState::Lost { .. }, _)) = self.flight.set(id, PacketState::Settled) {
            self.stats.spurious += 1;
        }
    }

    fn on_abandoned(&mut self, id: PacketId) {
        if matches!(self.flight.set(id, PacketState::Settled), Some((PacketState::Lost { .. }, _)))
        {
            self.stats.abandoned += 1;
        }
    }

    fn on_superseded(&mut self, id: PacketId) -> bool {
        let before = self.flight.set(id, PacketState::Settled);
        before.is_some_and(|(state, _)| state != PacketState::Settled)
    }

    fn on_lost(&mut self, now: Instant, id: PacketId, path: PathId) {
        if self.flight.on_lost(now, id, path).is_some() {
            self.stats.lost += 1;
            self.lost.push_back(id);
        }
    }

    fn poll_repair(
        &mut self,
        now: Instant,
        paths: &[PathOffer<'_>],
        _backlog: u64,
    ) -> Option<Repair> {
        let ack_delay = self.ack_delay;
        let loss_delay = |path: &PathSnapshot, transmissions: u32| {
            (path.pto + ack_delay) * (1 << (transmissions - 1).min(BACKOFF_MAX))
        };
        while let Some(overdue) = self.flight.poll_overdue(now, paths, loss_delay) {
            self.stats.lost += 1;
            self.stats.lost_by_timer += 1;
            if now.since(overdue.tag) >= self.give_up {
                self.flight.set(overdue.id, PacketState::Settled);
                self.stats.abandoned += 1;
                return Some(Repair::Abandon { start: overdue.id, count: 1 });
            }
            self.lost.push_back(overdue.id);
        }
        while let Some(id) = self.lost.pop_front() {
            if matches!(self.flight.state(id), Some(PacketState::Lost { .. })) {
                self.stats.repairs += 1;
                self.stats.repaired += 1;
                return Some(Repair::Again { id });
            }
        }
        None
    }

    fn is_settled(&self) -> bool {
        self.flight.is_empty()
    }

    fn poll_lost(&mut self) -> Option<PacketId> {
        self.flight.poll_lost()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.flight.poll_timeout()
    }

    fn stats(&self) -> RecoveryStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Among, at, path, sent};

    const RELIABLE: RecoveryConfig =
        RecoveryConfig { deadline: Duration::from_millis(100), expire_after: Reliable::GIVE_UP };

    const AGAIN: Option<Repair> = Some(Repair::Again { id: PacketId(0) });

    #[test]
    fn delayed_acknowledgements_are_waited_for() {
        let paths = [path(0, 40, 100)];
        let mut recovery = Reliable::new(RELIABLE).with_ack_delay(Duration::from_millis(23));
        recovery.on_sent(at(0), sent(0, 0), &paths);
        assert_eq!(recovery.poll_repair_among(at(72), &paths, 0), None);
        assert_eq!(recovery.poll_repair_among(at(73), &paths, 0), AGAIN);
    }

    #[test]
    fn a_packet_is_sent_again_until_it_is_acknowledged() {
        let paths = [path(0, 40, 100)]; // PTO 50 ms
        let mut recovery = Reliable::new(RELIABLE);
        recovery.on_sent(at(0), sent(0, 0), &paths);
        assert_eq!(recovery.poll_repair_among(at(49), &paths, 0), None);
        assert_eq!(recovery.poll_repair_among(at(50), &paths, 0), AGAIN);
        recovery.on_sent(at(50), sent(0, 0), &paths);
        assert_eq!(recovery.poll_repair_among(at(149), &paths, 0), None, "the timeout has doubled");
        assert_eq!(recovery.poll_repair_among(at(150), &paths, 0), AGAIN);
        recovery.on_sent(at(150), sent(0, 0), &paths);
        recovery.on_acknowledged(at(160), PacketId(0));
        assert_eq!(recovery.poll_repair_among(at(9000), &paths, 0), None);
    }

    #[test]
    fn a_loss_declared_by_quic_is_repaired_at_once_and_only_once() {
        let paths = [path(0, 40, 100)];
        let mut recovery = Reliable::new(RELIABLE);
        recovery.on_sent(at(0), sent(0, 0), &paths);
        recovery.on_lost(at(10), PacketId(0), PathId(0));
        recovery.on_lost(at(10), PacketId(0), PathId(0));
        assert_eq!(recovery.poll_repair_among(at(10), &paths, 0), AGAIN);
        assert_eq!(recovery.poll_repair_among(at(10), &paths, 0), None);
        assert_eq!((recovery.poll_lost(), recovery.poll_lost()), (Some(PacketId(0)), None));
    }

    #[test]
    fn a_packet_on_two_paths_is_sent_again_when_both_copies_are_lost() {
        let paths = [path(0, 40, 100), path(1, 90, 100)]; // PTO 50 ms and 100 ms
        let mut recovery = Reliable::new(RELIABLE);
        recovery.on_sent(at(0), sent(0, 0), &paths);
        recovery.on_sent(at(1), sent(0, 1), &paths);
        assert_eq!(recovery.poll_repair_among(at(100), &paths, 0), None, "the slower has time");
        recovery.on_lost(at(100), PacketId(0), PathId(1));
        assert_eq!(recovery.poll_repair_among(at(100), &paths, 0), AGAIN);
        assert!(!recovery.is_settled());
        recovery.on_acknowledged(at(101), PacketId(0));
        assert!(recovery.is_settled());
    }

    #[test]
    fn even_this_recovery_gives_up_in_the_end() {
        let paths = [path(0, 40, 100)];
        let abandoned = |expire_after| {
            let mut recovery = Reliable::new(RecoveryConfig { expire_after, ..RELIABLE });
            recovery.on_sent(at(0), sent(0, 0), &paths);
            let mut now = at(0);
            loop {
                now = recovery.poll_timeout().expect("it is watched").max(now);
                match recovery.poll_repair_among(now, &paths, 0) {
                    Some(Repair::Again { .. }) => recovery.on_sent(now, sent(0, 0), &paths),
                    Some(Repair::Abandon { .. }) => break now,
                    _ => {}
                }
            }
        };
        let last = abandoned(Reliable::GIVE_UP);
        assert!(last >= at(10_000) && last < at(16_000), "{last}");
        let last = abandoned(Duration::from_millis(300));
        assert!(last >= at(300) && last < at(500), "{last}");
    }
}
