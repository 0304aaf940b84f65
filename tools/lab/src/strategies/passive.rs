//! The scheduler of `minrtt-passive`: min-RTT that knows a path by its own packets alone.
//!
//! Multipath TCP, the rival of RAVEN's paper, sends no probes: an idle path keeps the round trip of
//! its last packets, however old. The tunnel measures idle paths, and so `minrtt` leaves a path
//! sooner, and returns to it.

use std::collections::BTreeMap;

use roadweave_proto::{Instant, PathId, PathOffer, PathSnapshot, RttEstimator};
use roadweave_schedule::{AcknowledgedDatagram, Decision, MinRtt, PacketInfo, Scheduler};

/// Paths forgotten are those of the lowest numbers, which are the oldest.
#[derive(Debug, Default)]
pub(super) struct Passive {
    inner: MinRtt,
    paths: BTreeMap<PathId, RttEstimator>,
}

impl Scheduler for Passive {
    fn select(&mut self, now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
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
        while self.paths.len() > PATHS_MAX {
            self.paths.pop_first();
        }
        self.inner.select(now, packet, &offers)
    }

    fn on_acknowledged(&mut self, _now: Instant, acknowledged: &AcknowledgedDatagram, _flow: u64) {
        if let Some(own) = self.paths.get_mut(&acknowledged.path) {
            own.update(acknowledged.rtt);
        }
    }
}

const PATHS_MAX: usize = 64;

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
