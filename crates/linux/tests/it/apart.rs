//! Two anchors' TUNs on one machine with the same inner addresses exchange nothing.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_linux::{
    AnchorTun, Apart, Destination, FilterOptions, Filters, Forwarding, Instance, RouteKeeper,
    Routes, Tun, TunOptions, cleanup, wait_readable,
};

use crate::common::*;

const MACHINE: [&str; 2] = ["203.0.113.1", "2001:db8::1"];
const REMOTE: [&str; 2] = ["203.0.113.2", "2001:db8::2"];
const CLIENT: [&str; 2] = ["10.77.0.2", "fd77::2"];
const OWN: [&str; 2] = ["10.77.0.1", "fd77::1"];
const NETWORKS: [&str; 2] = ["10.77.0.1/24", "fd77::1/64"];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

struct World {
    machine: NetNs,
    remote: NetNs,
}

fn in_world(test: impl FnOnce(World)) {
    run_sandboxed(|| test(World::new()));
}

impl World {
    fn new() -> Self {
        let (machine, remote) = (NetNs::create("machine").unwrap(), NetNs::create("site").unwrap());
        machine.set_sysctl("net.ipv4.conf.all.rp_filter", "1").unwrap();
        cable(
            (&machine, "eth0", &["203.0.113.1/24", "2001:db8::1/64"]),
            (&remote, "eth0", &["203.0.113.2/24", "2001:db8::2/64"]),
        );
        let world = Self { machine, remote };
        REMOTE.into_iter().for_each(|remote| world.echo(&world.remote, remote, 7));
        world
    }

    fn echo(&self, namespace: &NetNs, at: &str, port: u16) {
        echo(self.socket(namespace, at, port));
    }

    fn socket(&self, namespace: &NetNs, at: &str, port: u16) -> UdpSocket {
        let at = SocketAddr::new(ip(at), port);
        let socket = namespace.enter(|| UdpSocket::bind(at).unwrap()).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        socket
    }

    fn nft(&self, commands: &str) {
        self.machine.nft(commands).unwrap();
    }

    fn connections(&self) -> String {
        let read = || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack");
        self.machine.enter(read).unwrap().unwrap()
    }
}

struct TestAnchor<'a> {
    world: &'a World,
    instance: Instance,
    tun: Option<Tun>,
    filters: Option<Filters>,
    routes: Option<RouteKeeper>,
    heard: Vec<String>,
}

fn surroundings(tun: &Tun, networks: &[&str], is_exposed: bool) -> AnchorTun {
    let networks = prefixes(networks);
    AnchorTun { tun: tun.name().to_owned(), index: tun.index(), networks, is_exposed }
}

fn open_tun(name: &str, addresses: &[&str]) -> Tun {
    let (name, addresses) = (name.to_owned(), prefixes(addresses));
    Tun::open(&TunOptions { name, mtu: 1360, addresses, offload: false }).unwrap()
}

impl<'a> TestAnchor<'a> {
    fn start(world: &'a World, name: &str, networks: &[&str], behind: &[&str]) -> Self {
        let instance = Instance::new(name).unwrap();
        let apart = Apart::of(&instance);
        let start = || {
            let tun = open_tun(name, networks);
            let mut routes = Routes::open(&instance).unwrap();
            routes.keep_apart(apart, surroundings(&tun, networks, false)).unwrap();
            routes.route_into_tun(tun.index(), &prefixes(behind)).unwrap();
            let allowed = ["10.0.0.0/8", "fd00::/8"]
                .map(|it| Destination { network: it.parse().unwrap(), port: None })
                .to_vec();
            let forwarding = Forwarding::Server {
                outside_to_tunnel: false,
                clients_reach_clients: true,
                denied: Vec::new(),
                allowed,
            };
            let filters = FilterOptions {
                own_addresses: prefixes(networks).iter().map(IpNet::addr).collect(),
                inner: prefixes(&[networks, behind].concat()),
                masquerade: true,
                apart: Some(apart),
                ..FilterOptions::new(name, 1360, forwarding)
            };
            let filters = Filters::install(&instance, &filters).unwrap();
            (tun, filters, RouteKeeper::start(routes).unwrap())
        };
        let (tun, filters, routes) = world.machine.enter(start).unwrap();
        let (tun, filters, routes) = (Some(tun), Some(filters), Some(routes));
        Self { world, instance, tun, filters, routes, heard: Vec::new() }
    }

