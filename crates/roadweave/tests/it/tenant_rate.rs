//! What a tenant may send through a proxy: as the controller says, and as the proxy's file does,
//! while everything runs.
//!
//! ```text
//! box ─ 6 Mbit/s of UDP ═► proxy: limit, drops counted ── leg ──► anchor ─► counted
//! ```

use std::net::UdpSocket;
use std::thread::sleep;
use std::time::Duration;

use crate::common::world::*;
use crate::common::*;
use rustix::process::Signal;

/// What is sent: six megabits per second of payloads.
const PACKET_BYTES: usize = 1_000;
const INTERVAL: Duration = Duration::from_nanos(1_333_333);
/// How long a change may take to reach a proxy on a busy machine.
const CHANGE_MAX: Duration = Duration::from_secs(60);

/// A stream from the box through its proxy to the anchor.
struct Stream<'a> {
    road: &'a Road,
    socket: UdpSocket,
}

impl Stream<'_> {
    /// Packets that the proxy has dropped for the tenant's limit so far.
    fn limited(&self) -> u64 {
        let drops = &self.road.show("proxy")["tenants"]["home"]["drops"];
        drops["rate-limited"].as_u64().unwrap_or_default()
    }

    /// Sends until a limit of 2 Mbit/s cuts it, or until none does.
    fn wait_until_cut(&self, is_cut: bool) {
        wait_within(CHANGE_MAX, &format!("cut: {is_cut}"), || {
            let before = self.limited();
            for _ in 0..750 {
                self.socket.send(&[0; PACKET_BYTES]).unwrap();
                sleep(INTERVAL);
            }
            (self.limited() > before) == is_cut
        });
    }
}

#[test]
fn a_tenants_limit_cuts_its_boxes_and_is_taken_back_while_everything_runs() {
    in_world(|world| {
        world.join_with_anchor();
        world.road.echo(&world.road.cloud, "0.0.0.0");
        let daemons = world.start_with_anchor();
        let stream = Stream { road: &world.road, socket: world.road.socket_to(GATEWAY_V4) };
        stream.wait_until_cut(false);
        let limit = ["tenant", "limit", "home"];
        let said = world.json(&[&limit[..], &["--rate-mbps", "2"]].concat());
        assert_eq!(said["settings"]["limits"]["rate_mbps"], 2);
        assert_eq!(said["settings"]["egress"], "anchor", "{said:#}");
        stream.wait_until_cut(true);
        let said = world.json(&limit);
        assert!(said["settings"]["limits"]["rate_mbps"].is_null(), "{said:#}");
        stream.wait_until_cut(false);

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
        stream.wait_until_cut(true);
        write(&of_file(""));
        stream.wait_until_cut(false);
        write(&of_file("rate_limit_mbps = 2\n"));
        stream.wait_until_cut(true);
        // Without the file's word the controller's counts.
        write("");
        stream.wait_until_cut(false);
        assert_eq!((client.count("joined"), proxy.count("joined")), (1, 1), "{}", proxy.log());
        assert_eq!(proxy.count("ignored until the next start"), 0, "{}", proxy.log());
    });
}
