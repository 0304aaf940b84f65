//! Full and dead proxies get no new boxes until they have room or are back.
//!
//! ```text
//! bus11, bus12, ... ══► server: controller, fra-1 :4433, fra-2 :4435 ═══► cloud: anchor
//! ```

use std::time::Duration;

use crate::common::world::*;
use crate::common::*;
use serde_json::Value;

const TWO: [(&str, &str); 2] = [("fra-1", SERVES_AT), ("fra-2", "198.51.100.1:4435")];
/// A proxy is judged 75 s after the last report of a box that was on it.
const JUDGED_MAX: Duration = Duration::from_secs(300);

struct Gates<'a> {
    world: &'a World,
    proxies: [Option<Daemon>; 2],
    _anchor: Daemon,
}

struct Bus {
    name: String,
    client: Daemon,
    _garage: NetNs,
}

impl<'a> Gates<'a> {
    fn new(world: &'a World) -> Self {
        world.admit_anchor();
        let mut gates = Self { world, proxies: [None, None], _anchor: world.start_anchor() };
        for (at, (name, address)) in TWO.into_iter().enumerate() {
            world.admit(&world.network.server, "proxy", (name, address));
            let instance = format!("instance = {:?}\n", name.replace('-', "_"));
            let file = instance + &world.serves(name, address);
            world.network.write(&format!("{name}.toml"), file);
            gates.start(at);
        }
        gates
    }

    fn start(&mut self, at: usize) {
        self.proxies[at] = Some(self.world.start_proxy(TWO[at].0));
    }

    fn start_box(&self, number: u8) -> Bus {
        let (network, name) = (&self.world.network, format!("bus{number}"));
        let garage = NetNs::create(&format!("garage{number}")).unwrap();
        let uplink = format!("eth{number}");
        let (near, far) = (format!("10.{number}.0.2/24"), format!("10.{number}.0.1/24"));
        cable((&garage, &uplink, &[&near]), (&network.server, &uplink, &[&far]));
        garage.ip(&format!("route add default via 10.{number}.0.1")).unwrap();

        let mut join = garage.command(PROGRAM);
        let token = self.world.token("box");
        join.args(["join", &token, "--name", &name, "--state-directory"]);
        joined(&join.arg(network.path(&name)).output().unwrap());
        let rest = format!(
            "[uplinks]\ninclude = [{uplink:?}]\n[routes]\ninto_tunnel = [\"10.77.0.0/16\"]\n\
             [tun]\nname = {name:?}\n"
        );
        network.write(&format!("{name}.toml"), self.world.state(&name) + &rest);
        let client = network.start(&garage, "client", &name);
        client.wait_for("joined");
        Bus { name, client, _garage: garage }
    }

    fn home(&self, bus: &Bus) -> usize {
        let candidates = self.candidates(bus);
        let in_use = candidates.iter().find(|it| it["place"] == "in-use");
        let at = match in_use {
            Some(in_use) => (0..2).find(|at| in_use["name"] == TWO[*at].0),
            None => (0..2)
                .find(|at| bus.client.log().contains(&format!("joined server={}", TWO[*at].1))),
        };
        at.unwrap()
    }

    fn offered(&self, bus: &Bus) -> Vec<usize> {
        let candidates = self.candidates(bus);
        if candidates.is_empty() {
            return vec![self.home(bus)];
        }
        let is_offered = |at: &usize| {
            candidates.iter().any(|it| it["name"] == TWO[*at].0 && it["last_resort"] == false)
        };
        (0..2).filter(is_offered).collect()
    }

    fn candidates(&self, bus: &Bus) -> Vec<Value> {
        self.world.network.show(&bus.name)["candidates"].as_array().cloned().unwrap_or_default()
    }

    fn wait_for_offer(&self, bus: &Bus, expected: &[usize]) {
        let what = format!("{} is offered {expected:?}", bus.name);
        wait_within(JUDGED_MAX, &what, || self.offered(bus) == expected);
    }
}

#[test]
fn a_full_and_a_dead_proxy_get_no_new_boxes_until_they_are_back() {
    in_world(|world| {
        let mut gates = Gates::new(&world);
        let first = gates.start_box(11);
        gates.wait_for_offer(&first, &[0, 1]);
        let home = gates.home(&first);
        let other = 1 - home;
        // A box moves where another proxy answers much sooner, as on a loaded machine; the proxy
        // would be empty then.
        let port = TWO[other].1.rsplit(':').next().unwrap();
        let refusal = "add table inet kept; add chain inet kept input { type filter hook input \
                       priority 0; }; add rule inet kept input ip saddr 10.11.0.2 udp dport";
        nft(&world.network.server, &format!("{refusal} {port} drop"));

        // A proxy reports every 10 s that it is full.
        let limited = world.json(&["proxy", "limit", TWO[home].0, "--sessions", "1"]);
        assert_eq!(limited["settings"]["devices_max"], 1, "{limited:#}");
        let mut boxes = vec![first];
        let second = loop {
            let number = 11 + u8::try_from(boxes.len()).unwrap();
            assert!(number < 50, "boxes come to a proxy that is full");
            let bus = gates.start_box(number);
            if gates.home(&bus) == other {
                break bus;
            }
            boxes.push(bus);
        };
        gates.wait_for_offer(&second, &[other]);
        assert_eq!(gates.offered(&boxes[0]), [0, 1], "who is there may stay");
        world.json(&["proxy", "limit", TWO[home].0]);
        gates.wait_for_offer(&second, &[0, 1]);

        nft(&world.network.server, "delete table inet kept");
        gates.proxies[home].take().unwrap().kill();
        gates.wait_for_offer(&second, &[other]);
        let third = gates.start_box(50);
        gates.wait_for_offer(&third, &[other]);
        gates.start(home);
        for bus in boxes.iter().chain([&second, &third]) {
            gates.wait_for_offer(bus, &[0, 1]);
        }
    });
}
