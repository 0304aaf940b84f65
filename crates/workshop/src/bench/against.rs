//! `roadweave bench tunnel --against boringtun-cli`: what the same streams cost here and there.
//!
//! ```text
//!   for each rate, for each round:  stream through ours, stream through the peer
//!   for each rate:                  the same once more, with perf counting
//! ```
//!
//! Both tunnels stand all the time, between the same namespaces, and take turns, so that whatever
//! else the machine does meets both. The ratio is the figure: percents of a core are those of this
//! machine.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use roadweave_terminal::out;
use serde::Serialize;

use super::counters::{Counting, Counts, can_count};
use super::iperf::{PACKET_BYTES, UdpRun};
use super::results::Ends;
use super::tunnel::{Bench, SERVER_OUTER};
use super::wireguard::{WIREGUARD_INNER, WireGuardTunnel};
use crate::sandbox::daemon::Daemon;
use crate::sandbox::tunnel::{SERVER_INNER, Tunnel};
use crate::sandbox::usage::Usage;
use crate::table;

/// The rates of the streams, bits per second.
const RATES: [f64; 3] = [8e6, 30e6, 100e6];

/// How both are compared.
#[derive(Clone, Debug, clap::Args)]
pub struct AgainstArgs {
    /// Compare what streams cost with what they cost another tunnel: the program boringtun-cli
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,
    /// Rounds of that comparison, of which the medians are told
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

/// What a stream cost both, at one rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Payload of the stream, bits per second.
    rate_bps: f64,
    ours: Ends<Cost>,
    peer: Ends<Cost>,
    /// Our CPU time by the peer's: the median of the rounds' ratios.
    ratio: Ends<f64>,
}

/// What a stream cost one end of a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Cost {
    /// CPU time, percent of one core.
    cpu_percent: f64,
    /// How often it slept, by the second.
    sleeps_per_second: f64,
    /// How often it was pushed aside, by the second.
    preemptions_per_second: f64,
    /// System calls for each inner packet, if they could be counted.
    system_calls_per_packet: Option<f64>,
    /// Instructions for each inner packet, if they could be counted.
    instructions_per_packet: Option<f64>,
}

/// One of the two tunnels.
struct Contestant<'a> {
    ends: [&'a Daemon; 2],
    /// The inner address of its server.
    address: IpAddr,
}

impl AgainstArgs {
    /// The other tunnel's program, if there is one to be compared with.
    pub fn program(&self) -> Option<&Path> {
        self.against.as_deref()
    }

    /// Compares `tunnel`, which stands in `bench`, with that of `program`.
    ///
    /// # Errors
    /// When the other tunnel or a load fails, with what it said.
    pub fn run(
        &self,
        bench: &Bench,
        tunnel: &mut Tunnel,
        program: &Path,
    ) -> anyhow::Result<Vec<Comparison>> {
        out::note(format_args!("starting {}", program.display()));
        let mut peer = WireGuardTunnel::start(program, bench.site(), SERVER_OUTER)?;
        let mut comparisons = Vec::new();
        for rate in RATES {
            let ours = [&tunnel.client, &tunnel.server];
            let ours = Contestant { ends: ours, address: SERVER_INNER };
            let theirs = [&peer.client, &peer.server];
            let theirs = Contestant { ends: theirs, address: WIREGUARD_INNER };
            comparisons.push(self.compare(bench, rate, [&ours, &theirs])?);
            tunnel.check_running()?;
            peer.check_running()?;
        }
        Ok(comparisons)
    }

    fn compare(
        &self,
        bench: &Bench,
        rate_bps: f64,
        contestants: [&Contestant<'_>; 2],
    ) -> anyhow::Result<Comparison> {
        let mut rounds: [Vec<Ends<Cost>>; 2] = Default::default();
        for round in 1..=self.rounds {
            let mbps = rate_bps / 1e6;
            out::note(format_args!("{mbps:.0} Mbit/s, round {round} of {}", self.rounds));
            for (contestant, costs) in contestants.iter().zip(&mut rounds) {
                costs.push(contestant.costs(bench, rate_bps)?);
            }
        }
        let ratio = |of: fn(&Ends<Cost>) -> Cost| {
            let both = rounds[0].iter().zip(&rounds[1]);
            median(both.map(|(ours, peer)| of(ours).cpu_percent / of(peer).cpu_percent))
        };
        let ratio = Ends { client: ratio(|ends| ends.client), server: ratio(|ends| ends.server) };
        let [mut ours, mut peer] = rounds.map(|costs| medians(&costs));
        if can_count() {
            out::note(format_args!("{:.0} Mbit/s, counted", rate_bps / 1e6));
            contestants[0].count(bench, rate_bps, &mut ours)?;
            contestants[1].count(bench, rate_bps, &mut peer)?;
        }
        Ok(Comparison { rate_bps, ours, peer, ratio })
    }
}

impl Contestant<'_> {
    /// What a stream costs.
    fn costs(&self, bench: &Bench, rate_bps: f64) -> anyhow::Result<Ends<Cost>> {
        let usage = || -> anyhow::Result<_> {
            Ok([Usage::of(self.ends[0].id())?, Usage::of(self.ends[1].id())?])
        };
        let before = usage()?;
        let run = bench.load(self.address).steady_udp(rate_bps)?;
        let after = usage()?;
        let cost = |end: usize| Cost::of(after[end].since(before[end]), &run);
        Ok(Ends { client: cost(0), server: cost(1) })
    }

