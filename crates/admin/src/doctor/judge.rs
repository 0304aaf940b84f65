//! The checks that follow from the facts.

use std::net::SocketAddr;

use roadweave_linux::{Gateway, SendFailure};
use roadweave_proto::Marks;

use super::Check;
use super::facts::{
    ClientFacts, Facts, FileFacts, MachineFacts, Probe, ProbeOutcome, RoleFacts, ServerFacts,
    UplinkFacts,
};
use super::firewall::{Dropping, Hook};
use super::marks::Overwriting;

/// Seconds the clock may be behind the file, which may come from another machine.
const BEHIND_MAX: u64 = 60;
/// Bytes of socket buffer: 80 ms at 100 Mbit/s.
const BUFFER_MIN: usize = 1 << 20;
/// Bits a second one processor should seal: several links of a vehicle together.
const CRYPTO_MIN: u64 = 200_000_000;
/// Minimum MTU, bytes: QUIC needs 1,200 bytes of UDP payload (RFC 9000 section 14).
const MTU_MIN: u32 = 1280;

pub(super) fn judge(Facts { file, machine, role }: &Facts) -> Vec<Check> {
    let mut checks = of_file(file);
    checks.extend(of_machine(file, machine));
    match role {
        Some(RoleFacts::Client(client)) => checks.extend(of_client(client, machine)),
        Some(RoleFacts::Server(server)) => checks.extend(of_server(server, machine)),
        None => {}
    }
    checks
}

fn of_file(file: &FileFacts) -> Vec<Check> {
    let name = file.path.display();
    let Some(error) = &file.error else {
        let mut checks = vec![Check::ok("config", format!("{name} can be used"))];
        checks.push(match file.mode {
            Some(mode) if mode & 0o060 != 0 => Check::warn(
                "permissions",
                format!("the group of {name} may read or write it (mode {mode:04o})"),
                format!("chmod 600 {name}, unless that is meant"),
            ),
            _ if !file.has_key => Check::ok("permissions", "no private key is in the file"),
            _ => Check::ok("permissions", "the private key is kept from others"),
        });
        checks.extend(file.state.as_ref().map(|(folder, there)| {
            let folder = folder.display();
            match (there, file.runs_as) {
                (Ok((owner, _)), Some(user)) if *owner != user => Check::warn(
                    "state",
                    format!(
                        "{folder} belongs to user {owner}, and user {user} runs what writes there"
                    ),
                    format!("chown {user} {folder}"),
                ),
                (Ok((_, mode)), _) if mode & 0o022 != 0 => Check::fail(
                    "state",
                    format!("others may write to {folder} (mode {mode:04o})"),
                    format!("chmod 700 {folder}"),
                ),
                (Ok(_), _) => Check::ok("state", format!("{folder} is there")),
                (Err(error), _) => Check::warn(
                    "state",
                    format!("{folder} cannot be looked at: {error}"),
                    "the first start makes it; otherwise look as root",
                ),
            }
        }));
        return checks;
    };
    vec![Check::fail("config", error, "mend the file; the checks of what it names are left out")]
}

fn of_machine(file: &FileFacts, machine: &MachineFacts) -> Vec<Check> {
    let mut checks = Vec::new();
    if !machine.is_root {
        let mend = "run it as root";
        checks.push(Check::warn("rights", "this is not root, who sees more", mend));
    }
    checks.push(clock(file, machine));
    checks.push(match machine.has_tun {
        true => Check::ok("tun", "/dev/net/tun is there"),
        false => Check::fail(
            "tun",
            "there is no /dev/net/tun",
            "modprobe tun; in a container give it the device",
        ),
    });
    checks.push(match machine.has_nft {
        true => Check::ok("nft", "the program nft runs"),
        false => Check::fail("nft", "the program nft does not run", "install nftables"),
    });
    checks.extend(machine.buffer.map(|bytes| match bytes >= BUFFER_MIN {
        true => Check::ok("buffers", format!("sockets get {} KiB", bytes >> 10)),
        false => Check::warn(
            "buffers",
            format!("sockets get {} KiB, and bursts are lost", bytes >> 10),
            "run it with CAP_NET_ADMIN, or \
             sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304",
        ),
    }));
    checks.extend(machine.crypto_bps.map(|bps| crypto(bps, machine.has_aes)));
    checks.extend(machine.overwriting.iter().map(overwritten));
    checks
}

