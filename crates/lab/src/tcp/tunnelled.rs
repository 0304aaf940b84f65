//! A transfer through the tunnel, over any links.
//!
//! ```text
//! Exchange ─► IP packets ─► World: client ═ links ═ server ─► IP packets ─► Exchange
//! ```
//!
//! Over one link it shows what the tunnel costs, beside [`fetch`](super::fetch::fetch) over the
//! same link; over several, what it is worth to TCP.

use std::time::Duration;

use roadweave_emulate::{Direction, DuplexLink};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{LaneConfig, default_lanes};
use roadweave_types::earliest;

use super::congestion::Algorithm;
use super::exchange::Exchange;
use super::fetch::Fetched;
use super::socket::SocketConfig;
use crate::world::{MTU, World, WorldConfig, WorldError};

/// A tunnel, and the TCP that goes through it.
#[derive(Clone, Debug)]
pub struct Tunnelled {
    /// The links.
    pub links: Vec<DuplexLink>,
    /// The lanes both ways.
    pub lanes: Vec<LaneConfig>,
    /// The congestion control of every path.
    pub congestion: CongestionControl,
    /// The congestion control of TCP.
    pub algorithm: Algorithm,
    /// Whether the session has carried a transfer before.
    pub is_warm: bool,
    /// Decides all that is random beside the links.
    pub seed: u64,
}

impl Tunnelled {
    /// A tunnel as the product is by default, whose session has carried nothing.
    pub fn new(links: Vec<DuplexLink>, algorithm: Algorithm, seed: u64) -> Self {
        let congestion = CongestionControl::default();
        Self { links, lanes: default_lanes(), congestion, algorithm, is_warm: false, seed }
    }

    /// Transfers `bytes`, or as many as go through, in at most `time`.
    ///
    /// # Errors
    /// [`WorldError`] when the links make no world.
    pub fn fetch(
        &self,
        (direction, bytes): (Direction, Option<u64>),
        time: Duration,
    ) -> Result<Fetched, WorldError> {
        let mut world = World::joined(WorldConfig {
            congestion: self.congestion,
            ..WorldConfig::plain(self.links.clone(), self.lanes.clone(), self.seed)
        })?;
        let exchange = |port, bytes| {
            let config = SocketConfig { algorithm: self.algorithm, mtu: MTU, seed: self.seed };
            Exchange::new(&config, direction, port, bytes)
        };
        if self.is_warm {
            carry(&mut world, &mut exchange(WARM_PORT, Some(WARM)), WARM_TIME);
            world.run_until(world.now() + WARM_TIME);
        }
        world.run_until(world.now() + REST);
        world.restart_links(self.links.clone());
        let mut exchange = exchange(PORT, bytes);
        let begun = world.now();
        carry(&mut world, &mut exchange, time);
        Ok(Fetched {
            took: exchange.completed().unwrap_or(begun + time).since(begun),
            bytes: exchange.received(),
            is_whole: exchange.completed().is_some(),
            stats: exchange.stats(),
        })
    }
}

/// Lets a transfer go on until all is there, or the time is over.
fn carry(world: &mut World, exchange: &mut Exchange, time: Duration) {
    let end = world.now() + time;
    // Others of the same tunnel are over.
    while world.poll_arrival().is_some() {}
    exchange.begin(world.now());
    while exchange.completed().is_none() {
        let now = world.now();
        while let Some((direction, packet)) = exchange.poll_transmit(now) {
            world.handle_inner(direction, &packet);
        }
        world.flush();
        let due = earliest([world.poll_timeout(), exchange.poll_timeout()]);
        let Some(due) = due.filter(|due| *due < end) else { break };
        world.handle_timeout(due.max(now));
        while let Some(arrival) = world.poll_arrival() {
            exchange.handle_packet(arrival.at, arrival.direction, &arrival.packet);
        }
    }
}

const PORT: u16 = 5_000;
const WARM_PORT: u16 = 5_001;
/// Nothing is carried for so long before a transfer.
pub(crate) const REST: Duration = Duration::from_millis(500);
/// The transfer that makes a session warm, bytes, and for how long at most; and how long what it
/// left on its way has to come.
pub(crate) const WARM: u64 = 8 << 20;
pub(crate) const WARM_TIME: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use roadweave_emulate::{DriveLink, Trace};
    use roadweave_types::Rate;

    use super::super::fetch::fetch;
    use super::*;

    fn link(name: &str, mbps: u64, round_trip_ms: u64, seed: u64) -> DuplexLink {
        let delay = Duration::from_millis(round_trip_ms / 2);
        let trace = Trace::constant(Rate::from_kbps(mbps * 1_000), delay);
        DuplexLink::new(&DriveLink::symmetric(name, trace), seed, 1)
    }

    const DOWN: (Direction, Option<u64>) = (Direction::Down, None);
    const TEN: Duration = Duration::from_secs(10);

    #[test]
    fn over_one_link_the_tunnel_costs_little_more_than_its_headers() {
        for algorithm in Algorithm::ALL {
            let one = link("a", 20, 40, 0);
            let config = SocketConfig { algorithm, mtu: 1_500, seed: 1 };
            let direct = fetch(&one, &config, DOWN, TEN).goodput_mbps();
            let tunnelled = Tunnelled::new(vec![one], algorithm, 1).fetch(DOWN, TEN).unwrap();
            let share = tunnelled.goodput_mbps() / direct;
            // 1,308 of about 1,450 bytes are data, by 1,448 of 1,500.
            assert!(
                (0.85..0.97).contains(&share),
                "{algorithm} {share} of {direct}: {tunnelled:?}"
            );
        }
    }

    #[test]
    fn two_links_carry_more_than_the_better_one() {
        let links = vec![link("a", 20, 40, 0), link("b", 15, 60, 1)];
        for algorithm in Algorithm::ALL {
            let tunnel = Tunnelled { is_warm: true, ..Tunnelled::new(links.clone(), algorithm, 1) };
            let both = tunnel.fetch(DOWN, TEN).unwrap().goodput_mbps();
            assert!(both > 22.0, "{algorithm} {both}");
        }
    }

    #[test]
    fn a_request_comes_whole_in_either_direction() {
        let links = vec![link("a", 20, 40, 0)];
        for direction in [Direction::Up, Direction::Down] {
            let tunnel = Tunnelled::new(links.clone(), Algorithm::Cubic, 1);
            let fetched = tunnel.fetch((direction, Some(200_000)), TEN).unwrap();
            assert!(fetched.is_whole && fetched.bytes == 200_000, "{fetched:?}");
            assert!(fetched.took < Duration::from_millis(600), "{fetched:?}");
        }
    }
}
