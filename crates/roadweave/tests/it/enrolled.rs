//! A fleet with its real controller, from the token to the revocation.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::thread::sleep;
use std::time::Duration;

use crate::common::world::*;
use crate::common::*;
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn a_box_joins_by_a_token_once_also_in_1970_and_a_used_up_token_says_so() {
    in_world(|world| {
        let token = world.token("box");
        let said = joined(&world.join(&token, "bus-1").output().unwrap());
        assert!(said.contains("This box has joined: bus-1 of home"), "{said}");
        assert!(said.contains("Next: roadweave client --state-directory"), "{said}");
        let said = joined(&world.join(&token, "bus-1").output().unwrap());
        assert!(said.contains("had already joined"), "{said}");
        let refused = world.join(&token, "bus-2").output().unwrap();
        let why = text(&refused.stderr);
        assert!(!refused.status.success() && why.contains("the controller refuses"), "{why}");
        assert!(why.contains("token"), "{why}");
        let devices = world.json(&["device", "list"]);
        assert_eq!(devices.as_array().unwrap().len(), 1, "{devices:#}");
        if let Some(library) = clock::of_1970(&world.network) {
            let mut join = world.join(&world.token("box"), "bus-4");
            let said = joined(&join.env("LD_PRELOAD", &library).output().unwrap());
            assert!(said.contains("This box has joined"), "{said}");
        }
        // Root joins as the owner of the state directory; only root can give a folder away.
        let state = world.network.path("bus-3");
        fs::create_dir(&state).unwrap();
        if chown(&state, Some(65_534), Some(65_534)).is_err() {
            return;
        }
        joined(&world.join(&world.token("box"), "bus-3").output().unwrap());
        let key = fs::metadata(state.join("fleet.key")).unwrap();
        assert_eq!((key.uid(), key.gid(), key.mode() & 0o777), (65_534, 65_534, 0o600));
    });
}

#[test]
fn a_session_on_signed_documents_outlives_its_controller_and_ends_with_the_key() {
    in_world(check_session_on_signed_documents);
}

#[test]
fn what_a_controller_says_of_keys_holds_on_the_shards_of_a_server() {
    in_world(|mut world| {
        world.shards = 2;
        check_session_on_signed_documents(world);
    });
}

fn check_session_on_signed_documents(mut world: World) {
    let (server, client) = world.start_both();
    client.wait_for("joined");
    let network = &world.network;
    network.echo(&network.server, GATEWAY_V4);
    network.wait_for_paths(&["eth1", "eth2"]);
    network.wait_for_traffic();
    let page = roadweave(&["show", "--socket", &socket(CLIENT)]);
    assert!(text(&page.stdout).contains("fleet of home: box bus-1, controller at"), "{page:?}");

    world.controller.take().unwrap().kill();
    world.network.wait_for_traffic();
    interrupt([client, server]);
    let server = world.network.start_server();
    let client = world.network.start_joined("client");
    world.network.wait_for_traffic();
    let away = |status: &Value| status["fleet"]["away_seconds"].as_f64().is_some();
    world.network.wait_for_status(SERVER, "away", away);

    world.start_controller();
    let there = |status: &Value| status["fleet"]["controller"].is_string();
    world.network.wait_for_status(SERVER, "the controller is back", there);
    let asked = Watch::start();
    let revoked = world.json(&["device", "revoke", "bus-1", "--reason", "stolen"]);
    let answered = asked.elapsed();
    assert!(server.count("left") > 0, "{}", server.log());
    assert!(answered < Duration::from_secs(2), "{answered:?}");
    let summary = revoked["summary"].as_str().unwrap();
    assert!(summary.starts_with("1 of 1"), "{revoked:#}");
    client.wait_for("key was revoked");
    let socket = world.network.socket_to(GATEWAY_V4);
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let _ = socket.send(b"is anybody there?");
    assert!(socket.recv(&mut [0; 100]).is_err());
    drop(client);
}

