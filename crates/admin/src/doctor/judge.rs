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
        let mut checks = vec![Check::ok("config", format!("{name} is valid"))];
        checks.push(match file.mode {
            Some(mode) if mode & 0o060 != 0 => Check::warn(
                "permissions",
                format!("the group of {name} may read or write it (mode {mode:04o})"),
                format!("chmod 600 {name}, unless this is intended"),
            ),
            _ if !file.has_key => Check::ok("permissions", "no private key is in the file"),
            _ => Check::ok("permissions", "other users cannot read the private key"),
        });
        checks.extend(file.state.as_ref().map(|(folder, there)| {
            let folder = folder.display();
            match (there, file.runs_as) {
                (Ok((owner, _)), Some(user)) if *owner != user => Check::warn(
                    "state",
                    format!(
                        "{folder} belongs to user {owner}, but the service runs as user {user}"
                    ),
                    format!("chown {user} {folder}"),
                ),
                (Ok((_, mode)), _) if mode & 0o022 != 0 => Check::fail(
                    "state",
                    format!("other users may write to {folder} (mode {mode:04o})"),
                    format!("chmod 700 {folder}"),
                ),
                (Ok(_), _) => Check::ok("state", format!("{folder} exists")),
                (Err(error), _) => Check::warn(
                    "state",
                    format!("cannot read {folder}: {error}"),
                    "if it does not exist, the first start creates it; otherwise run this as root",
                ),
            }
        }));
        return checks;
    };
    vec![Check::fail("config", error, "fix the file; the checks that depend on it were skipped")]
}

fn of_machine(file: &FileFacts, machine: &MachineFacts) -> Vec<Check> {
    let mut checks = Vec::new();
    if !machine.is_root {
        let mend = "run this as root";
        checks.push(Check::warn("rights", "not running as root: some facts cannot be read", mend));
    }
    checks.push(clock(file, machine));
    checks.push(match machine.has_tun {
        true => Check::ok("tun", "/dev/net/tun exists"),
        false => Check::fail(
            "tun",
            "/dev/net/tun is missing",
            "modprobe tun; in a container, pass the device through",
        ),
    });
    checks.push(match machine.has_nft {
        true => Check::ok("nft", "the program nft runs"),
        false => Check::fail("nft", "the program nft does not run", "install nftables"),
    });
    checks.extend(machine.buffer.map(|bytes| match bytes >= BUFFER_MIN {
        true => Check::ok("buffers", format!("socket buffers are {} KiB", bytes >> 10)),
        false => Check::warn(
            "buffers",
            format!("socket buffers are {} KiB: bursts are lost", bytes >> 10),
            "give the process CAP_NET_ADMIN, or sysctl -w net.core.rmem_max=4194304 \
             net.core.wmem_max=4194304",
        ),
    }));
    checks.extend(machine.crypto_bps.map(|bps| crypto(bps, machine.has_aes)));
    checks.extend(machine.overwriting.iter().map(overwritten));
    checks
}

fn overwritten(Overwriting { place, bits, ours }: &Overwriting) -> Check {
    let what = format!(
        "a rule there copies the bits {bits:#x} between the marks of packets and connections; \
         Roadweave uses {ours:#x} of them, and answers may leave over a wrong uplink"
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
            format!(
                "it is {behind} s behind the last change of the file; keys expire by this clock"
            ),
            "set the clock (timedatectl set-ntp true), or touch the file if its time is wrong",
        );
    }
    match machine.is_synchronised {
        true => Check::ok("clock", "the kernel reports it as synchronised"),
        false => Check::warn(
            "clock",
            "not synchronised; keys expire by this clock",
            "timedatectl set-ntp true, or install chrony",
        ),
    }
}

