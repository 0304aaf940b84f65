//! A log that cannot be written: the tunnel carries on, counts the lines, and tells of them later.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::common::disk::Disk;
use crate::common::hosts::{Host, bytes, connect, read_head, seen_from, there_and_back};
use crate::common::*;
use rustix::process::{Pid, Signal, kill_process};

/// A client that logs much, to where the test says.
fn start_client(road: &Road, errors: Stdio) -> Child {
    let mut command = road.vehicle.command(PROGRAM);
    command.args(["--log", "trace", "client", "--config"]).arg(road.path("client.toml"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn().unwrap()
}

/// Waits until the client has a session with both uplinks; only `show` can tell.
fn wait_until_joined(road: &Road) {
    wait_until("both uplinks", || {
        let output = roadweave(&["show", "--json", "--socket", &socket(CLIENT)]);
        output.status.success()
            && usable(&serde_json::from_slice(&output.stdout).unwrap()) == ["eth1", "eth2"]
    });
    let is_up = || ping(&road.vehicle, GATEWAY_V4, "-c 1 -W 1").status.success();
    wait_until("the tunnel carries nothing", is_up);
}

fn lost(road: &Road) -> u64 {
    road.show(CLIENT)["log"]["lines_lost"].as_u64().unwrap()
}

/// Asks the box for a connection by HTTP; what it says, and the connection.
fn ask(road: &Road, proxy: SocketAddr, to: SocketAddr) -> (String, TcpStream) {
    let mut socket = connect(&road.vehicle, proxy).unwrap();
    write!(socket, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
    (read_head(&mut socket), socket)
}

#[test]
fn connections_go_on_while_nobody_reads_the_log_and_the_disk_is_full() {
    run_sandboxed(|| {
        let road = Road::new();
        let disk = Disk::mount("/run/road/state");
        disk.fill();
        let proxy = SocketAddr::from(([127, 0, 0, 1], 1080));
        road.edit("client.toml", |text| {
            let state = "state_directory = \"/run/road/state\"";
            let text = text.replace("state_directory = \"/run/road\"", state);
            format!("{text}\n[streams]\nlisten = \"{proxy}\"\n")
        });
        road.edit("server.toml", |text| text + "[streams]\n");
        let host = |port| SocketAddr::from(([203, 0, 113, 2], port));
        let _host = Host::start(&road.cloud, host(8080));
        let _server = road.start_server();
        let (reader, writer) = std::io::pipe().unwrap();
        let mut client = start_client(&road, writer.into());
        wait_until_joined(&road);
        let sent = bytes(3_000_000);
        let exchange = || {
            let (answer, mut socket) = ask(&road, proxy, host(8080));
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            seen_from(&mut socket).unwrap();
            assert!(there_and_back(&socket, &sent) == sent);
        };
        exchange();
        assert!(lost(&road) > 0, "the log is read");
        exchange();
        let begun = Watch::start();
        let answer = ask(&road, proxy, host(9)).0;
        assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
        assert!(begun.elapsed() < Duration::from_secs(2), "refused after {:?}", begun.elapsed());
        kill_process(Pid::from_child(&client), Signal::INT).unwrap();
        wait_until("its end", || client.try_wait().unwrap().is_some());
        assert_eq!(client.wait().unwrap().code(), Some(0));
        drop(reader);
        assert_eq!(disk.names(), Vec::<String>::new(), "half-written");
    });
}
