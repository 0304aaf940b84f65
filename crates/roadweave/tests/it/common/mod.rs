//! The world of the tests: a vehicle's box with two uplinks, a server, and a cloud behind it, each
//! in a network namespace of a sandbox that leaves nothing behind.
//!
//! ```text
//!  box: rw0 10.77.0.2            server: rws 10.77.0.1              cloud
//!       eth1 10.1.0.2 ─────────── eth1 10.1.0.1
//!       eth2 10.2.0.2 ─────────── eth2 10.2.0.1   lan0 203.0.113.1 ─── eth0 203.0.113.2
//!                                 lo 198.51.100.1 (port 4433)
//! ```
//!
//! `roadweave init` writes the files, and a test edits them. All namespaces share the file system,
//! so client and server need instance names of their own (`tun.name`).

pub mod clock;
mod daemon;
pub mod disk;
pub mod dns;
pub mod hosts;
pub mod members;
#[path = "../../../../node/src/status/schema.rs"]
mod schema;
pub mod world;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::Duration;

pub use roadweave_linux::netns::{
    NetNs, WAIT_MAX, Watch, cable, echo, run_sandboxed, wait_or_show, wait_until, wait_within,
};
use serde_json::Value;

pub use daemon::Daemon;

pub const CLIENT: &str = "rw0";
pub const SERVER: &str = "rws";
pub const GATEWAY_V4: &str = "10.77.0.1";
pub const GATEWAY_V6: &str = "fd77::1";
pub const ECHO_PORT: u16 = 7;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_roadweave");
const SETTINGS: [&str; 15] = [
    "ipv4/ip_forward",
    "ipv6/conf/all/forwarding",
    "ipv4/conf/all/rp_filter",
    "ipv4/conf/eth1/rp_filter",
    "ipv4/conf/eth1/arp_ignore",
    "ipv4/conf/eth2/arp_ignore",
    "ipv4/conf/eth1/src_valid_mark",
    "ipv4/conf/eth2/src_valid_mark",
    "ipv4/tcp_fwmark_accept",
    "ipv4/fwmark_reflect",
    "ipv6/fwmark_reflect",
    "ipv4/conf/eth2/rp_filter",
    "ipv6/conf/eth1/accept_ra",
    "ipv6/conf/eth2/accept_ra",
    "ipv6/conf/lan0/accept_ra",
];
const FOLDER: &str = "/run/road";

/// Hides the names of protocols and services, which a new machine does not have.
fn forget_names() {
    let known = ["/etc/protocols", "/etc/services"].into_iter();
    for file in known.filter(|file| Path::new(file).exists()) {
        let mut mount = Command::new("mount");
        assert!(mount.args(["--bind", "/dev/null", file]).status().unwrap().success());
    }
}

pub struct TestNetwork {
    pub vehicle: NetNs,
    pub server: NetNs,
    pub cloud: NetNs,
    /// A program with its arguments that starts the daemons, if any.
    pub wrapper: Vec<String>,
}

/// Ends them in turn.
pub fn interrupt(daemons: impl IntoIterator<Item = Daemon>) {
    daemons.into_iter().for_each(Daemon::interrupt);
}

pub fn on_network(test: impl FnOnce(TestNetwork)) {
    run_sandboxed(|| test(TestNetwork::new()));
}

impl TestNetwork {
    pub fn new() -> Self {
        let network = Self::without_uplinks();
        network.connect_uplink(1);
        network.connect_uplink(2);
        network
    }

    pub fn without_uplinks() -> Self {
        forget_names();
        let create = |name| NetNs::create(name).unwrap();
        let network = Self {
            vehicle: create("box"),
            server: create("server"),
            cloud: create("cloud"),
            wrapper: Vec::new(),
        };
        network.server.ip("address add 198.51.100.1/32 dev lo").unwrap();
        cable(
            (&network.server, "lan0", &["203.0.113.1/24", "2001:db8:1::1/64"]),
            (&network.cloud, "eth0", &["203.0.113.2/24", "2001:db8:1::2/64"]),
        );
        let init = roadweave(&["init", "--server", "198.51.100.1:4433", FOLDER]);
        assert!(init.status.success(), "{init:?}");
        for name in ["client.toml", "server.toml"] {
            network.edit(name, |text| format!("state_directory = \"{FOLDER}\"\n{text}"));
        }
        network.edit("client.toml", |text| text.replace("inside = []", "inside = [\"lan*\"]"));
        let inner = format!("allow_destinations = [\"{GATEWAY_V4}\", \"{GATEWAY_V6}\"]\n");
        network.edit("server.toml", |text| inner + &text + "[tun]\nname = \"rws\"\n");
        network
    }