fn crypto(bps: u64, has_aes: Option<bool>) -> Check {
    let aes = match has_aes {
        Some(true) => ", with AES instructions",
        Some(false) => ", without AES instructions",
        None => "",
    };
    let what = format!("one core encrypts {} Mbit/s{aes}", bps / 1_000_000);
    match bps >= CRYPTO_MIN {
        true => Check::ok("crypto", what),
        false => Check::warn("crypto", what, "use a faster processor, or stop other programs"),
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
            Ok(_) => Check::fail(name, "it has no address", "write a name that resolves"),
            Err(error) => Check::fail(
                name,
                error,
                "fix /etc/resolv.conf or the name, or write the server's address",
            ),
        });
    }
    if client.servers.is_empty() {
        checks.push(Check::ok("lookup", "skipped: the fleet assigns the servers"));
    }
    for name in &client.missing {
        let mend = "plug it in, or fix uplinks.include";
        checks.push(Check::fail(uplink(name), "there is no such interface", mend));
    }
    if let Some(error) = &client.unread {
        checks.push(Check::fail("uplinks", error, "run this as root"));
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
            format!("{half}: packets of these lanes cannot arrive in time: {}", late.join(", ")),
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
        let mend = format!("ip link set {} up; check the cable, the SIM or the modem", it.name);
        return vec![Check::fail(name, "it is down or has no carrier", mend)];
    }
    if let Some(why) = &it.conflict {
        let mend = "its network must lease another address, or may be hostile; if the address is \
                    static, change it";
        return vec![Check::fail(name, format!("it is not used: {why}"), mend)];
    }
    if !it.has_ipv4 && !it.has_ipv6 {
        let mend = "start its DHCP client or its modem's connection";
        return vec![Check::fail(name, "it has no address that is routable beyond its link", mend)];
    }
    let mut checks = vec![match (it.gateway_v4, it.gateway_v6) {
        (None, None) => Check::warn(
            name,
            "it has an address but no gateway",
            format!("if it needs one: ip route add default via GATEWAY dev {} metric 900", it.name),
        ),
        _ => Check::ok(name, format!("up, with {}", families(it))),
    }];
    checks.extend(reach(it, any_answer));
    checks.extend(mtu(it));
    checks.extend(it.reverse_path_filter.map(|filter| {
        let name = format!("rp_filter {}", it.name);
        match (filter, machine.has_nft) {
            (0, _) => Check::ok(name, "off"),
            (_, false) => Check::fail(
                name,
                "its reverse path filter is on and nft is missing: no session can start over it",
                "install nftables",
            ),
            (1, true) => Check::warn(
                name,
                "strict; a running client sets it to loose",
                format!("sysctl -w net.ipv4.conf.{}.rp_filter=2", it.name.replace('.', "/")),
            ),
            _ => Check::ok(name, "loose"),
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
                Check::ok(name, format!("the server answered after {ms:.1} ms"))
            }
            ProbeOutcome::NoAnswer if it.reverse_path_filter == Some(1) => Check::warn(
                name,
                "no answer; the strict reverse path filter may have dropped it",
                "run this while a client runs, which sets it to loose, or set it as shown below",
            ),
            ProbeOutcome::NoAnswer if any_answer => Check::fail(
                name,
                "no answer, while another uplink got one",
                format!(
                    "this network may block UDP port {}: let the server listen on port 443, or ask \
                     the network's operator",
                    server.port()
                ),
            ),
            ProbeOutcome::NoAnswer => Check::warn(
                name,
                "no answer: the server may be off, a firewall at either end or this network may \
                 drop UDP, or the server is set to be silent to strangers",
                format!("check that the server runs and that UDP port {} is open", server.port()),
            ),
            ProbeOutcome::NotSent(failure) => Check::fail(
                name,
                format!("this machine cannot send: {failure}"),
                not_sent(it, *server, *failure),
            ),
            ProbeOutcome::NoSocket => Check::warn(
                name,
                "cannot bind a socket to the uplink",
                "run this as root; the interface may have gone",
            ),
        }
    };
    it.probes.iter().map(one).collect()
}

fn not_sent(it: &UplinkFacts, server: SocketAddr, failure: SendFailure) -> String {
    if matches!(failure, SendFailure::Forbidden | SendFailure::Refused) {
        return "find the rule that refuses it: nft list ruleset".to_owned();
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
        "{program} route add default {}dev {} metric 900; a running client needs no such route",
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
            format!("the interface's MTU is {own} bytes, but QUIC needs {MTU_MIN}"),
            format!("ip link set {} mtu {MTU_MIN}", it.name),
        )
    } else if carried < own {
        Check::warn(
            name,
            format!(
                "the interface's MTU is {own} bytes, but packets above {carried} did not arrive; \
                 the tunnel adapts, other programs may hang"
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
        (true, _) => Check::ok("ipv6", "available on an uplink"),
        (false, false) => Check::ok("ipv6", "not available on any uplink; IPv4 is enough"),
        (false, true) => Check::fail(
            "ipv6",
            "the servers have only IPv6 addresses, and no uplink has IPv6",
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
            format!("{error}; the server may be using it, which only root can find out"),
            "run this as root",
        ),
        (Some(error), false) => Check::fail(
            "listen",
            error,
            format!("find who uses the port (ss -lunp sport = :{port}), or change listen"),
        ),
    }];
    match drops {
        Err(error) => {
            let mend = if machine.is_root { "see nft list ruleset" } else { "run this as root" };
            let what = format!("cannot read the packet filter: {error}");
            checks.push(Check::warn("firewall", what, mend));
        }
        Ok(drops) if drops.is_empty() => {
            checks.push(Check::ok("firewall", "no other chain drops packets of clients"));
        }
        Ok(drops) => checks.extend(drops.iter().map(|drop| dropped(drop, tun, port))),
    }
    if *has_legacy {
        checks.push(Check::warn(
            "firewall",
            "iptables-legacy has tables, which nft does not show",
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
            format!("it drops forwarded packets of clients: no rule of its table accepts {tun}"),
            mend,
        ),
        Hook::Input => Check::warn(
            name,
            format!("it seems to drop packets from clients: no rule accepts UDP {port}"),
            mend,
        ),
    }
}
