//! Tunnel traffic never leaves in the clear, session or not. Operators beyond the uplinks get in.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread::spawn;
use std::time::Duration;

use crate::common::disk::Disk;
use crate::common::*;
use rustix::process::Signal;
use serde_json::json;

const CLOUD_V4: &str = "203.0.113.2";
const CLOUD_V6: &str = "2001:db8:1::2";
/// An operator beyond the uplinks, in none of their networks.
const OPERATOR: &str = "198.51.100.77";

fn watch_for_leaks(network: &TestNetwork) {
    nft(
        &network.server,
        "table inet leaks { counter seen { }; chain in { \
         type filter hook prerouting priority raw; \
         iifname { eth1, eth2 } ip daddr 203.0.113.0/24 counter name seen; \
         iifname { eth1, eth2 } ip6 daddr 2001:db8:1::/64 counter name seen; }; }",
    );
}

fn leaks(network: &TestNetwork) -> u64 {
    counted(&network.server, "inet leaks seen")
}

fn send_to(network: &TestNetwork, cloud: &str) -> io::Result<usize> {
    let any = if cloud.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = network.vehicle.enter(|| UdpSocket::bind(any).unwrap()).unwrap();
    socket.send_to(b"secret", (cloud, 9))
}

fn check_closed(network: &TestNetwork, camera: &NetNs, when: &str, clouds: &[&str]) {
    let before = leaks(network);
    for cloud in clouds {
        let error = send_to(network, cloud).expect_err(when);
        assert_eq!(error.kind(), io::ErrorKind::HostUnreachable, "{when} {cloud}: {error}");
        let refused = ping(camera, cloud, "-c 3 -W 2 -i 0.6");
        let said = String::from_utf8_lossy(&refused.stdout);
        let refusals = ["Destination Host Unreachable", "Destination unreachable: "];
        assert!(refusals.iter().any(|text| said.contains(text)), "{when} {cloud}: {refused:?}");
    }
    check_ping(&network.vehicle, "192.168.50.2", "-c 1");
    assert_eq!(leaks(network), before, "{when}");
}

/// Checks that the operator reaches the box's shell, its echo, and the camera by a forwarded port.
fn check_operator(network: &TestNetwork, shell: &TcpListener, camera: &TcpListener, when: &str) {
    for uplink in ["10.1.0.2", "10.2.0.2"] {
        for (port, listener) in [(2222, shell), (8080, camera)] {
            let stream = network.server.enter(|| connect_as_operator(&format!("{uplink}:{port}")));
            let stream = stream.unwrap();
            let stream = stream.unwrap_or_else(|error| panic!("{when} {uplink}:{port}: {error}"));
            let (accepted, from) = listener.accept().unwrap();
            assert_eq!(from.ip().to_string(), OPERATOR, "{when}");
            drop((stream, accepted));
        }
        check_ping(&network.server, uplink, &format!("-c 1 -I {OPERATOR}"));
    }
}

fn connect_as_operator(to: &str) -> io::Result<TcpStream> {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let source: SocketAddr = format!("{OPERATOR}:0").parse().unwrap();
    socket.bind(&source.into())?;
    let to: SocketAddr = to.parse().unwrap();
    socket.connect_timeout(&to.into(), Duration::from_secs(4))?;
    Ok(socket.into())
}

/// Uplinks of both families, a camera and an operator: listeners of the box's shell and the camera.
fn hostile_network() -> (TestNetwork, NetNs, TcpListener, TcpListener) {
    let network = TestNetwork::new();
    let camera = network.connect_camera_of_both_families();
    network.server.ip("address add 2001:db8:10::1/64 dev eth1 nodad").unwrap();
    network.vehicle.ip("address add 2001:db8:10::2/64 dev eth1 nodad").unwrap();
    network.vehicle.ip("-6 route add default via 2001:db8:10::1 dev eth1").unwrap();
    network.server.ip(&format!("address add {OPERATOR}/32 dev lo")).unwrap();
    network.set_rp_filters(&[("all", "0"), ("eth1", "1"), ("eth2", "2")]);
    // The kernel limits refusals to one host.
    network.vehicle.set_sysctl("net.ipv4.icmp_ratelimit", "0").unwrap();
    network.vehicle.set_sysctl("net.ipv6.icmp.ratelimit", "0").unwrap();
    network.vehicle.set_forwarding().unwrap();
    nft(
        &network.vehicle,
        "table ip own { chain in { type nat hook prerouting priority dstnat; \
         iifname { eth1, eth2 } tcp dport 8080 dnat to 192.168.50.2:80; }; }",
    );
    let shell = network.vehicle.enter(|| TcpListener::bind("0.0.0.0:2222").unwrap()).unwrap();
    let web = camera.enter(|| TcpListener::bind("192.168.50.2:80").unwrap()).unwrap();
    watch_for_leaks(&network);
    (network, camera, shell, web)
}