    fn tun(&mut self) -> &mut Tun {
        self.tun.as_mut().unwrap()
    }

    fn say(&mut self, from: (&str, u16), to: (&str, u16), text: &str) {
        self.write(udp((ip(from.0), from.1), (ip(to.0), to.1), text.as_bytes()));
    }

    fn write(&mut self, packet: Vec<u8>) {
        let counts = self.tun().write_batch(&[packet]);
        assert_eq!(counts.written, 1, "{counts:?}");
    }

    fn listen(&mut self) {
        let (tun, heard) = (self.tun.as_mut().unwrap(), &mut self.heard);
        tun.read_batch(Tun::READS_MAX, |packet| heard.extend(text_of(packet))).unwrap();
    }

    fn hear(&mut self, text: &str) {
        assert!(self.hears(text, WAIT_MAX), "{text:?} never came: {:?}", self.heard);
    }

    fn hears(&mut self, text: &str, within: Duration) -> bool {
        let watch = Watch::start();
        loop {
            self.listen();
            if self.heard.iter().any(|it| it == text) {
                return true;
            }
            if watch.elapsed() > within {
                return false;
            }
            wait_readable(self.tun.as_ref().unwrap(), Duration::from_millis(50)).unwrap();
        }
    }

    /// Asks the remote host and awaits its answer, after earlier packets. Retransmits.
    fn ask_remote(&mut self, text: &str) {
        for (client, remote) in CLIENT.iter().zip(REMOTE) {
            let text = format!("{text} from {remote}");
            let answered = (0..20).any(|_| {
                self.say((client, 4000), (remote, 7), &text);
                self.hears(&text, Duration::from_secs(1))
            });
            assert!(answered, "{text:?} never came: {:?}", self.heard);
        }
    }

    fn stop(mut self) {
        let machine = &self.world.machine;
        let (filters, routes, tun) = (self.filters.take(), self.routes.take(), self.tun.take());
        machine.enter(move || drop((filters, routes, tun))).unwrap();
    }

    fn crash(mut self) {
        std::mem::forget((self.filters.take(), self.routes.take()));
        self.tun = None;
    }
}

/// The text of a datagram, or [`EXCEEDED`]; ignores the kernel's own IPv6 messages.
fn text_of(packet: &[u8]) -> Option<String> {
    let (protocol, header) = match packet[0] >> 4 {
        4 => (packet[9], 20),
        _ => (packet[6], 40),
    };
    if (protocol, packet[header]) == (1, 11) {
        return Some(EXCEEDED.to_owned());
    }
    (protocol == 17).then(|| String::from_utf8_lossy(&packet[header + 8..]).into_owned())
}

const EXCEEDED: &str = "time exceeded";

fn dying(port: u16) -> Vec<u8> {
    let mut packet = udp((ip(CLIENT[0]), port), (ip(REMOTE[0]), 7), b"never there");
    packet[8] = 1;
    seal(&mut packet[..20]);
    packet
}

fn halves(packet: &[u8], number: u8) -> [Vec<u8>; 2] {
    let middle = 20 + 16;
    let half = |from: usize, to: usize, flags: u8| {
        let mut part = [&packet[..20], &packet[from..to]].concat();
        let length = u16::try_from(part.len()).unwrap();
        part[2..4].copy_from_slice(&length.to_be_bytes());
        part[5] = number;
        part[6] = flags;
        part[7] = u8::try_from((from - 20) / 8).unwrap();
        seal(&mut part);
        part
    };
    [half(20, middle, 0x20), half(middle, packet.len(), 0)]
}

