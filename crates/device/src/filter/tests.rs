use roadweave_types::DropReason;

use super::*;

fn options(forwarding: Forwarding) -> FilterOptions {
    FilterOptions {
        tun: "rw0".to_owned(),
        mtu: 1400,
        own_addresses: vec!["10.8.0.1".parse().unwrap(), "fd08::1".parse().unwrap()],
        inner: vec!["10.8.0.1/24".parse().unwrap(), "fd08::1/64".parse().unwrap()],
        masquerade: true,
        masquerade_into_tun: Some(vec!["192.168.50.0/24".parse().unwrap()]),
        excluded: Excluded::default(),
        forwards: Vec::new(),
        client_sockets: false,
        forwarding,
        apart: None,
        share: None,
        marks: Marks::default(),
        forward: true,
    }
}

fn text(options: &FilterOptions, opened: Opened) -> String {
    ruleset("roadweave_x", options, opened, |_| 0).text
}

const NONE: Opened = Opened { ipv4: false, ipv6: false };

/// Checks that each line of `expected` is a line of `text`, in this order.
fn check(text: &str, expected: &[&str]) {
    let mut lines = text.lines().map(str::trim);
    for line in expected {
        assert!(lines.any(|found| found == *line), "{line}\nis not there in\n{text}");
    }
}

fn named(names: &[&str]) -> Vec<Interface> {
    let interface = |name: &&str| Interface { name: (*name).to_owned(), index: 7 };
    names.iter().map(interface).collect()
}

#[test]
fn the_ruleset_clamps_to_what_fits_the_tun_and_translates() {
    let text = text(&options(Forwarding::Open), NONE);
    check(
        &text,
        &[
            "iifname \"rw0\" meta nfproto ipv4 tcp flags & (syn | rst) == syn tcp option maxseg size > 1360 tcp option maxseg size set 1360",
            "oifname \"rw0\" meta nfproto ipv6 tcp flags & (syn | rst) == syn tcp option maxseg size > 1340 tcp option maxseg size set 1340",
            "iifname \"rw0\" oifname != \"rw0\" masquerade",
            "oifname != \"rw0\" ip saddr @inner4 masquerade",
            "oifname != \"rw0\" ip6 saddr @inner6 masquerade",
            "oifname \"rw0\" ip saddr 192.168.50.0/24 accept",
            "oifname \"rw0\" masquerade",
        ],
    );
    assert!(
        text.contains("set inner4 { type ipv4_addr; flags interval; elements = { 10.8.0.0/24 }; }")
    );
}

#[test]
fn a_box_forwards_from_what_is_no_uplink_and_answers() {
    let forwarding = |between_uplinks| {
        let addresses = vec!["192.168.50.1".parse().unwrap()];
        Forwarding::Box { inside: named(&["lan0", "br-lan"]), addresses, between_uplinks }
    };
    let closed = text(&options(forwarding(false)), NONE);
    assert!(closed.contains("set inside { type ifname; elements = { \"lan0\", \"br-lan\" }; }"));
    let answers = ["ct direction reply return", "ct state related return", "ct status dnat return"];
    let drop = "counter name \"forward_refused\" drop";
    let own = "iifname != @inside iifname != { \"rw0\", \"lo\" } ip daddr 192.168.50.1 counter name \
               \"inner_from_outside\" drop";
    assert!(closed.contains(own), "{closed}");
    check(&closed, &[&answers[..], &[drop]].concat());
    check(&closed, &["iifname \"rw0\" return", "iifname @inside return", "goto answers"]);
    let open = text(&options(forwarding(true)), NONE);
    let between = "oifname != \"rw0\" oifname != @inside return";
    check(&open, &[&answers[..], &[between, drop]].concat());
    assert!(!closed.contains(between));
}

