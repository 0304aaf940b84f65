//! Is the bond ever worse than the best of its links alone? Two links, sixteen ways, and recorded
//! drives.
//!
//! ```text
//! Profile ─┬─ each link alone ─┐                    ┌─ transfer ───► goodput
//!   Drive ─┘                   ├─ x loads x seeds ──┤
//!          └─ all of them ─────┘                    └─ paced flow ─► p99 of the delay
//!                       all ÷ best one, seed by seed ─► Ratio: median and range
//! ```
//!
//! On each link alone runs the same tunnel with the same lanes, so that what is compared is the
//! bond and not the tunnel. The profiles are those that mqvpn, a multipath QUIC VPN, publishes
//! results of; its transfers were HTTP/3 downloads of the same size in its tunnel, and its links
//! `tc netem`, whose queue of 1,000 packets the links here have as well.

use std::time::Duration;

use roadweave_emulate::{Direction, Drive, DriveLink, DuplexLink, Jitter, Timeline, Trace};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{LaneConfig, LaneRule, Strategy, default_lanes};
use roadweave_types::Rate;
use serde::Serialize;

use crate::run::run;
use crate::scenario::Scenario;
use crate::traffic::{Bulk, Detail, FIRST_PORT, TrafficKind, TrafficSpec};
use crate::video::quality::Percentiles;
use crate::world::WorldError;

/// Two links, and what the rival makes of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// What it is called.
    pub name: &'static str,
    /// The links, `a` and `b`.
    pub links: [ProfileLink; 2],
    /// The rival's goodput over its better link alone, Mbit/s.
    pub rival_single_mbps: f64,
    /// The rival's goodput over both, with the best of its settings in hindsight, Mbit/s.
    pub rival_bond_mbps: f64,
}

/// One link, the same both ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfileLink {
    /// One-way delay.
    pub delay_ms: u16,
    /// Its standard deviation, normal, packet by packet: packets overtake one another.
    pub jitter_ms: u16,
    /// Share of packets lost, each for itself, per mille.
    pub loss_per_mille: u16,
    /// Capacity.
    pub rate_mbps: u16,
}

/// Which links a tunnel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The one at this position, alone.
    One(usize),
    /// All links.
    All,
}

/// What rides on a tunnel, from the vehicle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// A QUIC transfer with `cubic` of so many bytes.
    Transfer(u64),
    /// A QUIC transfer with `cubic` that goes on for so long.
    Endless(Duration),
    /// Packets of [`PACED_BYTES`] bytes at [`PACED_RATE`], for so long.
    Paced(Duration),
}

/// What came of one load over the best link and over all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The position of the link that is best alone, by its median.
    pub best: usize,
    /// Median over the seeds on each link alone, Mbit/s or ms.
    pub singles: Vec<f64>,
    /// Median over the seeds over all links together, Mbit/s or ms.
    pub all: f64,
    /// All links by the best one.
    pub ratio: Ratio,
}

/// All links by the best one alone, seed by seed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The least.
    pub min: f64,
    /// The middle one.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

/// The lanes of a product without configuration, reduced to the one called `name`, which takes all
/// packets; `None` if there is none of that name.
pub fn lane_alone(name: &str) -> Option<Vec<LaneConfig>> {
    let lane = default_lanes().into_iter().find(|lane| lane.name == name)?;
    Some(vec![LaneConfig { rule: LaneRule::default(), ..lane }])
}

impl Profile {
    /// The scenario of `load` over these links with `lanes`.
    pub fn scenario(&self, over: Over, lanes: &[LaneConfig], load: Load, seed: u64) -> Scenario {
        scenario(self.name, over.pick(self.world_links(seed).into_iter()), lanes, load, seed)
    }

    /// Whether no packet is lost at random, and none overtakes another within a link.
    pub fn is_clean(&self) -> bool {
        self.links.iter().all(|link| link.loss_per_mille == 0 && link.jitter_ms == 0)
    }

    /// The links of a world, the same both ways; `seed` decides what is random in them.
    pub fn world_links(&self, seed: u64) -> Vec<DuplexLink> {
        let links = self.links.iter().enumerate();
        links.map(|(at, link)| link.world_link(at, seed)).collect()
    }
}

/// The scenario of `load` over the links of `drive`, called `name`, with `lanes`.
///
/// # Panics
/// If `over` names a link that it does not have.
pub fn scenario_of_drive(
    (name, drive): (&str, &Drive),
    over: Over,
    lanes: &[LaneConfig],
    load: Load,
    seed: u64,
) -> Scenario {
    let links = drive.links.iter().zip(0..).map(|(link, at)| DuplexLink::new(link, at, seed));
    scenario(name, over.pick(links), lanes, load, seed)
}

fn scenario(
    name: &str,
    links: Vec<DuplexLink>,
    lanes: &[LaneConfig],
    load: Load,
    seed: u64,
) -> Scenario {
    let traffic = load.traffic();
    Scenario {
        lanes: lanes.to_vec(),
        seconds: traffic.lasting.as_secs().clamp(1, 3_600) as u32,
        traffic: vec![traffic],
        seed,
        ..Scenario::new(name, links, Strategy::xnc())
    }
}

