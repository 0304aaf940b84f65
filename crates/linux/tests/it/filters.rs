//! The effect of packet filters, between real namespaces.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_linux::{
    Destination, FilterKeeper, FilterOptions, Filters, Forwarding, Instance, Interface, Monitor,
    cleanup,
};
use roadweave_proto::{DropReason, UplinkSelector};

use crate::common::*;

mod forged;
mod shares;

const WAIT: Duration = Duration::from_millis(300);

/// A machine in the middle of four networks with one host each, whose gateway it is. Number N has
/// 10.N.0.0/24 and fd0N::/64; the machine is .1, the host .2.
///
/// ```text
/// tunnel (1) ── rw0 ┐         ┌ lan0 ── lan (2)
///                   ├ machine ┤
///  wifi (3) ── wlan0┘         └ wwan0 ── modem (4)
/// ```
struct Crossing {
    machine: NetNs,
    tunnel: NetNs,
    lan: NetNs,
    wifi: NetNs,
    modem: NetNs,
}

fn on_crossing(test: impl FnOnce(&Crossing)) {
    run_sandboxed(|| test(&Crossing::new()));
}

impl Crossing {
    fn new() -> Self {
        let create = |name| NetNs::create(name).unwrap();
        let this = Self {
            machine: create("machine"),
            tunnel: create("tunnel"),
            lan: create("lan"),
            wifi: create("wifi"),
            modem: create("modem"),
        };
        for namespace in [&this.machine, &this.tunnel, &this.lan, &this.wifi, &this.modem] {
            namespace.set_sysctl("net.ipv6.conf.all.accept_dad", "0").unwrap();
            namespace.set_sysctl("net.ipv6.conf.default.accept_dad", "0").unwrap();
        }
        let hosts = [("rw0", &this.tunnel), ("lan0", &this.lan), ("wlan0", &this.wifi)];
        for (number, (name, host)) in (1..).zip(hosts.into_iter().chain([("wwan0", &this.modem)])) {
            let at =
                |last: u8| [format!("10.{number}.0.{last}/24"), format!("fd0{number}::{last}/64")];
            let (near, far) = (at(1), at(2));
            let (near, far) =
                (near.each_ref().map(String::as_str), far.each_ref().map(String::as_str));
            cable((&this.machine, name, &near), (host, "eth0", &far));
            host.ip(&format!("route add default via 10.{number}.0.1")).unwrap();
            host.ip(&format!("-6 route add default via fd0{number}::1")).unwrap();
        }
        introduce((&this.machine, "rw0"), (&this.tunnel, "eth0", "fd01::2"));
        introduce((&this.tunnel, "eth0"), (&this.machine, "rw0", "fd01::1"));
        nft(
            &this.tunnel,
            "table ip6 quiet { chain out { type filter hook output priority 0; \
             ip6 daddr ff00::/8 meta l4proto icmpv6 drop; }; }",
        );
        this
    }

    /// Checks whether a packet from `from` reaches `address` in `to`, and an answer comes back.
    fn check(&self, from: &NetNs, to: &NetNs, address: &str, is_open: bool) {
        let exchange = Exchange::open(from, to, address);
        let passes = if is_open { exchange.passes() } else { exchange.again() };
        assert_eq!(passes, is_open, "from {} to {address}", from.name());
    }

    /// The same for both families; `number` is the network of `to`.
    fn check_both(&self, from: &NetNs, to: &NetNs, number: u8, is_open: bool) {
        for address in [format!("10.{number}.0.2"), format!("fd0{number}::2")] {
            self.check(from, to, &address, is_open);
        }
    }
}

struct Exchange {
    sender: UdpSocket,
    receiver: UdpSocket,
    at: SocketAddr,
}

impl Exchange {
    fn begin(from: &NetNs, to: &NetNs, address: &str) -> Option<Self> {
        let this = Self::open(from, to, address);
        this.again().then_some(this)
    }

