//! What the client measures of the servers it may choose from, and what it tells of them.
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

/// What is known of a server that the client may choose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateReport {
    /// What a person calls it.
    pub name: String,
    /// Where it is.
    pub site: String,
    /// Its public key.
    pub public_key: String,
    /// What the server is to the client now.
    pub place: CandidatePlace,
    /// Whether it is chosen only when no other is there.
    #[serde(default)]
    pub last_resort: bool,
    /// Its figure: the round trip by which it is compared, milliseconds.
    pub figure_ms: Option<f64>,
    /// How long ago that was measured, seconds.
    pub measured_seconds_ago: Option<f64>,
    /// For how long it is not tried, seconds.
    pub rest_seconds: Option<f64>,
    /// What went wrong last.
    pub last: Option<String>,
}

/// What a server is to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CandidatePlace {
    /// The session is with it, or is tried there first.
    InUse,
    /// The server waits, and would take over at once.
    Standby,
    /// The server is asked to wait.
    Trying,
    /// The server may be chosen.
    Candidate,
}

impl Client {
    /// The servers that the client chooses from; empty when there is but one.
    pub fn candidates(&self, now: Instant) -> Vec<CandidateReport> {
        if !self.has_choice() {
            return Vec::new();
        }
        let report = |(at, candidate): (usize, &super::Candidate)| {
            let standing = self.choice.standing(now, at);
            let place = match Some(at) {
                _ if at == self.choice.current() => CandidatePlace::InUse,
                it if it == self.standby.tried() => CandidatePlace::Trying,
                it if it == self.standby.target() => CandidatePlace::Standby,
                _ => CandidatePlace::Candidate,
            };
            CandidateReport {
                name: candidate.name.clone(),
                site: candidate.site.clone(),
                public_key: candidate.key.to_string(),
                place,
                last_resort: candidate.last_resort,
                figure_ms: standing.figure.map(|figure| figure.as_secs_f64() * 1e3),
                measured_seconds_ago: standing.measured.map(|at| now.since(at).as_secs_f64()),
                rest_seconds: standing.rests_until.map(|until| until.since(now).as_secs_f64()),
                last: standing.last,
            }
        };
        self.config.candidates.iter().enumerate().map(report).collect()
    }

    /// The addresses of a candidate that are tried over `uplink`.
    pub(super) fn addresses_of(&self, candidate: usize, uplink: UplinkId) -> &[SocketAddr] {
        let all =
            || self.config.candidates.get(candidate).map_or(&[][..], |it| it.addresses.as_slice());
        self.servers_of.get(&(candidate, uplink)).map_or_else(all, Vec::as_slice)
    }

    /// Sends the probes that are due, and takes note of those that nobody answered.
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

    /// When [`Client::measure`] has something to do.
    pub(super) fn measure_timeout(&self) -> Option<Instant> {
        if !self.has_choice() {
            return None;
        }
        [self.choice.poll_timeout(), self.prober.poll_timeout()].into_iter().flatten().min()
    }

    /// What each uplink that may be asked over carries, bytes per second, as far as the session
    /// knows.
    fn capacities(&self) -> BTreeMap<UplinkId, u64> {
        let id = self.current.as_ref().map(|current| current.id);
        let paths = id.and_then(|id| self.endpoint.connection(id)).map_or(&[][..], |it| it.paths());
        let carries = |path: &PathSnapshot| {
            let millis = u64::try_from(path.smoothed_rtt.as_millis()).unwrap_or(u64::MAX).max(1);
            path.congestion_window.saturating_mul(1000) / millis
        };
        let capacity = |uplink: UplinkId| {
            let path = paths.iter().find(|path| path.uplink == Some(uplink));
            (uplink, path.map_or(0, carries))
        };
        self.frugal_uplinks().into_iter().map(capacity).collect()
    }

    /// The own round trip worsens: perhaps another server is nearer by now.
    fn watch_own_rtt(&mut self, now: Instant) {
        let id = self.current.as_ref().map(|current| current.id);
        let paths = id.and_then(|id| self.endpoint.connection(id)).map_or(&[][..], |it| it.paths());
        let usable = paths.iter().filter(|path| path.is_usable());
        let nearest = usable.map(|path| (path.smoothed_rtt, path.min_rtt)).min();
        let is_worse = nearest.is_some_and(|(rtt, least)| {
            self.least_rtt = self.least_rtt.min(least);
            rtt > self.least_rtt.saturating_mul(2).saturating_add(DOUBT_MARGIN)
        });
        match (is_worse, self.worse_since) {
            (false, _) => self.worse_since = None,
            (true, None) => self.worse_since = Some(now),
            (true, Some(since)) if now >= since + DOUBT_AFTER => self.choice.on_doubt(now),
            _ => {}
        }
    }
}

/// How far above twice its least the session's round trip must be, and for how long, to be in
/// doubt.
const DOUBT_MARGIN: Duration = Duration::from_millis(20);
const DOUBT_AFTER: Duration = Duration::from_secs(10);
