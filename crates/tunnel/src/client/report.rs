//! The state of uplinks and server addresses for `roadweave show`.

use roadweave_proto::{Instant, UplinkId};
use serde::{Deserialize, Serialize};

use super::{Client, Portal, Uplink};

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

impl Client {
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

    fn state_of(&self, now: Instant, pair: super::Pair) -> PairState {
        let mut attempts = self.race.attempts.values().filter(|attempt| attempt.pair == pair);
        let mut connected = attempts.clone().filter(|attempt| attempt.hello.is_some());
        if self.current.as_ref().is_some_and(|current| current.pair == pair) {
            PairState::Session
        } else if connected.next().is_some() {
            PairState::Connected
        } else if self.race.pairs.resting_until(now, pair).is_some() {
            PairState::Resting
        } else if attempts.next().is_some() {
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
        if self.uplinks.all.is_empty() {
            return Some("no uplink is usable".to_owned());
        }
        if self.uplinks.are_all_held_back() {
            let names: Vec<&str> = self.uplinks.all.values().map(|it| it.name.as_str()).collect();
            return Some(format!("log in to the network of {}", names.join(", ")));
        }
        let pairs: Vec<super::Pair> = self
            .uplinks
            .all
            .keys()
            .flat_map(|id| self.servers_of(*id).iter().map(move |server| (*id, *server)))
            .collect();
        if pairs.is_empty() {
            return Some("no address of the server is known".to_owned());
        }
        let resting =
            pairs.iter().filter(|pair| self.race.pairs.resting_until(now, **pair).is_some());
        let (resting, all) = (resting.count(), pairs.len());
        let connected =
            self.race.attempts.values().filter(|attempt| attempt.hello.is_some()).count();
        Some(if connected > 0 {
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