    fn open(from: &NetNs, to: &NetNs, address: &str) -> Self {
        let address: IpAddr = address.parse().unwrap();
        let any: IpAddr = if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() };
        let bind = |namespace: &NetNs| {
            let socket = namespace.enter(|| UdpSocket::bind((any, 0)).unwrap()).unwrap();
            socket.set_read_timeout(Some(WAIT)).unwrap();
            socket
        };
        let receiver = bind(to);
        let at = SocketAddr::new(address, receiver.local_addr().unwrap().port());
        Self { sender: bind(from), receiver, at }
    }

    /// As [`Exchange::again`], for what is let through: a busy machine may need more than [`WAIT`].
    fn passes(&self) -> bool {
        let begun = Watch::start();
        std::iter::repeat_with(|| self.again())
            .take_while(|_| begun.elapsed() < WAIT_MAX)
            .any(|answered| answered)
    }

    fn again(&self) -> bool {
        if self.sender.send_to(b"there", self.at).is_err() {
            return false;
        }
        let Ok((_, remote)) = self.receiver.recv_from(&mut [0; 9]) else { return false };
        self.receiver.send_to(b"back", remote).unwrap();
        self.sender.recv(&mut [0; 9]).is_ok()
    }
}

fn options(forwarding: Forwarding) -> FilterOptions {
    FilterOptions::new("rw0", 1400, forwarding)
}

fn a_box(between_uplinks: bool) -> FilterOptions {
    let inside = vec![Interface { name: "lan0".to_owned(), index: 0 }];
    let addresses = ["10.2.0.1", "fd02::1"].map(|it| it.parse().unwrap()).into();
    options(Forwarding::Box { inside, addresses, between_uplinks })
}

fn a_server(outside_to_tunnel: bool, clients_reach_clients: bool) -> FilterOptions {
    let (denied, allowed) = (Vec::new(), Vec::new());
    let forwarding =
        Forwarding::Server { outside_to_tunnel, clients_reach_clients, denied, allowed };
    FilterOptions { inner: vec![prefix("10.1.0.0/24"), prefix("fd01::/64")], ..options(forwarding) }
}

fn nft(namespace: &NetNs, script: &str) {
    namespace.nft(script).unwrap();
}

fn keep(machine: &NetNs, instance: &str, options: FilterOptions) -> FilterKeeper {
    let instance = Instance::new(instance).unwrap();
    let mut keeper = machine.enter(|| FilterKeeper::start(&instance, None).unwrap()).unwrap();
    keeper.set_and_wait(options).unwrap();
    keeper
}

fn forwarding(namespace: &NetNs) -> [String; 2] {
    namespace.enter(|| ["ipv4/ip_forward", "ipv6/conf/all/forwarding"].map(sysctl)).unwrap()
}

