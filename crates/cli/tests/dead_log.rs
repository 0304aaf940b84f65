//! A log that cannot be written: the tunnel carries on, counts the lines, and tells of them later.

#![allow(clippy::disallowed_methods, reason = "end-to-end tests start programs and wait")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use common::disk::Disk;
use common::hosts::{Host, bytes, connect, read_head, seen_from, there_and_back};
use common::{CLIENT, GATEWAY_V4, PROGRAM, Road, WAIT_MAX, ping, roadweave, socket, usable};
use roadweave_device::netns::{Watch, run_sandboxed};
use rustix::process::{Pid, Signal, kill_process};

/// A client that logs much, to where the test says.
fn start_client(road: &Road, errors: Stdio) -> Child {
    let mut command = road.vehicle.command(PROGRAM);
    command.args(["--log", "trace", "client", "--config"]).arg(road.path("client.toml"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn().unwrap()
}

/// Waits until the client has a session with both uplinks; only `show` can tell.
fn wait_until_joined(road: &Road) {
    let watch = Watch::start();
    loop {
        let output = roadweave(&["show", "--json", "--socket", &socket(CLIENT)]);
        if output.status.success()
            && usable(&serde_json::from_slice(&output.stdout).unwrap()) == ["eth1", "eth2"]
        {
            break;
        }
        assert!(watch.elapsed() < WAIT_MAX, "it never joined: {output:?}");
        sleep(Duration::from_millis(50));
    }
    while !ping(&road.vehicle, GATEWAY_V4, "-c 1 -W 1").status.success() {
        assert!(watch.elapsed() < WAIT_MAX, "the tunnel carries nothing");
        sleep(Duration::from_millis(50));
    }
}

fn lost(road: &Road) -> u64 {
    road.show(CLIENT)["log"]["lines_lost"].as_u64().unwrap()
}

/// `roadweave show --watch 0.1 | head -1`
fn watch_and_leave() {
    let mut command = Command::new(PROGRAM);
    command.args(["show", "--watch", "0.1", "--socket", &socket(CLIENT)]);
    let mut show = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(show.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("client "), "{line}");
    let output = show.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(141), &b""[..]));
}

/// Ends it in order.
fn stop(mut client: Child) {
    kill_process(Pid::from_child(&client), Signal::INT).unwrap();
    let watch = Watch::start();
    let status = loop {
        if let Some(status) = client.try_wait().unwrap() {
            break status;
        }
        assert!(watch.elapsed() < WAIT_MAX, "it does not end");
        sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_log_that_cannot_be_written_costs_its_lines_and_not_the_tunnel() {
    run_sandboxed("a_log_that_cannot_be_written_costs_its_lines_and_not_the_tunnel", || {
        let road = Road::new();
        let _server = road.start_server();

        let full = File::options().write(true).open("/dev/full").unwrap();
        let client = start_client(&road, full.into());
        wait_until_joined(&road);
        assert!(lost(&road) > 0);
        watch_and_leave();
        stop(client);

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let client = start_client(&road, writer.into());
        wait_until_joined(&road);
        assert!(lost(&road) > 0);
        stop(client);
    });
}

#[test]
fn a_log_that_nobody_reads_stops_nothing_and_says_later_what_is_missing() {
    run_sandboxed("a_log_that_nobody_reads_stops_nothing_and_says_later_what_is_missing", || {
        let road = Road::new();
        let _server = road.start_server();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let client = start_client(&road, writer.into());
        wait_until_joined(&road);
        // At this level every packet writes lines.
        let watch = Watch::start();
        while lost(&road) == 0 {
            assert!(watch.elapsed() < WAIT_MAX, "{:#}", road.show(CLIENT));
            ping(&road.vehicle, GATEWAY_V4, "-c 200 -i 0.002 -s 1200 -q");
        }
        wait_until_joined(&road);
        let told = Arc::new(AtomicBool::new(false));
        let tells = Arc::clone(&told);
        let reading = std::thread::spawn(move || {
            let (mut text, mut bytes) = (String::new(), [0; 65_536]);
            while !text.contains("lines of the log could not be written lost=") {
                let length = reader.read(&mut bytes).unwrap();
                assert_ne!(length, 0, "it was never told");
                text += &String::from_utf8_lossy(&bytes[..length]);
            }
            tells.store(true, Ordering::Relaxed);
            std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
        });
        let watch = Watch::start();
        while !told.load(Ordering::Relaxed) {
            assert!(watch.elapsed() < WAIT_MAX, "it was never told what is missing");
            sleep(Duration::from_millis(20));
        }
        stop(client);
        reading.join().unwrap();
    });
}

/// Asks the box for a connection by HTTP; what it says, and the connection.
fn ask(road: &Road, proxy: SocketAddr, to: SocketAddr) -> (String, TcpStream) {
    let mut socket = connect(&road.vehicle, proxy).unwrap();
    write!(socket, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
    (read_head(&mut socket), socket)
}

#[test]
fn connections_go_on_while_nobody_reads_the_log_and_the_disk_is_full() {
    run_sandboxed("connections_go_on_while_nobody_reads_the_log_and_the_disk_is_full", || {
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
        let client = start_client(&road, writer.into());
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
        stop(client);
        drop(reader);
        assert_eq!(disk.names(), Vec::<String>::new(), "half-written");
    });
}