    pub fn connect_uplink(&self, number: u8) {
        let name = format!("eth{number}");
        let (near, far) = (format!("10.{number}.0.2/24"), format!("10.{number}.0.1/24"));
        cable((&self.vehicle, &name, &[&near]), (&self.server, &name, &[&far]));
        self.route_uplink(number);
    }

    pub fn connect_camera(&self) -> NetNs {
        let camera = NetNs::create("camera").unwrap();
        cable(
            (&camera, "eth0", &["192.168.50.2/24"]),
            (&self.vehicle, "lan0", &["192.168.50.1/24"]),
        );
        camera.ip("route add default via 192.168.50.1").unwrap();
        camera
    }

    pub fn connect_camera_of_both_families(&self) -> NetNs {
        let camera = self.connect_camera();
        self.vehicle.ip("address add fd50::1/64 dev lan0 nodad").unwrap();
        camera.ip("address add fd50::2/64 dev eth0 nodad").unwrap();
        camera.ip("-6 route add default via fd50::1").unwrap();
        camera
    }

    pub fn route_uplink(&self, number: u8) {
        let route = format!("route replace default via 10.{number}.0.1 metric {number}00");
        self.vehicle.ip(&route).unwrap();
    }

    pub fn set_rp_filters(&self, values: &[(&str, &str)]) {
        for (interface, value) in values {
            self.vehicle
                .set_sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), value)
                .unwrap();
        }
    }

    /// Drops all packets at the server's end of an uplink, or ends that: the modem stays up.
    pub fn silence(&self, interface: &str, silent: bool) {
        let table = format!("netdev silent_{interface}");
        if silent {
            let chain =
                format!("type filter hook ingress device {interface} priority 0; policy drop;");
            nft(&self.server, &format!("table {table} {{ chain in {{ {chain} }}; }}"));
        } else {
            nft(&self.server, &format!("delete table {table}"));
        }
    }

    /// The state of the system that daemons might change, in box and server.
    pub fn state(&self) -> Vec<String> {
        let mut state = Vec::new();
        for namespace in [&self.vehicle, &self.server] {
            // The local route of an IPv6 address comes when the address has been checked.
            wait_until("no address is tentative", || {
                namespace.run("ip -6 address show tentative").unwrap().trim().is_empty()
            });
            let mut add = |kind: &str, line: &str| {
                state.push(format!("{} {kind} {}", namespace.name(), line.trim()));
            };
            let run = |words: &str| namespace.run(words).unwrap();
            for line in run("ip -brief link").lines() {
                add("link", line.split(' ').next().unwrap());
            }
            for line in (run("ip rule") + &run("ip -6 rule")).lines() {
                add("rule", line);
            }
            // Link-local routes come some time after the interface.
            let routes = run("ip route show table all") + &run("ip -6 route show table all");
            let lasting = |line: &&str| !line.contains("fe80::") && !line.contains("ff00::");
            routes.lines().filter(lasting).for_each(|line| add("route", line));
            // Elements that packets put into sets come and go.
            let tables = run("nft list ruleset");
            let tables = tables.split("\n}").map(str::trim).filter(|it| !it.is_empty());
            for table in tables {
                let name = table.lines().next().unwrap_or_default();
                let lines = if name.contains("_shares ") { 1 } else { usize::MAX };
                table.lines().take(lines).for_each(|line| add("filter", line));
            }
            for key in SETTINGS {
                let value = namespace.enter(|| fs::read_to_string(format!("/proc/sys/net/{key}")));
                if let Ok(value) = value.unwrap() {
                    add("sysctl", &format!("{key} {value}"));
                }
            }
        }
        let files = fs::read_dir("/run/roadweave").unwrap().map(|entry| entry.unwrap().path());
        let lasting = files.filter(|path| path.extension().is_none_or(|kind| kind != "lock"));
        state.extend(lasting.map(|path| path.display().to_string()));
        state.sort();
        state
    }

    pub fn path(&self, name: &str) -> PathBuf {
        Path::new(FOLDER).join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<str>) {
        write_secret(&self.path(name), text.as_ref());
    }

    pub fn edit(&self, name: &str, change: impl FnOnce(String) -> String) {
        let text = fs::read_to_string(self.path(name)).unwrap();
        fs::write(self.path(name), change(text)).unwrap();
    }

    pub fn start_client(&self, name: &str) -> Daemon {
        self.start(&self.vehicle, "client", name)
    }

    pub fn start_joined(&self, name: &str) -> Daemon {
        let client = self.start_client(name);
        client.wait_for(" joined ");
        client
    }

    pub fn start_server(&self) -> Daemon {
        let server = self.start(&self.server, "server", "server");
        server.wait_for("the server runs");
        server
    }

    pub fn start(&self, namespace: &NetNs, role: &str, name: &str) -> Daemon {
        let mut words = self.wrapper.iter().map(String::as_str).chain([PROGRAM]);
        let mut command = namespace.command(words.next().unwrap());
        command.args(words).arg(role).arg("--config").arg(self.path(&format!("{name}.toml")));
        Daemon::start(command, self.path(&format!("{name}.log")))
    }

    pub fn start_both(&self) -> (Daemon, Daemon) {
        let server = self.start_server();
        (server, self.start_joined("client"))
    }

    pub fn start_with_echo(&self) -> (Daemon, Daemon) {
        let both = self.start_both();
        self.echo(&self.server, GATEWAY_V4);
        self.wait_for_paths(&["eth1", "eth2"]);
        both
    }

    /// Asked again while the instance is busy, as it may be on a loaded machine.
    pub fn show(&self, instance: &str) -> Value {
        let watch = Watch::start();
        loop {
            let output = roadweave(&["show", "--json", "--socket", &socket(instance)]);
            if output.status.success() {
                return serde_json::from_slice(&output.stdout).unwrap();
            }
            let is_busy = String::from_utf8_lossy(&output.stderr).contains("ask again");
            assert!(is_busy && watch.elapsed() < WAIT_MAX, "{output:?}");
        }
    }

    pub fn reload(&self, instance: &str) {
        let output = roadweave(&["reload", "--socket", &socket(instance)]);
        assert!(output.status.success(), "{output:?}");
    }

    pub fn release(&self) {
        let output = roadweave_in(&self.vehicle, &["release", CLIENT]);
        assert!(output.status.success(), "{output:?}");
    }

    pub fn page(&self, instance: &str) -> String {
        String::from_utf8(roadweave(&["show", "--socket", &socket(instance)]).stdout).unwrap()
    }

    pub fn set_resolvers(&self, text: &str) {
        let file = self.path("resolv.conf");
        fs::write(&file, text).unwrap();
        let mut mount = Command::new("mount");
        mount.arg("--bind").arg(&file).arg("/etc/resolv.conf");
        assert!(mount.status().unwrap().success());
    }

    pub fn check_shown(&self, instances: &[&str]) {
        let shown: Vec<Value> = instances.iter().map(|instance| self.show(instance)).collect();
        let Some(said) = schema::otherwise(&shown.iter().collect::<Vec<_>>()) else { return };
        assert!(said.is_empty(), "{said}");
    }

    pub fn wait_for_status(
        &self,
        instance: &str,
        what: &str,
        condition: impl Fn(&Value) -> bool,
    ) -> Value {
        let watch = Watch::start();
        loop {
            let status = self.show(instance);
            if condition(&status) {
                return status;
            }
            assert!(watch.elapsed() < WAIT_MAX, "waited in vain: {what}\n{status:#}");
            sleep(Duration::from_millis(50));
        }
    }

    pub fn wait_for_paths(&self, uplinks: &[&str]) {
        self.wait_for_status(CLIENT, &format!("paths over {uplinks:?}"), |status| {
            usable(status) == uplinks
        });
    }

    pub fn echo(&self, namespace: &NetNs, address: &str) {
        let address = SocketAddr::new(address.parse().unwrap(), ECHO_PORT);
        echo(namespace.enter(|| UdpSocket::bind(address).unwrap()).unwrap());
    }

    /// Starts the server's echo and waits for it.
    pub fn wait_for_echo(&self) -> Duration {
        self.echo(&self.server, GATEWAY_V4);
        self.wait_for_traffic()
    }

    pub fn socket_to(&self, address: &str) -> UdpSocket {
        let any = if address.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = self.vehicle.enter(|| UdpSocket::bind(any).unwrap()).unwrap();
        socket.connect((address, ECHO_PORT)).unwrap();
        socket
    }

    /// Sends a packet to the echo every 50 ms; returns the time until one comes back.
    pub fn wait_for_traffic(&self) -> Duration {
        let socket = self.socket_to(GATEWAY_V4);
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let start = Watch::start();
        while start.elapsed() < WAIT_MAX {
            let _ = socket.send(b"is anybody there?");
            if socket.recv(&mut [0; 100]).is_ok() {
                return start.elapsed();
            }
        }
        panic!("no traffic within {WAIT_MAX:?}");
    }
}