#[test]
fn a_box_is_no_router_for_its_uplinks() {
    on_crossing(|crossing| {
        let Crossing { machine, tunnel, lan, wifi, modem } = crossing;
        machine.set_forwarding().unwrap();
        // Known to conntrack, which works only if a rule uses it, before the filters exist.
        nft(
            machine,
            "add table inet x; add chain inet x y { type filter hook forward priority 0; }; \
                      add rule inet x y ct state new accept",
        );
        let before = Exchange::begin(wifi, lan, "10.2.0.2").expect("the test can fail");
        crossing.check_both(wifi, modem, 4, true);
        let inner = ["10.1.0.1", "fd01::1"];
        let own = ["10.2.0.1", "fd02::1", "10.3.0.1", "fd03::1", inner[0], inner[1]];
        let check_own = |from, expected: [bool; 6]| {
            for (address, is_open) in own.into_iter().zip(expected) {
                crossing.check(from, machine, address, is_open);
            }
        };
        check_own(wifi, [true; 6]);

        let instance = Instance::new("client").unwrap();
        let own_addresses = inner.map(|address| address.parse().unwrap()).to_vec();
        let options = FilterOptions { own_addresses, ..a_box(false) };
        let mut filters = machine.enter(|| Filters::install(&instance, &options).unwrap()).unwrap();
        assert!(!before.again(), "what a stranger began is no answer, however long it lasts");
        for (to, number) in [(tunnel, 1), (lan, 2), (modem, 4)] {
            crossing.check_both(wifi, to, number, false);
        }
        for (from, to, number) in
            [(lan, tunnel, 1), (tunnel, lan, 2), (lan, wifi, 3), (tunnel, wifi, 3)]
        {
            crossing.check_both(from, to, number, true);
        }

        // An uplink's network reaches only the machine's addresses there.
        check_own(wifi, [false, false, true, true, false, false]);
        check_own(lan, [true, true, true, true, false, false]);
        for address in inner {
            crossing.check(tunnel, machine, address, true);
            crossing.check(machine, machine, address, true);
        }
        assert!(!passes_in_the_name_of(wifi, "fd02::1", machine, "fd01::1"));

        // An interface that is added later is an uplink, too.
        let late = NetNs::create("late").unwrap();
        cable((machine, "wwan9", &["10.9.0.1/24"]), (&late, "eth0", &["10.9.0.2/24"]));
        late.ip("route add default via 10.9.0.1").unwrap();
        crossing.check(&late, lan, "10.2.0.2", false);

        forward_a_port(machine);
        assert!(passes_the_forwarded_port(wifi, lan));

        machine.enter(|| filters.replace(&a_box(true)).unwrap()).unwrap();
        crossing.check_both(wifi, modem, 4, true);
        crossing.check_both(wifi, lan, 2, false);
        crossing.check_both(wifi, tunnel, 1, false);

        machine.enter(move || drop(filters)).unwrap();
        assert_eq!(forwarding(machine), ["1", "1"], "as before");
        assert!(!tables(machine).contains("roadweave"));
    });
}

fn forward_a_port(machine: &NetNs) {
    nft(
        machine,
        "table ip own { chain in { type nat hook prerouting priority dstnat; \
         ip daddr 10.3.0.1 udp dport 99 dnat to 10.2.0.2:98; }; }",
    );
}

fn passes_the_forwarded_port(from: &NetNs, lan: &NetNs) -> bool {
    let camera = lan.enter(|| UdpSocket::bind("0.0.0.0:98").unwrap()).unwrap();
    camera.set_read_timeout(Some(WAIT)).unwrap();
    let stranger = from.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    stranger.send_to(b"there", "10.3.0.1:99").unwrap();
    camera.recv(&mut [0; 9]).is_ok()
}

#[test]
fn what_had_a_default_route_once_is_no_network_behind_the_box() {
    on_crossing(|Crossing { machine, .. }| {
        machine.ip("link add idle0 type veth peer name idle1").unwrap();
        let inside = |monitor: &mut Monitor| {
            monitor.poll().unwrap();
            let names = monitor.inside().into_iter().map(|interface| interface.name);
            names.collect::<Vec<_>>()
        };
        let all = ["lan0", "rw0", "wlan0", "wwan0"];
        machine
            .enter(|| {
                let mut monitor = Monitor::open(UplinkSelector::default()).unwrap();
                assert_eq!(inside(&mut monitor), all, "all with an address");
                machine.ip("route add default via 10.3.0.2").unwrap();
                assert_eq!(inside(&mut monitor), ["lan0", "rw0", "wwan0"]);
                machine.ip("route del default").unwrap();
                assert_eq!(inside(&mut monitor), ["lan0", "rw0", "wwan0"]);
                let include = vec!["wwan*".to_owned(), "wlan0".to_owned()];
                let selector =
                    UplinkSelector { include, exclude: vec!["wlan0".to_owned()], inside: vec![] };
                let mut monitor = Monitor::open(selector).unwrap();
                assert_eq!(inside(&mut monitor), ["idle0", "idle1", "lan0", "rw0", "wlan0"]);
            })
            .unwrap();
    });
}

