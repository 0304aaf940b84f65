//! The load under which `make callgrind` counts what coding costs of the tunnel's instructions.
//!
//! ```text
//! 30 Mbit/s of video ─► client ═ 3 links that lose bursts ═► server
//! ```
//!
//! A client and a server with real TLS in virtual time, so that the same arguments are the same
//! instructions, but for the keys of TLS. With `xnc` about 5 % of the datagrams are coded; `minrtt`
//! carries the same stream over the same links by sending lost packets again.
//! `deploy/callgrind.sh` runs this under valgrind and tells the shares.

#[path = "../tests/world/mod.rs"]
mod world;

use roadweave_emulate::GilbertElliott;
use world::{LinkPlan, Plan, arrivals, link, stream};

/// Frames of a stream at 30 fps: 10 s.
const FRAMES: u64 = 300;
/// The rate of the stream.
const MBPS: u64 = 30;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let strategy = match arguments.next().as_deref() {
        None | Some("xnc") => "xnc",
        Some("minrtt") => "minrtt",
        Some(other) => panic!("xnc or minrtt, not {other}"),
    };
    let lossy = |plan: LinkPlan| LinkPlan {
        settings: |mut settings| {
            settings.burst_loss = Some(GilbertElliott::bursts(0.035, 6.0));
            settings
        },
        ..plan
    };
    let links = [link(25, 15), link(25, 20), link(25, 30)].map(lossy);
    let mut world = Plan::new(strategy, links.to_vec()).build().join();
    let sent = stream(&mut world, FRAMES, MBPS);
    let arrived = arrivals(&world.up);
    let lane = &world.client_status().stats.lanes[0].sent;
    let datagrams = lane.source_datagrams + lane.duplicate_datagrams + lane.coded_datagrams;
    println!(
        "{strategy}: {} packets sent, {} arrived; of {datagrams} datagrams {:.1} % coded, {:.1} % copies",
        sent.len(),
        arrived.len(),
        100.0 * lane.coded_datagrams as f64 / datagrams as f64,
        100.0 * lane.duplicate_datagrams as f64 / datagrams as f64,
    );
}
