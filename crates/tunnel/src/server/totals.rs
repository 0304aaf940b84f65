//! Totals over all sessions of a server, cheap for thousands of them.

use std::collections::BTreeMap;

use roadweave_proto::PathStatus;
use roadweave_quic::Connection;
use serde::{Deserialize, Serialize};

/// All sessions of a server together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// The number of sessions.
    pub sessions: u64,
    /// Clients that stand by without a session.
    pub standbys: u64,
    /// Whether it takes no new clients, and asks the present ones to leave.
    pub draining: bool,
    /// Paths of all sessions, by status.
    pub paths: BTreeMap<PathStatus, u64>,
    /// Round trips of the usable paths, if there are any.
    pub round_trips: Option<RoundTrips>,
}

/// The smoothed round-trip times of many paths, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// Half of the paths have this smoothed round-trip time at most, ms.
    pub p50_ms: f64,
    /// Nine in ten paths have this smoothed round-trip time at most, ms.
    pub p90_ms: f64,
    /// Ninety-nine in a hundred paths have this smoothed round-trip time at most, ms.
    pub p99_ms: f64,
}

/// The counts behind [`Totals`]; those of a server's shards are merged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    totals: Totals,
    round_trips: Vec<f64>,
}

impl Tally {
    pub(super) fn of<'a>(totals: Totals, sessions: impl Iterator<Item = &'a Connection>) -> Self {
        // A status is listed even if no path has it.
        let mut paths: BTreeMap<_, _> = PathStatus::ALL.map(|status| (status, 0)).into();
        let mut round_trips = Vec::new();
        for path in sessions.flat_map(Connection::paths) {
            *paths.entry(path.status).or_default() += 1;
            if path.status == PathStatus::Usable {
                round_trips.push(path.smoothed_rtt.as_secs_f64() * 1e3);
            }
        }
        Self { totals: Totals { paths, ..totals }, round_trips }
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: Self) {
        self.totals.sessions += other.totals.sessions;
        self.totals.standbys += other.totals.standbys;
        self.totals.draining |= other.totals.draining;
        for (status, count) in other.totals.paths {
            *self.totals.paths.entry(status).or_default() += count;
        }
        self.round_trips.extend(other.round_trips);
    }
}

impl From<Tally> for Totals {
    fn from(tally: Tally) -> Self {
        Self { round_trips: RoundTrips::of(tally.round_trips), ..tally.totals }
    }
}

impl RoundTrips {
    fn of(mut all_ms: Vec<f64>) -> Option<Self> {
        all_ms.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * all_ms.len() as f64).ceil() as usize;
            all_ms.get(rank.saturating_sub(1)).copied()
        };
        Some(Self { p50_ms: at(0.5)?, p90_ms: at(0.9)?, p99_ms: at(0.99)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_shards_are_merged() {
        let of = |sessions, usable, round_trips: &[f64]| Tally {
            totals: Totals {
                sessions,
                paths: [(PathStatus::Usable, usable)].into(),
                ..Totals::default()
            },
            round_trips: round_trips.to_vec(),
        };
        let mut all = Tally::default();
        all.merge(of(1, 2, &[30.0, 10.0]));
        all.totals.draining = true;
        all.merge(of(3, 2, &[20.0, 40.0]));
        let Totals { sessions, draining, paths, round_trips, .. } = all.into();
        assert_eq!((sessions, draining, paths[&PathStatus::Usable]), (4, true, 4));
        assert_eq!(round_trips, RoundTrips::of(vec![10.0, 20.0, 30.0, 40.0]));
    }

    #[test]
    fn round_trips_are_nearest_ranks() {
        assert_eq!(RoundTrips::of(Vec::new()), None);
        let of = |all: &[f64]| RoundTrips::of(all.to_vec());
        let expected = |p50_ms, p90_ms, p99_ms| Some(RoundTrips { p50_ms, p90_ms, p99_ms });
        assert_eq!(of(&[7.0]), expected(7.0, 7.0, 7.0));
        assert_eq!(of(&[30.0, 10.0, 20.0, 40.0]), expected(20.0, 40.0, 40.0));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(of(&hundred), expected(50.0, 90.0, 99.0));
    }
}
