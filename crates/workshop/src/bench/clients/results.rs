//! What the bench of many clients has measured, as JSON and as a table.

use roadweave_lab::video::quality::Percentiles;
use serde::Serialize;
use serde_json::Value;

use crate::table;

/// The figures of one number of clients. CPU time is the server's unless it says otherwise.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Results {
    /// Clients that are idle.
    pub idle: usize,
    /// Clients that stream, when it is their turn; until then they are idle as well.
    pub streams: usize,
    /// Paths of each client.
    pub paths: u8,
    /// All clients, as fast as they can, 16 at a time.
    pub join: Comings,
    /// What the server's memory has grown by, for each client.
    pub memory_bytes_each: u64,
    /// While nobody sends anything.
    pub quiet: Quiet,
    /// While some stream.
    pub streaming: Option<Streaming>,
    /// The server is killed and started again, while all of that goes on.
    pub restart: Comings,
    /// The longest that nothing came of a stream meanwhile, seconds.
    pub restart_gap_seconds: Option<f64>,
}

/// How clients came to a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comings {
    /// Until half of them had joined, seconds.
    pub half_seconds: f64,
    /// Until all of them had joined, seconds.
    pub all_seconds: f64,
    /// Until each of them had all its paths, seconds.
    pub paths_seconds: f64,
    /// Clients that joined in a second, until all had.
    pub per_second: f64,
    /// CPU time until each of them had all its paths, seconds.
    pub cpu_seconds: f64,
    /// Whom the server did not let in at first, by kind.
    pub refusals: Value,
}

/// What clients cost that send nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quiet {
    /// CPU time, percent of one core.
    pub cpu_percent: f64,
    /// CPU time in a second for each client, microseconds.
    pub cpu_us_each: f64,
    /// How often the server slept, by the second.
    pub sleeps_per_second: f64,
}

/// What streams cost, and how they fared.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Streaming {
    /// Payload that came out behind the server, bits per second.
    pub goodput_bps: f64,
    /// Share of the packets that did not come, 0..1.
    pub lost: f64,
    /// CPU time, percent of one core.
    pub cpu_percent: f64,
    /// CPU time for each packet of a stream, beyond what all cost while they are idle,
    /// microseconds.
    pub cpu_us_per_packet: f64,
    /// How often the server slept, by the second.
    pub sleeps_per_second: f64,
    /// From the client to what comes out of the server's device.
    pub delay_ms: Percentiles,
    /// The same of the slowest packet.
    pub delay_max_ms: f64,
    /// CPU time of all simulated clients, percent of one core.
    pub load_cpu_percent: f64,
}

/// The table for a person: a column for each number of clients.
pub fn render(all: &[Results]) -> String {
    let mut shown = table::bare();
    let heading = |one: &Results| match one.streams {
        0 => one.idle.to_string(),
        streams => format!("{} + {streams}", one.idle),
    };
    let mut add = |name: &str, figure: &dyn Fn(&Results) -> String| {
        let row: Vec<String> =
            std::iter::once(name.to_owned()).chain(all.iter().map(figure)).collect();
        shown.add_row(row);
    };
    add("clients, idle + streaming", &heading);
    add("all join, s", &|one| format!("{:.2}", one.join.all_seconds));
    add("  joins per second", &|one| format!("{:.0}", one.join.per_second));
    add("  all have all paths, s", &|one| format!("{:.2}", one.join.paths_seconds));
    add("  CPU for each, ms", &|one| {
        let clients = (one.idle + one.streams).max(1);
        format!("{:.2}", one.join.cpu_seconds * 1e3 / clients as f64)
    });
    add("memory for each, KiB", &|one| format!("{}", one.memory_bytes_each >> 10));
    add("all idle: CPU, %", &|one| format!("{:.1}", one.quiet.cpu_percent));
    add("  CPU for each, us/s", &|one| format!("{:.0}", one.quiet.cpu_us_each));
    add("  sleeps/s", &|one| format!("{:.0}", one.quiet.sleeps_per_second));
    let streaming = |figure: fn(&Streaming) -> String| {
        move |one: &Results| one.streaming.as_ref().map_or_else(|| "-".to_owned(), figure)
    };
    add("streams: CPU, %", &streaming(|it| format!("{:.1}", it.cpu_percent)));
    add("  CPU per packet, us", &streaming(|it| format!("{:.2}", it.cpu_us_per_packet)));
    add("  sleeps/s", &streaming(|it| format!("{:.0}", it.sleeps_per_second)));
    add("  Mbit/s", &streaming(|it| format!("{:.0}", it.goodput_bps / 1e6)));
    add("  lost, %", &streaming(|it| format!("{:.3}", it.lost * 100.0)));
    add("  delay p50, ms", &streaming(|it| format!("{:.2}", it.delay_ms.p50)));
    add("  delay p99, ms", &streaming(|it| format!("{:.2}", it.delay_ms.p99)));
    add("  delay max, ms", &streaming(|it| format!("{:.1}", it.delay_max_ms)));
    add("  CPU of the clients, %", &streaming(|it| format!("{:.0}", it.load_cpu_percent)));
    add("restart: half are back, s", &|one| format!("{:.2}", one.restart.half_seconds));
    add("  all are back, s", &|one| format!("{:.2}", one.restart.all_seconds));
    add("  all have all paths, s", &|one| format!("{:.2}", one.restart.paths_seconds));
    add("  CPU until then, s", &|one| format!("{:.2}", one.restart.cpu_seconds));
    add("  longest gap of a stream, s", &|one| {
        one.restart_gap_seconds.map_or_else(|| "-".to_owned(), |gap| format!("{gap:.2}"))
    });
    table::right_aligned(shown, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_clients_has_a_column_and_what_is_missing_a_dash() {
        let streaming = Streaming { cpu_us_per_packet: 4.25, ..Streaming::default() };
        let both = Results {
            idle: 1_000,
            streams: 60,
            streaming: Some(streaming),
            restart_gap_seconds: Some(1.5),
            ..Results::default()
        };
        let idle = Results { idle: 4_000, memory_bytes_each: 300 << 10, ..Results::default() };
        let text = render(&[both, idle]);
        let row = |name: &str| {
            let line = text.lines().find(|line| line.contains(name)).unwrap();
            line.split_whitespace().rev().take(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(text.contains("1000 + 60"), "{text}");
        assert_eq!(row("CPU per packet"), ["-", "4.25"]);
        assert_eq!(row("longest gap"), ["-", "1.50"]);
        assert_eq!(row("memory for each"), ["300", "0"]);
    }
}
