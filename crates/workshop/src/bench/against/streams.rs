//! What a stream costs each end of a tunnel, by its rate.

use roadweave_terminal::out;
use serde::Serialize;

use super::{Contestant, median};
use crate::bench::counters::{Counting, Counts, can_count};
use crate::bench::iperf::{PACKET_BYTES, UdpRun};
use crate::bench::results::Ends;
use crate::bench::tunnel::Bench;
use crate::sandbox::usage::Usage;
use crate::table;

/// The rates of the streams, bits per second.
const RATES: [f64; 3] = [8e6, 30e6, 100e6];

/// What a stream of one rate cost one tunnel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamCost {
    /// Payload of the stream, bits per second.
    rate_bps: f64,
    /// Whose cost it is.
    tunnel: &'static str,
    cost: Ends<Cost>,
    /// Our CPU time by its: the median of the rounds' ratios.
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

/// Sends streams of all rates through all `contestants`, of which the first is ours, in turns, and
/// once more with perf counting.
///
/// # Errors
/// When a load fails, with what it said.
pub fn measure(
    bench: &Bench,
    contestants: &[Contestant<'_>],
    rounds: u32,
) -> anyhow::Result<Vec<StreamCost>> {
    let mut all = Vec::new();
    for rate_bps in RATES {
        let mut costs: Vec<Vec<Ends<Cost>>> = vec![Vec::new(); contestants.len()];
        for round in 1..=rounds {
            out::note(format_args!("{:.0} Mbit/s, round {round} of {rounds}", rate_bps / 1e6));
            for (contestant, costs) in contestants.iter().zip(&mut costs) {
                costs.push(costs_of(contestant, bench, rate_bps)?);
            }
        }
        let counts = can_count();
        if counts {
            out::note(format_args!("{:.0} Mbit/s, counted", rate_bps / 1e6));
        }
        for (contestant, theirs) in contestants.iter().zip(&costs) {
            let mut cost = medians(theirs);
            if counts {
                count(contestant, bench, rate_bps, &mut cost)?;
            }
            let ratio = |of: fn(&Ends<Cost>) -> Cost| {
                let both = costs[0].iter().zip(theirs);
                median(both.map(|(ours, its)| of(ours).cpu_percent / of(its).cpu_percent))
            };
            let ratio =
                Ends { client: ratio(|ends| ends.client), server: ratio(|ends| ends.server) };
            all.push(StreamCost { rate_bps, tunnel: contestant.name, cost, ratio });
        }
    }
    Ok(all)
}

/// What a stream costs.
fn costs_of(
    contestant: &Contestant<'_>,
    bench: &Bench,
    rate_bps: f64,
) -> anyhow::Result<Ends<Cost>> {
    let ends = contestant.ends;
    let usage =
        || -> anyhow::Result<_> { Ok([Usage::of(ends[0].id())?, Usage::of(ends[1].id())?]) };
    let before = usage()?;
    let run = bench.load(contestant.address).steady_udp(rate_bps)?;
    let after = usage()?;
    let cost = |end: usize| Cost::of(after[end].since(before[end]), &run);
    Ok(Ends { client: cost(0), server: cost(1) })
}

/// Adds to `costs` what perf counts of a stream.
fn count(
    contestant: &Contestant<'_>,
    bench: &Bench,
    rate_bps: f64,
    costs: &mut Ends<Cost>,
) -> anyhow::Result<()> {
    let counting = [("perf-client", contestant.ends[0]), ("perf-server", contestant.ends[1])];
    let [client, server] =
        counting.map(|(name, end)| Counting::start(end.id(), name, bench.directory()));
    let (client, server) = (client?, server?);
    let run = bench.load(contestant.address).steady_udp(rate_bps)?;
    costs.client.note(client.finish()?, &run);
    costs.server.note(server.finish()?, &run);
    Ok(())
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

/// The table for a person; calls are system calls.
pub fn render(costs: &[StreamCost]) -> String {
    let mut table = table::bare();
    table.set_header([
        "Mbit/s, end",
        "tunnel",
        "CPU, %",
        "ours by it",
        "sleeps/s",
        "preempted/s",
        "calls/packet",
        "instructions",
    ]);
    for StreamCost { rate_bps, tunnel, cost, ratio } in costs {
        for (end, cost, ratio) in
            [("client", cost.client, ratio.client), ("server", cost.server, ratio.server)]
        {
            let counted = |count: Option<f64>, digits: usize| {
                count.map_or_else(|| "-".to_owned(), |count| format!("{count:.digits$}"))
            };
            table.add_row([
                format!("{:.0} {end}", rate_bps / 1e6),
                (*tunnel).to_owned(),
                format!("{:.1}", cost.cpu_percent),
                format!("{ratio:.2}"),
                format!("{:.0}", cost.sleeps_per_second),
                format!("{:.0}", cost.preemptions_per_second),
                counted(cost.system_calls_per_packet, 2),
                counted(cost.instructions_per_packet, 0),
            ]);
        }
    }
    table::right_aligned(table, 2)
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
    fn what_could_not_be_counted_is_a_dash() {
        let cost =
            Cost { cpu_percent: 21.5, system_calls_per_packet: Some(3.125), ..Cost::default() };
        let cost = Ends { client: cost, server: Cost::default() };
        let ratio = Ends { client: 2.4, server: 1.0 };
        let text = render(&[StreamCost { rate_bps: 30e6, tunnel: "boringtun", cost, ratio }]);
        let line = text.lines().find(|line| line.contains("30 client")).unwrap();
        assert!(line.contains("21.5") && line.contains("2.40") && line.contains("3.1"), "{line}");
        assert!(line.trim_end().ends_with('-'), "{line}");
    }
}
