//! `roadweave speedtest`: the rate of each uplink of a running client to its server and back.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use comfy_table::{CellAlignment, Table, presets};
use roadweave_node::local::{
    BeginSpeedtest, RequestError, RpcError, begin_speedtest, speedtest_report,
};
use roadweave_proto::peer_text;
use roadweave_terminal::out;
use roadweave_terminal::seconds::parse_seconds;
use roadweave_tunnel::{LoadReport, SpeedtestReport, SpeedtestRow, SpeedtestState};

use crate::set::refused;

/// Measures how fast each uplink of a running client is, and all of them together.
///
/// Loads one uplink after another, in both directions, within the current session; other traffic
/// goes first. The server must allow it: `[speedtest] enabled = true` in its configuration.
/// Interrupting the command ends the test.
#[derive(Debug, clap::Args)]
#[command(after_help = LEGEND)]
pub struct SpeedtestArgs {
    /// The socket of the running client
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// Measure only this uplink, even if it is metered; may be repeated
    #[arg(long = "uplink", value_name = "NAME")]
    uplinks: Vec<String>,
    /// How long each direction of each uplink is measured, at most 10 seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_duration)]
    seconds: Duration,
    /// The most megabytes that the whole test may use
    #[arg(long, value_name = "MB", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    limit: u64,
    /// Also measure uplinks that are metered or have a cap
    #[arg(long)]
    metered: bool,
    /// Print the result as one JSON object, without progress
    #[arg(long)]
    json: bool,
}

const LEGEND: &str = "\
Units: 1 MB is 1,000,000 bytes, 1 Mbit/s is 1,000,000 bits a second. Rates count QUIC
datagrams: about what inner packets could have. A rate leaves out the first quarter of
the measurement, in which congestion control adapts to the path.

`idle` is the lowest round trip in the seconds before the test, `loaded` the mean round
trip while the uplink was loaded; `loss` is the share that did not arrive. `*`: the
limit on bytes, of --limit or of the server, ended the measurement early.

Uplinks with a cap, or with `metered` in their policy, are left out unless --uplink
names them or --metered is given. What the test sends counts against their caps.";

impl SpeedtestArgs {
    pub fn run(&self) -> Result<()> {
        self.begin()?;
        let report = self.watch()?;
        if self.json {
            out::json(&report)?;
        } else {
            out::print(render(&report))?;
        }
        match (report.state, report.error) {
            (SpeedtestState::Failed, why) => {
                Err(anyhow!("the speed test ended too early: {}", why.unwrap_or_default()))
            }
            _ => Ok(()),
        }
    }

    fn begin(&self) -> Result<()> {
        let begin = BeginSpeedtest {
            uplinks: self.uplinks.clone(),
            duration_ms: u64::try_from(self.seconds.as_millis()).unwrap_or(u64::MAX),
            bytes_max: self.limit * 1_000_000,
            metered: self.metered,
        };
        begin_speedtest(&self.socket, &begin).map_err(refused)
    }

    fn watch(&self) -> Result<SpeedtestReport> {
        let mut announced = None;
        let mut answered = Instant::now();
        loop {
            let report = match speedtest_report(&self.socket) {
                Ok(report) => report,
                Err(RequestError::Refused(error))
                    if error.code == RpcError::BUSY && answered.elapsed() < BUSY_MAX =>
                {
                    sleep(INTERVAL);
                    continue;
                }
                Err(other) => return Err(other.into()),
            };
            answered = Instant::now();
            if report.state != SpeedtestState::Running {
                return Ok(report);
            }
            if !self.json && report.under_way.is_some() && report.under_way != announced {
                announced.clone_from(&report.under_way);
                let what = peer_text(announced.as_deref().unwrap_or_default().as_bytes());
                out::note(format_args!("measuring {what} ..."));
            }
            sleep(INTERVAL);
        }
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_seconds(text, &(0.5..=10.0))
}

fn render(report: &SpeedtestReport) -> String {
    let mut table = Table::new();
    let header = "uplink|down\nMbit/s|up\nMbit/s|idle\nms|loaded ms\ndown / up|loss %\ndown / up";
    table.load_preset(presets::NOTHING).set_header(header.split('|'));
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if number > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut left_out = String::new();
    for row in &report.rows {
        let name = peer_text(row.uplink.as_deref().unwrap_or("all together").as_bytes());
        if let Some(why) = &row.left_out {
            left_out += &format!("{name} is left out: {why}\n");
            table.add_row([&name, "left out", "-", "-", "-", "-"]);
            continue;
        }
        table.add_row(cells(&name, row));
    }
    let used = report.used_bytes as f64 / 1e6;
    let above = format!("server {}, {used:.1} MB used", report.server);
    format!("{above}\n\n{}\n{left_out}", table.trim_fmt())
}

fn cells(name: &str, row: &SpeedtestRow) -> [String; 6] {
    let both = |value: fn(&LoadReport) -> Option<f64>| {
        let of = |load: &Option<LoadReport>| number(load.as_ref().and_then(value), 1);
        format!("{} / {}", of(&row.down), of(&row.up))
    };
    [
        name.to_owned(),
        rate(row.down.as_ref()),
        rate(row.up.as_ref()),
        number(row.idle_rtt_ms, 1),
        both(|load| load.loaded_rtt_ms),
        both(|load| Some(load.loss? * 100.0)),
    ]
}

fn rate(load: Option<&LoadReport>) -> String {
    let mark = if load.is_some_and(|load| load.is_short) { "*" } else { "" };
    let mbps = load.and_then(|load| load.bps).map(|bps| bps as f64 / 1e6);
    format!("{}{mark}", number(mbps, 2))
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

const INTERVAL: Duration = Duration::from_millis(250);
const BUSY_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_what_was_measured_and_what_was_left_out() {
        let load = |bps, is_short| {
            let (loaded_rtt_ms, loss) = (Some(61.04), Some(0.013));
            Some(LoadReport { bps, loaded_rtt_ms, loss, is_short, ..LoadReport::default() })
        };
        let row = |uplink: Option<&str>, down, up| {
            let uplink = uplink.map(str::to_owned);
            SpeedtestRow { uplink, idle_rtt_ms: Some(38.2), down, up, ..SpeedtestRow::default() }
        };
        let left_out = Some("it is metered".to_owned());
        let report = SpeedtestReport {
            server: "192.0.2.1:4433".into(),
            used_bytes: 12_340_000,
            rows: vec![
                row(Some("wwan0"), load(Some(24_130_000), false), load(Some(8_000_000), true)),
                SpeedtestRow { left_out, ..row(Some("sat0"), None, None) },
                row(None, load(None, false), None),
            ],
            ..SpeedtestReport::default()
        };
        let text = render(&report);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let expected = [
            "server 192.0.2.1:4433, 12.3 MB used",
            "",
            "uplink            down      up  idle    loaded ms     loss %",
            "                Mbit/s  Mbit/s    ms    down / up  down / up",
            "wwan0            24.13   8.00*  38.2  61.0 / 61.0  1.3 / 1.3",
            "sat0          left out       -     -            -          -",
            "all together         -       -  38.2     61.0 / -    1.3 / -",
            "sat0 is left out: it is metered",
        ];
        assert_eq!(lines, expected, "{text}");
    }
}
