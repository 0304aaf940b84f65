//! What sessions have carried, for monitoring.

use roadweave_identity::PublicKey;
use roadweave_proto::PathSnapshot;
use roadweave_quic::Connection;

use super::sessions::Joined;
use crate::status::{PathStatusReport, millis};

/// The traffic of one session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionFigures {
    /// The client.
    pub key: PublicKey,
    /// Its paths: the uplink, the round trip, the loss and the counters of each.
    pub paths: Vec<PathStatusReport>,
}

impl SessionFigures {
    pub(super) fn of(joined: &Joined, connection: &Connection) -> Self {
        let path = |path: &PathSnapshot| PathStatusReport {
            uplink: joined.path_names.get(&path.id).cloned(),
            smoothed_rtt_ms: millis(path.smoothed_rtt),
            loss: path.loss,
            counters: connection.path_stats(path.id).unwrap_or_default(),
            ..PathStatusReport::default()
        };
        Self { key: joined.key, paths: connection.paths().iter().map(path).collect() }
    }
}
