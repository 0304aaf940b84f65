//! `roadweave bench`: speed and latency on this machine.

mod against;
mod boringtun;
mod echo;
mod iperf;
mod results;
mod router;
mod tunnel;

pub use self::echo::EchoArgs;

/// Measures how fast roadweave is on this machine
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Tunnel(tunnel::TunnelArgs),
    Router(router::RouterArgs),
}

impl BenchArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        match &self.what {
            What::Tunnel(args) => args.run(),
            What::Router(args) => args.run(),
        }
    }
}
