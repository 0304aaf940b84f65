//! Chooses the paths for each packet.
//!
//! ```text
//! packet, snapshot of the paths ─► Scheduler::select ─► Send(paths) | Wait
//! ```
//!
//! A scheduler sees snapshots and returns a decision; it does no I/O, reads no clock, and knows
//! neither QUIC nor recovery nor coding. [`by_name`] maps the names of configuration files to them.

mod bonding;
mod earliest;
mod ecf;
mod lola;
mod minrtt;
mod path_set;
mod patient;
mod policy;
mod raven;
mod redundant;
mod single;

use std::time::Duration;

use roadweave_types::{Instant, PathId, PathSnapshot, PathStatus};

pub use bonding::Bonding;
pub use earliest::Earliest;
pub use ecf::Ecf;
pub use lola::Lola;
pub use minrtt::MinRtt;
pub use path_set::PathSet;
pub use patient::Patient;
pub use policy::Policed;
pub use raven::{Raven, RavenConfig};
pub use redundant::Redundant;
pub use single::Single;

/// What a scheduler may know of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// The length of the datagram that carries it, bytes.
    pub bytes: usize,
    /// The bytes that wait to be sent, those of the packet included.
    pub backlog_bytes: u64,
    /// A hash of the packet's 5-tuple: equal within a flow.
    pub flow: u64,
    /// How long it has waited for a path.
    pub waited: Duration,
}

/// A datagram that the peer confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The path it went out on.
    pub path: PathId,
    /// When it left.
    pub sent: Instant,
    /// The length of the packet that carried it, bytes.
    pub bytes: u32,
    /// Its round trip, without what the peer waited.
    pub rtt: Duration,
}

/// What to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send it once on each of these paths; the set is not empty. On a path without room it waits
    /// for that path, which [`PathSnapshot::queued_bytes`] tells; a copy that still waits when
    /// another was acknowledged is withdrawn.
    Send(PathSet),
    /// Keep it: no path has room, or waiting is better.
    Wait,
}

/// Chooses the paths for one packet at a time.
pub trait Scheduler: Send + std::fmt::Debug {
    /// Chooses the paths for `packet`.
    ///
    /// `paths`: all paths of the session, ascending [`roadweave_types::PathId`]; the decision names
    /// positions in this slice. Returns [`Decision::Wait`] when every congestion window is full.
    fn select(&mut self, now: Instant, packet: &PacketInfo, paths: &[PathSnapshot]) -> Decision;

    /// A datagram of the lane left on `path`: a source packet, a copy or a coded packet of `bytes`
    /// bytes.
    fn on_sent(&mut self, _now: Instant, _path: PathId, _bytes: u32) {}

    /// The peer has a datagram of the lane.
    fn on_acknowledged(&mut self, _now: Instant, _acknowledged: &Acknowledged) {}

    /// A datagram of the lane was lost on `path`.
    fn on_lost(&mut self, _now: Instant, _path: PathId) {}

    /// The name of the network that `path` runs over, by which it is known again after a restart.
    fn name_path(&mut self, _path: PathId, _name: &str) {}

    /// What it has learned of the networks, as JSON, to be kept over restarts; `None` if it learns
    /// nothing.
    fn learned(&self) -> Option<String> {
        None
    }

    /// Takes up what [`Scheduler::learned`] gave in an earlier life.
    ///
    /// # Errors
    /// When it cannot be read; nothing is changed then.
    fn restore(&mut self, _learned: &str) -> Result<(), RestoreError> {
        Ok(())
    }

    /// What an encoder should make of its next frame, bytes (LoLa section 3); `None` if it does not
    /// know.
    fn frame_target(&self, _now: Instant, _paths: &[PathSnapshot]) -> Option<u64> {
        None
    }

    /// Whether it keeps each flow on its path: then nobody else may spread its packets.
    fn keeps_flows(&self) -> bool {
        false
    }
}

/// What a scheduler had learned cannot be taken up again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what was learned cannot be read: {0}")]
pub struct RestoreError(pub String);

