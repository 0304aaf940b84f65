//! `least-loaded`: the path with the smallest part of its congestion window in flight.
//!
//! The scheduler that docs/lab.md adds, whole, with its test: rather short than good.

#![allow(missing_docs, reason = "tests")]

use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathOffer, PathSnapshot};
use roadweave_schedule::{Decision, PacketInfo, PathSet, Scheduler};

/// The scheduler, which remembers nothing.
#[derive(Debug, Default)]
pub struct LeastLoaded;

impl Scheduler for LeastLoaded {
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        let bytes = packet.bytes as u64;
        let fits = |path: &PathOffer<'_>| path.is_usable() && path.snapshot.room() >= bytes;
        let candidates = paths.iter().enumerate().filter(|(_, path)| fits(path));
        // Of two that are loaded alike the one that answers sooner.
        let emptiest = candidates.min_by(|(_, a), (_, b)| {
            let sooner = || a.snapshot.smoothed_rtt.cmp(&b.snapshot.smoothed_rtt);
            load(a.snapshot).total_cmp(&load(b.snapshot)).then_with(sooner)
        });
        match emptiest {
            Some((position, _)) => Decision::Send(PathSet::one(position)),
            None => Decision::Wait,
        }
    }
}

fn load(path: &PathSnapshot) -> f64 {
    path.bytes_in_flight as f64 / path.congestion_window.max(1) as f64
}

#[test]
fn the_emptier_path_is_taken_and_full_ones_are_waited_for() {
    let path = |id, rtt| PathSnapshot::idle(PathId(id), Duration::from_millis(rtt), 12_000);
    let select = |paths: &[PathSnapshot]| {
        let packet = PacketInfo {
            bytes: 1200,
            backlog_bytes: 1200,
            flow_bytes: 1200,
            flow: 0,
            waited: Duration::ZERO,
            is_of_streams: false,
        };
        let offers: Vec<PathOffer<'_>> = paths.iter().map(PathOffer::free).collect();
        LeastLoaded.select(Instant::ZERO, &packet, &offers)
    };
    let mut paths = [path(0, 20), path(1, 60)];
    assert_eq!(select(&paths), Decision::Send(PathSet::one(0)));
    paths[0].bytes_in_flight = 6000;
    assert_eq!(select(&paths), Decision::Send(PathSet::one(1)));
    paths.iter_mut().for_each(|path| path.bytes_in_flight = 12_000);
    assert_eq!(select(&paths), Decision::Wait);
}