#[test]
fn nothing_leaves_in_the_clear_before_during_and_after_a_session_and_operators_get_in() {
    run_sandboxed(|| {
        let (network, camera, shell, web) = hostile_network();
        let both = [CLOUD_V4, CLOUD_V6];
        for cloud in both {
            send_to(&network, cloud).unwrap();
        }
        assert_eq!(leaks(&network), 2, "the test can fail");
        let before = network.state();

        let client = network.start_client("client");
        client.wait_for("the client runs");
        check_closed(&network, &camera, "before the first session", &both);
        client.wait_for_count("uplink is up", 2);
        // Routes of a hostile network count for nothing.
        for route in ["203.0.113.0/24 via 10.1.0.1", "0.0.0.0/1 via 10.2.0.1"] {
            network.vehicle.ip(&format!("route add {route}")).unwrap();
        }
        network.vehicle.ip("-6 route add 2001:db8:1::/64 via 2001:db8:10::1 dev eth1").unwrap();
        check_closed(&network, &camera, "with routes of a hostile network", &both);
        check_operator(&network, &shell, &web, "before the first session");
        check_ping(&network.vehicle, "10.1.0.1", "-c 1");
        let output = roadweave(&["release", "rw0"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("rw0 is already running"), "{output:?}");

        network.edit("server.toml", |text| {
            text.replace("\"10.77.0.2/32\", \"fd77::2/128\"", "\"10.77.0.2/32\"")
        });
        let server = network.start_server();
        client.wait_for(" joined ");
        check_ping(&network.vehicle, CLOUD_V4, "-c 1");
        check_ping(&camera, CLOUD_V4, "-c 1");
        check_closed(&network, &camera, "a family that was not granted", &[CLOUD_V6]);
        check_operator(&network, &shell, &web, "while joined");

        server.kill();
        client.kill();
        check_closed(&network, &camera, "after a crash", &both);
        check_operator(&network, &shell, &web, "after a crash");
        network.release();
        for route in ["203.0.113.0/24", "0.0.0.0/1", "2001:db8:1::/64"] {
            network.vehicle.ip(&format!("route del {route}")).unwrap();
        }
        let clear = leaks(&network);
        send_to(&network, CLOUD_V4).unwrap();
        assert_eq!(leaks(&network), clear + 1, "open again");
        let of_box = |mut lines: Vec<String>| {
            lines.retain(|line| line.contains("box"));
            lines
        };
        assert_eq!(of_box(network.state()), of_box(before), "nothing is left");
    });
}

#[test]
fn a_full_disk_a_dead_log_and_a_wrong_clock_open_nothing_and_leave_nothing() {
    run_sandboxed(|| {
        let (network, camera, ..) = hostile_network();
        let Some(clock) = clock::of_1970(&network) else { return };
        let both = [CLOUD_V4, CLOUD_V6];
        let before = network.state();
        let start = || {
            let mut command = network.vehicle.command(PROGRAM);
            command.arg("client").arg("--config").arg(network.path("client.toml"));
            command.stderr(fs::File::create("/dev/full").unwrap()).env("LD_PRELOAD", &clock);
            command.spawn().unwrap()
        };
        let disk = Disk::mount("/run/roadweave");
        let mut client = start();
        let runs = || roadweave(&["show", "--socket", &socket(CLIENT)]).status.success();
        let refuses = || both.iter().all(|cloud| send_to(&network, cloud).is_err());
        wait_until("refusals", refuses);
        client.kill().unwrap();
        client.wait().unwrap();
        disk.fill();
        let mut client = start();
        wait_until("the client runs", runs);
        check_closed(&network, &camera, "before the first session", &both);
        let server = network.start_server();
        wait_until("a session", || ping(&camera, CLOUD_V4, "-c 1 -W 1").status.success());
        let leaked = leaks(&network);
        nft(&network.vehicle, "flush ruleset");
        let watch = Watch::start();
        while watch.elapsed() < Duration::from_secs(3) {
            both.iter().for_each(|cloud| drop(send_to(&network, cloud)));
            assert_eq!(leaks(&network), leaked, "after a flush");
        }
        server.kill();
        client.kill().unwrap();
        client.wait().unwrap();
        check_closed(&network, &camera, "after a crash", &both);
        // The next start finds a full disk too.
        let mut client = start();
        wait_until("the client runs", runs);
        check_closed(&network, &camera, "after the next start", &both);
        rustix::process::kill_process(rustix::process::Pid::from_child(&client), Signal::INT)
            .unwrap();
        assert!(client.wait().unwrap().success());
        // Filters of other programs were flushed, and a kill leaves settings without a note.
        let of_box = |mut lines: Vec<String>| {
            let kinds = ["box link", "box route", "box rule"];
            lines.retain(|line| kinds.iter().any(|kind| line.starts_with(kind)));
            lines
        };
        let after = network.state();
        assert!(!after.iter().any(|line| line.starts_with("box filter")), "{after:#?}");
        assert_eq!(of_box(after), of_box(before), "nothing is left");
    });
}

#[test]
fn what_others_remove_comes_back_within_seconds() {
    run_sandboxed(|| {
        let (network, camera, shell, web) = hostile_network();
        let (_server, client) = network.start_both();
        network.wait_for_paths(&["eth1", "eth2"]);
        let ours = || -> Vec<String> {
            let marks = ["proto 183", "rw0", "box rule"];
            let is_ours = |line: &String| {
                line.starts_with("box") && marks.iter().any(|mark| line.contains(mark))
            };
            network.state().into_iter().filter(is_ours).collect()
        };
        let settled = ours();
        let tables: Vec<String> = settled
            .iter()
            .filter(|line| line.contains("proto 183"))
            .filter_map(|line| line.split(" table ").nth(1)?.split(' ').next())
            .map(str::to_owned)
            .collect();
        assert!(tables.len() > 4, "{settled:#?}");
        let marks = || network.vehicle.run("nft list table inet roadweave_rw0_answers").unwrap();
        let settled_marks = marks();
        assert!(settled_marks.contains("eth2"), "{settled_marks}");
        for priority in [518, 518, 519, 519, 520, 525, 526, 532] {
            network.vehicle.ip(&format!("rule del priority {priority}")).unwrap();
            network.vehicle.ip(&format!("-6 rule del priority {priority}")).ok();
        }
        for table in &tables {
            network.vehicle.ip(&format!("route flush table {table}")).ok();
        }
        network.vehicle.ip("address del 10.77.0.2/32 dev rw0").unwrap();
        nft(&network.vehicle, "delete table inet roadweave_rw0_answers");
        wait_or_show(
            Duration::from_secs(6),
            || format!("{:#?}\nwas\n{settled:#?}", ours()),
            || ours() == settled,
        );
        client.wait_for("another program removed rules, routes or addresses of the tunnel");
        for (round, change) in [
            (2, "flush chain inet roadweave_rw0_answers output"),
            (3, "insert rule inet roadweave_rw0_answers prerouting accept"),
        ] {
            nft(&network.vehicle, change);
            client.wait_for_count("another program changed or removed the marks", round);
            assert_eq!(marks(), settled_marks, "{change}");
        }
        check_operator(&network, &shell, &web, "mended");
        check_ping(&camera, CLOUD_V4, "-c 1");
        check_ping(&network.vehicle, CLOUD_V6, "-c 1");
        assert_eq!(leaks(&network), 0);

        network.vehicle.ip("address add 192.168.51.1/24 dev lan0").unwrap();
        camera.ip("address add 192.168.51.2/24 dev eth0").unwrap();
        wait_within(Duration::from_secs(5), "the network that came up", || {
            ping(&network.vehicle, "192.168.51.2", "-c 1 -W 1").status.success()
        });
        network.vehicle.set_sysctl("net.ipv4.conf.eth1.rp_filter", "1").unwrap();
        client.wait_for("another program set the reverse path filter of eth1 to strict");
        assert_eq!(leaks(&network), 0);
    });
}

#[test]
fn what_the_file_says_otherwise_counts() {
    run_sandboxed(|| {
        let (network, camera, _shell, _web) = hostile_network();
        network.edit("client.toml", |text| {
            let text = text.replace("include = []", "include = [\"eth*\"]\nlocal = false");
            text + "before_join = \"open\"\nkill_switch = true\n"
        });
        let mut client = network.start_client("client");
        client.wait_for_count("uplink is up", 2);
        send_to(&network, CLOUD_V4).unwrap();
        assert_eq!(leaks(&network), 1, "before_join = \"open\"");
        let server = network.start_server();
        client.wait_for(" joined ");
        let route = network.vehicle.run("ip route get 10.1.0.9").unwrap();
        assert!(route.contains("dev rw0"), "{route}");
        client.signal(Signal::TERM);
        assert_eq!(client.wait(), Some(0));
        check_closed(&network, &camera, "after a stop with a kill switch", &[CLOUD_V4, CLOUD_V6]);
        // The next start takes refusals over; SIGUSR1 leaves them; a stop without the switch opens.
        network.edit("client.toml", |text| {
            text.replace("kill_switch = true", "kill_switch = false")
                .replace("\"open\"", "\"closed\"")
        });
        let mut client = network.start_client("client");
        client.wait_for(" joined ");
        client.signal(Signal::USR1);
        assert_eq!(client.wait(), Some(0));
        client.wait_for("stays blocked until the next start");
        network.wait_for_status("rws", "a goodbye", |status| status["sessions"] == json!([]));
        check_closed(&network, &camera, "after a stop for another start", &[CLOUD_V4, CLOUD_V6]);
        let client = network.start_joined("client");
        client.interrupt();
        drop(server);
        let clear = leaks(&network);
        send_to(&network, CLOUD_V4).unwrap();
        assert_eq!(leaks(&network), clear + 1, "after an ordered stop");
    });
}

#[test]
fn a_server_grants_no_more_than_the_box_accepts() {
    on_network(|network| {
        let camera = network.connect_camera();
        // A hostile lease whose network holds every inner address.
        network.vehicle.ip("address add 10.200.0.9/8 dev eth2").unwrap();
        network.vehicle.ip("route add 192.168.70.0/24 via 192.168.50.2").unwrap();
        network.edit("server.toml", |text| {
            text.replace(
                "\"10.77.0.1/16\", ",
                "\"10.77.0.1/16\", \"192.168.50.2/32\", \"192.168.70.5/32\", \"10.1.0.1/32\", \
                 \"203.0.113.53/32\", ",
            )
            .replace(
                "\"10.77.0.2/32\", ",
                "\"10.77.0.2/32\", \"203.0.113.77/32\", \"192.168.60.0/24\", ",
            )
        });
        let (_server, client) = network.start_both();
        for refused in [
            "refused the address 203.0.113.77 that the server assigned: it is in none",
            "refused the gateway 192.168.50.2 that the server assigned: it is in 192.168.50.0/24, a",
            "refused the gateway 192.168.70.5 that the server assigned: it is in 192.168.70.0/24, a",
            "refused the gateway 10.1.0.1 that the server assigned: it is the gateway of the uplink eth1",
            "refused the gateway 203.0.113.53 that the server assigned: it is in none",
        ] {
            assert_eq!(client.count(refused), 1, "{refused}\n{}", client.log());
        }
        assert_eq!(client.count("WARN"), 5, "{}", client.log());
        check_ping(&network.vehicle, GATEWAY_V4, "-c 1");
        check_ping(&network.vehicle, "192.168.50.2", "-c 1");

        // Packets from the tunnel with sources behind the box are dropped.
        let here = network.vehicle.enter(|| UdpSocket::bind("10.77.0.2:9").unwrap()).unwrap();
        here.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let sources = [
            (GATEWAY_V4, true),
            ("192.168.50.9", false),
            ("192.168.60.9", false),
            ("192.168.70.9", false),
        ];
        for (source, is_heard) in sources {
            if !is_heard {
                network.server.ip(&format!("address add {source}/32 dev lo")).unwrap();
            }
            let socket = network.server.enter(|| UdpSocket::bind((source, 0)).unwrap()).unwrap();
            for _ in 0..5 {
                socket.send_to(b"trust me", "10.77.0.2:9").unwrap();
            }
            assert_eq!(here.recv(&mut [0; 9]).is_ok(), is_heard, "{source}");
            while here.recv(&mut [0; 9]).is_ok() {}
        }
        let dropped = network.show(CLIENT)["sessions"][0]["drops"]["spoofed-source"].clone();
        assert_eq!(dropped.as_u64(), Some(15), "{dropped}");
        drop(camera);
    });
}

fn reaches_camera(network: &TestNetwork) -> bool {
    ping(&network.server, "192.168.50.2", "-c 2 -i 0.2 -W 1").status.success()
}

#[test]
fn a_start_opens_nothing_that_a_crash_left_closed() {
    run_sandboxed(|| {
        let (network, camera, _shell, _web) = hostile_network();
        network.server.ip("route add 192.168.50.0/24 via 10.1.0.2").unwrap();
        assert!(reaches_camera(&network), "the box forwards by its owner's will");
        let client = network.start_client("client");
        client.wait_for_count("uplink is up", 2);
        assert!(!reaches_camera(&network));
        client.kill();
        assert!(!reaches_camera(&network), "after a crash");

        network.vehicle.ip("link add rw0 type veth peer name rwx").unwrap();
        let mut client = network.start_client("client");
        assert_ne!(client.wait(), Some(0));
        drop(client);
        assert!(!reaches_camera(&network), "after a start that failed");
        check_closed(&network, &camera, "after a start that failed", &[CLOUD_V4, CLOUD_V6]);
        network.vehicle.ip("link del rw0").unwrap();

        network.vehicle.ip("route add 192.168.61.0/24 via 192.168.50.7").unwrap();
        network.vehicle.ip("address add 192.168.50.7/32 dev lan0").unwrap();
        let client = network.start_client("client");
        client.wait_for("add the route to 192.168.61.0/24");
        client.wait_for_count("uplink is up", 2);
        check_closed(&network, &camera, "with a route that fails", &[CLOUD_V4, CLOUD_V6]);
        assert!(!reaches_camera(&network));
        client.interrupt();
        assert!(reaches_camera(&network), "after an ordered stop");
    });
}

#[test]
fn resolvers_of_a_session_go_with_it_also_after_a_kill() {
    on_network(|network| {
        let _server = network.start_server();
        let old = "search example.org\nnameserver 10.1.0.1\n";
        network.set_resolvers(old);
        let now = || fs::read_to_string("/etc/resolv.conf").unwrap();
        let start =
            |more: &str| start_with(&network, &format!("{more}{}", std::env::var("PATH").unwrap()));
        dns::serve(&network.server, GATEWAY_V4, &[("cloud.test", CLOUD_V4)]);
        let look_up = || {
            let found = network.vehicle.command("getent").args(["ahostsv4", "cloud.test"]).output();
            String::from_utf8(found.unwrap().stdout).unwrap()
        };
        let client = start("");
        client.wait_for(" joined ");
        client.wait_for("the resolver 10.1.0.1 is in the own network of the uplink eth1");
        assert_eq!(now(), old);
        client.interrupt();

        network.edit("client.toml", |text| format!("dns = [\"10.77.0.1\", \"fd77::1\"]\n{text}"));
        let client = start("");
        client.wait_for("resolvers of the session are set");
        assert!(now().contains("nameserver 10.77.0.1\nnameserver fd77::1\n"), "{}", now());
        assert!(look_up().contains(CLOUD_V4), "{}", look_up());
        client.kill();
        assert!(now().contains("10.77.0.1"), "a kill leaves it");
        network.release();
        assert_eq!(now(), old, "released");
        let client = start("");
        client.wait_for("resolvers of the session are set");
        client.kill();
        let client = start("");
        client.wait_for("resolvers of the session are set");
        client.interrupt();
        assert_eq!(now(), old, "after a kill, a second start and a stop");

        let folder = network.path("bin");
        fs::create_dir(&folder).unwrap();
        let said = network.path("calls");
        let script = format!("echo \"$*: $(cat | tr '\\n' ' ')\" >> {}", said.display());
        write_program(&folder.join("resolvconf"), &script);
        let calls = || {
            let client = start(&format!("{}:", folder.display()));
            client.wait_for("resolvers of the session are set");
            client.interrupt();
            let lines = fs::read_to_string(&said).unwrap();
            fs::remove_file(&said).unwrap();
            lines.lines().map(|line| line.trim().to_owned()).collect::<Vec<String>>()
        };
        assert_eq!(
            calls(),
            ["-a rw0 -m 0 -x: nameserver 10.77.0.1 nameserver fd77::1", "-d rw0 -f:"]
        );
        assert_eq!(now(), old);

        fs::rename(folder.join("resolvconf"), folder.join("resolvectl")).unwrap();
        let stub = "nameserver 127.0.0.53\n";
        fs::write("/etc/resolv.conf", stub).unwrap();
        let expected =
            ["--no-pager dns:", "dns rw0 10.77.0.1 fd77::1:", "domain rw0 ~.:", "revert rw0:"];
        assert_eq!(calls(), expected);
        assert_eq!(now(), stub);
    });
}

fn exclude_cloud(network: &TestNetwork) {
    network.edit("client.toml", |text| {
        text.replace("[routes]\n", "[routes]\nexclude = [\"203.0.113.0/24\"]\n")
    });
}

fn start_with(network: &TestNetwork, path: &str) -> Daemon {
    let mut command = network.vehicle.command(PROGRAM);
    command.arg("client").arg("--config").arg(network.path("client.toml")).env("PATH", path);
    Daemon::start(command, network.path("client.log"))
}

fn wait_for_no_uplink(network: &TestNetwork, why: &str) {
    network.wait_for_status(CLIENT, "no uplink", |status| {
        let said = status["no_session"].as_str().unwrap_or_default();
        said.starts_with("no uplink is used until the packet filters are in place")
            && said.contains(why)
    });
}

#[test]
fn no_uplink_is_used_without_filters_and_nothing_waits_for_nft() {
    on_network(|network| {
        let folder = network.path("bin");
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/usr/bin/nsenter", folder.join("nsenter")).unwrap();
        let [hold, fails] = ["hold", "fails"].map(|name| network.path(name));
        let script = format!(
            "while [ -e {} ]; do /bin/sleep 0.02; done\n[ -e {} ] && exit 1\n\
             exec /usr/sbin/nft \"$@\"",
            hold.display(),
            fails.display()
        );
        write_program(&folder.join("nft"), &script);
        let start = || start_with(&network, folder.to_str().unwrap());
        let _server = network.start_server();

        fs::write(&hold, "").unwrap();
        let client = start();
        check_that_nothing_waits(&network, &client, &hold);
        check_failing_filters(&network, &client, &fails);
        client.interrupt();

        fs::remove_file(folder.join("nft")).unwrap();
        let client = start();
        let cure = "install nftables";
        client.wait_for(cure);
        client.wait_for("no uplink is used until the packet filters are in place");
        assert_eq!(client.count("uplink is up"), 0, "{}", client.log());
        wait_for_no_uplink(&network, cure);
        write_program(&folder.join("nft"), &script);
        client.wait_for(" joined");
        client.interrupt();
    });
}

fn check_that_nothing_waits(network: &TestNetwork, client: &Daemon, hold: &Path) {
    let reached = "table netdev reached { chain in { type filter hook ingress device eth1 \
                   priority 0; udp dport 4433 counter; }; }";
    nft(&network.server, reached);
    let packets = || network.server.run("nft list table netdev reached").unwrap();
    client.wait_for("the client runs");
    wait_for_no_uplink(network, "");
    assert!(packets().contains("packets 0 "), "{}", packets());
    assert_eq!(client.count("uplink is up"), 0, "{}", client.log());
    fs::remove_file(hold).unwrap();
    client.wait_for(" joined");
    assert!(!packets().contains("packets 0 "), "the counter counts");
    network.wait_for_echo();
    // The tunnel carries on while filters are replaced. The reload is answered after that.
    fs::write(hold, "").unwrap();
    exclude_cloud(network);
    let reload = spawn(|| roadweave(&["reload", "--socket", &socket(CLIENT)]));
    client.wait_for("were read again");
    network.wait_for_traffic();
    let excludes = || network.vehicle.run("nft list ruleset").unwrap().contains("set excluded4");
    assert!(!reload.is_finished() && !excludes(), "nft is under way");
    fs::remove_file(hold).unwrap();
    let reloaded = reload.join().unwrap();
    assert!(reloaded.status.success() && excludes(), "{reloaded:?}");
}

fn check_failing_filters(network: &TestNetwork, client: &Daemon, fails: &Path) {
    let forwards = || {
        let read = || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        network.vehicle.enter(read).unwrap().trim().to_owned()
    };
    assert_eq!(forwards(), "1");
    fs::write(fails, "").unwrap();
    network.edit("client.toml", |text| text.replace("203.0.113.0/24", "203.0.113.0/25"));
    client.signal(Signal::HUP);
    client.wait_for("the packet filters could not be installed");
    network.wait_for_traffic();
    nft(&network.vehicle, "flush ruleset");
    client.wait_for("they could not be restored: until they are, nothing is forwarded");
    wait_for_no_uplink(network, "");
    assert_eq!(forwards(), "0");
    fs::remove_file(fails).unwrap();
    network.wait_for_traffic();
    assert_eq!(forwards(), "1");
}
