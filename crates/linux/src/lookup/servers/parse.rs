//! The file formats of name servers. Unparsable parts are skipped, since the next source may help.

use std::net::{IpAddr, SocketAddr};

use super::PORT;

pub(super) fn networkd(text: &str) -> Vec<(IpAddr, u16)> {
    let values = text.lines().filter_map(|line| line.trim().strip_prefix("DNS="));
    values.flat_map(str::split_whitespace).filter_map(server).collect()
}

/// The state of a device of NetworkManager: a key file with DHCP's options.
pub(super) fn network_manager(text: &str) -> Vec<(IpAddr, u16)> {
    let keys = ["domain_name_servers=", "dhcp6_name_servers="];
    let values =
        text.lines().filter_map(|line| keys.iter().find_map(|key| line.trim().strip_prefix(key)));
    values.flat_map(str::split_whitespace).filter_map(server).collect()
}

pub(super) fn resolv_conf(text: &str) -> Vec<(IpAddr, u16)> {
    text.lines().filter_map(name_server).collect()
}

fn name_server(line: &str) -> Option<(IpAddr, u16)> {
    let mut words = line.split_whitespace();
    if words.next() != Some("nameserver") {
        return None;
    }
    server(words.next()?)
}

/// The leases of dhclient: the last one for `interface` counts.
///
/// ```text
/// lease { interface "eth0"; option domain-name-servers 192.0.2.1,192.0.2.2; ... }
/// lease6 { interface "eth0"; ... option dhcp6.name-servers 2001:db8::1; ... }
/// ```
pub(super) fn dhclient(text: &str, interface: &str) -> Vec<(IpAddr, u16)> {
    let mut last = Vec::new();
    let (mut is_mine, mut servers) = (false, Vec::new());
    for line in text.lines().map(str::trim) {
        if line.starts_with("lease") {
            (is_mine, servers) = (false, Vec::new());
        } else if let Some(name) = line.strip_prefix("interface ") {
            is_mine = name.trim_end_matches(';').trim_matches('"') == interface;
        } else if let Some(list) = DHCLIENT_OPTIONS.iter().find_map(|key| line.strip_prefix(key)) {
            let list = list.trim_end_matches(';').split(',');
            servers.extend(list.filter_map(|word| server(word.trim())));
            if is_mine {
                last.clone_from(&servers);
            }
        }
    }
    last
}

/// The file of OpenWrt's netifd, for the networks that `devices` (`/etc/config/network`) has on
/// `interface`. The IPv6 network beside `wan` is `wan6`, those of modems `wan_4` and `wan_6`.
///
/// ```text
/// # Interface wan             config interface 'wan'
/// nameserver 192.0.2.1            option device 'eth1'
/// ```
pub(super) fn openwrt(text: &str, devices: &str, interface: &str) -> Vec<(IpAddr, u16)> {
    let networks = openwrt_networks(devices, interface);
    let is_mine = |name: &str| {
        let suffixes = ["", "_4", "_6"];
        networks
            .iter()
            .any(|network| name.strip_prefix(network).is_some_and(|rest| suffixes.contains(&rest)))
    };
    let (mut mine, mut servers) = (false, Vec::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# Interface ") {
            mine = is_mine(name.trim());
        } else if mine {
            servers.extend(name_server(line));
        }
    }
    servers
}

fn openwrt_networks<'a>(devices: &'a str, interface: &'a str) -> Vec<&'a str> {
    let mut networks = vec![interface];
    let mut section = None;
    for line in devices.lines() {
        let mut words = line.split_whitespace().map(|word| word.trim_matches(['\'', '"']));
        match (words.next(), words.next(), words.next()) {
            (Some("config"), Some("interface"), name) => section = name,
            (Some("config"), ..) => section = None,
            (Some("option"), Some("device" | "ifname"), Some(device)) if device == interface => {
                networks.extend(section);
            }
            _ => {}
        }
    }
    networks
}

fn server(text: &str) -> Option<(IpAddr, u16)> {
    let text = text.split('#').next()?;
    let (address, rest) = text.split_once('%').unwrap_or((text, ""));
    if let Ok(address) = address.parse::<IpAddr>() {
        return Some((address, PORT));
    }
    let joined;
    let whole = match rest.split_once(']') {
        Some((_, behind)) => {
            joined = format!("{address}]{behind}");
            &joined
        }
        None => address,
    };
    let server: SocketAddr = whole.parse().ok()?;
    (server.port() > 0).then(|| (server.ip(), server.port()))
}