#[test]
fn equal_addresses_of_two_tenants_have_their_own_connections() {
    in_world(|world| {
        let mut a = TestAnchor::start(&world, "rwa", &NETWORKS, &[]);
        let mut b = TestAnchor::start(&world, "rwb", &NETWORKS, &[]);
        for (client, remote) in CLIENT.iter().zip(REMOTE) {
            a.say((client, 4000), (remote, 7), "a");
            b.say((client, 4000), (remote, 7), "b");
        }
        for round in 0..3 {
            a.ask_remote(&format!("a{round}"));
            b.ask_remote(&format!("b{round}"));
        }
        let connections = world.connections();
        for anchor in [&a, &b] {
            let zone = format!("zone-orig={}", Apart::of(&anchor.instance).zone());
            let count = connections
                .lines()
                .filter(|line| line.contains(&zone) && line.contains("sport=4000 dport=7"))
                .count();
            assert_eq!(count, 2, "one of each family:\n{connections}");
        }

        for own in OWN {
            world.echo(&world.machine, own, 9);
        }
        for (client, own) in CLIENT.iter().zip(OWN) {
            a.say((client, 4000), (own, 9), &format!("a to {own}"));
            b.say((client, 4000), (own, 9), &format!("b to {own}"));
            a.hear(&format!("a to {own}"));
            b.hear(&format!("b to {own}"));
        }
        a.say(("10.77.0.3", 5), ("10.77.0.2", 5), "a to its neighbour");
        a.hear("a to its neighbour");
        b.say(("10.77.0.3", 5), ("10.77.0.2", 5), "b to its neighbour");
        b.hear("b to its neighbour");
        a.say(("10.77.0.2", 5), ("10.77.0.3", 5), "a back");
        a.hear("a back");

        // Redirects have used up the rate limit of ICMP.
        world.machine.set_sysctl("net.ipv4.icmp_ratelimit", "0").unwrap();
        // ICMP errors go to the sender's anchor; without marks, to none.
        b.write(dying(1));
        b.hear(EXCEEDED);
        a.listen();
        world.machine.set_sysctl("net.ipv4.fwmark_reflect", "0").unwrap();
        b.write(dying(2));
        a.ask_remote("a and no word of another's");
        assert!(a.heard.iter().all(|text| text.starts_with('a')), "{:?}", a.heard);

        a.stop();
        b.ask_remote("b alone");
        b.heard.retain(|text| text != EXCEEDED);
        assert!(b.heard.iter().all(|text| text.starts_with('b')), "{:?}", b.heard);
        let mut a = TestAnchor::start(&world, "rwa", &NETWORKS, &[]);
        a.ask_remote("a again");
        b.listen();
        assert!(a.heard.iter().all(|text| text.starts_with('a')), "{:?}", a.heard);
        assert!(b.heard.iter().all(|text| text.starts_with('b')), "{:?}", b.heard);
        a.stop();
        b.stop();
        let left = world.machine.run("ip rule").unwrap();
        assert!(!left.contains("523"), "{left}");
    });
}

#[test]
fn no_client_reaches_another_tenants_by_any_address() {
    in_world(|world| {
        let networks = [&NETWORKS[..], &["10.88.0.1/24", "fd88::1/64"]].concat();
        // The remote host's own address, and a network behind it, are clients' too.
        let behind = ["203.0.113.2/32", "2001:db8::2/128", "192.168.50.0/24"];
        let mut a = TestAnchor::start(&world, "rwa", &NETWORKS, &behind);
        let mut b = TestAnchor::start(&world, "rwb", &networks, &[]);
        b.ask_remote("b");
        for own in ["10.88.0.1", "fd88::1"] {
            world.echo(&world.machine, own, 9);
        }

        for (from, to) in CLIENT.iter().zip([["10.88.0.2", "10.88.0.1"], ["fd88::2", "fd88::1"]]) {
            for to in to {
                a.say((from, 4000), (to, 9), "stolen");
            }
        }
        // In the remote host's name, with the other tenant's ports.
        let connections = world.connections();
        for (remote, machine) in REMOTE.iter().zip(MACHINE) {
            let long = if machine.contains(':') { "2001:0db8:0000" } else { machine };
            let mut lines = connections.lines();
            let is_it = |line: &&str| line.contains("sport=4000 dport=7") && line.contains(long);
            let answer = lines.rfind(is_it).unwrap();
            let port = answer.rsplit("dport=").next().unwrap().split(' ').next().unwrap();
            let port: u16 = port.parse().unwrap();
            assert!(port >= 1024, "{answer}");
            a.say((remote, 7), (machine, port), "forged");
        }
        let [first, second] = [&mut a, &mut b];
        let text = "a longer text, of which two tenants have sent one half each";
        let packet = udp((ip(CLIENT[0]), 4000), (ip(REMOTE[0]), 7), text.as_bytes());
        let [head, tail] = halves(&packet, 7);
        first.write(head);
        second.write(tail);
        // Both from one tenant, which shows that the test can fail.
        let whole = "a longer text, of which one tenant has sent both halves by itself";
        let packet = udp((ip(CLIENT[0]), 4000), (ip(REMOTE[0]), 7), whole.as_bytes());
        halves(&packet, 9).into_iter().for_each(|half| second.write(half));
        b.hear(whole);

        b.ask_remote("b still");
        a.listen();
        b.listen();
        assert_eq!(a.heard, Vec::<String>::new());
        assert!(b.heard.iter().all(|text| text.starts_with('b') || text == whole), "{:?}", b.heard);
        // A prefix behind a tenant's client draws none of the machine's packets.
        let routes = world.machine.run("ip route").unwrap();
        assert!(!routes.contains("192.168.50.0"), "{routes}");
        a.stop();
        b.stop();
    });
}

