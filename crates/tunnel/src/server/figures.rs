//! What sessions have carried, for monitoring.

use std::time::Duration;

use roadweave_identity::PublicKey;

use super::Server;
use crate::status::{PathStatusReport, path_reports};

/// The traffic of one session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionFigures {
    /// The client.
    pub key: PublicKey,
    /// Its paths.
    pub paths: Vec<PathStatusReport>,
}

impl Server {
    /// What the sessions have carried so far, for the first `most` of them.
    pub fn figures(&self, most: usize) -> Vec<SessionFigures> {
        let figures = self.sessions.iter().take(most).filter_map(|(id, joined)| {
            let connection = self.endpoint.connection(*id)?;
            let paths = path_reports(connection, |path| joined.path_names.get(&path.id).cloned());
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
