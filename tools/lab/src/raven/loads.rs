//! How many copies RAVEN makes of large TCP loads; here a load is one connection as a stream.
//!
//! ```text
//! Loading ─ request a part ─► connection ─► all of it ─► Loading: the next part
//!                                   └─► Loaded: bytes sent twice
//! ```
//!
//! Source: RAVEN section 5.6.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use roadweave_emulate::DuplexLink;
use roadweave_tunnel::{LaneConfig, Strategy, StreamsConfig};
use serde::Serialize;

use super::{RavenRoute, both_ways};
use crate::video::quality::Percentiles;
use crate::web::{Loading, Visit};
use crate::world::{WorldConfig, WorldError};

roadweave_proto::named! {
    /// A large load.
    LinkLoad {
        /// 50 MB in chunks of 1 MB, one after the other.
        Video = "video",
        /// 50 MB in one piece: a video whose player never empties its queue.
        Unbroken = "unbroken",
    }
}

impl LinkLoad {
    /// Number of parts, loaded one after the other.
    pub const fn parts(self) -> u64 {
        match self {
            Self::Video => 50,
            Self::Unbroken => 1,
        }
    }

    const fn bytes(self) -> u32 {
        50_000_000 / self.parts() as u32
    }
}

impl FromStr for LinkLoad {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|load| load.name() == name);
        named.ok_or_else(|| format!("no load; there are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Results of one load on one route.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loaded {
    pub route: String,
    pub load: &'static str,
    pub strategy: String,
    /// Parts that arrived completely.
    pub whole: u64,
    pub parts: u64,
    /// Time from the request of a part to its last byte.
    pub took_ms: Percentiles,
    /// Share of the bytes to the vehicle that were sent again.
    pub copies_down: f64,
    /// Share of the bytes from the vehicle that were sent again.
    pub copies_up: f64,
    /// Share of the bytes of both directions that were sent again.
    pub copies: f64,
}

/// Loads `load` on `route`; fails if the world cannot be created.
pub fn load(
    route: RavenRoute<'_>,
    load: LinkLoad,
    strategy: &Strategy,
    learned: &str,
    seed: u64,
) -> Result<Loaded, WorldError> {
    let links: Vec<DuplexLink> = route.links(seed);
    let lane = LaneConfig { strategy: strategy.clone(), ..StreamsConfig::default().lane };
    let packets = vec![LaneConfig::new("default", Strategy::xnc())];
    let mut visit = Visit::in_use(WorldConfig {
        streams: Some(StreamsConfig { lane, ..StreamsConfig::default() }),
        learned: BTreeMap::from([(StreamsConfig::LANE.to_owned(), learned.to_owned())]),
        ..WorldConfig::plain(links.clone(), packets, seed)
    })?;
    visit.world.restart_links(links);
    let before = both_ways(&visit.world);
    let mut loading = Loading::new(load.bytes(), load.parts() as usize);
    let end = visit.world.now() + LOAD_MAX;
    visit.run(&mut loading, end);
    let after = both_ways(&visit.world);
    let [up, down] = [0, 1].map(|way| {
        let (source, further): (u64, u64) = after[way];
        (source.saturating_sub(before[way].0), further.saturating_sub(before[way].1))
    });
    let share = |(source, further): (u64, u64)| further as f64 / (source + further).max(1) as f64;
    let mut took = loading.took;
    took.sort_unstable();
    Ok(Loaded {
        route: route.name.to_owned(),
        load: load.name(),
        strategy: strategy.to_string(),
        whole: took.len() as u64,
        parts: load.parts(),
        took_ms: Percentiles::of_sorted(&took),
        copies_down: share(down),
        copies_up: share(up),
        copies: share((up.0 + down.0, up.1 + down.1)),
    })
}

const LOAD_MAX: Duration = Duration::from_secs(600);
