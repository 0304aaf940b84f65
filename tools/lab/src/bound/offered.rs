//! What an application gives to the tunnel, computed without a tunnel.

use roadweave_proto::Instant;

use crate::traffic::{TrafficKind, TrafficSpec};
use crate::video::quality::StreamLog;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    pub stream: StreamLog,
    pub bytes: Vec<usize>,
}

impl Offered {
    /// What the application of `spec` sends with this `seed` if its stream begins at `start`; empty
    /// if it reacts to arrivals.
    pub fn new(spec: &TrafficSpec, start: Instant, seed: u64) -> Self {
        if !matches!(spec.kind, TrafficKind::Video { .. } | TrafficKind::Constant { .. }) {
            return Self::default();
        }
        let mut traffic = spec.build(start, seed);
        let mut bytes = Vec::new();
        let mut now = start;
        while let Some(due) = traffic.poll_timeout() {
            now = due.max(now);
            while let Some((_, packet)) = traffic.poll_transmit(now) {
                bytes.push(packet.len());
            }
        }
        match traffic.report(now).stream().filter(|stream| stream.log.packets.len() == bytes.len())
        {
            Some(stream) => Self { stream: stream.log.clone(), bytes },
            None => Self::default(),
        }
    }
}
