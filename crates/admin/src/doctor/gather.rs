//! Gathers the facts, without judging them. A query that fails is recorded as a fact too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ring::aead::{AES_128_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use roadweave_config::{
    ClientFile, ClientStreams, FileError, ServerFile, lane_configs, load, reading_group,
};
use roadweave_linux::{Monitor, Netlink, UdpOptions, Uplink, UplinkSocket};
use roadweave_node::status::RoleStatus;
use roadweave_node::{ClockReading, local};
use roadweave_proto::{Marks, ServerHost, ServerName};
use rustix::net::sockopt;
use serde_json::Value;

use super::facts::{
    ClientFacts, Facts, FileFacts, MachineFacts, Probe, RoleFacts, ServerFacts, UplinkFacts,
};
use super::firewall::{Dropping, Hook, dropping};
use super::marks::Overwriting;
use super::{marks, reach};

const RUN_DIRECTORY: &str = "/run/roadweave";
const LOOKUP_MAX: Duration = Duration::from_secs(6);
const SERVERS_MAX: usize = 4;
const ADDRESSES_MAX: usize = 4;
const UPLINKS_MAX: usize = 16;

pub(super) fn gather(path: &Path) -> Facts {
    let (role, used, error, has_key, state) = match read(path) {
        Ok((role, used, has_key, state)) => (Some(role), used, None, has_key, Some(state)),
        Err(error) => (None, 0, Some(error.to_string()), false, None),
    };
    let there = fs::metadata(path).ok();
    let file = FileFacts {
        path: path.to_owned(),
        error,
        mode: there.as_ref().map(|there| match reading_group(path) == Some(there.gid()) {
            // Readable by the service's user alone.
            true => there.mode() & 0o7737,
            false => there.mode() & 0o7777,
        }),
        written: there.and_then(|there| u64::try_from(there.mtime()).ok()),
        has_key,
        runs_as: fs::metadata(RUN_DIRECTORY).ok().map(|there| there.uid()),
        state: state.map(|folder| {
            let there = fs::metadata(&folder).map(|there| (there.uid(), there.mode() & 0o7777));
            (folder, there.map_err(|error| error.to_string()))
        }),
    };
    Facts { file, machine: machine(used), role }
}

/// A client file has `server`. Returns role, mark bits, whether there is a key, state directory.
fn read(path: &Path) -> Result<(RoleFacts, u32, bool, PathBuf), FileError> {
    let text = roadweave_config::read_text(path, true)?;
    let table: toml::Table = roadweave_config::parse(path, &text)?;
    let is_server = ["listen", "peers", "addresses"].iter().any(|key| table.contains_key(*key));
    if is_server && !table.contains_key("server") {
        let file: ServerFile = load(path)?;
        let copies = !file.forwards.is_empty() || file.streams.is_some();
        let used = if copies { Marks::from(file.packet_marks).kind_mask() } else { 0 };
        let (role, has_key) = (RoleFacts::Server(server(&file)), !file.private_key.is_empty());
        return Ok((role, used, has_key, file.state_directory));
    }
    let file: ClientFile = load(path)?;
    let marks = Marks::from(file.packet_marks);
    let splits = file.streams.as_ref().is_some_and(ClientStreams::splits);
    let used = marks.above_mask() | if splits { marks.kind_mask() } else { 0 };
    let (role, has_key) = (RoleFacts::Client(client(&file)), !file.private_key.is_empty());
    Ok((role, used, has_key, file.state_directory))
}

fn machine(used: u32) -> MachineFacts {
    let clock = ClockReading::take();
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let granted = UplinkSocket::open(&UdpOptions::server(loopback)).ok().and_then(|socket| {
        let sizes = [
            sockopt::socket_recv_buffer_size(&socket).ok()?,
            sockopt::socket_send_buffer_size(&socket).ok()?,
        ];
        // The kernel reports twice the requested size (socket(7)).
        sizes.into_iter().min().map(|size| size / 2)
    });
    MachineFacts {
        is_root: rustix::process::geteuid().is_root(),
        now: clock.unix_seconds,
        is_synchronised: clock.is_synchronised,
        has_tun: Path::new("/dev/net/tun").exists(),
        has_nft: has_nft(),
        buffer: granted,
        crypto_bps: crypto_bps(),
        has_aes: has_aes(),
        overwriting: overwriting(used),
    }
}

