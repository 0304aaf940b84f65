//! Whether the bond is ever worse than its best link alone: two links, in sixteen profiles.
//!
//! ```text
//! Profile ─┬─ each link alone ─┐                    ┌─ transfer ───► goodput
//!          └─ both of them ────┴─ x loads x seeds ──┴─ paced flow ─► p99 of the delay
//!                       both ÷ better one, for each seed ─► median
//! ```
//!
//! Each link alone carries the same tunnel with the same lanes, so that the comparison is about the
//! bond and not the tunnel. The profiles are those of mqvpn, a multipath QUIC VPN, which has
//! published results (docs/experiments/never-worse.md); links have its `tc netem` queue of 1,000
//! packets.

use std::time::Duration;

use roadweave_emulate::{Direction, DriveLink, DuplexLink, Jitter, Timeline, Trace};
use roadweave_proto::Rate;
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{LaneConfig, LaneRule, Strategy, default_lanes};

use crate::run::run;
use crate::scenario::Scenario;
use crate::traffic::{Bulk, Detail, FIRST_PORT, TrafficKind, TrafficSpec};
use crate::video::quality::Percentiles;
use crate::world::WorldError;

/// Two links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// The links, `a` and `b`.
    pub links: [ProfileLink; 2],
}

/// One link, the same both ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfileLink {
    /// One-way delay.
    pub delay_ms: u16,
    /// Standard deviation of the normal delay of each packet; packets may overtake one another.
    pub jitter_ms: u16,
    /// Share of packets lost, independently, per mille.
    pub loss_per_mille: u16,
    /// Capacity.
    pub rate_mbps: u16,
}

/// The links that a tunnel uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The link at this position, alone.
    One(usize),
    /// All links.
    All,
}

/// A load on a tunnel, sent by the vehicle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// A QUIC transfer of this many bytes with `cubic`.
    Transfer(u64),
    /// Packets of [`PACED_BYTES`] bytes at [`PACED_RATE`] for this long.
    Paced(Duration),
}

/// Results of one load over the best link and over all links, medians over the seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Over the link with the best median, Mbit/s or ms.
    pub single: f64,
    /// Over all links together, Mbit/s or ms.
    pub all: f64,
    /// Ratio of all links to the best one, by seed.
    pub ratio: f64,
}

/// The default lane called `name`, which then takes all packets; `None` if it does not exist.
pub fn lane_alone(name: &str) -> Option<Vec<LaneConfig>> {
    let lane = default_lanes().into_iter().find(|lane| lane.name == name)?;
    Some(vec![LaneConfig { rule: LaneRule::default(), ..lane }])
}

impl Profile {
    /// The scenario of `load` over these links with `lanes`.
    pub fn scenario(&self, over: Over, lanes: &[LaneConfig], load: Load, seed: u64) -> Scenario {
        let (links, traffic) = (over.pick(self.world_links(seed).into_iter()), load.traffic());
        Scenario {
            lanes: lanes.to_vec(),
            seconds: traffic.lasting.as_secs().clamp(1, 3_600) as u32,
            traffic: vec![traffic],
            seed,
            ..Scenario::new(self.name, links, Strategy::xnc())
        }
    }

    /// The links of a world, the same both ways; `seed` decides their randomness.
    pub fn world_links(&self, seed: u64) -> Vec<DuplexLink> {
        let links = self.links.iter().enumerate();
        links.map(|(at, link)| link.world_link(at, seed)).collect()
    }
}

impl Over {
    /// Picks the used ones of `links`. Panics if a link is missing.
    pub fn pick(self, links: impl Iterator<Item = DuplexLink>) -> Vec<DuplexLink> {
        let (first, count) = match self {
            Self::One(at) => (at, 1),
            Self::All => (0, usize::MAX),
        };
        let picked: Vec<_> = links.skip(first).take(count).collect();
        assert!(!picked.is_empty(), "there is no link {first}");
        picked
    }
}

impl Load {
    fn traffic(self) -> TrafficSpec {
        let (kind, lasting) = match self {
            Self::Transfer(bytes) => {
                let bulk = Bulk { bytes: Some(bytes), congestion: CongestionControl::Cubic };
                (TrafficKind::Bulk(bulk), TRANSFER_MAX)
            }
            Self::Paced(lasting) => {
                let kind = TrafficKind::Constant { rate: PACED_RATE, packet_bytes: PACED_BYTES };
                (kind, lasting)
            }
        };
        TrafficSpec {
            name: "load".into(),
            direction: Direction::Up,
            port: FIRST_PORT,
            begin: Duration::ZERO,
            lasting,
            kind,
        }
    }

    /// Whether a higher result is better.
    pub fn is_goodput(self) -> bool {
        !matches!(self, Self::Paced(_))
    }
}

