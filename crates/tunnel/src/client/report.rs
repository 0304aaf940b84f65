//! The state of a client: its session, uplinks and server addresses, and candidates.

use std::net::SocketAddr;

use roadweave_proto::{DropCounters, Instant, PathStatus, UplinkId};
use serde::{Deserialize, Serialize};

use super::pairs::Pair;
use super::uplinks::Uplink;
use super::{Candidate, Client, Portal, outages};
use crate::status::{SessionStatus, path_reports};

/// The state of one uplink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UplinkReport {
    /// The uplink's name.
    pub name: String,
    /// Whether anything arrived over it since it is up.
    pub heard: bool,
    /// Its number in the order of uplinks while no round trip is measured; 0 is first.
    pub rank: u8,
    /// The login page of its network; the uplink is not used until it reaches the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portal: Option<Portal>,
    /// The server's addresses that are tried over it.
    pub servers: Vec<PairReport>,
}

/// The state of one server address over one uplink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// The address.
    pub server: String,
    /// What is under way on it.
    pub state: PairState,
    /// Attempts to connect so far.
    pub attempts: u64,
    /// Seconds until it is tried again.
    pub rest_seconds: Option<f64>,
    /// How the last finished attempt or session ended.
    pub last: Option<String>,
}

/// The state of a pair of uplink and server address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairState {
    /// The session began on it.
    Session,
    /// A connection passed the handshake and waits for its welcome.
    Connected,
    /// Attempts are under way without an answer.
    Trying,
    /// The pair waits before the next attempt, because of its last answer.
    Resting,
    /// Nothing is under way.
    Idle,
}

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
    /// The status of the session, if there is one.
    pub fn status(&self) -> Option<SessionStatus> {
        let (current, connection) = (self.current.as_ref()?, self.connection()?);
        let mut stats = current.session.stats();
        stats.drops.merge(&self.drops());
        Some(SessionStatus {
            peer: current.pair.1.to_string(),
            public_key: self.server().key.to_string(),
            addresses: current.welcome.addresses.iter().map(ToString::to_string).collect(),
            paths: self
                .uplinks
                .with_usage(path_reports(connection, |path| self.uplinks.name_of(path))),
            stats,
        })
    }

    /// What was dropped without a session and by earlier sessions, by reason.
    pub fn drops(&self) -> DropCounters {
        let mut drops = self.drops.clone();
        self.leaving.drops().for_each(|it| drops.merge(&it));
        drops
    }

    /// How many notices the limit has suppressed.
    pub fn suppressed_notices(&self) -> u64 {
        self.event_queue.suppressed
    }

    /// Lanes whose strategy names an absent uplink, with its name.
    pub fn waiting_lanes(&self) -> impl Iterator<Item = (&str, &str)> {
        outages::waiting_lanes(&self.config.lanes, &self.uplinks)
    }

    /// Whether the path over an uplink is validated and answers.
    pub fn is_validated(&self, uplink: UplinkId) -> bool {
        self.paths().iter().any(|path| {
            let answers = matches!(path.status, PathStatus::Usable | PathStatus::Standby);
            path.uplink == Some(uplink) && answers
        })
    }

    /// Whether an uplink is held back.
    pub fn is_held_back(&self, id: UplinkId) -> bool {
        self.uplinks.is_held_back(id)
    }

    /// The addresses of the current server that are tried over `uplink`.
    pub fn servers_of(&self, uplink: UplinkId) -> &[SocketAddr] {
        self.choice.servers(uplink)
    }

    /// The candidates.
    pub fn servers(&self) -> &[Candidate] {
        &self.choice.candidates.all
    }

    /// The servers to choose from; empty if there is only one.
    pub fn candidates(&self, now: Instant) -> Vec<CandidateReport> {
        if !self.choice.has_several() {
            return Vec::new();
        }
        let report = |(at, candidate): (usize, &Candidate)| {
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
        self.servers().iter().enumerate().map(report).collect()
    }

    /// The uplinks, and the state of the server's addresses over them.
    pub fn uplinks(&self, now: Instant) -> Vec<UplinkReport> {
        let report = |(id, uplink): (&UplinkId, &Uplink)| {
            let servers = self.servers_of(*id).iter();
            let servers = servers.map(|server| {
                let pair = (*id, *server);
                let state = self.race.pairs.get(pair);
                let rest = self.race.pairs.resting_until(now, pair);
                PairReport {
                    server: server.to_string(),
                    state: self.state_of(now, pair),
                    attempts: state.attempts,
                    rest_seconds: rest.map(|until| until.since(now).as_secs_f64()),
                    last: state.last.clone(),
                }
            });
            UplinkReport {
                name: uplink.name.clone(),
                heard: uplink.heard,
                rank: self.uplinks.rank_of(*id),
                portal: uplink.held_back.as_ref().map(|it| it.portal.clone()),
                servers: servers.collect(),
            }
        };
        self.uplinks.all.iter().map(report).collect()
    }

    fn state_of(&self, now: Instant, pair: Pair) -> PairState {
        if self.current.as_ref().is_some_and(|current| current.pair == pair) {
            PairState::Session
        } else if self.race.is_greeted(pair) {
            PairState::Connected
        } else if self.race.pairs.resting_until(now, pair).is_some() {
            PairState::Resting
        } else if self.race.is_tried(pair) {
            PairState::Trying
        } else {
            PairState::Idle
        }
    }

    /// Why there is no session, as text; `None` if there is one.
    pub fn why_no_session(&self, now: Instant) -> Option<String> {
        if self.current.is_some() {
            return None;
        }
        let names = || self.uplinks.all.values().map(|uplink| uplink.name.as_str());
        let servers = |id: &UplinkId| self.servers_of(*id).iter();
        let pairs = self.uplinks.all.keys().flat_map(|id| servers(id).map(move |it| (*id, *it)));
        let rests: Vec<bool> =
            pairs.map(|pair| self.race.pairs.resting_until(now, pair).is_some()).collect();
        let (all, resting) = (rests.len(), rests.iter().filter(|rests| **rests).count());
        Some(if self.uplinks.all.is_empty() {
            "no uplink is usable".to_owned()
        } else if self.uplinks.are_all_held_back() {
            format!("log in to the network of {}", names().collect::<Vec<_>>().join(", "))
        } else if rests.is_empty() {
            "no address of the server is known".to_owned()
        } else if self.race.is_connected() {
            "connected; waiting for the server's welcome".to_owned()
        } else if resting == all {
            format!(
                "every attempt was answered but not accepted; all {all} wait before they are tried \
                 again"
            )
        } else if resting > 0 {
            format!(
                "{resting} of {all} pairs of uplink and server address were not accepted and wait \
                 before they are tried again; the others do not answer"
            )
        } else if self.uplinks.all.values().any(|uplink| uplink.heard) {
            "no attempt has been accepted yet".to_owned()
        } else {
            "nothing has come in over any uplink; check that the server is running, that the \
             address is right, and that firewalls allow UDP"
                .to_owned()
        })
    }
}
