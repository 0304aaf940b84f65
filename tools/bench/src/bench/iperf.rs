//! The load: iperf3 between two namespaces, with a new server for every run.
//!
//! ```text
//!   client namespace: iperf3 --client ADDRESS --json        server namespace: iperf3 --server --one-off
//! ```
//!
//! UDP is paced in steps of 200 us: with iperf3's default of 1 ms even a bare veth loses a percent
//! at 0.9 Gbit/s, because a step's burst overruns the queue of the receiving core.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_linux::netns::NetNs;
use serde_json::Value;

use crate::sandbox::clock;
use crate::sandbox::daemon::Daemon;

pub const PACKET_BYTES: u64 = 1300;
pub const LOSS_MAX: f64 = 0.01;
pub const TCP_CONGESTION_CONTROL: &str = "cubic";
const RATIO: f64 = 1.03;
const ATTEMPTS: usize = 50;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
pub struct IperfLoad<'a> {
    pub client: &'a NetNs,
    pub server: &'a NetNs,
    pub address: std::net::IpAddr,
    pub seconds: u32,
    pub directory: &'a Path,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UdpRun {
    pub packets: u64,
    /// Payload actually sent, bits per second.
    pub sent_bps: f64,
    pub goodput_bps: f64,
    /// Lost packets as a share of those sent, 0..1.
    pub loss: f64,
    /// Whether the sender did not reach the requested rate; the path may carry more.
    pub limited_by_sender: bool,
}

pub fn check() -> anyhow::Result<()> {
    let found = Command::new("iperf3").arg("--version").stdout(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => Ok(()),
        _ => bail!("iperf3 is not installed; install it with: apt-get install -y iperf3"),
    }
}

impl IperfLoad<'_> {
    /// Sends UDP packets of [`PACKET_BYTES`], paced each 200 us.
    pub fn udp(&self, rate_bps: f64) -> anyhow::Result<UdpRun> {
        let (length, rate) = (PACKET_BYTES.to_string(), format!("{rate_bps:.0}"));
        let options = ["-u", "-l", &length, "-b", &rate, "-w", "2M", "--pacing-timer", "200"];
        parse_udp(&self.run(&options)?).context("iperf3 reports no UDP figures")
    }

    /// Sends UDP packets like an application with a timer of 1 ms.
    pub fn steady_udp(&self, rate_bps: f64) -> anyhow::Result<UdpRun> {
        let (length, rate) = (PACKET_BYTES.to_string(), format!("{rate_bps:.0}"));
        parse_udp(&self.run(&["-u", "-l", &length, "-b", &rate])?)
            .context("iperf3 reports no UDP figures")
    }

    pub fn tcp(&self) -> anyhow::Result<f64> {
        let report = self.run(&["-C", TCP_CONGESTION_CONTROL])?;
        report["end"]["sum_received"]["bits_per_second"]
            .as_f64()
            .context("iperf3 reports no TCP figures")
    }

    fn run(&self, options: &[&str]) -> anyhow::Result<Value> {
        let mut command = self.server.command("iperf3");
        command.args(["--server", "--one-off"]);
        let mut server = Daemon::start("iperf3", &mut command, self.directory)?;
        for _ in 0..ATTEMPTS {
            let mut command = self.client.command("iperf3");
            command.args(["--client", &self.address.to_string(), "--json"]);
            command.args(["--time", &self.seconds.to_string()]).args(options);
            let output =
                command.stdin(Stdio::null()).output().context("cannot start the iperf3 client")?;
            let report: Value = serde_json::from_slice(&output.stdout)
                .with_context(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
                .context("iperf3 printed unexpected output")?;
            match report["error"].as_str() {
                None => return Ok(report),
                Some(error) if error.contains("refused") => {
                    server.check_running()?;
                    clock::sleep_until(clock::now() + ATTEMPT_INTERVAL);
                }
                Some(error) => bail!("iperf3 to {} failed: {error}", self.address),
            }
        }
        bail!("the iperf3 server did not start listening{}", server.last_words())
    }
}