const DHCLIENT_OPTIONS: [&str; 2] = ["option domain-name-servers ", "option dhcp6.name-servers "];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(found: &[(IpAddr, u16)], expected: &[&str]) {
        let found: Vec<String> = found.iter().map(|(address, _)| address.to_string()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_server_is_read_in_each_way_to_write_it() {
        let check = |text: &str, expected: Option<(&str, u16)>| {
            let expected = expected.map(|(address, port)| (address.parse().unwrap(), port));
            assert_eq!(server(text), expected, "{text}");
        };
        check("192.0.2.1", Some(("192.0.2.1", 53)));
        check("192.0.2.1:5353", Some(("192.0.2.1", 5353)));
        check("2001:db8::1", Some(("2001:db8::1", 53)));
        check("[2001:db8::1]:5353", Some(("2001:db8::1", 5353)));
        check("fe80::1%eth0", Some(("fe80::1", 53)));
        check("192.0.2.1:853%eth0#dns.example", Some(("192.0.2.1", 853)));
        check("[fe80::1%eth0]:853", Some(("fe80::1", 853)));
        check("192.0.2.1#dns.example", Some(("192.0.2.1", 53)));
        for wrong in ["", "dns.example", "192.0.2.1:0", "192.0.2.1:x", "[::1", "]", "%]"] {
            check(wrong, None);
        }
    }

    #[test]
    fn the_files_of_other_programs_are_understood() {
        let link = "# This is private data. Do not parse.\nADMIN_STATE=configured\nOPER_STATE=routable\n\
                    DNS=192.168.8.1 2001:db8::53\nNTP=\nDOMAINS=lan\n";
        check(&networkd(link), &["192.168.8.1", "2001:db8::53"]);
        let lease = "ADDRESS=192.168.8.100\nROUTER=192.168.8.1\nDNS=192.168.8.1\nLIFETIME=86400\n";
        check(&networkd(lease), &["192.168.8.1"]);
        let state = "[device]\nconnection-uuid=5a\nmanaged=1\n\n[dhcp4]\nip_address=10.0.0.9\n\
                     domain_name_servers=10.0.0.1 10.0.0.2\n\n[dhcp6]\ndhcp6_name_servers=2001:db8::1\n";
        check(&network_manager(state), &["10.0.0.1", "10.0.0.2", "2001:db8::1"]);
        let text = "# comment\nnameserver 192.0.2.1 # why\nsearch lan\n  nameserver\tfe80::1%eth0\n\
                    nameserver\nnameservers 192.0.2.9\n;nameserver 192.0.2.8\n";
        check(&resolv_conf(text), &["192.0.2.1", "fe80::1"]);
    }

    #[test]
    fn the_last_lease_of_dhclient_for_the_interface_counts() {
        let text = "lease {\n  interface \"eth1\";\n  fixed-address 10.0.0.9;\n\
                    \x20 option domain-name-servers 10.0.0.1,10.0.0.2;\n}\n\
                    lease {\n  interface \"eth10\";\n  option domain-name-servers 10.9.0.1;\n}\n\
                    lease {\n  interface \"eth1\";\n  option domain-name-servers 10.0.0.3, 10.0.0.4;\n}\n";
        check(&dhclient(text, "eth1"), &["10.0.0.3", "10.0.0.4"]);
        check(&dhclient(text, "eth10"), &["10.9.0.1"]);
        check(&dhclient(text, "eth2"), &[]);
        let six = "lease6 {\n  interface \"eth1\";\n  ia-na 00:01 {\n  }\n\
                   \x20 option dhcp6.name-servers 2001:db8::1;\n}\n";
        check(&dhclient(six, "eth1"), &["2001:db8::1"]);
    }

    #[test]
    fn openwrt_is_understood() {
        let devices = "config device\n\toption name 'br-lan'\n\nconfig interface 'lan'\n\
                       \toption device 'br-lan'\n\nconfig interface 'wan'\n\toption device 'eth1'\n\n\
                       config interface 'wan6'\n\toption ifname \"eth1\"\n\n\
                       config interface 'modem'\n\toption device 'wwan0'\n";
        let text = "# Interface wan\nnameserver 192.0.2.1\n# Interface wan6\nnameserver 2001:db8::1\n\
                    # Interface modem_4\nnameserver 10.64.0.1\n";
        check(&openwrt(text, devices, "eth1"), &["192.0.2.1", "2001:db8::1"]);
        check(&openwrt(text, devices, "wwan0"), &["10.64.0.1"]);
        check(&openwrt(text, devices, "br-lan"), &[]);
        check(&openwrt(text, "", "wan"), &["192.0.2.1"]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_passed_over(
            text in "(DNS=|nameserver |lease|interface |option domain-name-servers |# Interface |\
                     config interface |option device |domain_name_servers=|[0-9.:%#\\[\\]\"'; \n]|\\PC){0,60}",
        ) {
            networkd(&text);
            network_manager(&text);
            resolv_conf(&text);
            dhclient(&text, "eth0");
            openwrt(&text, &text, "eth0");
        }
    }
}
