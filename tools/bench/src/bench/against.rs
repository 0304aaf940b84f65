//! `roadweave bench tunnel --against PROGRAM`: the CPU time of UDP streams, beside boringtun's.
//!
//! Both tunnels run all the time, between the same namespaces, and take turns, so that other load
//! on the machine affects both. Compare ratios, since percents of a core depend on the machine.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use roadweave_emulate::Quantiles;
use roadweave_terminal::out;
use serde::Serialize;

use super::boringtun;
use super::results::Ends;
use super::tunnel::Bench;
use crate::sandbox::clock;
use crate::sandbox::daemon::Daemon;
use crate::sandbox::tunnel::{SERVER_INNER, Tunnel};
use crate::sandbox::usage::cpu_time;
use crate::table;

const RATES: [f64; 3] = [8e6, 30e6, 100e6];

/// How both are compared.
#[derive(Clone, Debug, clap::Args)]
pub struct AgainstArgs {
    /// Compare with the program boringtun-cli: the CPU time of UDP streams
    #[arg(long, value_name = "PROGRAM")]
    pub against: Option<PathBuf>,
    /// Rounds of that comparison, whose medians are printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

/// CPU time of a stream of one rate, percent of one core, medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    rate_bps: f64,
    ours: Ends<f64>,
    boringtun: Ends<f64>,
    /// Ours divided by boringtun's: the median of the rounds' ratios.
    ratio: Ends<f64>,
}

type Round = [Ends<f64>; 2];

impl AgainstArgs {
    pub fn run(
        &self,
        program: &Path,
        bench: &Bench,
        tunnel: &mut Tunnel,
    ) -> anyhow::Result<Vec<Compared>> {
        out::note(format_args!("starting {}", program.display()));
        let mut peer = boringtun::start(program, bench.testbed())?;
        let mut all = Vec::new();
        for rate_bps in RATES {
            let mut rounds: Vec<Round> = Vec::new();
            for round in 1..=self.rounds {
                let rate = rate_bps / 1e6;
                out::note(format_args!("{rate:.0} Mbit/s, round {round} of {}", self.rounds));
                let ours = [&tunnel.client, &tunnel.server];
                rounds.push([
                    cpu_percent(bench, ours, SERVER_INNER, rate_bps)?,
                    cpu_percent(bench, peer.each_ref(), boringtun::SERVER_INNER, rate_bps)?,
                ]);
            }
            all.push(Compared::new(rate_bps, &rounds));
        }
        tunnel.check_running()?;
        peer.iter_mut().try_for_each(Daemon::check_running)?;
        Ok(all)
    }
}

impl Compared {
    fn new(rate_bps: f64, rounds: &[Round]) -> Self {
        let ends = |of: fn(&Round) -> Ends<f64>| Ends {
            client: Quantiles::of(rounds.iter().map(|round| of(round).client).collect()).at(0.5),
            server: Quantiles::of(rounds.iter().map(|round| of(round).server).collect()).at(0.5),
        };
        Self {
            rate_bps,
            ours: ends(|[ours, _]| *ours),
            boringtun: ends(|[_, theirs]| *theirs),
            ratio: ends(|[ours, theirs]| Ends {
                client: ours.client / theirs.client,
                server: ours.server / theirs.server,
            }),
        }
    }
}

fn cpu_percent(
    bench: &Bench,
    ends: [&Daemon; 2],
    address: IpAddr,
    rate_bps: f64,
) -> anyhow::Result<Ends<f64>> {
    let used = || -> anyhow::Result<_> { Ok([cpu_time(ends[0].id())?, cpu_time(ends[1].id())?]) };
    let (begin, before) = (clock::now(), used()?);
    bench.load(address).steady_udp(rate_bps)?;
    let (after, lasted) = (used()?, (clock::now() - begin).as_secs_f64());
    let percent =
        |end: usize| after[end].saturating_sub(before[end]).as_secs_f64() / lasted * 100.0;
    Ok(Ends { client: percent(0), server: percent(1) })
}

pub fn render(compared: &[Compared]) -> String {
    let mut table = table::bare();
    table.set_header(["Mbit/s, end", "CPU, %", "boringtun's", "ours by its"]);
    for Compared { rate_bps, ours, boringtun, ratio } in compared {
        for (end, ours, theirs, ratio) in [
            ("client", ours.client, boringtun.client, ratio.client),
            ("server", ours.server, boringtun.server, ratio.server),
        ] {
            table.add_row([
                format!("{:.0} {end}", rate_bps / 1e6),
                format!("{ours:.1}"),
                format!("{theirs:.1}"),
                format!("{ratio:.2}"),
            ]);
        }
    }
    table::right_aligned(table, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_ratios() {
        let ends = |client: f64| Ends { client, server: 1.0 };
        let rounds = [(2.0, 1.0), (9.0, 3.0), (4.0, 4.0)];
        let rounds = rounds.map(|(ours, theirs)| [ends(ours), ends(theirs)]);
        let compared = Compared::new(8e6, &rounds);
        assert_eq!((compared.ours.client, compared.boringtun.client), (4.0, 3.0));
        assert_eq!((compared.ratio.client, compared.ratio.server), (2.0, 1.0));
        assert!(render(&[compared]).contains("8 client"));
    }
}