#[test]
fn a_name_that_nft_would_misread_is_matched_by_its_number() {
    let inside = named(&["lan0", "a\" drop; #", "eth*"]);
    let text = text(
        &options(Forwarding::Box { inside, addresses: Vec::new(), between_uplinks: true }),
        NONE,
    );
    assert!(text.contains("set inside { type ifname; elements = { \"lan0\" }; }"), "{text}");
    assert!(text.contains("set inside_odd { type iface_index; elements = { 7, 7 }; }"), "{text}");
    check(&text, &["iifname @inside return", "iif @inside_odd return"]);
    check(&text, &["oifname != \"rw0\" oifname != @inside oif != @inside_odd return"]);
}

#[test]
fn a_server_decides_each_way_by_itself() {
    let server = |outside_to_tunnel, clients_reach_clients| {
        let (denied, allowed) = (vec!["169.254.0.0/16".parse().unwrap()], Vec::new());
        let forwarding =
            Forwarding::Server { outside_to_tunnel, clients_reach_clients, denied, allowed };
        text(&options(forwarding), NONE)
    };
    let outside = "iifname != \"rw0\" oifname \"rw0\" goto answers";
    let between = "iifname \"rw0\" oifname \"rw0\" counter name \"forward_refused\" drop";
    for (open, reach) in [(false, false), (false, true), (true, false), (true, true)] {
        let text = server(open, reach);
        assert_eq!(text.contains(outside), !open);
        assert_eq!(text.contains(between), !reach);
        check(
            &text,
            &[
                "iifname != \"rw0\" return",
                "ip daddr 10.8.0.1 meta l4proto icmp return",
                "ip6 daddr fd08::1 meta l4proto icmpv6 return",
                "ip daddr @denied4 counter name \"denied_destination\" drop",
                "fib daddr type { local, broadcast, anycast, multicast } counter name \"denied_destination\" drop",
            ],
        );
        assert!(!text.contains("chain opened"), "forwarding was on before");
    }
}

#[test]
fn a_server_closes_what_it_opened_in_the_family_that_was_off() {
    let forwarding = Forwarding::Server {
        outside_to_tunnel: false,
        clients_reach_clients: false,
        denied: Vec::new(),
        allowed: vec![Allowed { prefix: "203.0.113.1/32".parse().unwrap(), port: Some(53) }],
    };
    let text = text(&options(forwarding), Opened { ipv4: true, ipv6: false });
    check(
        &text,
        &[
            "ip daddr 203.0.113.1/32 tcp dport 53 return",
            "ip daddr 203.0.113.1/32 udp dport 53 return",
        ],
    );
    let (_, opened) = text.split_once("chain opened").unwrap();
    check(
        opened,
        &[
            "meta nfproto ipv6 return",
            "iif 0 return",
            "iifname \"rw0\" return",
            "oifname \"rw0\" return",
            "ct status dnat return",
            "ct status snat return",
            "iifname != \"lo\" counter name \"forward_refused\" drop",
        ],
    );
    assert!(!opened.contains("meta nfproto ipv4"));
}