fn has_nft() -> bool {
    let mut nft = Command::new("nft");
    nft.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    nft.status().is_ok_and(|status| status.success())
}

fn client(file: &ClientFile) -> ClientFacts {
    let names: Vec<ServerName> =
        file.servers().flat_map(|server| server.names()).take(SERVERS_MAX).collect();
    let servers: Vec<_> = names.iter().map(|name| (name.to_string(), addresses_of(name))).collect();
    let found = names.iter().zip(&servers).flat_map(|(name, (_, addresses))| {
        let addresses = addresses.as_deref().unwrap_or_default();
        addresses.iter().map(|address| SocketAddr::new(*address, name.port()))
    });
    let found: Vec<SocketAddr> = found.collect();
    let include = &file.uplinks.include;
    let links = Netlink::open().and_then(|mut netlink| netlink.links()).unwrap_or_default();
    let is_there = |name: &String| links.iter().any(|link| link.name == *name);
    let missing = include.iter().filter(|name| !name.contains('*') && !is_there(name));
    let missing = missing.cloned().collect();
    let literal = names.iter().filter_map(|name| match name.host() {
        ServerHost::Address(address) => Some(*address),
        ServerHost::Name(_) => None,
    });
    let monitored = Monitor::open(file.selector()).and_then(|mut monitor| {
        monitor.protect_servers(literal);
        monitor.poll()?;
        Ok(monitor.uplinks().cloned().collect::<Vec<_>>())
    });
    let (mut uplinks, unread) = match monitored {
        Ok(uplinks) => (uplinks, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    // Never the tunnel's device; without names only interfaces with a default route.
    uplinks.retain(|uplink| uplink.name != file.tun.name.as_str());
    for (name, why) in conflicts(file) {
        let taken = uplinks.iter_mut().find(|uplink| uplink.name == name);
        taken.into_iter().for_each(|uplink| uplink.conflict = Some(why.clone()));
    }
    uplinks.retain(|uplink| !include.is_empty() || uplink.leads_out() || uplink.conflict.is_some());
    uplinks.truncate(UPLINKS_MAX);
    let uplinks = std::thread::scope(|scope| {
        let found = &found;
        let asked: Vec<_> = uplinks
            .into_iter()
            .map(|uplink| scope.spawn(move || describe(uplink, found)))
            .collect();
        asked.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let lanes = lane_configs(&file.lanes).into_iter();
    let deadlines = lanes.map(|lane| (lane.name, lane.deadline)).collect();
    let unnamed = file.uplinks.unnamed();
    ClientFacts { servers, missing, uplinks, deadlines, unnamed, unread }
}

fn conflicts(file: &ClientFile) -> BTreeMap<String, String> {
    let socket = Path::new("/run/roadweave").join(format!("{}.sock", file.tun.name.as_str()));
    match local::status(&socket).map(|status| status.role) {
        Ok(RoleStatus::Client(client)) => client.conflicts,
        _ => BTreeMap::new(),
    }
}

fn describe(uplink: Uplink, servers: &[SocketAddr]) -> UplinkFacts {
    let usable = servers.iter().filter(|server| uplink.is_usable(server.is_ipv4()));
    let probes = usable.map(|server| {
        let outcome = reach::probe(Some(&uplink.name), *server, uplink.mtu);
        Probe { server: *server, outcome }
    });
    UplinkFacts {
        probes: probes.collect(),
        carrier: uplink.carrier,
        mtu: uplink.mtu,
        has_ipv4: uplink.addresses.iter().any(|prefix| prefix.addr().is_ipv4()),
        has_ipv6: uplink.addresses.iter().any(|prefix| prefix.addr().is_ipv6()),
        gateway_v4: uplink.gateway_v4,
        gateway_v6: uplink.gateway_v6,
        reverse_path_filter: reverse_path_filter(&uplink.name),
        conflict: uplink.conflict,
        name: uplink.name,
    }
}

/// The larger of `all` and the interface's counts (Linux Documentation/networking/ip-sysctl.rst).
fn reverse_path_filter(interface: &str) -> Option<u8> {
    let of = |name: &str| {
        let path = Path::new("/proc/sys/net/ipv4/conf").join(name).join("rp_filter");
        fs::read_to_string(path).ok()?.trim().parse::<u8>().ok()
    };
    Some(of("all")?.max(of(interface)?))
}

fn addresses_of(name: &ServerName) -> Result<Vec<IpAddr>, String> {
    let host = match name.host() {
        ServerHost::Address(address) => return Ok(vec![*address]),
        ServerHost::Name(host) => (host.clone(), name.port()),
    };
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let found = host.to_socket_addrs().map(|all| all.map(|it| it.ip()).collect::<Vec<_>>());
        let _ = sender.send(found.map_err(|error| error.to_string()));
    });
    let late = |_| Err(format!("no answer within {} s", LOOKUP_MAX.as_secs()));
    let mut addresses = receiver.recv_timeout(LOOKUP_MAX).unwrap_or_else(late)?;
    let mut known = BTreeSet::new();
    addresses.retain(|address| known.insert(*address));
    addresses.truncate(ADDRESSES_MAX);
    Ok(addresses)
}

fn server(file: &ServerFile) -> ServerFacts {
    let tun = file.tun.name.as_str().to_owned();
    let socket = Path::new("/run/roadweave").join(format!("{tun}.sock"));
    let bind = UplinkSocket::open(&UdpOptions::server(file.listen)).err();
    ServerFacts {
        listen: file.listen,
        runs: local::status(&socket).is_ok(),
        bind: bind.map(|error| error.to_string()),
        drops: drops(file),
        has_legacy: ["ip_tables_names", "ip6_tables_names"].iter().any(|name| {
            let tables = fs::read_to_string(Path::new("/proc/net").join(name));
            tables.is_ok_and(|tables| tables.contains("filter"))
        }),
        tun,
    }
}

fn drops(file: &ServerFile) -> Result<Vec<Dropping>, String> {
    let ruleset = ruleset()?;
    let mut drops = dropping(&ruleset, file.tun.name.as_str(), file.listen.port());
    let has = |ipv4: bool| file.addresses.iter().any(|net| net.addr().is_ipv4() == ipv4);
    drops.retain(|drop| match (drop.hook, drop.family.as_str()) {
        (Hook::Forward, "ip") => has(true),
        (Hook::Forward, "ip6") => has(false),
        (Hook::Input, "ip6") => file.listen.is_ipv6(),
        _ => true,
    });
    Ok(drops)
}

fn overwriting(used: u32) -> Vec<Overwriting> {
    if used == 0 {
        return Vec::new();
    }
    let mut all = ruleset().map_or_else(|_| Vec::new(), |it| marks::in_ruleset(&it, used));
    for (family, program) in [("ip", "iptables-save"), ("ip6", "ip6tables-save")] {
        let output = Command::new(program).stdin(Stdio::null()).output();
        let Ok(output) = output else { continue };
        let saved = String::from_utf8_lossy(&output.stdout);
        all.extend(marks::in_iptables(family, &saved, used));
    }
    all
}

fn ruleset() -> Result<Value, String> {
    let mut nft = Command::new("nft");
    // `--terse`: without the elements of sets, which may be many.
    let output = nft.args(["--json", "--terse", "list", "ruleset"]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot start nft: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(said.lines().next().unwrap_or("nft gave no reason").to_owned());
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cannot parse the output of nft: {error}"))
}

const TRIAL: Duration = Duration::from_millis(40);
const PACKET: usize = 1_200;

/// Bits a second that the faster of QUIC's ciphers seals on one processor.
fn crypto_bps() -> Option<u64> {
    [&AES_128_GCM, &CHACHA20_POLY1305].into_iter().filter_map(cipher_bps).max()
}

fn cipher_bps(cipher: &'static Algorithm) -> Option<u64> {
    let key = LessSafeKey::new(UnboundKey::new(cipher, &vec![7; cipher.key_len()]).ok()?);
    let mut packet = vec![0; PACKET];
    let (begin, mut bytes) = (Instant::now(), 0_u64);
    while begin.elapsed() < TRIAL {
        // The key protects nothing.
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let _tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut packet).ok()?;
        bytes += PACKET as u64;
    }
    Some((bytes as f64 * 8.0 / begin.elapsed().as_secs_f64()) as u64)
}

fn has_aes() -> Option<bool> {
    #[cfg(target_arch = "x86_64")]
    return Some(std::arch::is_x86_feature_detected!("aes"));
    #[cfg(target_arch = "aarch64")]
    return Some(std::arch::is_aarch64_feature_detected!("aes"));
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    None
}
