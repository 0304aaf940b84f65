//! Chooses the paths for each packet.
//!
//! ```text
//! packet, snapshot of the paths ─► Scheduler::select ─► Send(paths) | Wait
//! ```
//!
//! A scheduler sees snapshots and returns a decision; it does no I/O, reads no clock, and knows
//! neither QUIC nor recovery nor coding. [`by_name`] maps the names of configuration files to them.

mod minrtt;
mod path_set;
mod single;

use roadweave_types::{Instant, PathSnapshot, UplinkId};

pub use minrtt::MinRtt;
pub use path_set::PathSet;
pub use single::Single;

/// What a scheduler may know of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// The length of the datagram that carries it, bytes.
    pub bytes: usize,
    /// The bytes that wait to be sent, those of the packet included.
    pub backlog_bytes: u64,
}

/// What to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send it once on each of these paths; the set is not empty.
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
}

/// A scheduler's name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownScheduler {
    /// No algorithm has this name.
    #[error("unknown scheduler \"{0}\"; known are: minrtt, single:<uplink>")]
    Name(String),
    /// `single:` names an uplink that is not configured.
    #[error("scheduler \"single:{0}\" names an uplink that is not known here")]
    Uplink(String),
}

/// The scheduler called `name`: `minrtt` or `single:<uplink>`.
///
/// `uplink` finds an uplink by the name that the user gave it.
///
/// # Errors
/// When there is no such scheduler or uplink; the message lists what there is.
pub fn by_name(
    name: &str,
    uplink: impl Fn(&str) -> Option<UplinkId>,
) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
    if let Some(wanted) = name.strip_prefix("single:") {
        let found = uplink(wanted).ok_or_else(|| UnknownScheduler::Uplink(wanted.to_owned()))?;
        return Ok(Box::new(Single::new(found)));
    }
    match name {
        "minrtt" => Ok(Box::new(MinRtt)),
        _ => Err(UnknownScheduler::Name(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_schedulers_and_errors_name_the_choices() {
        let uplink = |name: &str| (name == "wwan0").then_some(UplinkId(4));
        assert!(by_name("minrtt", uplink).is_ok());
        assert!(by_name("single:wwan0", uplink).is_ok());
        assert_eq!(
            by_name("single:eth9", uplink).expect_err("no such uplink"),
            UnknownScheduler::Uplink("eth9".into())
        );
        let error = by_name("fastest", uplink).expect_err("no such scheduler").to_string();
        assert!(error.contains("fastest") && error.contains("minrtt"), "{error}");
    }
}