#[test]
fn ports_lead_to_clients_past_what_is_denied() {
    let forwarding = Forwarding::Server {
        outside_to_tunnel: false,
        clients_reach_clients: false,
        denied: vec!["169.254.0.0/16".parse().unwrap()],
        allowed: Vec::new(),
    };
    let one = Forward {
        tcp: true,
        udp: false,
        ports: 8443..=8443,
        to: "10.8.0.5".parse().unwrap(),
        to_ports: 443..=443,
        near: ["10.8.0.5/32", "192.168.5.0/24"].map(|net| net.parse().unwrap()).to_vec(),
    };
    let range = Forward {
        udp: true,
        ports: 7..=9,
        to: "fd08::5".parse().unwrap(),
        to_ports: 7..=9,
        near: vec!["fd08::5/128".parse().unwrap()],
        ..one.clone()
    };
    let renumbered = Forward { udp: false, ports: 3..=4, to_ports: 1..=2, ..range.clone() };
    let drop = "counter name \"denied_destination\" drop";
    let refused = "counter name \"forward_refused\" drop";
    let marked = "ct mark & 0xffff == 0x5246";
    let set = "ct mark set ct mark & 0xffff0000 | 0x5246";
    let judged = [
        format!("iifname \"rw0\" {marked} goto forwarded"),
        format!("oifname \"rw0\" {marked} goto forwarded"),
        format!("iifname \"rw0\" oifname \"rw0\" {refused}"),
    ];
    let mut options = options(forwarding);
    let without = text(&options, NONE);
    assert!(!without.contains("dnat ip") && !without.contains(&format!("{marked} return")));
    let errors = "ct state related meta l4proto { icmp, icmpv6 } return";
    let judged = judged.each_ref().map(String::as_str);
    check(&without, &[&["chain forwarded {", errors, refused], &judged[..]].concat());
    options.forwards = vec![one, range, renumbered];
    let text = text(&options, NONE);
    let expected = [
        "chain forwarded {",
        "meta l4proto tcp ct original proto-dst 8443 ct reply ip saddr 10.8.0.5 ct reply proto-src 443 return",
        "meta l4proto tcp ct original proto-dst 7-9 ct reply ip6 saddr fd08::5 ct reply proto-src 7-9 return",
        "meta l4proto udp ct original proto-dst 7-9 ct reply ip6 saddr fd08::5 ct reply proto-src 7-9 return",
        "meta l4proto tcp ct original proto-dst 3-4 ct reply ip6 saddr fd08::5 ct reply proto-src 1-2 return",
        errors,
        refused,
        "chain destinations {",
        "fib daddr type local meta nfproto ipv4 tcp dport 8443 ct state new return",
        "fib daddr type local meta nfproto ipv6 udp dport 7-9 ct state new return",
        &format!("{marked} return"),
        &format!("ip daddr @denied4 {drop}"),
        "type nat hook prerouting priority dstnat - 1; policy accept;",
        "fib daddr type != local return",
        "ip daddr 10.8.0.1 return",
        "ip6 daddr fd08::1 return",
        "iifname != \"rw0\" ip saddr @inner4 return",
        "iifname != \"rw0\" ip6 saddr @inner6 return",
        &format!("meta nfproto ipv4 tcp dport 8443 {set} dnat ip to 10.8.0.5:443"),
        &format!("meta nfproto ipv6 tcp dport 7-9 {set} dnat ip6 to fd08::5"),
        &format!("meta nfproto ipv6 udp dport 7-9 {set} dnat ip6 to fd08::5"),
        &format!(
            "meta nfproto ipv6 tcp dport 3-4 {set} dnat ip6 to fd08::5 : tcp dport map {{ 3 : 1, 4 : 2 }}"
        ),
    ];
    check(&text, &expected);
    let own = format!(
        "oifname \"rw0\" {marked} ip daddr 10.8.0.5 ip saddr {{ 10.8.0.5/32, 192.168.5.0/24 }} masquerade"
    );
    check(&text, &[&judged[..], &[&own]].concat());
}

#[test]
fn what_was_counted_stays_counted() {
    let count = |reason| if reason == DropReason::ForwardRefused { 12 } else { 0 };
    let ruleset = ruleset("roadweave_x", &options(Forwarding::Open), NONE, count);
    assert!(ruleset.text.contains("counter forward_refused { packets 12 bytes 0 }"));
}