impl Over {
    /// These of `links`.
    ///
    /// # Panics
    /// If it names a link that is not there.
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
        let bulk = |bytes| TrafficKind::Bulk(Bulk { bytes, congestion: CongestionControl::Cubic });
        let (kind, lasting) = match self {
            Self::Transfer(bytes) => (bulk(Some(bytes)), TRANSFER_MAX),
            Self::Endless(lasting) => (bulk(None), lasting),
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

    /// Whether more is better.
    pub fn is_goodput(self) -> bool {
        !matches!(self, Self::Paced(_))
    }
}

/// What the only load of `scenario` gets: goodput in Mbit/s of a transfer, or the p99 of the delay
/// in ms of a paced flow, in which a packet that never arrives counts as 700 ms.
///
/// # Errors
/// [`WorldError`] when its lanes make no world.
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
    /// Compares what [`measure`] gave of `load` over each link alone and over all of them, one
    /// value per seed in equal order; at least one link and one seed.
    pub fn new(load: Load, singles: &[&[f64]], all: &[f64]) -> Self {
        let medians: Vec<f64> = singles.iter().map(|single| middle(single)).collect();
        let better = |left: &f64, right: &f64| match load.is_goodput() {
            true => right.total_cmp(left),
            false => left.total_cmp(right),
        };
        let order = |left: &(usize, &f64), right: &(usize, &f64)| better(left.1, right.1);
        let best = medians.iter().enumerate().min_by(order).map_or(0, |(at, _)| at);
        let by = |(all, single): (&f64, &f64)| all / single.max(f64::MIN_POSITIVE);
        let ratios: Vec<f64> = all.iter().zip(singles[best]).map(by).collect();
        let ratio = Ratio {
            min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            median: middle(&ratios),
            max: ratios.iter().copied().fold(0.0, f64::max),
        };
        Self { best, singles: medians, all: middle(all), ratio }
    }

    /// What the best link alone gave.
    pub fn single(&self) -> f64 {
        self.singles[self.best]
    }
}

/// The middle one of `values`, of an even number the lower one.
fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2]
}

const fn link(delay_ms: u16, jitter_ms: u16, loss_per_mille: u16, rate_mbps: u16) -> ProfileLink {
    ProfileLink { delay_ms, jitter_ms, loss_per_mille, rate_mbps }
}

const fn profile(
    name: &'static str,
    a: ProfileLink,
    b: ProfileLink,
    [rival_single_mbps, rival_bond_mbps]: [f64; 2],
) -> Profile {
    Profile { name, links: [a, b], rival_single_mbps, rival_bond_mbps }
}

/// All profiles.
pub const PROFILES: [Profile; 16] = [
    profile("baseline", EVEN, EVEN, [40.6, 73.9]),
    profile("rtt_40", EVEN, link(40, 0, 0, 50), [40.5, 49.0]),
    profile("rtt_70", EVEN, link(70, 0, 0, 50), [40.6, 40.2]),
    profile("rtt_120", EVEN, link(120, 0, 0, 50), [40.7, 40.6]),
    profile("rtt_320", EVEN, link(320, 0, 0, 50), [40.3, 40.1]),
    profile("jit_5", link(20, 5, 0, 50), link(20, 5, 0, 50), [38.8, 61.4]),
    profile("jit_20", link(20, 20, 0, 50), link(20, 20, 0, 50), [17.4, 37.6]),
    profile("loss_05", link(20, 0, 5, 50), link(20, 0, 5, 50), [32.2, 70.7]),
    profile("loss_2", link(20, 0, 20, 50), link(20, 0, 20, 50), [16.3, 29.0]),
    profile("bw_4to1", EVEN, link(20, 0, 0, 12), [40.6, 39.9]),
    profile("bw_10to1", link(20, 0, 0, 100), link(20, 0, 0, 10), [74.2, 70.1]),
    profile("dual_lte", link(30, 5, 5, 40), link(45, 8, 5, 25), [29.6, 29.6]),
    profile("fiber_lte", link(8, 0, 0, 300), link(40, 8, 5, 30), [212.4, 212.3]),
    profile("lte_starlink", link(35, 8, 0, 40), link(50, 25, 10, 100), [29.6, 27.2]),
    profile("lte_geo", link(35, 0, 0, 40), link(320, 20, 5, 20), [31.7, 31.5]),
    profile("congested", link(50, 20, 20, 20), link(60, 25, 20, 15), [6.4, 6.4]),
];

/// The link that most profiles begin with.
const EVEN: ProfileLink = link(20, 0, 0, 50);
/// The rate of a paced flow, with headers: a video call in good quality, which the slowest link of
/// all carries.
pub const PACED_RATE: Rate = Rate::from_kbps(4_000);
/// The size of its packets, with headers.
pub const PACED_BYTES: usize = 1_200;
/// What a packet counts as that never arrives, as everywhere in the lab.
const NEVER: Duration = Duration::from_millis(700);
/// A transfer that takes longer is cut off.
const TRANSFER_MAX: Duration = Duration::from_secs(60);
/// The queue of `tc netem`: 1,000 packets.
const QUEUE_BYTES: usize = 1_000 * 1_500;

#[cfg(test)]
mod tests;