#[test]
fn a_server_decides_who_enters_the_tunnel() {
    on_crossing(|crossing| {
        let Crossing { machine, tunnel, lan, wifi: outside, .. } = crossing;
        machine.set_forwarding().unwrap();
        forward_a_port(machine);
        // Another client, whose packets pass the machine and return to the tunnel.
        let other = NetNs::create("other").unwrap();
        cable((tunnel, "eth1", &["10.1.1.1/24"]), (&other, "eth0", &["10.1.1.2/24"]));
        other.ip("route add default via 10.1.1.1").unwrap();
        machine.ip("route add 10.1.1.0/24 via 10.1.0.2").unwrap();
        machine.set_sysctl("net.ipv4.conf.rw0.send_redirects", "0").unwrap();
        machine.set_sysctl("net.ipv4.conf.all.send_redirects", "0").unwrap();
        tunnel.set_forwarding().unwrap();
        tunnel.set_sysctl("net.ipv4.conf.eth0.accept_local", "1").unwrap();
        tunnel.ip("rule add priority 9 iif lo to 10.1.1.2 table 9").unwrap();
        tunnel.ip("route add default via 10.1.0.1 table 9").unwrap();

        let instance = Instance::new("server").unwrap();
        let install = |open, reach| {
            machine.enter(|| Filters::install(&instance, &a_server(open, reach)).unwrap()).unwrap()
        };
        for (open, reach) in [(false, true), (true, false)] {
            let filters = install(open, reach);
            crossing.check_both(outside, tunnel, 1, open);
            crossing.check(tunnel, &other, "10.1.1.2", reach);
            crossing.check_both(tunnel, outside, 3, true);
            // Forwarding was on before: forwarding between other networks stays.
            crossing.check_both(outside, lan, 2, true);
            assert!(passes_the_forwarded_port(outside, lan));
            machine.enter(move || drop(filters)).unwrap();
        }
    });
}

#[test]
fn a_server_opens_nothing_between_others_and_protects_as_long_as_it_forwards() {
    on_crossing(|crossing| {
        let Crossing { machine, tunnel, lan, wifi, modem } = crossing;
        let instance = Instance::new("server").unwrap();
        let options = FilterOptions { masquerade: true, ..a_server(false, false) };
        let install = || machine.enter(|| Filters::install(&instance, &options).unwrap()).unwrap();
        let check_closed = || {
            assert_eq!(forwarding(machine), ["1", "1"]);
            crossing.check_both(wifi, lan, 2, false);
            crossing.check_both(lan, wifi, 3, false);
            crossing.check_both(wifi, tunnel, 1, false);
        };
        assert_eq!(forwarding(machine), ["0", "0"]);
        let filters = install();
        check_closed();
        crossing.check_both(tunnel, wifi, 3, true);
        for number in [1, 2] {
            let host = if number == 1 { tunnel } else { lan };
            crossing.check_both(machine, host, number, true);
        }
        wifi.ip("address add 10.1.0.77/32 dev lo").unwrap();
        let camera = lan.enter(|| UdpSocket::bind("10.2.0.2:0").unwrap()).unwrap();
        camera.set_read_timeout(Some(WAIT)).unwrap();
        let liar = wifi.enter(|| UdpSocket::bind("10.1.0.77:0").unwrap()).unwrap();
        liar.send_to(b"there", camera.local_addr().unwrap()).unwrap();
        assert!(camera.recv(&mut [0; 9]).is_err());
        assert!(!passes_in_the_name_of(wifi, "fd04::1", lan, "fd02::2"));
        // Containers start later, and are translated both ways.
        let own = "ip saddr 10.2.0.0/24 oifname wwan0 masquerade";
        let hook = "type nat hook postrouting priority srcnat;";
        nft(machine, &format!("table ip docker {{ chain out {{ {hook} {own}; }}; }}"));
        forward_a_port(machine);
        crossing.check(lan, modem, "10.4.0.2", true);
        assert!(passes_the_forwarded_port(wifi, lan));

        // As after kill -9: the next start cannot turn forwarding off.
        std::mem::forget(filters);
        check_closed();
        let clean = || {
            machine
                .enter(|| {
                    let lock = instance.lock().unwrap();
                    cleanup(&instance, &lock).unwrap();
                })
                .unwrap();
        };
        let run = |words: &str| {
            let mut words = words.split(' ');
            assert!(Command::new(words.next().unwrap()).args(words).status().unwrap().success());
        };
        run("mount --bind /proc/sys /proc/sys");
        run("mount -o remount,bind,ro /proc/sys");
        clean();
        check_closed();
        let filters = install();
        check_closed();
        machine.enter(move || drop(filters)).unwrap();
        check_closed();
        run("umount /proc/sys");
        clean();
        assert_eq!(forwarding(machine), ["0", "0"], "as originally");
        assert!(!tables(machine).contains("roadweave"));
    });
}