fn overwritten(Overwriting { place, bits, ours }: &Overwriting) -> Check {
    let what = format!(
        "a rule there copies the bits {bits:#x} between the marks of packets and connections; \
         Roadweave uses {ours:#x} of them, and answers may leave by a wrong way"
    );
    let mask = format!("give the rule a mask without {ours:#x}");
    // `packet_marks` with fewer free bits is refused.
    let mend = match bits.count_zeros() >= Marks::BITS_MIN {
        true => format!("{mask}, or write packet_marks = \"{:#010x}\"", !bits),
        false => mask,
    };
    Check::warn(format!("marks {place}"), what, mend)
}

fn clock(file: &FileFacts, machine: &MachineFacts) -> Check {
    let behind = file.written.unwrap_or(0).saturating_sub(machine.now);
    if behind > BEHIND_MAX {
        return Check::fail(
            "clock",
            format!("it is {behind} s behind the last change of the file, and keys expire by it"),
            "set it (timedatectl set-ntp true), or touch the file if its time is wrong",
        );
    }
    match machine.is_synchronised {
        true => Check::ok("clock", "the kernel takes it for synchronised"),
        false => Check::warn(
            "clock",
            "nothing synchronises it, and keys expire by it",
            "timedatectl set-ntp true, or install chrony",
        ),
    }
}

fn crypto(bps: u64, has_aes: Option<bool>) -> Check {
    let aes = match has_aes {
        Some(true) => ", with instructions for AES",
        Some(false) => ", without instructions for AES",
        None => "",
    };
    let what = format!("one processor seals {} Mbit/s{aes}", bps / 1_000_000);
    match bps >= CRYPTO_MIN {
        true => Check::ok("crypto", what),
        false => Check::warn("crypto", what, "a faster processor, or nothing else beside it"),
    }
}

fn of_client(client: &ClientFacts, machine: &MachineFacts) -> Vec<Check> {
    let mut checks = Vec::new();
    for (server, found) in &client.servers {
        let name = format!("lookup {server}");
        checks.push(match found {
            Ok(addresses) if !addresses.is_empty() => {
                let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                Check::ok(name, all.join(", "))
            }
            Ok(_) => Check::fail(name, "it has no address", "write one that can be found"),
            Err(error) => Check::fail(
                name,
                error,
                "mend /etc/resolv.conf or the name, or write the server's address",
            ),
        });
    }
    if client.servers.is_empty() {
        checks.push(Check::ok("lookup", "the fleet names the servers; none is asked"));
    }
    for name in &client.missing {
        let mend = "plug it, or mend uplinks.include";
        checks.push(Check::fail(uplink(name), "there is no such interface", mend));
    }
    if let Some(error) = &client.unread {
        checks.push(Check::fail("uplinks", error, "look as root"));
    } else if client.uplinks.is_empty() {
        checks.push(Check::fail(
            "uplinks",
            "no interface is an uplink",
            "give one an address and a default route (ip route), or name some in uplinks.include",
        ));
    }
    let answered = |probe: &Probe| matches!(probe.outcome, ProbeOutcome::Answered { .. });
    let any_answer = client.uplinks.iter().any(|uplink| uplink.probes.iter().any(answered));
    if let Some(what) = client.unnamed {
        checks.push(Check::warn("inside", what, "uplinks.inside = [\"lan0\"] in the file"));
    }
    for uplink in &client.uplinks {
        checks.extend(of_uplink(uplink, machine, any_answer));
    }
    checks.push(ipv6(client));
    checks.extend(deadlines(client));
    checks
}

fn deadlines(client: &ClientFacts) -> Option<Check> {
    let probes = client.uplinks.iter().flat_map(|uplink| &uplink.probes);
    let answered = probes.filter_map(|probe| match probe.outcome {
        ProbeOutcome::Answered { round_trip, .. } => Some(round_trip),
        _ => None,
    });
    let one_way = answered.min()? / 2;
    let late = client.deadlines.iter().filter(|(_, deadline)| *deadline <= one_way);
    let late: Vec<&str> = late.map(|(lane, _)| lane.as_str()).collect();
    let ms = one_way.as_secs_f64() * 1e3;
    let half = format!("half the round trip to the nearest server is {ms:.0} ms");
    Some(match late.is_empty() {
        true => Check::ok("deadlines", format!("{half}, within every lane's deadline")),
        false => Check::warn(
            "deadlines",
            format!("{half}: nothing in these lanes can be in time: {}", late.join(", ")),
            format!("set lanes.deadline_ms above {ms:.0}, at both ends"),
        ),
    })
}

