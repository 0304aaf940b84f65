//! What the bench of many clients has measured, as JSON and as a table.

use std::fmt;

use roadweave_lab::video::quality::Percentiles;
use serde::Serialize;
use serde_json::Value;

use super::site::NoRoom;
use crate::table;

/// A side that uses so much of what it has is full, and what is measured is its limit. Percent.
const FULL_PERCENT: f64 = 90.0;

/// The figures of one number of clients. CPU time is the server's unless it says otherwise.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Results {
    /// Clients that are idle.
    pub idle: usize,
    /// Clients that stream, when it is their turn; until then they are idle as well.
    pub streams: usize,
    /// Paths of each client.
    pub paths: u8,
    /// Shards of the server.
    pub shards: u16,
    /// Which time it is that this was measured.
    pub round: u32,
    /// Cores that the clients may use.
    pub client_cores: usize,
    /// Whether the server has these as well; else it has one of its own for each shard.
    pub cores_shared: bool,
    /// All clients, as fast as they can, 16 at a time.
    pub join: Comings,
    /// What the server's memory has grown by, for each client.
    pub memory_bytes_each: u64,
    /// What a simulated client takes.
    pub client_memory_bytes_each: u64,
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
    /// What both sides used until then.
    pub sides: Sides,
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
    /// What both sides used.
    pub sides: Sides,
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
    /// What both sides used.
    pub sides: Sides,
}

/// What server and clients used of the machine in a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sides {
    /// CPU time of the server, percent of one core.
    pub server_cpu_percent: f64,
    /// CPU time of all simulated clients, percent of one core.
    pub clients_cpu_percent: f64,
    /// Packets that sockets had no room for.
    pub no_room: NoRoom,
}

impl fmt::Display for Sides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server used {:.0} % of a core and had no room for {} packets, the clients {:.0} \
             % and {}",
            self.server_cpu_percent,
            self.no_room.server,
            self.clients_cpu_percent,
            self.no_room.clients,
        )
    }
}

impl Results {
    /// Which side was full, and so is what was measured.
    fn limit(&self, sides: &Sides) -> &'static str {
        let is_full = |percent: f64, cores: usize| percent >= FULL_PERCENT * cores as f64;
        let (server, clients) = (sides.server_cpu_percent, sides.clients_cpu_percent);
        if self.cores_shared {
            // One thread for each shard; and what one side has, the other lacks.
            let shards = usize::from(self.shards).min(self.client_cores);
            return match is_full(server, shards) {
                true => "server",
                false if is_full(server + clients, self.client_cores) => "cores",
                false => "-",
            };
        }
        match (is_full(server, self.shards.into()), is_full(clients, self.client_cores)) {
            (true, true) => "both",
            (true, false) => "server",
            (false, true) => "clients",
            (false, false) => "-",
        }
    }

    /// What shards are compared by.
    fn compared(&self) -> [(&'static str, f64); 7] {
        let streaming = |figure: fn(&Streaming) -> f64| self.streaming.as_ref().map_or(0.0, figure);
        [
            ("joins per second", self.join.per_second),
            ("CPU for each join", self.join.cpu_seconds),
            ("CPU while idle", self.quiet.cpu_percent),
            ("CPU for each packet", streaming(|it| it.cpu_us_per_packet)),
            ("Mbit/s", streaming(|it| it.goodput_bps)),
            ("delay p99", streaming(|it| it.delay_ms.p99)),
            ("all are back", self.restart.all_seconds),
        ]
    }
}

/// What a person reads: a table with a column for each run, and how servers with several numbers
/// of shards compare.
pub fn render(all: &[Results]) -> String {
    format!("{}{}", render_table(all), render_ratios(all))
}