#[test]
fn answers_of_an_anchor_that_is_gone_reach_no_client() {
    in_world(|world| {
        let remote = world.socket(&world.remote, REMOTE[0], 8);
        for is_crash in [true, false] {
            let mut a = TestAnchor::start(&world, "rwa", &NETWORKS, &[]);
            let mut b = TestAnchor::start(&world, "rwb", &NETWORKS, &[]);
            a.say((CLIENT[0], 4000), (REMOTE[0], 8), "a");
            let (_, from) = remote.recv_from(&mut [0; 100]).unwrap();
            remote.send_to(b"answer", from).unwrap();
            a.hear("answer");
            if is_crash {
                a.crash()
            } else {
                a.stop()
            }
            remote.send_to(b"late answer", from).unwrap();
            b.ask_remote("b");
            assert!(b.heard.iter().all(|text| text.starts_with('b')), "{:?}", b.heard);
            b.stop();
        }
        let instance = Instance::new("rwa").unwrap();
        let lock = instance.lock().unwrap();
        world.machine.enter(|| cleanup(&instance, &lock).unwrap()).unwrap();
        for words in ["rule", "-6 rule", "route show table all"] {
            let output = world.machine.run(&format!("ip {words}")).unwrap();
            assert!(!output.contains("523:") && !output.contains("unreachable 10.77"), "{output}");
        }
    });
}

