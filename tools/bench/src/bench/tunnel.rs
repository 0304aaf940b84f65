//! `roadweave bench tunnel`: the tunnel compared with the bare veth below it.
//!
//! ```text
//!   client namespace                       server namespace
//!   iperf3, ping                           iperf3, bench-echo
//!     rw0 = roadweave client ==lan0==lan0== roadweave server = rw1
//!                            ==lan1==lan1==
//! ```
//!
//! The bare veth is measured first, then the tunnel with the same loads. Both ends and the load
//! share the cores of this machine.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use roadweave_linux::netns::NetNs;
use roadweave_terminal::out;
use roadweave_tunnel::Strategy;

use super::against::{self, AgainstArgs};
use super::echo;
use super::iperf::{self, IperfLoad};
use super::results::{Bare, BenchResults, CpuShares, Ends, Latency, Resident};
use crate::product;
use crate::sandbox::daemon::{CpuTime, Daemon};
use crate::sandbox::tunnel::{SERVER_INNER, Testbed, Tunnel, TunnelSpec};
use crate::sandbox::usage::resident_bytes;
use crate::sandbox::{self, clock, connect};

const DIRECTORY: &str = "/run/roadweave-bench";
pub(super) const SERVER_OUTER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2));
const PORT: u16 = 4433;
const ECHO_PORT: u16 = 7;
const RATES: (f64, f64) = (100e6, 12.8e9);
const STEADY_RATE: f64 = 30e6;

/// Measures the tunnel's speed and what it adds in latency, against the same veth without it
#[derive(Debug, clap::Args)]
pub struct TunnelArgs {
    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,
    /// Duration of each of the about 25 to 40 measurements, seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    #[command(flatten)]
    against: AgainstArgs,
}

impl TunnelArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        iperf::check()?;
        sandbox::enter()?;
        let bench = Bench::build(self.seconds)?;
        match &self.against.against {
            Some(program) => self.compare(program, &bench),
            None => present(&bench.run()?, self.json),
        }
    }

    fn compare(&self, program: &Path, bench: &Bench) -> anyhow::Result<()> {
        let mut tunnel = bench.start_tunnel()?;
        let compared = self.against.run(program, bench, &mut tunnel)?;
        tunnel.stop()?;
        if self.json { out::json(&compared) } else { Ok(out::line(against::render(&compared))?) }
    }
}

pub(super) fn present(results: &BenchResults, json: bool) -> anyhow::Result<()> {
    if json { out::json(results) } else { Ok(out::line(results.render())?) }
}

pub(super) struct Bench {
    client: NetNs,
    server: NetNs,
    pub(super) directory: PathBuf,
    program: PathBuf,
    product: PathBuf,
    seconds: u32,
}

impl Bench {
    /// Builds the namespaces; only inside a sandbox.
    pub(super) fn build(seconds: u32) -> anyhow::Result<Self> {
        let directory = PathBuf::from(DIRECTORY);
        fs::create_dir_all(&directory).context("cannot create a directory for the bench")?;
        let (client, server) = (NetNs::create("client")?, NetNs::create("server")?);
        connect((&client, "lan0", "198.51.100.1/24"), (&server, "lan0", "198.51.100.2/24"))?;
        connect((&client, "lan1", "192.0.2.1/24"), (&server, "lan1", "192.0.2.2/24"))?;
        // The server has one address, one hop away over the second link. The default route leaves
        // all traffic that is not bound to that link on the first.
        client.ip("route add default via 192.0.2.2 dev lan1")?;
        for namespace in [&client, &server] {
            // Packets arrive over a link that is not in the routes.
            namespace.set_sysctl("net.ipv4.conf.all.rp_filter", "0")?;
            namespace.set_sysctl("net.ipv4.conf.default.rp_filter", "0")?;
        }
        let program = std::env::current_exe().context("cannot find this program")?;
        let product = product::program()?;
        Ok(Self { client, server, directory, program, product, seconds })
    }

