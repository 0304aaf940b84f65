//! Two links, sixteen ways: is the bond ever worse than the better of its links alone?
//!
//! ```text
//! Profile ─┬─ link A alone ─┐                    ┌─ transfer of 20 MiB ─► goodput
//!          ├─ link B alone ─┼─ x loads x seeds ──┤
//!          └─ both ─────────┘                    └─ paced flow ─────────► p99 of the delay
//!                     both ÷ better one, seed by seed ─► Ratio: median and range
//! ```
//!
//! On each link alone runs the same tunnel with the same lanes, so that what is compared is the bond and not
//! the tunnel. The profiles are those that mqvpn, a multipath QUIC VPN, publishes results of; its transfers
//! were HTTP/3 downloads of the same size in its tunnel, and its links `tc netem`, whose queue of 1,000 packets
//! the links here have as well.

use std::time::Duration;

use roadweave_emulate::{Direction, DriveLink, Jitter, Timeline, Trace};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{LaneConfig, LaneRule, Strategy, default_lanes};
use roadweave_types::Rate;
use serde::Serialize;

use crate::run::run;
use crate::scenario::Scenario;
use crate::traffic::{Bulk, Detail, FIRST_PORT, TrafficKind, TrafficSpec};
use crate::video::quality::Percentiles;
use crate::world::{WorldError, WorldLink};

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
    /// The first alone.
    A,
    /// The second alone.
    B,
    /// Both.
    Both,
}

/// What rides on a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// A QUIC transfer with `cubic` of so many bytes.
    Transfer(u64),
    /// Packets of [`PACED_BYTES`] bytes at [`PACED_RATE`], for so long.
    Paced(Duration),
}

/// What came of one load over the better link and over both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The better link alone, by its median: `a` or `b`.
    pub better: &'static str,
    /// Median over the seeds on link `a`, Mbit/s or ms.
    pub a: f64,
    /// The same on link `b`.
    pub b: f64,
    /// The same over both.
    pub both: f64,
    /// Both by the better one.
    pub ratio: Ratio,
}

/// Both links by the better one alone, seed by seed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The least.
    pub min: f64,
    /// The middle one.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

/// The lanes of a product without configuration, reduced to the one called `name`, which takes all packets;
/// `None` if there is none of that name.
pub fn lane_alone(name: &str) -> Option<Vec<LaneConfig>> {
    let lane = default_lanes().into_iter().find(|lane| lane.name == name)?;
    Some(vec![LaneConfig { rule: LaneRule::default(), ..lane }])
}

impl Profile {
    /// The scenario of `load` over these links with `lanes`.
    pub fn scenario(&self, over: Over, lanes: &[LaneConfig], load: Load, seed: u64) -> Scenario {
        let names = match over {
            Over::A => 0..1,
            Over::B => 1..2,
            Over::Both => 0..2,
        };
        let links = names.map(|index| self.links[index].world_link(index, seed)).collect();
        let (kind, lasting) = match load {
            Load::Transfer(bytes) => {
                let bulk = Bulk { bytes: Some(bytes), congestion: CongestionControl::Cubic };
                (TrafficKind::Bulk(bulk), TRANSFER_MAX)
            }
            Load::Paced(lasting) => {
                let kind = TrafficKind::Constant { rate: PACED_RATE, packet_bytes: PACED_BYTES };
                (kind, lasting)
            }
        };
        let traffic = TrafficSpec {
            name: "load".into(),
            direction: Direction::Up,
            port: FIRST_PORT,
            begin: Duration::ZERO,
            lasting,
            kind,
        };
        Scenario {
            lanes: lanes.to_vec(),
            traffic: vec![traffic],
            seconds: lasting.as_secs().clamp(1, 3_600) as u32,
            seed,
            ..Scenario::new(self.name, links, Strategy::xnc())
        }
    }

    /// What one run gives: goodput in Mbit/s of a transfer, or the p99 of the delay in ms of a paced flow, in
    /// which a packet that never arrives counts as 700 ms.
    ///
    /// # Errors
    /// [`WorldError`] when `lanes` make no world.
    pub fn measure(
        &self,
        over: Over,
        lanes: &[LaneConfig],
        load: Load,
        seed: u64,
    ) -> Result<f64, WorldError> {
        let outcome = run(&self.scenario(over, lanes, load, seed))?;
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
}

impl ProfileLink {
    fn world_link(&self, index: usize, seed: u64) -> WorldLink {
        let millis = |ms: u16| Duration::from_millis(ms.into());
        let rate = Rate::from_kbps(u64::from(self.rate_mbps) * 1_000);
        let loss = Timeline::constant(f64::from(self.loss_per_mille) / 1e3);
        let trace = Trace::constant(rate, millis(self.delay_ms)).with_loss(loss);
        let name = ["a", "b"][index];
        let mut link = WorldLink::new(&DriveLink::symmetric(name, trace), index as u64, seed);
        for way in [&mut link.up, &mut link.down] {
            way.queue_bytes = QUEUE_BYTES;
            way.jitter = (self.jitter_ms > 0)
                .then(|| Jitter { deviation: millis(self.jitter_ms), reorders: true });
        }
        link
    }
}

impl Load {
    /// Compares what [`Profile::measure`] gave over `a`, `b` and both, one value per seed in equal order, at
    /// least one.
    pub fn compare(self, a: &[f64], b: &[f64], both: &[f64]) -> Compared {
        let (of_a, of_b) = (middle(a), middle(b));
        let a_is_better = match self {
            Self::Transfer(_) => of_a >= of_b,
            Self::Paced(_) => of_a <= of_b,
        };
        let (better, single) = if a_is_better { ("a", a) } else { ("b", b) };
        let by = |(both, single): (&f64, &f64)| both / single.max(f64::MIN_POSITIVE);
        let ratios: Vec<f64> = both.iter().zip(single).map(by).collect();
        let ratio = Ratio {
            min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            median: middle(&ratios),
            max: ratios.iter().copied().fold(0.0, f64::max),
        };
        Compared { better, a: of_a, b: of_b, both: middle(both), ratio }
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
/// The rate of a paced flow, with headers: a video call in good quality, which the slowest link of all carries.
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
