//! Measures the servers that the client may choose from, and reports on them.
//!
//! ```text
//! choice: whom to ask, over which uplink ─► prober ─► uplinks ─► servers
//!    ▲                                         answers ◄──────────┘
//!    └── outcomes; doubt: the session's own round trip is far above its least
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_proto::{Instant, PathSnapshot, UplinkId};
use roadweave_quic::ProbeOutcome;
use serde::{Deserialize, Serialize};

use super::Client;

/// The state of a server that the client may choose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateReport {
    /// The server's name.
    pub name: String,
    /// Its site.
    pub site: String,
    /// Its public key.
    pub public_key: String,
    /// Its role for the client now.
    pub place: CandidatePlace,
    /// Whether it is used only if no other is available.
    #[serde(default)]
    pub last_resort: bool,
    /// The round trip by which it is compared, milliseconds.
    pub figure_ms: Option<f64>,
    /// How many seconds ago that was measured.
    pub measured_seconds_ago: Option<f64>,
    /// Seconds until it is tried again.
    pub rest_seconds: Option<f64>,
    /// Its last failure.
    pub last: Option<String>,
}

/// The role of a server for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CandidatePlace {
    /// The session is with it, or it is tried first.
    InUse,
    /// It waits, and would take over at once.
    Standby,
    /// It is asked to wait.
    Trying,
    /// It may be chosen.
    Candidate,
}

impl Client {
    /// The servers to choose from; empty if there is only one.
    pub fn candidates(&self, now: Instant) -> Vec<CandidateReport> {
        if !self.has_choice() {
            return Vec::new();
        }
        let report = |(at, candidate): (usize, &super::Candidate)| {
            let state = &self.choice.states[at];
            let place = match Some(at) {
                _ if at == self.choice.current => CandidatePlace::InUse,
                it if it == self.standby.tried() => CandidatePlace::Trying,
                it if it == self.standby.target => CandidatePlace::Standby,
                _ => CandidatePlace::Candidate,
            };
            CandidateReport {
                name: candidate.name.clone(),
                site: candidate.site.clone(),
                public_key: candidate.key.to_string(),
                place,
                last_resort: candidate.last_resort,
                figure_ms: state.figure.map(|figure| figure.as_secs_f64() * 1e3),
                measured_seconds_ago: state.measured.map(|at| now.since(at).as_secs_f64()),
                rest_seconds: state.rests(now).map(|until| until.since(now).as_secs_f64()),
                last: state.last.clone(),
            }
        };
        self.config.candidates.iter().enumerate().map(report).collect()
    }

    pub(super) fn addresses_of(&self, candidate: usize, uplink: UplinkId) -> &[SocketAddr] {
        let all =
            || self.config.candidates.get(candidate).map_or(&[][..], |it| it.addresses.as_slice());
        self.uplinks.servers_of.get(&(candidate, uplink)).map_or_else(all, Vec::as_slice)
    }

    pub(super) fn measure(&mut self, now: Instant) {
        if !self.has_choice() {
            return;
        }
        self.watch_own_rtt(now);
        let uplinks = self.capacities();
        self.choice.handle_timeout(now, &uplinks);
        while let Some((candidate, uplink)) = self.choice.poll_probe(now) {
            let server = self.addresses_of(candidate, uplink).first().copied();
            let leaves = server.is_some_and(|server| self.prober.probe(now, uplink, server));
            if !leaves {
                self.choice.on_outcome(now, candidate, uplink, None);
            }
        }
        while let Some(outcome) = self.prober.poll_unanswered(now) {
            self.on_probe_outcome(now, &outcome);
        }
    }

    pub(super) fn on_probe_outcome(&mut self, now: Instant, outcome: &ProbeOutcome) {
        let ProbeOutcome { uplink, server, rtt } = *outcome;
        let asked = (0..self.config.candidates.len())
            .find(|candidate| self.addresses_of(*candidate, uplink).first() == Some(&server));
        if let Some(candidate) = asked {
            self.choice.on_outcome(now, candidate, uplink, rtt);
        }
    }

    pub(super) fn measure_timeout(&self) -> Option<Instant> {
        if !self.has_choice() {
            return None;
        }
        [self.choice.poll_timeout(), self.prober.poll_timeout()].into_iter().flatten().min()
    }

    fn capacities(&self) -> BTreeMap<UplinkId, u64> {
        let carries = |path: &PathSnapshot| {
            let millis = u64::try_from(path.smoothed_rtt.as_millis()).unwrap_or(u64::MAX).max(1);
            path.congestion_window.saturating_mul(1000) / millis
        };
        let capacity = |uplink: UplinkId| {
            let path = self.paths().iter().find(|path| path.uplink == Some(uplink));
            (uplink, path.map_or(0, carries))
        };
        self.frugal_uplinks().into_iter().map(capacity).collect()
    }

    fn watch_own_rtt(&mut self, now: Instant) {
        let usable = self.paths().iter().filter(|path| path.is_usable());
        let nearest = usable.map(|path| (path.smoothed_rtt, path.min_rtt)).min();
        if self.current.as_mut().is_some_and(|current| current.own_rtt.is_doubtful(now, nearest)) {
            self.choice.on_doubt(now);
        }
    }
}

#[derive(Debug)]
pub(super) struct OwnRtt {
    least: Duration,
    worse_since: Option<Instant>,
}

impl Default for OwnRtt {
    fn default() -> Self {
        Self { least: Duration::MAX, worse_since: None }
    }
}

impl OwnRtt {
    /// Whether it was far above its least for long. `nearest`: nearest path, smoothed and least.
    fn is_doubtful(&mut self, now: Instant, nearest: Option<(Duration, Duration)>) -> bool {
        let is_worse = nearest.is_some_and(|(rtt, least)| {
            self.least = self.least.min(least);
            rtt > self.least.saturating_mul(2).saturating_add(DOUBT_MARGIN)
        });
        let since = is_worse.then(|| *self.worse_since.get_or_insert(now));
        self.worse_since = since;
        since.is_some_and(|since| now >= since + DOUBT_AFTER)
    }
}

/// In doubt: the session's round trip exceeds twice its least by this, for this long.
const DOUBT_MARGIN: Duration = Duration::from_millis(20);
const DOUBT_AFTER: Duration = Duration::from_secs(10);