fn uplink(name: &str) -> String {
    format!("uplink {name}")
}

fn of_uplink(it: &UplinkFacts, machine: &MachineFacts, any_answer: bool) -> Vec<Check> {
    let name = uplink(&it.name);
    if !it.carrier {
        let mend = format!("ip link set {} up; look at the cable, the SIM or the modem", it.name);
        return vec![Check::fail(name, "it is down or has no carrier", mend)];
    }
    if let Some(why) = &it.conflict {
        let mend = "its network must lease another address, or is hostile; a static address is yours \
                    to change";
        return vec![Check::fail(name, format!("it is not used: {why}"), mend)];
    }
    if !it.has_ipv4 && !it.has_ipv6 {
        let mend = "start its DHCP client or its modem's connection";
        return vec![Check::fail(name, "it has no address that leads beyond its link", mend)];
    }
    let mut checks = vec![match (it.gateway_v4, it.gateway_v6) {
        (None, None) => Check::warn(
            name,
            "it has an address and no gateway",
            format!("if it needs one: ip route add default via GATEWAY dev {} metric 900", it.name),
        ),
        _ => Check::ok(name, format!("up, with {}", families(it))),
    }];
    checks.extend(reach(it, any_answer));
    checks.extend(mtu(it));
    checks.extend(it.reverse_path_filter.map(|filter| {
        let name = format!("rp_filter {}", it.name);
        match (filter, machine.has_nft) {
            (0, _) => Check::ok(name, "there is none"),
            (_, false) => Check::fail(
                name,
                "with a reverse path filter and without nft no session begins over it",
                "install nftables",
            ),
            (1, true) => Check::warn(
                name,
                "it is strict; a client that runs makes it loose",
                format!("sysctl -w net.ipv4.conf.{}.rp_filter=2", it.name.replace('.', "/")),
            ),
            _ => Check::ok(name, "it is loose"),
        }
    }));
    checks
}

fn families(it: &UplinkFacts) -> &'static str {
    match (it.has_ipv4, it.has_ipv6) {
        (true, true) => "IPv4 and IPv6",
        (true, false) => "IPv4",
        _ => "IPv6",
    }
}

fn reach(it: &UplinkFacts, any_answer: bool) -> Vec<Check> {
    let one = |Probe { server, outcome }: &Probe| {
        let name = format!("reach {} {server}", it.name);
        match outcome {
            ProbeOutcome::Answered { round_trip, .. } => {
                let ms = round_trip.as_secs_f64() * 1e3;
                Check::ok(name, format!("the server answers after {ms:.1} ms"))
            }
            ProbeOutcome::NoAnswer if it.reverse_path_filter == Some(1) => Check::warn(
                name,
                "no answer, which the strict reverse path filter may have dropped",
                "ask again while a client runs, which makes it loose, or make it loose as below",
            ),
            ProbeOutcome::NoAnswer if any_answer => Check::fail(
                name,
                "no answer, while one came another way",
                format!(
                    "this network may block UDP port {}: let the server listen on 443, or ask \
                     whoever runs the network",
                    server.port()
                ),
            ),
            ProbeOutcome::NoAnswer => Check::warn(
                name,
                "no answer: the server may be off, a firewall there or here may drop UDP, this \
                 network may block it, or it is a server that is silent to strangers",
                format!("see that the server runs and that UDP port {} is open", server.port()),
            ),
            ProbeOutcome::NotSent(failure) => Check::fail(
                name,
                format!("this machine does not send: {failure}"),
                not_sent(it, *server, *failure),
            ),
            ProbeOutcome::NoSocket => Check::warn(
                name,
                "no socket can be bound to the uplink",
                "run it as root; the interface may have gone",
            ),
        }
    };
    it.probes.iter().map(one).collect()
}

