//! What a tunnel does when nothing holds it back: round trips of small packets, and the most that
//! it carries.

use std::net::IpAddr;

use roadweave_terminal::out;
use serde::Serialize;

use super::median;
use crate::bench::iperf::{self, UdpRun};
use crate::bench::results::Latency;
use crate::bench::tunnel::{Bench, RATES};
use crate::table;

/// The stream beside which round trips are measured, bits per second.
const STREAM_BPS: f64 = 30e6;

/// What one tunnel does, medians of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Whose figures they are.
    tunnel: &'static str,
    /// Whole round trips of 64 bytes, one each millisecond, while nothing else is carried.
    idle_us: Latency,
    /// The same beside a stream of 30 Mbit/s.
    beside_stream_us: Latency,
    /// One TCP stream, bits per second.
    tcp_goodput_bps: f64,
    /// UDP packets of 1,300 bytes below 1 % loss, bits per second.
    udp_goodput_bps: f64,
}

/// Measures all `tunnels`, each with the address of its server, in turns.
///
/// # Errors
/// When a load fails, with what it said.
pub fn measure(
    bench: &Bench,
    tunnels: &[(&'static str, IpAddr)],
    rounds: u32,
) -> anyhow::Result<Vec<Limits>> {
    let mut found: Vec<Vec<Limits>> = vec![Vec::new(); tunnels.len()];
    for round in 1..=rounds {
        for ((tunnel, address), found) in tunnels.iter().zip(&mut found) {
            out::note(format_args!("round trips and most of {tunnel}, round {round} of {rounds}"));
            let load = bench.load(*address);
            let search = |rate| Ok((load.udp(rate)?, ()));
            let (UdpRun { goodput_bps, .. }, ()) = iperf::highest_rate(RATES, search)?;
            found.push(Limits {
                tunnel,
                idle_us: bench.latency(*address)?,
                beside_stream_us: bench.latency_beside(*address, STREAM_BPS)?,
                tcp_goodput_bps: load.tcp()?,
                udp_goodput_bps: goodput_bps,
            });
        }
    }
    Ok(found.iter().filter_map(|rounds| medians(rounds)).collect())
}

fn medians(rounds: &[Limits]) -> Option<Limits> {
    let of = |figure: fn(&Limits) -> f64| median(rounds.iter().map(figure));
    Some(Limits {
        tunnel: rounds.first()?.tunnel,
        idle_us: Latency { p50: of(|it| it.idle_us.p50), p99: of(|it| it.idle_us.p99) },
        beside_stream_us: Latency {
            p50: of(|it| it.beside_stream_us.p50),
            p99: of(|it| it.beside_stream_us.p99),
        },
        tcp_goodput_bps: of(|it| it.tcp_goodput_bps),
        udp_goodput_bps: of(|it| it.udp_goodput_bps),
    })
}

/// The table for a person: round trips in microseconds, rates in Mbit/s.
pub fn render(limits: &[Limits]) -> String {
    let mut table = table::bare();
    table.set_header([
        "",
        "idle p50, us",
        "p99",
        "beside 30 Mbit/s p50, us",
        "p99",
        "TCP, Mbit/s",
        "UDP, Mbit/s",
    ]);
    for it in limits {
        let figures = [
            it.idle_us.p50,
            it.idle_us.p99,
            it.beside_stream_us.p50,
            it.beside_stream_us.p99,
            it.tcp_goodput_bps / 1e6,
            it.udp_goodput_bps / 1e6,
        ];
        let cells = figures.map(|figure| format!("{figure:.0}"));
        table.add_row(std::iter::once(it.tunnel.to_owned()).chain(cells));
    }
    table::right_aligned(table, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_the_median_of_its_own() {
        let round = |us: f64, bps: f64| Limits {
            tunnel: "ours",
            idle_us: Latency { p50: us, p99: us * 2.0 },
            beside_stream_us: Latency { p50: us * 3.0, p99: us * 4.0 },
            tcp_goodput_bps: bps,
            udp_goodput_bps: bps / 2.0,
        };
        let rounds = [round(90.0, 1e9), round(70.0, 3e9), round(80.0, 2e9)];
        let found = medians(&rounds).unwrap();
        assert_eq!(found, Limits { tunnel: "ours", ..round(80.0, 2e9) });
        let text = render(&[found]);
        let line = text.lines().find(|line| line.contains("ours")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["ours", "80", "160", "240", "320", "2000", "1000"]);
        assert_eq!(medians(&[]), None);
    }
}