#[test]
fn two_instances_share_forwarding_and_the_last_turns_it_off() {
    on_crossing(|crossing| {
        let machine = &crossing.machine;
        let install = |name: &str, tun: &str| {
            let options = FilterOptions { tun: tun.to_owned(), ..a_server(true, true) };
            let instance = Instance::new(name).unwrap();
            machine.enter(|| Filters::install(&instance, &options).unwrap()).unwrap()
        };
        let first = install("first", "rw0");
        let second = install("second", "rw1");
        machine.enter(move || drop(first)).unwrap();
        assert_eq!(forwarding(machine), ["1", "1"], "the second needs it");
        crossing.check_both(&crossing.wifi, &crossing.lan, 2, false);
        machine.enter(move || drop(second)).unwrap();
        assert_eq!(forwarding(machine), ["0", "0"]);
    });
}

fn passes_in_the_name_of(liar: &NetNs, source: &str, to: &NetNs, address: &str) -> bool {
    let receiver = to.enter(|| UdpSocket::bind((address, 0)).unwrap()).unwrap();
    receiver.set_read_timeout(Some(WAIT)).unwrap();
    liar.ip(&format!("address add {source}/128 dev lo nodad")).unwrap();
    let sender = liar.enter(|| UdpSocket::bind((source, 0)).unwrap()).unwrap();
    sender.send_to(b"there", receiver.local_addr().unwrap()).unwrap();
    let passes = receiver.recv(&mut [0; 9]).is_ok();
    liar.ip(&format!("address del {source}/128 dev lo")).unwrap();
    passes
}

fn introduce(to: (&NetNs, &str), of: (&NetNs, &str, &str)) {
    let text = of.0.run(&format!("ip -br link show {}", of.1)).unwrap();
    let hardware = text.split_whitespace().nth(2).unwrap();
    let words = format!("-6 neigh replace {} lladdr {hardware} dev {} nud permanent", of.2, to.1);
    to.0.ip(&words).unwrap();
}

fn hears(machine: &NetNs, from: &NetNs, all: &str) -> bool {
    let service = machine.enter(|| UdpSocket::bind("0.0.0.0:5353").unwrap()).unwrap();
    service.set_read_timeout(Some(WAIT)).unwrap();
    let sender = from.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    sender.set_broadcast(true).unwrap();
    sender.send_to(b"all", (all, 5353)).unwrap();
    service.recv(&mut [0; 9]).is_ok()
}