#[test]
fn neighbours_are_told_apart_by_interface_zone_and_mark() {
    let apart = crate::Apart::of(&crate::Instance::new("rw0").unwrap());
    let (mark, _) = apart.mark();
    let zone = apart.zone();
    let forwarding = Forwarding::Server {
        outside_to_tunnel: false,
        clients_reach_clients: false,
        denied: Vec::new(),
        allowed: Vec::new(),
    };
    let mut options = FilterOptions { apart: Some(apart), ..options(forwarding) };
    options.inner.push("0.0.0.0/0".parse().unwrap());
    let text = text(&options, Opened { ipv4: true, ipv6: true });
    let drop = "counter name \"forward_refused\" drop";
    for line in [
        format!("iifname \"rw0\" oifname != \"rw0\" oifgroup 183 {drop}"),
        format!("iifname != \"rw0\" oifname \"rw0\" iifgroup 183 {drop}"),
        format!("oifname != \"rw0\" ct original zone {zone} masquerade"),
        "oifgroup 183 return".to_owned(),
        format!("ip daddr @near4 ct zone set {zone} return"),
        format!("ct original zone set {zone}"),
        format!("iifname \"rw0\" meta mark set meta mark & 0xffff | {mark:#x}"),
        format!("ct direction reply {drop}"),
    ] {
        check(&text, &[&line]);
    }
    // Another tenant's clients have the same addresses; and a default route is not only theirs.
    assert!(!text.contains("saddr @inner4 masquerade"), "{text}");
    assert!(
        text.contains("set near4 { type ipv4_addr; flags interval; elements = { 10.8.0.0/24 }; }")
    );
    // A server does without.
    let without =
        super::ruleset("roadweave_x", &FilterOptions { apart: None, ..options }, NONE, |_| 0);
    assert!(!without.text.contains("zone") && !without.text.contains("group"), "{}", without.text);
}

#[test]
fn sockets_with_clients_addresses_meet_no_tun_where_there_are_neighbours() {
    let apart = crate::Apart::of(&crate::Instance::new("rw0").unwrap());
    let forwarding = Forwarding::Server {
        outside_to_tunnel: false,
        clients_reach_clients: false,
        denied: Vec::new(),
        allowed: Vec::new(),
    };
    let options = FilterOptions { apart: Some(apart), client_sockets: true, ..options(forwarding) };
    let found = "socket transparent 1 meta mark set meta mark & 0xffff0000 | 0x5257";
    check(
        &text(&options, NONE),
        &[
            // What a TUN brings is for none of them.
            "iifgroup 183 return",
            &format!("ip daddr @near4 tcp flags & (syn | ack) != syn {found}"),
            // What one of them sends enters none; the machine's own connections have its address.
            "type filter hook output priority filter - 10; policy accept;",
            "oifgroup != 183 return",
            "ip saddr 10.8.0.1 return",
            "ip6 saddr fd08::1 return",
            "ip saddr @near4 counter name \"forward_refused\" drop",
            "ip6 saddr @near6 counter name \"forward_refused\" drop",
            "iif 0 oifgroup != 183 ip saddr @near4 masquerade",
        ],
    );
    let exposed = text(&FilterOptions { masquerade: false, ..options.clone() }, NONE);
    assert!(!exposed.contains("iif 0"), "{exposed}");
    let none = text(&FilterOptions { client_sockets: false, ..options.clone() }, NONE);
    assert!(!none.contains("0x5257") && !none.contains("chain leaving"), "{none}");
    let server = text(&FilterOptions { apart: None, ..options }, NONE);
    assert!(server.contains(found) && !server.contains("group"), "{server}");
}

