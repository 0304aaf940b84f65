//! What a tenant may send through a proxy: as the controller says, and as the proxy's file does,
//! while everything runs.
//!
//! ```text
//! box ─ 6 Mbit/s of UDP ═► proxy: limit, drops counted ── leg ──► anchor ─► counted
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests start programs, open sockets and wait"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;
#[path = "common/world.rs"]
mod world;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::*;
use roadweave_device::netns::Watch;
use rustix::process::Signal;
use world::*;

/// What is sent: six megabits per second of payloads.
const PACKET_BYTES: usize = 1_000;
const INTERVAL: Duration = Duration::from_nanos(1_333_333);
/// What is allowed.
const LIMIT_BYTES: f64 = 250_000.0;
/// What a limit lets pass at once.
const BURST_BYTES: f64 = 65_536.0;
/// How far a sender catches up that was held up itself.
const BEHIND_MAX: Duration = Duration::from_millis(50);
/// How long a change may take to reach a proxy on a busy machine.
const CHANGE_MAX: Duration = Duration::from_secs(60);

/// A stream from the box through its proxy to the anchor.
struct Stream<'a> {
    road: &'a Road,
    socket: UdpSocket,
    arrived: Arc<AtomicU64>,
}

/// What became of a part of it.
#[derive(Debug)]
struct Part {
    sent: u64,
    arrived: u64,
    /// Dropped by the proxy for the tenant's limit.
    limited: u64,
    took: Duration,
}

impl<'a> Stream<'a> {
    fn new(road: &'a Road) -> Self {
        let bind = |at: &'static str| move || UdpSocket::bind(at).unwrap();
        let sink = road.cloud.enter(bind("0.0.0.0:9")).unwrap();
        let socket = road.vehicle.enter(bind("0.0.0.0:0")).unwrap();
        socket.connect((GATEWAY_V4, 9)).unwrap();
        let arrived = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&arrived);
        std::thread::spawn(move || {
            while sink.recv(&mut [0; 2_000]).is_ok() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { road, socket, arrived }
    }

    /// Packets that the proxy has dropped for the tenant's limit so far.
    fn limited(&self) -> u64 {
        let drops = &self.road.show("proxy")["tenants"]["home"]["drops"];
        drops["rate-limited"].as_u64().unwrap_or_default()
    }

    /// Sends so many packets.
    fn send(&self, packets: u64) -> Part {
        let before = (self.arrived.load(Ordering::Relaxed), self.limited());
        let started = Instant::now();
        let mut due = started;
        for _ in 0..packets {
            sleep(due.saturating_duration_since(Instant::now()));
            due = (due + INTERVAL).max(Instant::now().checked_sub(BEHIND_MAX).unwrap());
            self.socket.send(&[0; PACKET_BYTES]).unwrap();
        }
        let took = started.elapsed();
        // What is under way arrives, or never.
        let mut seen = 0;
        while seen != self.arrived.load(Ordering::Relaxed) {
            seen = self.arrived.load(Ordering::Relaxed);
            sleep(Duration::from_millis(500));
        }
        Part { sent: packets, arrived: seen - before.0, limited: self.limited() - before.1, took }
    }

    /// Sends until a limit is in force, and then checks that it is this one.
    fn is_cut(&self) {
        self.send_until("the limit is in force", |part| part.limited > 0);
        let part = self.send(2_250);
        println!("{part:?}");
        let bytes = |packets: u64| packets as f64 * (PACKET_BYTES + 28) as f64;
        let allowed = LIMIT_BYTES * part.took.as_secs_f64() + BURST_BYTES;
        assert!(bytes(part.arrived) <= 1.1 * allowed, "{part:?}");
        // Even if the machine had no time for any of it but the stream itself.
        let least = LIMIT_BYTES * (INTERVAL * 2_250).as_secs_f64();
        assert!(bytes(part.arrived) >= 0.5 * least, "{part:?}");
        let missing = part.sent - part.arrived;
        assert!(part.limited >= missing * 9 / 10 && part.limited <= missing, "{part:?}");
    }

    /// Sends until all of it passes.
    fn is_whole(&self) {
        let is_whole = |part: &Part| part.limited == 0 && part.arrived >= part.sent * 19 / 20;
        self.send_until("all of it passes", is_whole);
    }

    fn send_until(&self, what: &str, is_so: impl Fn(&Part) -> bool) {
        let started = Watch::start();
        loop {
            let part = self.send(750);
            if is_so(&part) {
                return;
            }
            assert!(started.elapsed() < CHANGE_MAX, "waited in vain: {what}: {part:?}");
        }
    }
}

#[test]
fn a_tenants_limit_cuts_its_boxes_and_is_taken_back_while_everything_runs() {
    let name = "a_tenants_limit_cuts_its_boxes_and_is_taken_back_while_everything_runs";
    in_world(name, |world| {
        world.join_with_anchor();
        world.road.echo(&world.road.cloud, "0.0.0.0");
        let daemons = world.start_with_anchor();
        let stream = Stream::new(&world.road);
        stream.is_whole();
        let limit = ["tenant", "limit", "home"];
        let said = world.json(&[&limit[..], &["--rate-mbps", "2"]].concat());
        assert_eq!(said["settings"]["limits"]["rate_mbps"], 2);
        assert_eq!(said["settings"]["egress"], "anchor", "{said:#}");
        stream.is_cut();
        let said = world.json(&limit);
        assert!(said["settings"]["limits"]["rate_mbps"].is_null(), "{said:#}");
        stream.is_whole();

        // The file comes before the controller, and is read again as the proxy runs.
        world.json(&[&limit[..], &["--rate-mbps", "900"]].concat());
        let [_, proxy, client] = &daemons;
        let gates = world.json(&["proxy", "list"]);
        let mut gates = gates.as_array().unwrap().iter();
        let anchor = &gates.find(|it| it["id"] == "site-1").unwrap()["settings"]["public_key"];
        let of_file = |rate: &str| {
            format!(
                "[[tenants]]\nname = \"home\"\ngateways = [\"{GATEWAY_V4}\"]\n{rate}\
                 anchor = {{ public_key = {anchor}, addresses = [\"{ANCHOR_AT}\"] }}\n"
            )
        };
        let alone = std::fs::read_to_string(world.road.path("proxy.toml")).unwrap();
        let write = |text: &str| {
            world.road.edit("proxy.toml", |_| format!("{alone}{text}"));
            proxy.signal(Signal::HUP);
        };
        write(&of_file("rate_limit_mbps = 2\n"));
        stream.is_cut();
        write(&of_file(""));
        stream.is_whole();
        write(&of_file("rate_limit_mbps = 2\n"));
        stream.is_cut();
        // Without the file's word the controller's counts.
        write("");
        stream.is_whole();
        assert_eq!((client.count("joined"), proxy.count("joined")), (1, 1), "{}", proxy.log());
        assert_eq!(proxy.count("ignored until the next start"), 0, "{}", proxy.log());
    });
}
