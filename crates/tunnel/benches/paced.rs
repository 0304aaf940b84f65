//! How often both ends of a tunnel are turned, and what they send, for packets that come one by
//! one, as those of a stream do: counted in virtual time, and so the same on every machine.
//!
//! ```text
//! a packet each so many us ─► client ═ 2 paths of 10 ms ═► server ─► device
//! ```
//!
//! With the argument `batch`, 200 packets come each millisecond and share a turn, as when a tunnel
//! is filled. Under callgrind, with `--toggle-collect=paced::measured*`, it tells the instructions
//! too.

mod world;

use std::time::Duration;

use world::Tunnel;

/// The time between two packets of 1,200 bytes, us: 7, 30 and 96 Mbit/s.
const GAPS: [u64; 3] = [1_300, 320, 100];
const LASTS: Duration = Duration::from_secs(4);
/// Packets that share a turn: 1.9 Gbit/s, one turn in a millisecond.
const BATCH_PACKETS: u64 = 200;
const BATCHES: u64 = 200;

fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let gaps: Vec<u64> = named.iter().filter_map(|it| it.parse().ok()).collect();
    if named.iter().any(|it| it == "batch") {
        let mut tunnel = Tunnel::new("xnc");
        (0..200).for_each(|_| tunnel.step(BATCH_PACKETS));
        let before = tunnel.counts().delivered;
        measured_batches(&mut tunnel);
        println!("{} packets came in batches", tunnel.counts().delivered - before);
        return;
    }
    println!(
        "us between packets   turns: client  server   datagrams: up    down   for each packet"
    );
    for gap in if gaps.is_empty() { GAPS.to_vec() } else { gaps } {
        let mut tunnel = Tunnel::new("xnc");
        let gap_time = Duration::from_micros(gap);
        tunnel.pace(gap_time, Duration::from_secs(1));
        let before = tunnel.counts();
        measured(&mut tunnel, gap_time);
        let counts = tunnel.counts();
        let packets = (counts.delivered - before.delivered) as f64;
        let each = |of: fn(&world::Counts) -> u64| (of(&counts) - of(&before)) as f64 / packets;
        println!(
            "{gap:>18} {:>15.2} {:>7.2} {:>15.2} {:>7.2}",
            each(|it| it.turns[0]),
            each(|it| it.turns[1]),
            each(|it| it.datagrams[0]),
            each(|it| it.datagrams[1]),
        );
    }
}

/// What callgrind looks at.
#[inline(never)]
fn measured(tunnel: &mut Tunnel, gap: Duration) {
    tunnel.pace(gap, LASTS);
}

/// The same for batches.
#[inline(never)]
fn measured_batches(tunnel: &mut Tunnel) {
    (0..BATCHES).for_each(|_| tunnel.step(BATCH_PACKETS));
}