pub fn write_secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

pub struct Keys {
    pub private: String,
    pub public: String,
}

impl Keys {
    pub fn peer(&self, name: &str, addresses: &str) -> String {
        let key = &self.public;
        format!(
            "[[peers]]\nname = {name:?}\npublic_key = \"{key}\"\naddresses = [\"{addresses}\"]\n"
        )
    }
}

pub fn keygen() -> Keys {
    let output = roadweave(&["keygen", "--json"]);
    let keys: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |name: &str| keys[name].as_str().unwrap().to_owned();
    Keys { private: text("private_key"), public: text("public_key") }
}

pub fn with_key(text: &str, field: &str, key: &str) -> String {
    let line = |line: &str| match line.starts_with(field) {
        true => format!("{field} = \"{key}\"\n"),
        false => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

pub fn write_program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

pub fn nft(namespace: &NetNs, script: &str) {
    namespace.nft(script).unwrap();
}

pub fn counted(namespace: &NetNs, counter: &str) -> u64 {
    let text = namespace.run(&format!("nft list counter {counter}")).unwrap();
    let packets = text.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
    packets.unwrap().parse().unwrap()
}

pub fn usable(status: &Value) -> Vec<&str> {
    let paths = status["sessions"][0]["paths"].as_array().map_or(&[][..], Vec::as_slice);
    let mut uplinks: Vec<&str> = paths
        .iter()
        .filter(|path| path["status"] == "usable")
        .filter_map(|path| path["uplink"].as_str())
        .collect();
    uplinks.sort_unstable();
    uplinks
}

pub fn socket(instance: &str) -> String {
    format!("/run/roadweave/{instance}.sock")
}

pub fn roadweave(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

pub fn roadweave_in(namespace: &NetNs, arguments: &[&str]) -> Output {
    namespace.command(PROGRAM).args(arguments).output().unwrap()
}

/// Whether what a test needs is there; prints a line if it is not.
pub fn has(what: &str, is_there: bool) -> bool {
    let is_required = std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_some();
    assert!(is_there || !is_required, "{what} is missing");
    if !is_there {
        eprintln!("skipped: {what} is missing");
    }
    is_there
}

pub fn is_installed(program: &str) -> bool {
    has(program, Command::new(program).arg("--version").output().is_ok())
}

/// A program that `cargo test` of all packages builds beside this one.
pub fn beside(name: &str) -> Option<PathBuf> {
    let beside = Path::new(PROGRAM).with_file_name(name);
    has(name, beside.exists()).then_some(beside)
}

pub fn http_get(namespace: &NetNs, port: u16, path: &str) -> String {
    let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut stream = namespace.enter(connect).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub fn ping(namespace: &NetNs, address: &str, options: &str) -> Output {
    let mut command = namespace.command("ping");
    command.args(["-n", "-W", "5"]).args(options.split_whitespace()).arg(address);
    command.env("LC_ALL", "C").output().unwrap()
}

pub fn check_ping(namespace: &NetNs, address: &str, options: &str) {
    let output = ping(namespace, address, options);
    assert!(output.status.success(), "{address} from {}: {output:?}", namespace.name());
}
