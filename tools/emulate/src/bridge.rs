//! Any number of links, both directions each: the emulator without its devices.
//!
//! ```text
//! near end (vehicle) ── handle_packet ─> [link 0 up  ] ── poll ─> far end
//!                    <─ poll ─────────── [link 0 down] <─ handle_packet ──
//!                                        [link 1 up  ] ...
//! ```
//!
//! A packet that enters one end of a link leaves the other end unchanged and late, or is lost.

use roadweave_proto::{DropReason, Instant};
use serde::{Deserialize, Serialize};

use crate::link::{Link, LinkSettings, LinkStats};

/// The direction of a packet.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the vehicle, the near end, to the far end.
    #[default]
    Up,
    /// From the far end to the vehicle.
    Down,
}

impl Direction {
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// One direction of one link of a [`Bridge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkDirection {
    /// The link, from 0 in the order of [`Bridge::new`].
    pub link: usize,
    pub direction: Direction,
}

/// Links between two ends.
#[derive(Debug)]
pub struct Bridge<P> {
    /// Up and down, as in [`Direction`].
    links: Vec<[Link<P>; 2]>,
}

impl<P: AsRef<[u8]>> Bridge<P> {
    /// A bridge of links, each by its settings for up and down.
    pub fn new(links: impl IntoIterator<Item = (LinkSettings, LinkSettings)>) -> Self {
        let both = |(up, down)| [Link::new(up), Link::new(down)];
        Self { links: links.into_iter().map(both).collect() }
    }

    /// Takes in a packet along `way`. `now` must not descend.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        way: LinkDirection,
        packet: P,
    ) -> Result<(), DropReason> {
        self.links[way.link][way.direction as usize].push(now, packet.as_ref().len(), packet)
    }

    /// The next packet that has arrived by `now`, and its way: ways in turn, each in order.
    pub fn poll(&mut self, now: Instant) -> Option<(LinkDirection, P)> {
        self.links.iter_mut().enumerate().find_map(|(link, ways)| {
            let mut ways = ways.iter_mut().zip([Direction::Up, Direction::Down]);
            ways.find_map(|(way, direction)| {
                Some((LinkDirection { link, direction }, way.poll(now)?))
            })
        })
    }

    /// When the next packet arrives; `None` without a packet.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.links.iter().flatten().filter_map(Link::poll_timeout).min()
    }

    /// Restarts all traces and random draws at `now`; packets in flight arrive unchanged.
    pub fn restart(&mut self, now: Instant) {
        self.links.iter_mut().flatten().for_each(|way| way.restart(now));
    }

    pub fn stats(&self, way: LinkDirection) -> &LinkStats {
        self.links[way.link][way.direction as usize].stats()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use roadweave_proto::Rate;

    use super::*;
    use crate::loss::GilbertElliott;
    use crate::trace::Trace;

    const UP: LinkDirection = LinkDirection { link: 1, direction: Direction::Up };
    const DOWN: LinkDirection = LinkDirection { link: 1, direction: Direction::Down };

    fn bridge() -> Bridge<Vec<u8>> {
        let settings = |delay_ms| {
            let delay = Duration::from_millis(delay_ms);
            LinkSettings::new(Trace::constant(Rate::from_kbps(8_000), delay), 1)
        };
        Bridge::new([(settings(10), settings(20)), (settings(30), settings(40))])
    }

    #[test]
    fn packets_leave_at_the_other_end_of_their_link() {
        let mut bridge = bridge();
        bridge.handle_packet(Instant::ZERO, DOWN, vec![1; 1_000]).unwrap();
        bridge.handle_packet(Instant::ZERO, UP, vec![2; 1_000]).unwrap();
        let at = Instant::from_millis(31);
        assert_eq!(bridge.poll_timeout(), Some(at));
        assert_eq!(bridge.poll(at), Some((UP, vec![2; 1_000])));
        assert_eq!(bridge.poll(at), None);
        let at = Instant::from_millis(41);
        assert_eq!(bridge.poll_timeout(), Some(at));
        assert_eq!(bridge.poll(at), Some((DOWN, vec![1; 1_000])));
        assert_eq!(bridge.poll_timeout(), None);
        assert_eq!(bridge.stats(DOWN).delivered_bytes, 1_000);
    }

    #[test]
    fn a_restart_brings_the_same_losses_again() {
        let trace = Trace::constant(Rate::from_kbps(8_000), Duration::ZERO);
        let mut settings = LinkSettings::new(trace, 5);
        settings.burst_loss = Some(GilbertElliott::independent(0.3));
        let mut bridge = Bridge::new([(settings.clone(), settings)]);
        let mut pass = |start: u64| {
            let now = Instant::from_millis(start);
            bridge.restart(now);
            let way = LinkDirection { link: 0, direction: Direction::Up };
            let packets = (0..50_u8).map(|index| {
                let now = now + Duration::from_millis(2) * u32::from(index);
                bridge.handle_packet(now, way, vec![index; 1_000]).unwrap();
                bridge.poll(now + Duration::from_millis(1)).is_some()
            });
            packets.collect::<Vec<bool>>()
        };
        let first = pass(0);
        assert!(first.contains(&true) && first.contains(&false));
        assert_eq!(first, pass(12_345));
    }
}