#[test]
fn proxy_and_anchor_join_by_tokens_and_go_on_without_their_controller() {
    in_world(|mut world| {
        world.join_with_anchor();
        world.network.echo(&world.network.cloud, "0.0.0.0");
        let daemons = world.start_with_anchor();
        world.controller.take().unwrap().kill();
        daemons.into_iter().rev().for_each(Daemon::interrupt);
        let [anchor, proxy, client] = world.start_with_anchor();
        for at in [ANCHOR, "proxy"] {
            let status = world.network.show(at);
            assert!(status["fleet"]["away_seconds"].as_f64().is_some(), "{status:#}");
        }

        world.start_controller();
        let there = |status: &Value| status["fleet"]["controller"].is_string();
        for at in [ANCHOR, "proxy"] {
            world.network.wait_for_status(at, "the controller is back", there);
        }
        // A limit of the tenant's rate cuts 6 Mbit/s while all runs, and is taken back.
        let socket = world.network.socket_to(GATEWAY_V4);
        for (words, is_cut) in [(&["--rate-mbps", "2"][..], true), (&[], false)] {
            world.json(&[&["tenant", "limit", "home"], words].concat());
            wait_within(4 * WAIT_MAX, &format!("cut: {is_cut}"), || {
                let limited = || {
                    let drops = &world.network.show("proxy")["tenants"]["home"]["drops"];
                    drops["rate-limited"].as_u64().unwrap_or_default()
                };
                let before = limited();
                for _ in 0..750 {
                    socket.send(&[0; 1_000]).unwrap();
                    sleep(Duration::from_micros(1_333));
                }
                (limited() > before) == is_cut
            });
        }
        let asked = Watch::start();
        let revoked = world.json(&["device", "revoke", "bus-1", "--reason", "stolen"]);
        let answered = asked.elapsed();
        let summary = revoked["summary"].as_str().unwrap();
        assert!(summary.starts_with("2 of 2"), "{revoked:#}");
        assert!(answered < Duration::from_secs(2), "{answered:?}");
        assert!(proxy.count("left") > 0, "{}", proxy.log());
        assert_eq!(world.network.show(ANCHOR)["legs"][0][1]["attachments"], 0);
        drop((anchor, client));
    });
}

#[test]
fn a_drain_of_a_server_is_one_of_all_its_shards() {
    in_world(|mut world| {
        world.shards = 2;
        let drain = |undo: &[&str]| world.json(&[&["proxy", "drain", "fra-1"], undo].concat());
        let wait = |expected: bool| {
            let is = |status: &Value| status["totals"]["draining"] == expected;
            world.network.wait_for_status(SERVER, &format!("draining: {expected}"), is);
        };
        let (server, client) = world.start_both();
        client.wait_for("joined");
        drain(&[]);
        wait(true);
        interrupt([client, server]);
        let server = world.network.start_server();
        let client = world.network.start_client("client");
        client.wait_for("this server drains");
        wait(true);
        assert_eq!((client.count("joined"), server.count("joined")), (0, 0));
        drain(&["--undo"]);
        wait(false);
        client.wait_for("joined");
        drain(&[]);
        wait(true);
        interrupt([client, server]);
        drain(&["--undo"]);
        let server = world.network.start_server();
        let client = world.network.start_joined("client");
        wait(false);
        // A drain by a person on the machine is not the controller's to take back.
        let command = ["drain", "--socket", &socket(SERVER), "--wait", "0"];
        assert!(roadweave(&command).status.success());
        wait(true);
        drain(&[]);
        server.wait_for("drained by the controller: no new clients");
        drain(&["--undo"]);
        server.wait_for("no longer drained by the controller");
        wait(true);
        drop(client);
    });
}

const SILENCE_MAX: Duration = Duration::from_secs(30);

#[test]
fn a_controller_that_hangs_is_reported_and_nothing_waits_for_it() {
    in_world(|world| {
        let (_server, client) = world.start_both();
        client.wait_for("joined");
        let network = &world.network;
        network.wait_for_echo();
        let there = |status: &Value| status["fleet"]["controller"].is_string();
        wait_within(2 * WAIT_MAX, "both know the controller", || {
            there(&network.show(SERVER)) && there(&network.show(CLIENT))
        });
        // The kernel still accepts connections for it.
        let controller = world.controller.as_ref().unwrap();
        controller.signal(Signal::STOP);
        client.interrupt();
        let _client = network.start_joined("client");
        network.wait_for_traffic();
        wait_within(SILENCE_MAX + WAIT_MAX, "the proxy has noticed", || {
            !there(&network.show(SERVER))
        });
        network.wait_for_traffic();
        assert!(!there(&network.show(CLIENT)), "it has found nobody to speak with");
        controller.signal(Signal::CONT);
        wait_within(4 * WAIT_MAX, "both know the controller again", || {
            there(&network.show(SERVER)) && there(&network.show(CLIENT))
        });
    });
}