/// The result of the only load of `scenario`: goodput in Mbit/s of a transfer, or the p99 delay in
/// ms of a paced flow, where a lost packet counts as 700 ms. Fails if the world cannot be created.
pub fn measure(scenario: &Scenario) -> Result<f64, WorldError> {
    let outcome = run(scenario)?;
    Ok(match &outcome.traffic[0].detail {
        Detail::Bulk(bulk) => bulk.goodput_bps / 1e6,
        Detail::Stream(stream) => {
            let mut delays = stream.delays();
            delays.resize(stream.log.packets.len(), NEVER);
            delays.sort_unstable();
            Percentiles::of_sorted(&delays).p99.min(NEVER.as_secs_f64() * 1e3)
        }
        _ => unreachable!("a load is one of these two"),
    })
}

impl ProfileLink {
    fn world_link(&self, index: usize, seed: u64) -> DuplexLink {
        let millis = |ms: u16| Duration::from_millis(ms.into());
        let rate = Rate::from_kbps(u64::from(self.rate_mbps) * 1_000);
        let loss = Timeline::constant(f64::from(self.loss_per_mille) / 1e3);
        let trace = Trace::constant(rate, millis(self.delay_ms)).with_loss(loss);
        let name = ["a", "b"][index];
        let mut link = DuplexLink::new(&DriveLink::symmetric(name, trace), index as u64, seed);
        for way in [&mut link.up, &mut link.down] {
            way.queue_bytes = QUEUE_BYTES;
            way.jitter = (self.jitter_ms > 0)
                .then(|| Jitter { deviation: millis(self.jitter_ms), reorders: true });
        }
        link
    }
}

impl Compared {
    /// Compares results of [`measure`] for `load` over each link alone and over all, one value per
    /// seed in equal order. Needs at least one link and one seed.
    pub fn new(load: Load, singles: &[&[f64]], all: &[f64]) -> Self {
        let better = |left: &&[f64], right: &&[f64]| match load.is_goodput() {
            true => middle(right).total_cmp(&middle(left)),
            false => middle(left).total_cmp(&middle(right)),
        };
        let best = singles.iter().copied().min_by(better).unwrap_or_default();
        let by = |(all, single): (&f64, &f64)| all / single.max(f64::MIN_POSITIVE);
        let ratios: Vec<f64> = all.iter().zip(best).map(by).collect();
        Self { single: middle(best), all: middle(all), ratio: middle(&ratios) }
    }
}

fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2]
}

const fn link(delay_ms: u16, jitter_ms: u16, loss_per_mille: u16, rate_mbps: u16) -> ProfileLink {
    ProfileLink { delay_ms, jitter_ms, loss_per_mille, rate_mbps }
}

const fn profile(name: &'static str, a: ProfileLink, b: ProfileLink) -> Profile {
    Profile { name, links: [a, b] }
}

/// All profiles.
pub const PROFILES: [Profile; 16] = [
    profile("baseline", EVEN, EVEN),
    profile("rtt_40", EVEN, link(40, 0, 0, 50)),
    profile("rtt_70", EVEN, link(70, 0, 0, 50)),
    profile("rtt_120", EVEN, link(120, 0, 0, 50)),
    profile("rtt_320", EVEN, link(320, 0, 0, 50)),
    profile("jit_5", link(20, 5, 0, 50), link(20, 5, 0, 50)),
    profile("jit_20", link(20, 20, 0, 50), link(20, 20, 0, 50)),
    profile("loss_05", link(20, 0, 5, 50), link(20, 0, 5, 50)),
    profile("loss_2", link(20, 0, 20, 50), link(20, 0, 20, 50)),
    profile("bw_4to1", EVEN, link(20, 0, 0, 12)),
    profile("bw_10to1", link(20, 0, 0, 100), link(20, 0, 0, 10)),
    profile("dual_lte", link(30, 5, 5, 40), link(45, 8, 5, 25)),
    profile("fiber_lte", link(8, 0, 0, 300), link(40, 8, 5, 30)),
    profile("lte_starlink", link(35, 8, 0, 40), link(50, 25, 10, 100)),
    profile("lte_geo", link(35, 0, 0, 40), link(320, 20, 5, 20)),
    profile("congested", link(50, 20, 20, 20), link(60, 25, 20, 15)),
];

const EVEN: ProfileLink = link(20, 0, 0, 50);
/// Rate of a paced flow with headers: a good video call, within the capacity of the slowest link.
pub const PACED_RATE: Rate = Rate::from_kbps(4_000);
/// The size of its packets, with headers.
pub const PACED_BYTES: usize = 1_200;
const NEVER: Duration = Duration::from_millis(700);
const TRANSFER_MAX: Duration = Duration::from_secs(60);
/// The queue of `tc netem`: 1,000 packets.
const QUEUE_BYTES: usize = 1_000 * 1_500;

#[cfg(test)]
mod tests;
