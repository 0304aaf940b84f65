//! The scheduler of `minrtt-passive`: min-RTT by the round trips of its own packets.
//!
//! Multipath TCP, the rival of RAVEN's paper, sends no probes: an idle path keeps the round trip of
//! its last packets, however old. The tunnel measures idle paths, and so `minrtt` leaves a path
//! sooner, and returns to it. A path begins with the tunnel's round trip, and whether it answers is
//! what the tunnel knows.

use std::collections::BTreeMap;

use roadweave_proto::{Instant, PathId, PathOffer, PathSnapshot, RttEstimator};
use roadweave_schedule::{AcknowledgedDatagram, Decision, MinRtt, PacketInfo, Scheduler};

#[derive(Debug, Default)]
pub(super) struct Passive {
    inner: MinRtt,
    paths: BTreeMap<PathId, RttEstimator>,
}

impl Scheduler for Passive {
    fn select(&mut self, now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        self.paths.retain(|id, _| paths.iter().any(|path| path.snapshot.id == *id));
        let known: Vec<PathSnapshot> = paths
            .iter()
            .map(|path| {
                let PathSnapshot { id, smoothed_rtt, .. } = *path.snapshot;
                let own = self.paths.entry(id).or_insert_with(|| RttEstimator::new(smoothed_rtt));
                PathSnapshot { smoothed_rtt: own.smoothed(), ..path.snapshot.clone() }
            })
            .collect();
        let offers: Vec<PathOffer<'_>> = paths
            .iter()
            .zip(&known)
            .map(|(path, snapshot)| PathOffer { snapshot, ..*path })
            .collect();
        self.inner.select(now, packet, &offers)
    }

    fn on_acknowledged(&mut self, _now: Instant, acknowledged: &AcknowledgedDatagram, _flow: u64) {
        if let Some(own) = self.paths.get_mut(&acknowledged.path) {
            own.update(acknowledged.rtt);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use roadweave_schedule::PathSet;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn only_its_own_packets_show_it_that_a_path_has_improved() {
        let mut scheduler = Passive::default();
        let select = |scheduler: &mut Passive, second: u32| {
            let paths = [(1, 40), (2, second)]
                .map(|(id, rtt)| PathSnapshot::idle(PathId(id), MS * rtt, 90_000));
            let packet = PacketInfo {
                bytes: 1200,
                backlog_bytes: 1200,
                flow: 0,
                flow_bytes: 1200,
                waited: Duration::ZERO,
                is_of_streams: false,
            };
            scheduler.select(Instant::ZERO, &packet, &paths.each_ref().map(PathOffer::free))
        };
        let to = |at| Decision::Send(PathSet::one(at));
        assert_eq!(select(&mut scheduler, 60), to(0));
        assert_eq!(select(&mut scheduler, 20), to(0), "by probes it is faster");
        let (sent, bytes) = (Instant::ZERO, 1200);
        for _ in 0..2 {
            let acknowledged = AcknowledgedDatagram { path: PathId(2), sent, bytes, rtt: MS * 20 };
            scheduler.on_acknowledged(Instant::ZERO, &acknowledged, 0);
        }
        assert_eq!(select(&mut scheduler, 20), to(1));
    }
}
