//! A lane with `even`: two unequal links look like one with a constant delay, under every strategy.

use std::time::Duration;

use crate::world::{Plan, link, ms, packet_up};
use roadweave_lab::strategies;
use roadweave_proto::{Instant, Order};
use roadweave_tunnel::{LaneConfig, OrderStats};

const PACKETS: u16 = 4_000;
const EVERY_MS: u64 = 3;
/// Packets sent until the delay is known.
const LEAD: u16 = 1_000;

/// A stream over two links, neither with enough capacity alone.
struct Played {
    /// µs, in the order of sending; `None` for a lost packet.
    delays: Vec<Option<u64>>,
    order: OrderStats,
}

fn play(strategy: &str, order: Order) -> Played {
    let strategy = strategies::strategy(strategy).expect("known");
    let lanes = vec![LaneConfig { order, ..LaneConfig::new("default", strategy) }];
    let links = vec![link(3, 15), link(5, 45)];
    let mut world = Plan::new("xnc", links).build_with(lanes.clone(), lanes).join();
    let mut sent = Vec::new();
    for number in 0..PACKETS {
        sent.push(world.now);
        world.send_up(&packet_up(number.into(), 1_200));
        world.run(ms(EVERY_MS));
        if number % 1_000 == 900 {
            // The faster link loses its queue, which is repaired later.
            world.set_dead(0, true);
            world.set_dead(0, false);
        }
    }
    world.run(ms(1_500));
    let mut delays = vec![None; usize::from(PACKETS)];
    for arrival in &world.up {
        let number = crate::world::number(&arrival.packet) as usize;
        let after = |at: Instant| at.since(sent[number]).as_micros() as u64;
        delays[number].get_or_insert(after(arrival.at));
    }
    let order = world.inner.server_status()[0].stats.lanes[0].received.order.clone();
    Played { delays, order }
}

impl Played {
    /// Delay differences of consecutive packets, µs.
    fn variation(&self, per_mille: usize) -> u64 {
        let pairs = self.delays[usize::from(LEAD)..].windows(2);
        let differences = pairs.filter_map(|pair| Some(pair[0]?.abs_diff(pair[1]?)));
        let mut differences: Vec<u64> = differences.collect();
        differences.sort_unstable();
        differences[differences.len() * per_mille / 1_000]
    }
}

const EVEN: Order = Order::Even { max_buffer: Duration::from_millis(300) };

#[test]
fn every_strategy_can_be_delivered_evenly() {
    for strategy in strategies::plain_names() {
        let even = play(strategy, EVEN);
        assert!(even.order.order == "even" && even.order.waited_packets > 0, "{strategy}");
        assert!(even.variation(800) <= 1_100, "{strategy}: {}", even.variation(800));
    }
}