    pub(super) fn testbed(&self) -> Testbed<'_> {
        Testbed {
            program: &self.product,
            directory: &self.directory,
            server: &self.server,
            client: &self.client,
        }
    }

    fn run(&self) -> anyhow::Result<BenchResults> {
        let veth = self.measure_veth()?;
        let mut tunnel = self.start_tunnel()?;
        let results = self.measure_tunnel(&mut tunnel, veth)?;
        tunnel.stop()?;
        Ok(results)
    }

    fn start_tunnel(&self) -> anyhow::Result<Tunnel> {
        out::note("starting the tunnel");
        let spec = TunnelSpec {
            uplinks: vec!["lan0", "lan1"],
            server: SocketAddr::new(SERVER_OUTER, PORT),
            lane: "default",
            strategy: Strategy::xnc(),
            into_tunnel: "10.77.0.0/24",
            behind_client: None,
        };
        let files = spec.write(&self.directory)?;
        let mut tunnel = Tunnel::start(self.testbed(), &files)?;
        tunnel.wait_for_paths(spec.uplinks.len(), || Ok(()))?;
        Ok(tunnel)
    }

    pub(super) fn measure_veth(&self) -> anyhow::Result<Bare> {
        let load = self.load(SERVER_OUTER);
        out::note("bare veth: latency");
        let latency_us = self.latency(SERVER_OUTER)?;
        out::note("bare veth: TCP");
        let tcp_goodput_bps = load.tcp()?;
        let measure = |rate| {
            out::note(format_args!("bare veth: UDP at {:.0} Mbit/s", rate / 1e6));
            Ok((load.udp(rate)?, ()))
        };
        let (udp, ()) = iperf::highest_rate(RATES, measure)?;
        Ok(Bare {
            udp_goodput_bps: udp.goodput_bps,
            udp_limited_by_sender: udp.limited_by_sender,
            tcp_goodput_bps,
            latency_us,
        })
    }

    pub(super) fn measure_tunnel(
        &self,
        tunnel: &mut Tunnel,
        veth: Bare,
    ) -> anyhow::Result<BenchResults> {
        let load = self.load(SERVER_INNER);
        let idle = resident_bytes(tunnel.client.id())?;
        out::note("tunnel: latency");
        let latency = self.latency(SERVER_INNER)?;
        out::note("tunnel: 30 Mbit/s");
        let (begin, before) = (clock::now(), tunnel.client.cpu_time()?);
        load.udp(STEADY_RATE)?;
        let steady = tunnel.client.cpu_time()?.since(before).total();
        let steady = steady.as_secs_f64() / (clock::now() - begin).as_secs_f64();
        let memory = Resident { idle, at_30mbps: resident_bytes(tunnel.client.id())? };
        out::note("tunnel: TCP");
        let tcp_goodput_bps = load.tcp()?;
        let measure = |rate| {
            let before = cpu_times(tunnel)?;
            let run = load.udp(rate)?;
            let after = cpu_times(tunnel)?;
            tunnel.check_running()?;
            let (rate, lost) = (rate / 1e6, run.loss * 100.0);
            out::note(format_args!("tunnel: UDP at {rate:.0} Mbit/s, {lost:.2} % lost"));
            let cpu = Ends {
                client: CpuShares::of(after.client.since(before.client), run.packets),
                server: CpuShares::of(after.server.since(before.server), run.packets),
            };
            Ok((run, cpu))
        };
        let (udp, cpu) = iperf::highest_rate(RATES, measure)?;
        let bare = veth.latency_us;
        Ok(BenchResults {
            udp_goodput_bps: udp.goodput_bps,
            udp_limited_by_sender: udp.limited_by_sender,
            tcp_goodput_bps,
            tcp_congestion_control: iperf::TCP_CONGESTION_CONTROL.to_owned(),
            packets_per_second_per_core: Ends {
                client: cpu.client.packets_per_second(),
                server: cpu.server.packets_per_second(),
            },
            added_latency_us: Latency { p50: latency.p50 - bare.p50, p99: latency.p99 - bare.p99 },
            client_cpu_percent_at_30mbps: steady * 100.0,
            client_resident_bytes: memory,
            cpu,
            veth,
        })
    }

    pub(super) fn load(&self, address: IpAddr) -> IperfLoad<'_> {
        IperfLoad {
            client: &self.client,
            server: &self.server,
            address,
            seconds: self.seconds,
            directory: &self.directory,
        }
    }

    pub(super) fn latency(&self, address: IpAddr) -> anyhow::Result<Latency> {
        let echo_at = SocketAddr::new(address, ECHO_PORT);
        let mut command = self.server.command(&self.program);
        command.arg("bench-echo").arg("--listen").arg(echo_at.to_string());
        let mut echo = Daemon::start("echo", &mut command, Path::new(&self.directory))?;
        let count = self.seconds as usize * 1000;
        let times = self.client.enter(|| echo::ping(echo_at, count))??;
        echo.check_running()?;
        let at = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100);
            times.get(rank.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        Ok(Latency { p50: at(50), p99: at(99) })
    }
}

fn cpu_times(tunnel: &Tunnel) -> anyhow::Result<Ends<CpuTime>> {
    Ok(Ends { client: tunnel.client.cpu_time()?, server: tunnel.server.cpu_time()? })
}
