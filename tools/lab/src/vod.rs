//! Video on demand over streams, in virtual time: XLINK's evaluation (its sections 7.1 and 7.2).
//!
//! ```text
//! Pair of links ─► bitrate at which the better link alone stalls for 1 to 10 % of the time
//!   └─► watch: each link alone, each Way over all ─► Viewing, ServerTraffic ─► Summary: figures,
//!       x one long video, short ones x seeds         intervals, beside the best link alone
//! ```
//!
//! Client, server and streams are the product's; the player is a model (`player`). One link alone
//! carries the same traffic, so that the comparison is about the way. The best link is known only
//! afterwards. Besides streams there is the model of TCP (`crate::tcp`) through the tunnel.
//!
//! Source: XLINK (SIGCOMM 2021) sections 5 and 7.

mod bitrate;
mod player;
mod seen;
pub mod summary;
mod tunnelled;
mod viewer;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use roadweave_emulate::{Drive, DriveLink, Operator};
use roadweave_proto::{Rate, SplitMix64};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::Strategy;

pub use bitrate::{Chosen, STANDS_STILL, choose};
pub use player::ProgramKind;
pub use seen::{ServerTraffic, Viewing};

use crate::strategies;
use crate::world::WorldError;
use player::Program;

/// Simultaneous links of a vehicle.
#[derive(Clone, Debug)]
pub struct Pair {
    pub name: String,
    /// The links, at least one.
    pub links: Vec<DriveLink>,
}

/// How video is carried over all links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// As streams.
    Streams {
        strategy: Strategy,
        /// Whether the first frame precedes all other data (XLINK section 5.1).
        first_frame: bool,
    },
    /// As TCP connections with this congestion control, through the tunnel with its default lanes.
    Tunnel(CongestionControl),
}

/// Settings of all viewings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Duration of each viewing.
    pub lasting: Duration,
    /// Number of viewers of each kind, who start at even distances in the recording.
    pub seeds: u16,
    pub congestion: CongestionControl,
}

/// The links of a viewing, and their use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// The link at this position, alone.
    One(usize),
    /// All links.
    All(Way),
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(at) => write!(f, "link {}", at + 1),
            Self::All(way) => way.fmt(f),
        }
    }
}

impl Pair {
    /// A pair of synthetic links, the same both ways; equal seeds give equal pairs.
    pub fn synthetic(seed: u64) -> Self {
        let operators = [Operator::ATT, Operator::LTE];
        let drive = Drive::synthetic(SplitMix64::word(seed, 0), &operators, SYNTHETIC);
        let symmetric = |link: DriveLink| DriveLink::symmetric(link.name, link.up);
        Self {
            name: format!("synthetic-{seed}"),
            links: drive.links.into_iter().map(symmetric).collect(),
        }
    }

    fn begins(&self, seed: u16, seeds: u16) -> Duration {
        let lengths = self.links.iter().filter_map(|link| link.down.length());
        let length = lengths.min().unwrap_or_default();
        length * u32::from(seed.saturating_sub(1)) / u32::from(seeds.max(1))
    }

    /// Lets viewer `seed`, from 1, watch video of `bitrate`. Fails if the world cannot be created;
    /// panics if `over` names a missing link.
    pub fn view(
        &self,
        over: &Over,
        (kind, bitrate): (ProgramKind, Rate),
        setting: Setting,
        seed: u16,
    ) -> Result<(Viewing, ServerTraffic), WorldError> {
        let (links, way) = match over {
            Over::One(at) => (&self.links[*at..=*at], &Way::plain("minrtt")),
            Over::All(way) => (&self.links[..], way),
        };
        let (lasting, congestion) = (setting.lasting, setting.congestion);
        let program = Program { kind, bitrate, lasting, seed: seed.into() };
        let from = self.begins(seed, setting.seeds);
        match way {
            Way::Streams { strategy, first_frame } => {
                viewer::watch((links, from), (strategy, *first_frame), congestion, program)
            }
            Way::Tunnel(algorithm) => {
                tunnelled::watch((links, from), (*algorithm, congestion), program)
            }
        }
    }
}

impl Way {
    fn plain(name: &str) -> Self {
        let strategy = name.parse().expect("it is one of the strategies");
        Self::Streams { strategy, first_frame: false }
    }

    /// The ways that are measured by default.
    pub fn all() -> Vec<Self> {
        let known = |name: &&str| name.parse().expect("it is one of the ways");
        WAYS.iter().map(known).collect()
    }
}

impl FromStr for Way {
    type Err = String;
    /// A strategy, with suffix [`FIRST_FRAME`] if the first frame precedes all other data; or a
    /// congestion control with prefix [`TUNNEL`].
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if let Some(algorithm) = name.strip_prefix(TUNNEL) {
            return algorithm.parse().map(Self::Tunnel);
        }
        let (strategy, first_frame) =
            name.strip_suffix(FIRST_FRAME).map_or((name, false), |strategy| (strategy, true));
        let strategy = strategies::strategy(strategy).map_err(|error| error.to_string())?;
        Ok(Self::Streams { strategy, first_frame })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Streams { strategy, first_frame: false } => strategy.fmt(f),
            Self::Streams { strategy, first_frame: true } => write!(f, "{strategy}{FIRST_FRAME}"),
            Self::Tunnel(algorithm) => write!(f, "{TUNNEL}{algorithm}"),
        }
    }
}

/// Suffix of a way in which the first frame precedes all other data.
pub const FIRST_FRAME: &str = "+first";
/// Prefix of TCP through the tunnel, before its congestion control.
pub const TUNNEL: &str = "tunnel:";
/// XLINK's figure 10, except for its first setting, which is `minrtt`; and others.
const WAYS: [&str; 12] = [
    "minrtt",
    "xlink:95-80",
    "xlink:95-80+first",
    "xlink:90-80+first",
    "xlink:90-60+first",
    "xlink:60-50+first",
    "xlink:60-1+first",
    "xlink:1-1+first",
    "xnc-patient",
    "redundant",
    "tunnel:cubic",
    "tunnel:bbr",
];
const SYNTHETIC: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests;