#[test]
fn clients_do_not_reach_what_a_server_denies() {
    on_crossing(|crossing| {
        let Crossing { machine, tunnel, lan, wifi, modem } = crossing;
        machine.set_forwarding().unwrap();
        forward_a_port(machine);
        let forwarding = Forwarding::Server {
            outside_to_tunnel: false,
            clients_reach_clients: false,
            denied: ["10.4.0.0/24", "fd04::/64"].map(prefix).to_vec(),
            allowed: ["10.3.0.1/32", "10.1.0.1/32"]
                .map(|it| Destination { network: prefix(it), port: Some(53) })
                .to_vec(),
        };
        let own = ["10.1.0.1", "fd01::1"].map(|address| address.parse().unwrap());
        let options = FilterOptions { own_addresses: own.to_vec(), ..options(forwarding) };
        let _keeper = keep(machine, "server", options);

        assert!(!passes_the_forwarded_port(tunnel, lan), "nor what it forwards");
        assert!(passes_the_forwarded_port(wifi, lan));
        crossing.check_both(tunnel, modem, 4, false);
        crossing.check_both(tunnel, wifi, 3, true);
        crossing.check(tunnel, machine, "fd03::1", false);
        crossing.check(wifi, machine, "fd03::1", true);
        // The machine's services receive no broadcast or multicast of clients.
        for (from, all, is_heard) in [
            (wifi, "10.3.0.255", true),
            (tunnel, "10.3.0.255", false),
            (tunnel, "10.1.0.255", false),
            (tunnel, "255.255.255.255", false),
            (tunnel, "224.0.0.1", false),
        ] {
            assert_eq!(hears(machine, from, all), is_heard, "{all} from {}", from.name());
        }
        // Answers to the machine's own connections pass, for any source address.
        let socket = machine.enter(|| UdpSocket::bind("10.3.0.1:0").unwrap()).unwrap();
        socket.set_read_timeout(Some(WAIT)).unwrap();
        let client = tunnel.enter(|| UdpSocket::bind("10.1.0.2:0").unwrap()).unwrap();
        socket.send_to(b"there", client.local_addr().unwrap()).unwrap();
        let (_, server) = client.recv_from(&mut [0; 9]).unwrap();
        client.send_to(b"back", server).unwrap();
        assert!(socket.recv(&mut [0; 9]).is_ok());
    });
}

#[test]
fn what_others_remove_or_change_is_put_back() {
    on_crossing(|crossing| {
        let Crossing { machine, lan, wifi, .. } = crossing;
        machine.set_forwarding().unwrap();
        let mut keeper = keep(machine, "client", a_box(false));
        let table = || machine.run("nft -a list table inet roadweave_client").unwrap_or_default();
        // The handles show whether a rule was touched.
        let lines = || {
            let table = table();
            table
                .lines()
                .filter(|line| !line.contains("packets"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let rules = || {
            let without = |line: String| line.split(" # handle").next().unwrap().to_owned();
            lines().into_iter().map(without).collect::<Vec<_>>()
        };
        let (before, untouched) = (rules(), lines());
        crossing.check(wifi, lan, "10.2.0.2", false);
        assert_eq!(keeper.drops().get(DropReason::ForwardRefused), 1);

        nft(machine, "add table inet of_others");
        std::thread::sleep(WAIT);
        assert_eq!(untouched, lines(), "what is theirs is no reason");

        for change in [
            "flush ruleset",
            "insert rule inet roadweave_client forward accept",
            "add element inet roadweave_client inside { wlan0 }",
            "add table inet roadweave_client { flags dormant; }",
        ] {
            // The last repair is over a second ago, and the next periodic look two seconds ahead.
            std::thread::sleep(Duration::from_millis(1100));
            keeper.refresh();
            std::thread::sleep(WAIT);
            nft(machine, change);
            let state = || format!("{change}: {:#?}", rules());
            wait_or_show(Duration::from_millis(1400), state, || rules() == before);
        }
        crossing.check(wifi, lan, "10.2.0.2", false);

        let prefixes = (0..4000_u32)
            .map(|at| IpNet::new_assert(IpAddr::V4((0x0a00_0000 + at * 512).into()), 24));
        let many = FilterOptions { inner: prefixes.collect(), ..a_server(false, false) };
        let asked = Watch::start();
        keeper.set(many.clone());
        let returned = asked.elapsed();
        wait_until("4,000 prefixes", || table().contains("10.30.64.0/24"));
        let in_place = asked.elapsed();
        assert!(returned < in_place / 4, "{returned:?} of {in_place:?}: it waits for nft");
        drop(keeper);
        assert!(!tables(machine).contains("roadweave"));
    });
}