#[test]
fn what_others_take_from_an_anchor_among_neighbours_comes_back() {
    in_world(|world| {
        let a = TestAnchor::start(&world, "rwa", &NETWORKS, &["192.168.50.0/24"]);
        let mut b = TestAnchor::start(&world, "rwb", &NETWORKS, &["192.168.50.0/24"]);
        b.ask_remote("b");
        let run = |words: &str| {
            let text = world.machine.run(&format!("ip {words}")).unwrap();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        let state = || {
            let link = run("-d link show dev rwb");
            let group = link.iter().any(|line| line.contains("group 183"));
            // The kernel's own IPv6 routes appear at any time.
            (run("rule"), run("-6 rule"), run("route show table all proto 183"), group)
        };
        let before = state();
        assert!(before.3, "in a group");
        for words in [
            "rule del pref 523 iif rwb",
            "-6 rule del pref 523 oif rwb",
            "link set dev rwb group default",
        ] {
            run(words);
        }
        let table = before.0.iter().find(|line| line.contains("iif rwb")).unwrap();
        let table = table.split("lookup ").nth(1).unwrap().split(' ').next().unwrap();
        run(&format!("route flush table {table}"));
        wait_or_show(WAIT_MAX, || format!("{:?}\n{before:?}", state()), || state() == before);
        b.ask_remote("b again");
        a.stop();
        b.stop();
    });
}

#[test]
fn what_others_translate_for_one_tenant_reaches_no_other_while_its_anchor_is_stopped() {
    in_world(|world| {
        let mut a = TestAnchor::start(&world, "rwa", &NETWORKS, &[]);
        let mut b = TestAnchor::start(&world, "rwb", &NETWORKS, &[]);
        let (mark, _) = Apart::of(&Instance::new("rwa").unwrap()).mark();
        world.nft(&format!(
            "add table ip forwards; \
                 add chain ip forwards early {{ type filter hook prerouting priority -160; }}; \
                 add chain ip forwards late {{ type nat hook prerouting priority dstnat; }}; \
                 add rule ip forwards early iifname eth0 udp dport 8080 meta mark set {mark:#x}; \
                 add rule ip forwards late iifname eth0 udp dport 8080 dnat to {}:80",
            CLIENT[0]
        ));
        let send = |port, text: &str| {
            let socket = world.socket(&world.remote, REMOTE[0], port);
            socket.send_to(text.as_bytes(), (MACHINE[0], 8080)).unwrap();
        };
        send(5000, "for a");
        a.hear("for a");
        a.stop();
        send(5001, "for a, who is away");
        b.ask_remote("b");
        assert!(b.heard.iter().all(|text| text.starts_with('b')), "{:?}", b.heard);
        b.stop();
    });
}

#[test]
fn marks_that_others_restore_do_not_lead_answers_astray() {
    in_world(|world| {
        world.nft(
            "add table inet vpn; \
             add chain inet vpn in { type filter hook prerouting priority mangle; }; \
             add chain inet vpn out { type route hook output priority mangle; }; \
             add rule inet vpn in meta mark set ct mark; \
             add rule inet vpn out meta mark set ct mark",
        );
        let mut a = TestAnchor::start(&world, "rwa", &NETWORKS, &["192.168.50.0/24"]);
        let mut b = TestAnchor::start(&world, "rwb", &NETWORKS, &["192.168.50.0/24"]);
        for anchor in [&mut b, &mut a] {
            anchor.ask_remote("asked");
            anchor.say(("192.168.50.9", 4000), (REMOTE[0], 7), "from behind");
            anchor.hear("from behind");
        }
        a.stop();
        b.stop();
    });
}

#[test]
fn what_cannot_be_shared_is_refused_with_what_clashes() {
    in_world(|world| {
        let a = TestAnchor::start(&world, "rwa", &NETWORKS, &[]);
        let open = |name: &str, networks: &[&str], is_exposed| {
            let instance = Instance::new(name).unwrap();
            let tun = open_tun(name, networks);
            let mut routes = Routes::open(&instance).unwrap();
            let surroundings = surroundings(&tun, networks, is_exposed);
            let result = routes.keep_apart(Apart::of(&instance), surroundings);
            result.map(|()| (tun, routes)).map_err(|error| error.to_string())
        };
        world
            .machine
            .enter(|| {
                let error = open("rwb", &["10.77.0.1/25"], true).err().unwrap();
                for part in ["10.77.0.0/25 of rwb", "10.77.0.0/24 of rwa"] {
                    assert!(error.contains(part), "{error}");
                }
                drop(open("rwb", &["10.78.0.1/24", "fd78::1/64"], true).unwrap());
                // The machine answers from one address in a network.
                let error = open("rwb", &["10.77.0.129/25"], false).err().unwrap();
                for part in ["10.77.0.129/25 of rwb", "10.77.0.1/24 of rwa", "own addresses"] {
                    assert!(error.contains(part), "{error}");
                }
                drop(open("rwb", &["10.77.0.1/25"], false).unwrap());

                let (mark, _) = Apart::of(&Instance::new("rwb").unwrap()).mark();
                let rule = format!("rule add fwmark {mark:#x}/0xff0000 lookup 100");
                let status = Command::new("ip").args(rule.split(' ')).status().unwrap();
                assert!(status.success());
                let error = open("rwb", &["10.79.0.1/24"], false).err().unwrap();
                assert!(error.contains("fwmark") && error.contains("tun.name"), "{error}");
            })
            .unwrap();
        a.stop();
    });
}