/// Finds by bisection the highest rate at which less than [`LOSS_MAX`] is lost; returns the result
/// of `measure` for it, or for the lowest rate if all were too high.
///
/// A sender that does not reach the requested rate ends the search. A rate is too high only if it
/// fails twice, since other processes disturb single runs.
pub fn highest_rate<T>(
    (mut low, mut high): (f64, f64),
    mut measure: impl FnMut(f64) -> anyhow::Result<(UdpRun, T)>,
) -> anyhow::Result<(UdpRun, T)> {
    let mut best = None;
    while high / low > RATIO {
        let rate = (low * high).sqrt();
        let (mut run, mut more) = measure(rate)?;
        if run.loss >= LOSS_MAX {
            (run, more) = measure(rate)?;
        }
        if run.loss < LOSS_MAX {
            low = rate;
            run.limited_by_sender = run.sent_bps * RATIO < rate;
            if best
                .as_ref()
                .is_none_or(|(best, _): &(UdpRun, T)| run.goodput_bps > best.goodput_bps)
            {
                best = Some((run, more));
            }
            if run.limited_by_sender {
                break;
            }
        } else {
            high = rate;
        }
    }
    match best {
        Some(best) => Ok(best),
        None => measure(low),
    }
}

fn parse_udp(report: &Value) -> Option<UdpRun> {
    let sum = &report["end"]["sum"];
    let (sent, lost) = (sum["packets"].as_u64()?, sum["lost_packets"].as_i64()?);
    // Reordering at the end of a run can make iperf3 report a negative loss.
    let lost = u64::try_from(lost).unwrap_or(0).min(sent);
    let seconds = sum["seconds"].as_f64().filter(|seconds| *seconds > 0.0)?;
    let bps = |packets: u64| (packets * PACKET_BYTES * 8) as f64 / seconds;
    Some(UdpRun {
        packets: sent - lost,
        sent_bps: bps(sent),
        goodput_bps: bps(sent - lost),
        loss: if sent == 0 { 1.0 } else { lost as f64 / sent as f64 },
        limited_by_sender: false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn search(capacity: f64, sender: f64) -> (UdpRun, usize) {
        let mut runs = 0;
        let found = highest_rate((1e8, 6.4e9), |rate| {
            runs += 1;
            let sent_bps = rate.min(sender);
            let goodput_bps = sent_bps.min(capacity);
            let loss = 1.0 - goodput_bps / sent_bps;
            Ok((UdpRun { sent_bps, goodput_bps, loss, ..UdpRun::default() }, ()))
        });
        (found.unwrap().0, runs)
    }

    #[test]
    fn the_search_ends_close_below_the_capacity_or_at_a_sender_that_is_the_limit() {
        for capacity in [2e8, 1e9, 3.3e9] {
            let (run, runs) = search(capacity, 1e11);
            let found = run.goodput_bps;
            assert!(!run.limited_by_sender);
            assert!(found <= capacity && found > capacity / 1.05, "{found} of {capacity}");
            assert!(runs < 18, "{runs}");
        }
        let (run, runs) = search(1e11, 2e9);
        assert_eq!((run.goodput_bps, run.limited_by_sender), (2e9, true));
        assert!(runs <= 3, "{runs}");
        assert_eq!(search(1e7, 1e11).0.goodput_bps, 1e7, "a path slower than the lowest rate");
    }

    #[test]
    fn one_disturbed_run_does_not_lower_the_result() {
        let mut runs = 0;
        let found = highest_rate((1e8, 6.4e9), |rate| {
            runs += 1;
            let loss = if runs == 1 || rate > 1e9 { 0.5 } else { 0.0 };
            let goodput_bps = rate * (1.0 - loss);
            Ok((UdpRun { sent_bps: rate, goodput_bps, loss, ..UdpRun::default() }, ()))
        });
        // The path carries the first rate, 800 Mbit/s.
        assert!(found.unwrap().0.goodput_bps > 9.5e8);
    }

    #[test]
    fn losses_are_taken_from_what_was_sent() {
        let sum = |packets: u64, lost: i64| json!({"end": {"sum": {"packets": packets, "lost_packets": lost, "seconds": 2.0}}});
        let run = parse_udp(&sum(1000, 50)).unwrap();
        assert_eq!((run.packets, run.loss), (950, 0.05));
        assert_eq!(run.goodput_bps, 950.0 * 1300.0 * 8.0 / 2.0);
        assert_eq!(parse_udp(&sum(10, -3)).unwrap().packets, 10);
        assert_eq!(parse_udp(&sum(0, 0)).unwrap().loss, 1.0);
        assert_eq!(parse_udp(&json!({"error": "x"})), None);
    }
}