fn not_sent(it: &UplinkFacts, server: SocketAddr, failure: SendFailure) -> String {
    if matches!(failure, SendFailure::Forbidden | SendFailure::Refused) {
        return "see nft list ruleset for what refuses it here".to_owned();
    }
    let (program, gateway) = match server.is_ipv4() {
        true => ("ip", it.gateway_v4),
        false => ("ip -6", it.gateway_v6),
    };
    let via = gateway.and_then(Gateway::address).map(|via| match via.is_ipv6() {
        true if server.is_ipv4() => format!("via inet6 {via} "),
        _ => format!("via {via} "),
    });
    format!(
        "{program} route add default {}dev {} metric 900; a client that runs needs no such route",
        via.unwrap_or_default(),
        it.name
    )
}

fn mtu(it: &UplinkFacts) -> Option<Check> {
    let carried = it.probes.iter().filter_map(|probe| match probe.outcome {
        ProbeOutcome::Answered { mtu, .. } => Some(mtu),
        _ => None,
    });
    let carried = carried.max()?;
    let name = format!("mtu {}", it.name);
    let own = it.mtu.min(1500);
    Some(if own < MTU_MIN {
        Check::fail(
            name,
            format!("the interface takes {own} bytes, and QUIC needs {MTU_MIN}"),
            format!("ip link set {} mtu {MTU_MIN}", it.name),
        )
    } else if carried < own {
        Check::warn(
            name,
            format!(
                "the interface takes {own} bytes, and of what was tried {carried} and no more \
                 arrived; the tunnel finds out by itself, other programs may hang"
            ),
            format!("ip link set {} mtu {carried}", it.name),
        )
    } else {
        Check::ok(name, format!("{carried} bytes arrive"))
    })
}

fn ipv6(client: &ClientFacts) -> Check {
    let found = || client.servers.iter().filter_map(|(_, found)| found.as_ref().ok()).flatten();
    let has_uplink = client.uplinks.iter().any(|it| it.has_ipv6 && it.gateway_v6.is_some());
    let only_ipv6 = found().next().is_some() && found().all(|address| address.is_ipv6());
    match (has_uplink, only_ipv6) {
        (true, _) => Check::ok("ipv6", "an uplink has it"),
        (false, false) => Check::ok("ipv6", "no uplink has it; IPv4 is enough"),
        (false, true) => Check::fail(
            "ipv6",
            "the servers have IPv6 addresses alone, and no uplink has IPv6",
            "give the server an IPv4 address as well",
        ),
    }
}

fn of_server(server: &ServerFacts, machine: &MachineFacts) -> Vec<Check> {
    let ServerFacts { listen, runs, bind, tun, drops, has_legacy } = server;
    let (port, is_root) = (listen.port(), machine.is_root);
    let mut checks = vec![match (bind, runs) {
        (_, true) => Check::ok("listen", format!("the server runs on {listen}")),
        (None, false) => Check::ok("listen", format!("{listen} is free; the server does not run")),
        (Some(error), false) if !is_root => Check::warn(
            "listen",
            format!("{error}; the server may have it, which others than root cannot ask"),
            "run it as root",
        ),
        (Some(error), false) => Check::fail(
            "listen",
            error,
            format!("see who has the port (ss -lunp sport = :{port}), or mend listen"),
        ),
    }];
    match drops {
        Err(error) => {
            let mend = if machine.is_root { "see nft list ruleset" } else { "run it as root" };
            let what = format!("what drops packets is not known: {error}");
            checks.push(Check::warn("firewall", what, mend));
        }
        Ok(drops) if drops.is_empty() => {
            checks.push(Check::ok("firewall", "no other chain drops what clients send"));
        }
        Ok(drops) => checks.extend(drops.iter().map(|drop| dropped(drop, tun, port))),
    }
    if *has_legacy {
        checks.push(Check::warn(
            "firewall",
            "there are tables of iptables-legacy, which nft does not show",
            "see iptables-legacy -S FORWARD and INPUT",
        ));
    }
    checks
}

fn dropped(drop: &Dropping, tun: &str, port: u16) -> Check {
    let Dropping { family, table, chain, .. } = drop;
    let (name, mend) = (format!("firewall {family} {table} {chain}"), drop.mend(tun, port));
    match drop.hook {
        Hook::Forward => Check::fail(
            name,
            format!("it drops what clients send on: no rule of its table accepts {tun}"),
            mend,
        ),
        Hook::Input => Check::warn(
            name,
            format!("it seems to drop what clients send: no rule is seen that accepts UDP {port}"),
            mend,
        ),
    }
}
