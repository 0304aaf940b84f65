//! Rates between two readings of a status.

use std::collections::BTreeMap;

use roadweave_node::status::{RoleStatus, Status};
use roadweave_tunnel::PathStatusReport;

#[derive(Debug, Default)]
pub(super) struct Rates {
    paths: BTreeMap<(String, u32), [Option<f64>; 2]>,
    pub(super) device: Option<[f64; 2]>,
}

impl Rates {
    /// None if the instance restarted in between.
    pub(super) fn between(before: &Status, after: &Status) -> Self {
        let seconds = after.uptime_seconds - before.uptime_seconds;
        if seconds <= 0.0 {
            return Self::default();
        }
        let rate = |before: u64, after: u64| {
            // A smaller counter was reset.
            after.checked_sub(before).map(|bytes| bytes as f64 * 8.0 / seconds)
        };
        let (counted, now) = (bytes(before), bytes(after));
        let of_path = |(path, [sent, received]): ((String, u32), [u64; 2])| {
            let [sent_before, received_before] = *counted.get(&path)?;
            Some((path, [rate(sent_before, sent), rate(received_before, received)]))
        };
        let (old, new) = (&before.device, &after.device);
        let read = rate(old.bytes_read, new.bytes_read);
        let device = read.zip(rate(old.bytes_written, new.bytes_written)).map(<[f64; 2]>::from);
        Self { paths: now.into_iter().filter_map(of_path).collect(), device }
    }

    pub(super) fn of(&self, peer: &str, id: u32) -> [Option<f64>; 2] {
        self.paths.get(&(peer.to_owned(), id)).copied().unwrap_or_default()
    }
}

fn bytes(status: &Status) -> BTreeMap<(String, u32), [u64; 2]> {
    let of =
        |key: &str, path: &PathStatusReport| ((key.to_owned(), path.id), path.counters.bytes());
    if let RoleStatus::Router(role) = &status.role {
        let links = role.sessions.iter().flat_map(|session| {
            session.status.paths.iter().map(move |link| of(&session.peer, &link.into()))
        });
        return links.collect();
    }
    let paths =
        status.role.sessions().iter().flat_map(|session| {
            session.paths.iter().map(move |path| of(&session.public_key, path))
        });
    paths.collect()
}