#[test]
fn what_leaves_a_box_outside_the_tunnel_has_an_address_of_the_uplink() {
    let inside = named(&["lan0"]);
    let mut options =
        options(Forwarding::Box { inside, addresses: Vec::new(), between_uplinks: false });
    let excluded = ["203.0.113.0/25", "203.0.113.128/25", "2001:db8::/32"];
    options.excluded.destinations = excluded.map(|it| it.parse().unwrap()).into();
    options.excluded.marks = vec![(0x10, 0xf0)];
    let leaves = "oifname != { \"rw0\", \"lo\" } oifname != @inside";
    let drop = "counter name \"forward_refused\" drop";
    check(
        &text(&options, NONE),
        &[
            "set excluded4 { type ipv4_addr; flags interval; elements = { 203.0.113.0/24 }; }",
            "set excluded6 { type ipv6_addr; flags interval; elements = { 2001:db8::/32 }; }",
            "type nat hook postrouting priority srcnat; policy accept;",
            "oifname \"rw0\" masquerade",
            "iifname \"rw0\" return",
            &format!("{leaves} ip daddr @excluded4 masquerade"),
            &format!("{leaves} ip6 daddr @excluded6 masquerade"),
            &format!("{leaves} meta mark & 0xf0 == 0x10 masquerade"),
            "type filter hook postrouting priority srcnat + 10; policy accept;",
            "ct status snat return",
            &format!("{leaves} ip daddr @excluded4 fib saddr type != local {drop}"),
            &format!("{leaves} ip6 daddr @excluded6 fib saddr type != local {drop}"),
            &format!("{leaves} meta mark & 0xf0 == 0x10 fib saddr type != local {drop}"),
        ],
    );
    let kept = FilterOptions { masquerade_into_tun: None, ..options.clone() };
    assert!(!text(&kept, NONE).contains("@excluded4 masquerade"), "its networks are known outside");
    options.forwarding = Forwarding::Open;
    assert!(!text(&options, NONE).contains("@excluded"), "it is for boxes alone");
}

#[test]
fn what_came_out_of_the_tunnel_leaves_no_box_because_it_is_excluded() {
    let inside = named(&["lan0"]);
    let mut options =
        options(Forwarding::Box { inside, addresses: Vec::new(), between_uplinks: true });
    options.masquerade_into_tun = None;
    options.excluded.destinations =
        ["203.0.113.0/24", "2001:db8::/32"].map(|it| it.parse().unwrap()).into();
    options.excluded.marks = vec![(0x10, 0xf0)];
    let leaves = "iifname \"rw0\" meta mark & 0xffff0000 == 0 oifname != { \"rw0\", \"lo\" } oifname != @inside";
    let drop = "counter name \"forward_refused\" drop";
    check(
        &text(&options, NONE),
        &[
            "set excluded4 { type ipv4_addr; flags interval; elements = { 203.0.113.0/24 }; }",
            &format!("{leaves} ip daddr @excluded4 {drop}"),
            &format!("{leaves} ip6 daddr @excluded6 {drop}"),
            &format!("{leaves} meta mark & 0xf0 == 0x10 {drop}"),
            "iifname \"rw0\" return",
        ],
    );
}

#[test]
fn rules_set_and_read_the_bits_of_the_mask_alone() {
    let forwarding = Forwarding::Server {
        outside_to_tunnel: false,
        clients_reach_clients: false,
        denied: Vec::new(),
        allowed: Vec::new(),
    };
    let forward = Forward {
        tcp: true,
        udp: false,
        ports: 8443..=8443,
        to: "10.8.0.5".parse().unwrap(),
        to_ports: 8443..=8443,
        near: Vec::new(),
    };
    let marks = Marks::within(0x00ff_0000).unwrap();
    let instance = crate::Instance::new("rw0").unwrap().with_marks(marks);
    let apart = crate::Apart::of(&instance);
    let (mark, mask) = apart.mark();
    assert_eq!((mask, mark & !mask), (0x00f8_0000, 0));
    let options = FilterOptions {
        marks,
        apart: Some(apart),
        client_sockets: true,
        forwards: vec![forward],
        ..options(forwarding)
    };
    let text = text(&options, NONE);
    for line in [
        "iifname \"rw0\" ct mark & 0x70000 == 0x10000 goto forwarded".to_owned(),
        "meta nfproto ipv4 tcp dport 8443 ct mark set ct mark & 0xfff8ffff | 0x10000 dnat ip to \
         10.8.0.5"
            .to_owned(),
        "ip daddr @near4 tcp flags & (syn | ack) != syn socket transparent 1 meta mark set meta \
         mark & 0xfff8ffff | 0x20000"
            .to_owned(),
        format!("iifname \"rw0\" meta mark set meta mark & 0xff07ffff | {mark:#x}"),
    ] {
        check(&text, &[&line]);
    }
    assert!(!text.contains("mark & 0xffff"), "{text}");
}
