//! What all sessions of a server are together: told at little cost, though there are thousands.

use std::collections::BTreeMap;

use roadweave_types::PathStatus;
use serde::{Deserialize, Serialize};

use super::Server;

/// All sessions of a server together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// The sessions.
    pub sessions: u64,
    /// Clients that stand by, without a session.
    pub standbys: u64,
    /// Whether it takes no new clients, and lets go those that it has.
    pub draining: bool,
    /// The paths of all sessions, by what they may carry.
    pub paths: BTreeMap<PathStatus, u64>,
    /// How far the usable paths lead, if there are any.
    pub round_trips: Option<RoundTrips>,
}

/// The smoothed round-trip times of many paths, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// That of half of the paths, at most.
    pub p50_ms: f64,
    /// That of nine in ten.
    pub p90_ms: f64,
    /// That of ninety-nine in a hundred.
    pub p99_ms: f64,
}

impl Server {
    /// How many sessions there are.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// All sessions together.
    pub fn totals(&self) -> Totals {
        // Told though there is none.
        let mut paths: BTreeMap<_, _> = PathStatus::ALL.map(|status| (status, 0)).into();
        let mut round_trips = Vec::new();
        let connections = self.sessions.keys().filter_map(|id| self.endpoint.connection(*id));
        for path in connections.flat_map(|connection| connection.paths()) {
            *paths.entry(path.status).or_default() += 1;
            if path.status == PathStatus::Usable {
                round_trips.push(path.smoothed_rtt.as_secs_f64() * 1e3);
            }
        }
        Totals {
            sessions: self.sessions() as u64,
            standbys: self.standbys() as u64,
            draining: self.is_draining(),
            paths,
            round_trips: RoundTrips::of(round_trips),
        }
    }
}

impl RoundTrips {
    /// By nearest rank.
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
