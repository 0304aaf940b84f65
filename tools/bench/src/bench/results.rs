//! Results of the tunnel bench, as JSON and as a table.

use serde::Serialize;

use crate::sandbox::daemon::CpuTime;
use crate::table::{bare, right_aligned};

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BenchResults {
    /// UDP payload in packets of 1,300 bytes through the tunnel at less than 1 % loss, bit/s.
    pub udp_goodput_bps: f64,
    pub udp_limited_by_sender: bool,
    pub tcp_goodput_bps: f64,
    pub tcp_congestion_control: String,
    /// Packets of the UDP run that each end could handle with a whole core.
    pub packets_per_second_per_core: Ends<f64>,
    /// Round-trip time through the tunnel minus that of the bare veth.
    pub added_latency_us: Latency,
    pub client_cpu_percent_at_30mbps: f64,
    pub client_resident_bytes: Resident,
    pub cpu: Ends<CpuShares>,
    pub veth: Bare,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ends<T> {
    pub client: T,
    pub server: T,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Resident {
    /// With usable paths, before any load.
    pub idle: u64,
    pub at_30mbps: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuShares {
    /// In the tunnel's own code: cryptography, scheduling, coding.
    pub user_us_per_packet: f64,
    /// In system calls: TUN and sockets.
    pub kernel_us_per_packet: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bare {
    pub udp_goodput_bps: f64,
    pub udp_limited_by_sender: bool,
    pub tcp_goodput_bps: f64,
    pub latency_us: Latency,
}

impl CpuShares {
    pub fn of(time: CpuTime, packets: u64) -> Self {
        let each = |part: std::time::Duration| part.as_secs_f64() * 1e6 / packets.max(1) as f64;
        Self { user_us_per_packet: each(time.user), kernel_us_per_packet: each(time.kernel) }
    }

    /// Packets that one core handles per second; 0 if no time was counted.
    pub fn packets_per_second(self) -> f64 {
        let us = self.user_us_per_packet + self.kernel_us_per_packet;
        if us > 0.0 { 1e6 / us } else { 0.0 }
    }
}

impl BenchResults {
    pub fn render(&self) -> String {
        let mut table = bare();
        table.set_header(["", "tunnel", "bare veth"]);
        let mbps = |bps: f64| format!("{:.0} Mbit/s", bps / 1e6);
        let udp = |bps: f64, at_least: bool| {
            let bound = if at_least { "at least " } else { "" };
            format!("{bound}{}", mbps(bps))
        };
        let us = |us: f64| format!("{us:.0} us");
        let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        let memory = &self.client_resident_bytes;
        let (veth, per_core) = (&self.veth, &self.packets_per_second_per_core);
        let (added, base) = (&self.added_latency_us, &veth.latency_us);
        let both = |added: f64, base: f64| format!("{} (+{})", us(added + base), us(added));
        let tunnel_udp = udp(self.udp_goodput_bps, self.udp_limited_by_sender);
        let veth_udp = udp(veth.udp_goodput_bps, veth.udp_limited_by_sender);
        let tcp = format!("one TCP stream, {}", self.tcp_congestion_control);
        let cpu = format!("{:.1} %", self.client_cpu_percent_at_30mbps);
        let mut row = |what: &str, tunnel: String, veth: String| {
            table.add_row([what.to_owned(), tunnel, veth]);
        };
        row("UDP, 1,300 bytes, loss below 1 %", tunnel_udp, veth_udp);
        row(&tcp, mbps(self.tcp_goodput_bps), mbps(veth.tcp_goodput_bps));
        row("round trip, median", both(added.p50, base.p50), us(base.p50));
        row("round trip, 99 %", both(added.p99, base.p99), us(base.p99));
        row("packets/s per core, client", format!("{:.0}", per_core.client), String::new());
        row("packets/s per core, server", format!("{:.0}", per_core.server), String::new());
        row("CPU of the client at 30 Mbit/s", cpu, String::new());
        row("memory of the client, idle", mb(memory.idle), String::new());
        row("memory of the client at 30 Mbit/s", mb(memory.at_30mbps), String::new());
        let table = right_aligned(table, 1);
        let cpu = |name: &str, shares: CpuShares| {
            format!(
                "{name} {:.2} us in its own code + {:.2} us in system calls",
                shares.user_us_per_packet, shares.kernel_us_per_packet
            )
        };
        format!(
            "{table}\nCPU per UDP packet: {}; {}",
            cpu("client", self.cpu.client),
            cpu("server", self.cpu.server)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn cpu_time_is_shared_out_over_the_packets() {
        let time = CpuTime { user: Duration::from_millis(300), kernel: Duration::from_millis(100) };
        let shares = CpuShares::of(time, 100_000);
        assert!((shares.user_us_per_packet - 3.0).abs() < 1e-9);
        assert!((shares.packets_per_second() - 250_000.0).abs() < 1e-3);
        assert_eq!(CpuShares::default().packets_per_second(), 0.0);
    }
}
