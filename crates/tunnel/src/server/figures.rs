//! What sessions have carried, for monitoring.

use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::PathSnapshot;

use super::Server;
use crate::status::{PathStatusReport, millis};

/// The traffic of one session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionFigures {
    /// The client.
    pub key: PublicKey,
    /// Its paths: the uplink, the round trip, the loss and the counters of each.
    pub paths: Vec<PathStatusReport>,
}

impl Server {
    /// What the sessions have carried so far, for the first `most` of them.
    pub fn figures(&self, most: usize) -> Vec<SessionFigures> {
        let figures = self.sessions.all.iter().take(most).filter_map(|(id, joined)| {
            let connection = self.endpoint.connection(*id)?;
            let path = |path: &PathSnapshot| PathStatusReport {
                uplink: joined.path_names.get(&path.id).cloned(),
                smoothed_rtt_ms: millis(path.smoothed_rtt),
                loss: path.loss,
                counters: connection.path_stats(path.id).unwrap_or_default(),
                ..PathStatusReport::default()
            };
            let paths = connection.paths().iter().map(path).collect();
            Some(SessionFigures { key: joined.key, paths })
        });
        figures.collect()
    }

    /// By tenant name, the smoothed round trip to its anchor if the leg is up; empty without legs.
    pub fn anchor_round_trips(&self) -> Vec<(String, Duration)> {
        self.legs.as_ref().map(|legs| legs.round_trips()).unwrap_or_default()
    }
}