fn render_table(all: &[Results]) -> String {
    let mut shown = table::bare();
    let mut add = |name: &str, figure: &dyn Fn(&Results) -> String| {
        let row: Vec<String> =
            std::iter::once(name.to_owned()).chain(all.iter().map(figure)).collect();
        shown.add_row(row);
    };
    add("clients, idle + streaming", &|one| match one.streams {
        0 => one.idle.to_string(),
        streams => format!("{} + {streams}", one.idle),
    });
    add("shards", &|one| one.shards.to_string());
    add("cores: server's / clients'", &|one| match one.cores_shared {
        true => format!("{} shared", one.client_cores),
        false => format!("{} / {}", one.shards, one.client_cores),
    });
    let sides = |of: fn(&Results) -> Option<&Sides>, show: fn(&Results, &Sides) -> String| {
        move |one: &Results| of(one).map_or_else(|| "-".to_owned(), |it| show(one, it))
    };
    let cpu = |_: &Results, it: &Sides| {
        format!("{:.0} / {:.0}", it.server_cpu_percent, it.clients_cpu_percent)
    };
    let no_room =
        |_: &Results, it: &Sides| format!("{} / {}", it.no_room.server, it.no_room.clients);
    let limit = |one: &Results, it: &Sides| one.limit(it).to_owned();
    add("all join, s", &|one| format!("{:.2}", one.join.all_seconds));
    add("  joins per second", &|one| format!("{:.0}", one.join.per_second));
    add("  all have all paths, s", &|one| format!("{:.2}", one.join.paths_seconds));
    add("  CPU for each, ms", &|one| {
        let clients = (one.idle + one.streams).max(1);
        format!("{:.2}", one.join.cpu_seconds * 1e3 / clients as f64)
    });
    let join: fn(&Results) -> Option<&Sides> = |one| Some(&one.join.sides);
    add("  CPU: server / clients, %", &sides(join, cpu));
    add("  full", &sides(join, limit));
    add("memory for each, KiB", &|one| format!("{}", one.memory_bytes_each >> 10));
    add("  of a simulated client", &|one| format!("{}", one.client_memory_bytes_each >> 10));
    add("all idle: CPU, %", &|one| format!("{:.1}", one.quiet.cpu_percent));
    add("  CPU for each, us/s", &|one| format!("{:.0}", one.quiet.cpu_us_each));
    add("  sleeps/s", &|one| format!("{:.0}", one.quiet.sleeps_per_second));
    add("  CPU of the clients, %", &|one| format!("{:.0}", one.quiet.sides.clients_cpu_percent));
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
    let streams: fn(&Results) -> Option<&Sides> = |one| Some(&one.streaming.as_ref()?.sides);
    add("  CPU of the clients, %", &streaming(|it| format!("{:.0}", it.sides.clients_cpu_percent)));
    add("  full", &sides(streams, limit));
    add("restart: half are back, s", &|one| format!("{:.2}", one.restart.half_seconds));
    add("  all are back, s", &|one| format!("{:.2}", one.restart.all_seconds));
    add("  all have all paths, s", &|one| format!("{:.2}", one.restart.paths_seconds));
    add("  CPU until then, s", &|one| format!("{:.2}", one.restart.cpu_seconds));
    let restart: fn(&Results) -> Option<&Sides> = |one| Some(&one.restart.sides);
    add("  CPU: server / clients, %", &sides(restart, cpu));
    add("  no room: server / clients", &sides(restart, no_room));
    add("  full", &sides(restart, limit));
    add("  longest gap of a stream, s", &|one| {
        one.restart_gap_seconds.map_or_else(|| "-".to_owned(), |gap| format!("{gap:.2}"))
    });
    table::right_aligned(shown, 1)
}

/// For each number of clients and of shards, by the first number of shards: the medians of all
/// rounds.
fn render_ratios(all: &[Results]) -> String {
    let Some(first) = all.first().map(|one| one.shards) else { return String::new() };
    let mut kinds: Vec<(usize, u16)> = all.iter().map(|one| (one.idle, one.shards)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut text = String::new();
    for (idle, shards) in kinds.into_iter().filter(|(_, shards)| *shards != first) {
        let of = |shards: u16| medians(all, idle, shards);
        let (Some(by), Some(these)) = (of(first), of(shards)) else { continue };
        let ratios = these.iter().zip(by).filter(|(_, by)| by.1 > 0.0);
        let ratios: Vec<String> =
            ratios.map(|(this, by)| format!("{} {:.2}", this.0, this.1 / by.1)).collect();
        text += &format!("\n{idle} idle, {shards} shards by {first}: {}", ratios.join(", "));
    }
    text
}

fn medians(all: &[Results], idle: usize, shards: u16) -> Option<[(&'static str, f64); 7]> {
    let rounds: Vec<_> = all
        .iter()
        .filter(|one| (one.idle, one.shards) == (idle, shards))
        .map(Results::compared)
        .collect();
    let mut medians = *rounds.first()?;
    for (place, (_, median)) in medians.iter_mut().enumerate() {
        let mut figures: Vec<f64> = rounds.iter().map(|round| round[place].1).collect();
        figures.sort_by(f64::total_cmp);
        *median = figures[figures.len() / 2];
    }
    Some(medians)
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

    #[test]
    fn the_side_that_is_full_is_told() {
        let check = |shards, client_cores, cores_shared, (server, clients), expected| {
            let one = Results { shards, client_cores, cores_shared, ..Results::default() };
            let sides = Sides {
                server_cpu_percent: server,
                clients_cpu_percent: clients,
                ..Sides::default()
            };
            assert_eq!(one.limit(&sides), expected, "{one:?} {sides:?}");
        };
        check(1, 1, false, (50.0, 60.0), "-");
        check(1, 1, false, (95.0, 60.0), "server");
        check(1, 1, false, (50.0, 95.0), "clients");
        check(1, 1, false, (95.0, 95.0), "both");
        check(1, 3, false, (50.0, 95.0), "-");
        check(2, 2, true, (95.0, 40.0), "-");
        check(2, 2, true, (100.0, 95.0), "cores");
        check(1, 2, true, (95.0, 40.0), "server");
        check(4, 2, true, (185.0, 10.0), "server");
    }

    #[test]
    fn shards_are_compared_by_medians_with_the_first_number_of_them() {
        let one = |idle, shards, per_second, goodput_bps| Results {
            idle,
            shards,
            join: Comings { per_second, ..Comings::default() },
            streaming: Some(Streaming { goodput_bps, ..Streaming::default() }),
            ..Results::default()
        };
        let all = [
            one(100, 2, 400.0, 1e6),
            one(100, 4, 900.0, 2e6),
            one(100, 4, 600.0, 2e6),
            one(100, 2, 500.0, 1e6),
            one(100, 2, 900.0, 1e6),
            one(100, 4, 1_000.0, 2e6),
        ];
        let text = render_ratios(&all);
        assert_eq!(text, "\n100 idle, 4 shards by 2: joins per second 1.80, Mbit/s 2.00");
        assert_eq!(render_ratios(&all[..1]), "");
    }
}
