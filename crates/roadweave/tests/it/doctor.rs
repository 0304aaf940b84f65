//! `roadweave doctor` at a real server: blocked uplinks, packet lengths, the firewall that drops.

use crate::common::*;
use serde_json::Value;

fn doctor(network: &TestNetwork, namespace: &NetNs, file: &str) -> (Vec<Value>, Option<i32>) {
    let file = network.path(file).display().to_string();
    let output = roadweave_in(namespace, &["doctor", "--json", &file]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
        panic!("{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()))
    });
    (found["checks"].as_array().unwrap().clone(), output.status.code())
}

fn check(found: &[Value], name: &str, verdict: &str, part: &str) {
    let check = found.iter().find(|check| check["name"] == name);
    let check = check.unwrap_or_else(|| panic!("there is no {name} in {found:#?}"));
    let text = check.to_string();
    assert!(check["verdict"] == verdict && text.contains(part), "{check:#}");
}

#[test]
fn doctor_names_blocked_uplinks_short_paths_and_firewalls_between_box_and_server() {
    run_sandboxed(|| {
        if beside("roadweave-admin").is_none() {
            return;
        }
        let network = TestNetwork::new();
        network.set_rp_filters(&[("all", "0"), ("eth1", "0"), ("eth2", "0")]);
        let of_box = || doctor(&network, &network.vehicle, "client.toml");
        let of_server = || doctor(&network, &network.server, "server.toml");
        check(&of_server().0, "listen", "ok", "is free");
        let _server = network.start_server();
        let (found, code) = of_server();
        check(&found, "firewall", "ok", "no other chain");
        assert_eq!(code, Some(0), "{found:#?}");
        let (found, code) = of_box();
        for uplink in ["eth1", "eth2"] {
            check(&found, &format!("uplink {uplink}"), "ok", "IPv4");
            check(&found, &format!("reach {uplink} {ADDRESS}"), "ok", "answered");
            check(&found, &format!("mtu {uplink}"), "ok", "1500");
        }
        assert!(!found.iter().any(|check| check["name"].as_str().unwrap().starts_with("marks")));
        assert_eq!(code, Some(0), "{found:#?}");

        nft(
            &network.server,
            "table inet test { chain input { type filter hook input priority 0;
                iifname \"eth1\" udp dport 4433 meta length > 1400 drop;
                iifname \"eth2\" udp dport 4433 drop; }; }",
        );
        let (found, code) = of_box();
        check(&found, "mtu eth1", "warn", "mtu 1400");
        check(&found, &format!("reach eth2 {ADDRESS}"), "fail", "while another uplink got one");
        assert_eq!(code, Some(1), "{found:#?}");
        // A rule of another program hides the uplinks of answers, and a client runs.
        nft(
            &network.vehicle,
            "table inet vpn { chain pre { type filter hook prerouting priority mangle;
                meta mark set ct mark; }; }",
        );
        let _client = network.start_joined("client");
        let (found, _) = of_box();
        check(&found, "marks inet vpn pre", "warn", "give the rule a mask without");
        check(&found, &format!("reach eth1 {ADDRESS}"), "ok", "answered");
        check(&found, &format!("reach eth2 {ADDRESS}"), "fail", "while another uplink got one");

        nft(&network.server, "delete table inet test");
        nft(
            &network.server,
            "table ip filter {
                chain DOCKER-USER { };
                chain FORWARD { type filter hook forward priority 0; policy drop;
                    jump DOCKER-USER; }; }",
        );
        let (found, code) = of_server();
        check(&found, "firewall ip filter FORWARD", "fail", "iptables -I DOCKER-USER -i rws");
        assert_eq!(code, Some(1), "{found:#?}");
        nft(&network.server, "add rule ip filter DOCKER-USER iifname rws accept");
        check(&of_server().0, "firewall", "ok", "no other chain");
    });
}

const ADDRESS: &str = "198.51.100.1:4433";