/// A scheduler's name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownScheduler {
    /// No algorithm has this name.
    #[error(
        "unknown scheduler \"{0}\"; known are: minrtt, minrtt-sigcomm23, prompt, patient, ecf, earliest, bonding, redundant, \
         raven, raven:<percent>, lola, single:<uplink>"
    )]
    Name(String),
    /// `single:` names an uplink where none is known.
    #[error("scheduler \"single:{0}\" names an uplink, and uplinks are not known here")]
    Uplink(String),
}

/// The scheduler called `name`: `minrtt`, `minrtt-sigcomm23`, `prompt`, `patient`, `ecf`,
/// `earliest`, `bonding`, `redundant`, `raven`, `raven:<percent>`, `lola` or `single:<uplink>`.
///
/// `deadline`: the packet delay that the lane wants. `names_uplinks`: whether uplinks are known
/// here, of which [`Scheduler::name_path`] tells.
///
/// # Errors
/// When there is no such scheduler, or it needs an uplink where none is known; the message lists
/// what there is.
pub fn by_name(
    name: &str,
    deadline: Duration,
    names_uplinks: bool,
) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
    if let Some(wanted) = name.strip_prefix("single:") {
        if !names_uplinks {
            return Err(UnknownScheduler::Uplink(wanted.to_owned()));
        }
        return Ok(Box::new(Single::new(wanted)));
    }
    if let Some(raven) = RavenConfig::by_name(name) {
        return Ok(Box::new(Raven::new(raven)));
    }
    match name {
        "minrtt" => Ok(Box::new(MinRtt::default())),
        "minrtt-sigcomm23" => Ok(Box::new(MinRtt::sigcomm23())),
        "prompt" => Ok(Box::new(MinRtt::prompt())),
        "patient" => Ok(Box::new(Patient)),
        "ecf" => Ok(Box::new(Ecf::default())),
        "earliest" => Ok(Box::new(Earliest)),
        "bonding" => Ok(Box::new(Bonding)),
        "redundant" => Ok(Box::new(Redundant)),
        "lola" => Ok(Box::new(Lola::new(deadline))),
        _ => Err(UnknownScheduler::Name(name.to_owned())),
    }
}

/// The status that data may use now: usable paths where there are any, otherwise suspect ones.
fn best_status(paths: &[PathSnapshot]) -> Option<PathStatus> {
    [PathStatus::Usable, PathStatus::Suspect]
        .into_iter()
        .find(|status| paths.iter().any(|path| path.status == *status))
}

/// Snapshots and packets for tests.
#[cfg(test)]
mod testing {
    use super::*;

    /// A usable path with a round-trip time of `rtt_ms` and a free window of `room` bytes.
    pub(crate) fn path(id: u32, rtt_ms: u64, room: u64) -> PathSnapshot {
        PathSnapshot::idle(PathId(id), Duration::from_millis(rtt_ms), room)
    }

    /// A packet of `bytes` bytes that has just come, alone.
    pub(crate) fn packet(bytes: usize) -> PacketInfo {
        PacketInfo { bytes, backlog_bytes: bytes as u64, flow: 0, waited: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_schedulers_and_errors_name_the_choices() {
        let on_server = |name: &str| by_name(name, Duration::from_millis(100), false);
        let by_name = |name: &str| by_name(name, Duration::from_millis(100), true);
        for name in [
            "minrtt",
            "minrtt-sigcomm23",
            "prompt",
            "patient",
            "ecf",
            "earliest",
            "bonding",
            "redundant",
            "raven",
            "raven:0",
            "lola",
        ] {
            assert!(by_name(name).is_ok(), "{name}");
        }
        assert!(by_name("single:wwan0").is_ok());
        assert_eq!(
            on_server("single:eth9").expect_err("no uplinks are known"),
            UnknownScheduler::Uplink("eth9".into())
        );
        for name in ["fastest", "raven:", "raven:101", "raven:+5", "raven:9x"] {
            let error = by_name(name).expect_err("no such scheduler").to_string();
            assert!(error.contains(name) && error.contains("minrtt"), "{error}");
        }
    }
}
