//! Over which uplinks a client tries which of the server's addresses.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use roadweave_identity::PublicKey;
use roadweave_proto::{Instant, UplinkId};
use roadweave_quic::TransportConfig;
use roadweave_tunnel::{Candidate, Client, ClientConfig, Node as _};

use crate::common::{epoch, identity};

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn server_key() -> PublicKey {
    identity(2).public_key()
}

fn client(servers: &[&str]) -> Client {
    let servers = servers.iter().map(|server| address(server)).collect();
    let candidate = Candidate::only(server_key(), servers);
    let config = ClientConfig::new("vehicle", TransportConfig::new([1; 32]), candidate);
    Client::new(epoch(), config, Arc::new(identity(1))).expect("it is sound")
}

fn tried(client: &mut Client, begin: Instant, seconds: u64) -> BTreeSet<(u32, SocketAddr)> {
    let end = begin + std::time::Duration::from_secs(seconds);
    let mut tried = BTreeSet::new();
    let mut now = begin;
    loop {
        client.handle_timeout(now);
        while let Some(packets) = client.poll_transmit() {
            for (route, _) in packets.packets() {
                tried.insert((route.uplink.expect("a client's").0, route.destination));
            }
        }
        match client.poll_timeout().filter(|due| *due <= end) {
            Some(due) => now = now.max(due),
            None => return tried,
        }
    }
}

#[test]
fn an_uplink_with_addresses_of_its_own_tries_these_and_no_others() {
    let mut client = client(&["192.0.2.1:4433", "192.0.2.2:4433"]);
    let all = |uplink: u32| ["192.0.2.1:4433", "192.0.2.2:4433"].map(|at| (uplink, address(at)));
    let own = [(1, address("198.51.100.7:4433"))];
    client.set_servers_of(Instant::ZERO, &server_key(), UplinkId(1), vec![own[0].1]);
    client.add_uplink(Instant::ZERO, UplinkId(0), "wwan0");
    client.add_uplink(Instant::ZERO, UplinkId(1), "wlan0");
    let expected: BTreeSet<_> = all(0).into_iter().chain(own).collect();
    assert_eq!(tried(&mut client, Instant::ZERO, 5), expected);
    // An address of one uplink does not count for another.
    let later = Instant::from_millis(20_000);
    client.set_servers_of(later, &server_key(), UplinkId(1), Vec::new());
    let expected: BTreeSet<_> = all(0).into_iter().chain(all(1)).collect();
    tried(&mut client, later, 15);
    assert_eq!(tried(&mut client, Instant::from_millis(35_000), 30), expected);
}

#[test]
fn an_uplink_may_know_the_server_where_no_other_does() {
    let mut client = client(&[]);
    client.add_uplink(Instant::ZERO, UplinkId(0), "wwan0");
    client.add_uplink(Instant::ZERO, UplinkId(1), "wlan0");
    assert_eq!(tried(&mut client, Instant::ZERO, 5), BTreeSet::new());
    let later = Instant::from_millis(20_000);
    client.set_servers_of(later, &server_key(), UplinkId(1), vec![address("[2001:db8::1]:4433")]);
    let expected = BTreeSet::from([(1, address("[2001:db8::1]:4433"))]);
    assert_eq!(tried(&mut client, later, 5), expected);
    client.remove_uplink(later, UplinkId(1));
    assert_eq!(client.servers_of(UplinkId(1)), []);
}

fn begins(client: &mut Client, uplinks: usize) -> Vec<(u32, u64)> {
    let (mut now, mut begun) = (Instant::ZERO, Vec::<(u32, u64)>::new());
    loop {
        client.handle_timeout(now);
        while let Some(packets) = client.poll_transmit() {
            for (route, _) in packets.packets() {
                let uplink = route.uplink.expect("a client's").0;
                if !begun.iter().any(|(known, _)| *known == uplink) {
                    begun.push((uplink, now.since(Instant::ZERO).as_millis() as u64));
                }
            }
        }
        if begun.len() == uplinks {
            return begun;
        }
        now = now.max(client.poll_timeout().expect("there is always something to try"));
    }
}

#[test]
fn uplinks_of_a_better_technology_begin_first() {
    let names = ["wwan0", "sat0", "wlan0"];
    let begins = |ranks: [u8; 3]| {
        let mut client = client(&["192.0.2.1:4433"]);
        for (name, rank) in names.into_iter().zip(ranks) {
            client.set_rank(name, rank);
        }
        for (id, name) in (0..).zip(names) {
            client.add_uplink(Instant::ZERO, UplinkId(id), name);
        }
        begins(&mut client, 3)
    };
    assert_eq!(begins([0, 0, 0]), [(0, 0), (1, 100), (2, 200)], "as they come");
    assert_eq!(begins([1, 5, 3]), [(0, 0), (2, 100), (1, 200)], "by rank");
    assert_eq!(begins([1, 5, 1]), [(0, 0), (2, 100), (1, 200)]);
}

#[test]
fn an_uplink_that_comes_and_goes_puts_others_off_for_a_second_at_most() {
    let mut client = client(&["192.0.2.1:4433"]);
    client.set_rank("sat0", 5);
    client.add_uplink(Instant::ZERO, UplinkId(0), "wwan0");
    client.add_uplink(Instant::ZERO, UplinkId(1), "sat0");
    for _ in 0..1_000 {
        client.remove_uplink(Instant::ZERO, UplinkId(0));
        client.add_uplink(Instant::ZERO, UplinkId(0), "wwan0");
    }
    let begun = begins(&mut client, 2);
    let (_, at) = begun.iter().find(|(uplink, _)| *uplink == 1).expect("it begins");
    assert!((100..=1_000).contains(at), "{begun:?}");
}
