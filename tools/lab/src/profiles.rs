//! Pairs of links: those of mqvpn, a multipath QUIC VPN, which has published results
//! (tools/experiments/never-worse.md); links have its `tc netem` queue of 1,000 packets.

use std::time::Duration;

use roadweave_emulate::{DriveLink, DuplexLink, Jitter, Timeline, Trace};
use roadweave_proto::Rate;

/// Two links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    pub name: &'static str,
    /// The links, `a` and `b`.
    pub links: [ProfileLink; 2],
}

/// One link, the same both ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfileLink {
    pub delay_ms: u16,
    /// Standard deviation of the normal delay of each packet; packets may overtake one another.
    pub jitter_ms: u16,
    /// Share of packets lost, independently, per mille.
    pub loss_per_mille: u16,
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

impl Profile {
    /// The links that are used, the same both ways; `seed` decides their randomness.
    pub fn world_links(&self, over: Over, seed: u64) -> Vec<DuplexLink> {
        let links = self.links.iter().enumerate();
        let used = links.filter(|(at, _)| [Over::All, Over::One(*at)].contains(&over));
        used.map(|(at, link)| link.world_link(at, seed)).collect()
    }
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

const fn link(delay_ms: u16, jitter_ms: u16, loss_per_mille: u16, rate_mbps: u16) -> ProfileLink {
    ProfileLink { delay_ms, jitter_ms, loss_per_mille, rate_mbps }
}

const fn profile(name: &'static str, a: ProfileLink, b: ProfileLink) -> Profile {
    Profile { name, links: [a, b] }
}

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
/// The queue of `tc netem`: 1,000 packets.
const QUEUE_BYTES: usize = 1_000 * 1_500;
