//! The command `roadweave bench tunnel`, with and without boringtun.

use std::path::Path;

use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use roadweave_tunnel::Strategy;

use super::against::{self, AgainstArgs};
use super::iperf;
use super::tunnel::Bench;
use crate::sandbox;

/// Measures the tunnel's speed and what it adds in latency, against the same veth without it
#[derive(Debug, clap::Args)]
pub struct TunnelArgs {
    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,
    /// Duration of each of the about 25 to 40 measurements, seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// How packets are spread and repaired: `xnc`, `minrtt` or `single:lan0`
    #[arg(long, default_value = "xnc")]
    strategy: String,
    #[command(flatten)]
    against: AgainstArgs,
}

impl TunnelArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let strategy: Strategy =
            self.strategy.parse().map_err(|error| BadInput::new(format!("--strategy: {error}")))?;
        iperf::check()?;
        sandbox::enter()?;
        let bench = Bench::build(self.seconds)?;
        match &self.against.against {
            Some(program) => self.compare(program, &bench, strategy),
            None => {
                let results = bench.run(strategy)?;
                if self.json { out::json(&results) } else { Ok(out::line(results.render())?) }
            }
        }
    }

    fn compare(&self, program: &Path, bench: &Bench, strategy: Strategy) -> anyhow::Result<()> {
        let mut tunnel = bench.start_tunnel(strategy)?;
        let compared = self.against.run(program, bench, &mut tunnel)?;
        tunnel.stop()?;
        if self.json { out::json(&compared) } else { Ok(out::line(against::render(&compared))?) }
    }
}
