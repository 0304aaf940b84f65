//! `roadweave bench router`: two redundant routers compared with the bare veth.
//!
//! ```text
//!   client namespace                            server namespace
//!   iperf3, ping                                iperf3, bench-echo
//!     rw0 = roadweave router ==lan0==lan0== roadweave router = rw1
//!                            ==lan1==lan1==      every packet on both
//! ```
//!
//! The loads are those of `bench tunnel`, so that the figures are comparable.

use std::net::SocketAddr;

use roadweave_proto::wire::GENEVE_PORT;
use roadweave_terminal::out;

use super::iperf;
use super::results::BenchResults;
use super::tunnel::{Bench, present};
use crate::sandbox;
use crate::sandbox::router::{RouterCable, write_router_files};
use crate::sandbox::tunnel::Tunnel;

/// Measures the redundant router's speed and what it adds in latency, against the same veth without
/// it
#[derive(Debug, clap::Args)]
pub struct RouterArgs {
    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,
    /// Duration of each of the about 25 to 40 measurements, seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
}

impl RouterArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        iperf::check()?;
        sandbox::enter()?;
        present(&measure(&Bench::build(self.seconds)?)?, self.json)
    }
}

fn measure(bench: &Bench) -> anyhow::Result<BenchResults> {
    let veth = bench.measure_veth()?;
    out::note("starting the routers");
    let cables = [("lan0", [198, 51, 100]), ("lan1", [192, 0, 2])].map(|(interface, [a, b, c])| {
        let end = |host| SocketAddr::from(([a, b, c, host], GENEVE_PORT));
        RouterCable { interface, client: end(1), server: end(2) }
    });
    let files = write_router_files(&bench.directory, &cables)?;
    let mut routers = Tunnel::start_routers(bench.testbed(), &files)?;
    routers.wait_for_paths(cables.len(), || Ok(()))?;
    let results = bench.measure_tunnel(&mut routers, veth)?;
    routers.stop()?;
    Ok(results)
}
