//! `roadweave bench tunnel --against PROGRAM`: the same loads through ours and boringtun.
//!
//! ```text
//!   for each rate, for each round:  a stream through ours, boringtun, the forwarders
//!   for each rate:                  the same once more, with perf counting
//!   for each round:                 round trips and the highest rates of each, and of the veth
//! ```
//!
//! All tunnels stand all the time, between the same namespaces, and take turns, so that whatever
//! else the machine does meets all. The ratio is the figure: percents of a core are those of this
//! machine. The forwarder ([`super::forwarder`]) says what a packet costs that is carried and no
//! more.

mod limits;
mod streams;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use roadweave_terminal::out;
use serde::Serialize;

use super::boringtun;
use super::forwarder::Forwarder;
use super::tunnel::{Bench, SERVER_OUTER};
use crate::sandbox::daemon::Daemon;
use crate::sandbox::tunnel::{SERVER_INNER, Tunnel};

/// How both are compared.
#[derive(Clone, Debug, clap::Args)]
pub struct AgainstArgs {
    /// Compare with the program boringtun-cli and with a plain forwarder: what streams cost, round
    /// trips, the most that each carries
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,
    /// Rounds of that comparison, of which the medians are told
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

/// Ours beside others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    streams: Vec<streams::StreamCost>,
    limits: Vec<limits::Limits>,
}

/// One of the tunnels.
struct Contestant<'a> {
    name: &'static str,
    /// Client and server.
    ends: [&'a Daemon; 2],
    /// The inner address of its server.
    address: IpAddr,
}

impl AgainstArgs {
    /// The program to compare with, if there is one.
    pub fn program(&self) -> Option<&Path> {
        self.against.as_deref()
    }

    /// Compares `tunnel`, which stands in `bench`, with that of boringtun, `program`, and with
    /// forwarders.
    ///
    /// # Errors
    /// When one of them or a load fails, with what it said.
    pub fn run(
        &self,
        program: &Path,
        bench: &Bench,
        tunnel: &mut Tunnel,
    ) -> anyhow::Result<Comparison> {
        out::note(format_args!("starting {}", program.display()));
        let mut peer = boringtun::start(program, bench.site())?;
        out::note("starting the forwarders");
        let mut forwarders = [
            Forwarder::start(bench.program(), bench.site(), SERVER_OUTER, false)?,
            Forwarder::start(bench.program(), bench.site(), SERVER_OUTER, true)?,
        ];
        let [plain, runs] = &forwarders;
        let contestant = |name, ends, address| Contestant { name, ends, address };
        let ours = contestant("roadweave", [&tunnel.client, &tunnel.server], SERVER_INNER);
        let theirs = contestant("boringtun", peer.each_ref(), boringtun::SERVER_INNER);
        let forwarding = [("forwarder", plain), ("with GSO", runs)]
            .map(|(name, it)| contestant(name, [&it.client, &it.server], it.address));
        let contestants: Vec<_> = [ours, theirs].into_iter().chain(forwarding).collect();
        let streams = streams::measure(bench, &contestants, self.rounds)?;
        let all = contestants.iter().map(|it| (it.name, it.address));
        let all: Vec<_> = all.chain([("bare veth", SERVER_OUTER)]).collect();
        let limits = limits::measure(bench, &all, self.rounds)?;
        tunnel.check_running()?;
        peer.iter_mut().try_for_each(Daemon::check_running)?;
        forwarders.iter_mut().try_for_each(Forwarder::check_running)?;
        Ok(Comparison { streams, limits })
    }
}

/// Two tables for a person.
pub fn render(comparison: &Comparison) -> String {
    format!("{}\n{}", streams::render(&comparison.streams), limits::render(&comparison.limits))
}

/// The middle one, the lower of two; 0 of none.
fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_the_rounds_is_told() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 1.0);
        assert_eq!(median([].into_iter()), 0.0);
    }
}