    /// Adds to `costs` what perf counts of a stream.
    fn count(&self, bench: &Bench, rate_bps: f64, costs: &mut Ends<Cost>) -> anyhow::Result<()> {
        let counting = [("perf-client", self.ends[0]), ("perf-server", self.ends[1])];
        let [client, server] =
            counting.map(|(name, end)| Counting::start(end.id(), name, bench.directory()));
        let (client, server) = (client?, server?);
        let run = bench.load(self.address).steady_udp(rate_bps)?;
        costs.client.note(client.finish()?, &run);
        costs.server.note(server.finish()?, &run);
        Ok(())
    }
}

impl Cost {
    fn of(usage: Usage, run: &UdpRun) -> Self {
        let seconds = seconds_of(run);
        Self {
            cpu_percent: usage.cpu.as_secs_f64() / seconds * 100.0,
            sleeps_per_second: usage.sleeps as f64 / seconds,
            preemptions_per_second: usage.preemptions as f64 / seconds,
            ..Self::default()
        }
    }

    fn note(&mut self, counts: Counts, run: &UdpRun) {
        let each = |count: u64| count as f64 / run.packets.max(1) as f64;
        self.system_calls_per_packet = counts.system_calls.map(each);
        self.instructions_per_packet = counts.instructions.map(each);
    }
}

/// The table for a person. Beside each figure is that of the peer; calls are system calls.
pub fn render(comparisons: &[Comparison]) -> String {
    let mut table = table::bare();
    table.set_header([
        "Mbit/s, end",
        "CPU, %",
        "peer",
        "ratio",
        "sleeps/s",
        "peer",
        "preempted/s",
        "peer",
        "calls/packet",
        "peer",
        "instructions",
        "peer",
    ]);
    for Comparison { rate_bps, ours, peer, ratio } in comparisons {
        for (end, ours, peer, ratio) in [
            ("client", ours.client, peer.client, ratio.client),
            ("server", ours.server, peer.server, ratio.server),
        ] {
            let counted = |count: Option<f64>, digits: usize| {
                count.map_or_else(|| "-".to_owned(), |count| format!("{count:.digits$}"))
            };
            table.add_row([
                format!("{:.0} {end}", rate_bps / 1e6),
                format!("{:.1}", ours.cpu_percent),
                format!("{:.1}", peer.cpu_percent),
                format!("{ratio:.2}"),
                format!("{:.0}", ours.sleeps_per_second),
                format!("{:.0}", peer.sleeps_per_second),
                format!("{:.0}", ours.preemptions_per_second),
                format!("{:.0}", peer.preemptions_per_second),
                counted(ours.system_calls_per_packet, 2),
                counted(peer.system_calls_per_packet, 2),
                counted(ours.instructions_per_packet, 0),
                counted(peer.instructions_per_packet, 0),
            ]);
        }
    }
    table::right_aligned(table, 1)
}

/// How long the stream of a run was.
fn seconds_of(run: &UdpRun) -> f64 {
    let bits = (run.packets * PACKET_BYTES * 8) as f64;
    if run.goodput_bps > 0.0 { bits / run.goodput_bps } else { 1.0 }
}

fn medians(costs: &[Ends<Cost>]) -> Ends<Cost> {
    let of_end = |end: fn(&Ends<Cost>) -> Cost| {
        let of = |figure: fn(Cost) -> f64| median(costs.iter().map(|ends| figure(end(ends))));
        Cost {
            cpu_percent: of(|cost| cost.cpu_percent),
            sleeps_per_second: of(|cost| cost.sleeps_per_second),
            preemptions_per_second: of(|cost| cost.preemptions_per_second),
            ..Cost::default()
        }
    };
    Ends { client: of_end(|ends| ends.client), server: of_end(|ends| ends.server) }
}

/// The middle one, the lower of two; 0 of none.
fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_cost_is_of_the_time_that_the_stream_took() {
        let run = UdpRun { packets: 1_000, goodput_bps: 5.2e6, ..UdpRun::default() };
        let usage = Usage { cpu: Duration::from_millis(300), sleeps: 4_000, preemptions: 20 };
        let mut cost = Cost::of(usage, &run);
        cost.note(Counts { system_calls: Some(2_500), instructions: None }, &run);
        let expected = Cost {
            cpu_percent: 15.0,
            sleeps_per_second: 2_000.0,
            preemptions_per_second: 10.0,
            system_calls_per_packet: Some(2.5),
            instructions_per_packet: None,
        };
        assert_eq!(cost, expected);
    }

    #[test]
    fn the_middle_of_the_rounds_is_told() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 1.0);
        assert_eq!(median([].into_iter()), 0.0);
    }

    #[test]
    fn what_could_not_be_counted_is_a_dash() {
        let cost =
            Cost { cpu_percent: 21.5, system_calls_per_packet: Some(3.125), ..Cost::default() };
        let both = Ends { client: cost, server: Cost::default() };
        let ratio = Ends { client: 2.4, server: 1.0 };
        let text = render(&[Comparison { rate_bps: 30e6, ours: both, peer: both, ratio }]);
        let line = text.lines().find(|line| line.contains("30 client")).unwrap();
        assert!(line.contains("21.5") && line.contains("2.40") && line.contains("3.1"), "{line}");
        assert!(line.trim_end().ends_with('-'), "{line}");
    }
}
