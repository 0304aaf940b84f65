//! What sessions have carried, for monitoring.

use std::time::Duration;

use roadweave_identity::PublicKey;

use super::Server;

/// The traffic of one session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionFigures {
    /// The client.
    pub key: PublicKey,
    /// Its paths.
    pub paths: Vec<PathFigures>,
}

/// One path of a session, since it began.
#[derive(Clone, Debug, PartialEq)]
pub struct PathFigures {
    /// The client's uplink, once named.
    pub uplink: Option<String>,
    /// The smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// The recent share of lost packets, 0..1.
    pub loss: f32,
    /// Bytes from the client.
    pub bytes_received: u64,
    /// Bytes to the client.
    pub bytes_sent: u64,
}

impl Server {
    /// What the sessions have carried so far, for the first `most` of them.
    pub fn figures(&self, most: usize) -> Vec<SessionFigures> {
        let figures = self.sessions.iter().take(most).filter_map(|(id, joined)| {
            let connection = self.endpoint.connection(*id)?;
            let path = |path: &roadweave_proto::PathSnapshot| {
                let counters = connection.path_stats(path.id).unwrap_or_default();
                PathFigures {
                    uplink: joined.path_names.get(&path.id).cloned(),
                    smoothed_rtt: path.smoothed_rtt,
                    loss: path.loss,
                    bytes_received: counters.bytes_received,
                    bytes_sent: counters.bytes_sent,
                }
            };
            let paths = connection.paths().iter().map(path).collect();
            Some(SessionFigures { key: joined.key, paths })
        });
        figures.collect()
    }

    /// The smoothed round trip to the anchor of each tenant whose leg is up, by tenant name; empty
    /// if this is not a proxy.
    pub fn anchor_round_trips(&self) -> Vec<(String, Duration)> {
        self.legs.as_ref().map(|legs| legs.round_trips()).unwrap_or_default()
    }
}
