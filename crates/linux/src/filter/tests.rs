//! Rulesets in their golden files; `tests/it/filters.rs` tests their effect.

use roadweave_proto::{DropReason, Marks};

use super::*;
use crate::golden::assert_golden;
use crate::{Apart, Excluded, Interface};

fn options(forwarding: Forwarding) -> FilterOptions {
    FilterOptions {
        own_addresses: vec!["10.8.0.1".parse().unwrap(), "fd08::1".parse().unwrap()],
        inner: vec!["10.8.0.1/24".parse().unwrap(), "fd08::1/64".parse().unwrap()],
        masquerade: true,
        masquerade_into_tun: Some(vec!["192.168.50.0/24".parse().unwrap()]),
        ..FilterOptions::new("rw0", 1400, forwarding)
    }
}

fn server(outside_to_tunnel: bool, clients_reach_clients: bool, denied: &[&str]) -> Forwarding {
    Forwarding::Server {
        outside_to_tunnel,
        clients_reach_clients,
        denied: denied.iter().map(|net| net.parse().unwrap()).collect(),
        allowed: vec![Destination { network: "203.0.113.1/32".parse().unwrap(), port: Some(53) }],
    }
}

fn a_box(inside: &[&str], between_uplinks: bool) -> FilterOptions {
    let interface = |name: &&str| Interface { name: (*name).to_owned(), index: 7 };
    let inside = inside.iter().map(interface).collect();
    let addresses = vec!["192.168.50.1".parse().unwrap()];
    let excluded = ["203.0.113.0/25", "203.0.113.128/25", "2001:db8::/32"];
    FilterOptions {
        excluded: Excluded {
            destinations: excluded.map(|it| it.parse().unwrap()).into(),
            marks: vec![(0x10, 0xf0)],
        },
        ..options(Forwarding::Box { inside, addresses, between_uplinks })
    }
}

fn forwards() -> Vec<Forward> {
    let forward = |udp, ports, to: &str, to_ports, near: &[&str]| Forward {
        tcp: true,
        udp,
        ports,
        to: to.parse().unwrap(),
        to_ports,
        near: near.iter().map(|net| net.parse().unwrap()).collect(),
    };
    vec![
        forward(false, 8443..=8443, "10.8.0.5", 443..=443, &["10.8.0.5/32", "192.168.5.0/24"]),
        forward(true, 7..=9, "fd08::5", 7..=9, &["fd08::5/128"]),
        forward(false, 3..=4, "fd08::5", 1..=2, &["fd08::5/128"]),
    ]
}

fn check(name: &str, options: &FilterOptions, opened: Opened) {
    let text = ruleset("roadweave_x", options, opened, |reason| {
        u64::from(reason == DropReason::ForwardRefused) * 12
    })
    .0;
    assert_golden(&format!("nft-filter-{name}.txt"), &text);
}

#[test]
fn the_rulesets_are_in_their_golden_files() {
    let none = Opened { ipv4: false, ipv6: false };
    let opened = Opened { ipv4: true, ipv6: false };
    check("open", &options(Forwarding::Open), none);
    check("box", &a_box(&["lan0", "br-lan"], false), none);
    // A name that nft would misread is matched by its number; inner addresses are known outside.
    let odd = a_box(&["lan0", "a\" drop; #", "eth*"], true);
    check("box-between-uplinks", &FilterOptions { masquerade_into_tun: None, ..odd }, none);
    check("server", &options(server(false, true, &["169.254.0.0/16"])), none);
    check("server-opened", &options(server(true, false, &[])), opened);
    let forwards = FilterOptions { forwards: forwards(), ..options(server(false, false, &[])) };
    check("forwards", &forwards, none);
    let apart = Some(Apart::of(&Instance::new("rw0").unwrap()));
    let mut neighbour =
        FilterOptions { apart, client_sockets: true, ..options(server(false, false, &[])) };
    neighbour.inner.push("0.0.0.0/0".parse().unwrap());
    check("neighbour", &neighbour, Opened { ipv4: true, ipv6: true });
    check("neighbour-exposed", &FilterOptions { masquerade: false, ..neighbour }, none);
    let marks = Marks::within(0x00ff_0000).unwrap();
    let apart = Some(Apart::of(&Instance::new("rw0").unwrap().with_marks(marks)));
    check("narrow-mask", &FilterOptions { marks, apart, client_sockets: true, ..forwards }, none);
}
