use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_proto::{Order, Policy, Priority, Rate, Technology, UplinkMatch};
use roadweave_tunnel::{Caps, FlowClass, STRATEGIES, Strategy, StrategyEntry, UplinkPolicy};
use serde::de::DeserializeOwned;

use super::*;

/// A file of this text, or what is wrong with it.
pub(crate) fn read<T: DeserializeOwned + Validate>(text: &str) -> Result<T, String> {
    let path = Path::new("test.toml");
    let file: T = parse(path, text).map_err(|error| error.to_string())?;
    file.validate().map_err(|fault| fault.in_file(path, text).to_string())?;
    Ok(file)
}

/// The private key of these files.
pub(super) const PRIVATE: &str = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
pub(super) const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

const OTHER_KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

fn client(extra: &str) -> String {
    format!(
        "private_key = \"{PRIVATE}\"\n{extra}\n\
         [server]\naddresses = [\"192.0.2.1:4433\"]\npublic_key = \"{KEY}\"\n"
    )
}

fn check_client(text: &str, expected: &[&str]) {
    let error = read::<ClientFile>(text).expect_err("it is broken");
    for part in expected {
        assert!(error.contains(part), "{part:?} is not in:\n{error}");
    }
}

#[test]
fn the_smallest_files_are_complete() {
    let file = read::<ClientFile>(&client("")).expect("complete");
    assert_eq!(file.tun.mtu_bytes.get(), 1360);
    assert_eq!(file.lane_configs(), roadweave_tunnel::default_lanes());
    let server = read::<ServerFile>(&format!("private_key = \"{PRIVATE}\"")).expect("complete");
    assert_eq!(server.listen.port(), 4433);
}

#[test]
fn shards_divide_the_memory_and_only_a_server_has_them() {
    let server = |text: &str| read::<ServerFile>(&format!("private_key = \"{PRIVATE}\"\n{text}"));
    assert_eq!(server("").expect("complete").shards(), 1);
    assert_eq!(server("shards = 16").expect("64 MiB each").shards(), 16);
    let refused = server("shards = 17").expect_err("60 MiB each");
    assert!(refused.contains("write up to 16 shards") && refused.contains("line 2"), "{refused}");
    for text in ["shards = 0", "shards = 65"] {
        assert!(server(text).expect_err("bounds").contains("1 to 64 is possible"));
    }
    let proxy = format!("private_key = \"{PRIVATE}\"\nshards = 2");
    let refused = read::<ProxyFile>(&proxy).expect_err("it has none");
    assert!(refused.contains("`shards`"), "{refused}");
}

#[test]
fn a_lane_may_say_all_that_there_is_to_say() {
    let text = "[[lanes]]\nordering = \"reorder\"\nmax_buffer_ms = 50\nrank = 2\n\
                match = { classes = [\"tcp\"], source = [\"10.0.0.0/8\"], ports = 80, \
                destination_ports = [1, 9] }\n";
    let file = read::<ClientFile>(&format!("{}{text}", client(""))).expect("complete");
    let lane = &file.lane_configs()[0];
    assert_eq!(lane.order, Order::Reorder { max_buffer: Duration::from_millis(50) });
    assert_eq!((lane.rank, lane.rule.ports.clone()), (2, Some(80..=80)));
    assert_eq!(lane.rule.destination_ports, Some(1..=9));
    assert_eq!(lane.rule.classes, Some(vec![FlowClass::Tcp]));
    assert_eq!(lane.rule.source, Some(vec!["10.0.0.0/8".parse().expect("a network")]));
}

#[test]
fn a_lane_of_frames_has_its_own_deadline() {
    let order = |fields: &str| {
        let text = format!("{}[[lanes]]\nordering = \"frames\"\n{fields}\n", client(""));
        read::<ClientFile>(&text).expect("complete").lane_configs()[0].order
    };
    let frames = |times: [u64; 3]| {
        let [deadline, decode, max_buffer] = times.map(Duration::from_millis);
        Order::Frames { deadline, decode, max_buffer }
    };
    assert_eq!(order(""), frames([100, 10, 300]));
    assert_eq!(order("deadline_ms = 80\ndecode_ms = 0\nmax_buffer_ms = 120"), frames([80, 0, 120]));
}

#[test]
fn uplinks_may_have_priorities_weights_and_caps() {
    let text = "[[uplinks.policies]]\nname = \"wwan1\"\npriority = \"backup\"\nweight = 3\n\
                rate_limit_kbps = 2500\n\
                metered = { monthly_cap_mb = 5000, daily_cap_mb = 300, billing_day = 15, \
                redundancy_percent = 2 }\n\
                [[uplinks.policies]]\ndevice = \"*/usb1/1-2/*\"\n\
                [[uplinks.policies]]\nname = \"wwan*\"\niccid = \"8949020000012345678\"\n";
    let file = read::<ClientFile>(&format!("{}{text}", client(""))).expect("complete");
    let policy = Policy {
        priority: Priority::Backup,
        weight: 3,
        redundancy_percent: Some(2),
        takes_insurance: false,
        rate_max: Some(Rate::from_kbps(2_500)),
    };
    let caps = Caps {
        daily_bytes: Some(300_000_000),
        monthly_bytes: Some(5_000_000_000),
        billing_day: 15,
    };
    let metered = UplinkPolicy { policy, caps };
    let of = |name: &str, device: Option<&str>, iccid: Option<&str>| UplinkMatch {
        name: name.to_owned(),
        device: device.map(str::to_owned),
        iccid: iccid.map(str::to_owned),
    };
    let expected = [
        (of("wwan1", None, None), metered),
        (of("*", Some("*/usb1/1-2/*"), None), UplinkPolicy::default()),
        (of("wwan*", None, Some("8949020000012345678")), UplinkPolicy::default()),
    ];
    assert_eq!(file.policies(), expected);
}

#[test]
fn a_metered_uplink_carries_insurance_only_when_told() {
    let takes = |metered: &str| {
        let text = format!("{}[[uplinks.policies]]\nname = \"a\"\n{metered}", client(""));
        let policies = read::<ClientFile>(&text).expect("complete").policies();
        policies[0].1.policy.takes_insurance
    };
    assert!(takes(""));
    assert!(!takes("metered.monthly_cap_mb = 5") && !takes("metered.redundancy_percent = 100"));
    assert!(!takes("metered.daily_cap_mb = 5"));
    assert!(takes("metered = { monthly_cap_mb = 5, insurance = true }"));
}

#[test]
fn a_lane_is_patient_and_insured_as_its_file_says() {
    let lane = |fields: &str| {
        let text = format!("{}[[lanes]]\n{fields}\n", client(""));
        let lane = read::<ClientFile>(&text).expect("complete").lanes[0].to_config();
        assert_eq!(lane.strategy, Strategy::xnc());
        (lane.patient, lane.insurance_percent)
    };
    assert_eq!(lane(""), (false, 0));
    assert_eq!(lane("patient = true\ninsurance_percent = 30"), (true, 30));
    // Earlier names say the same.
    assert_eq!(lane("strategy = \"xnc-insured\""), (false, 25));
    assert_eq!(lane("strategy = \"xnc-insured\"\ninsurance_percent = 30"), (false, 30));
    for name in ["xnc-patient", "xnc-ordered"] {
        assert_eq!(lane(&format!("strategy = \"{name}\"\ninsurance_percent = 5")), (true, 5));
    }
    let default = roadweave_tunnel::StreamsConfig::default().lane;
    assert!(default.patient && default.strategy == Strategy::xnc());
    let streams = format!("{}[streams]\nstrategy = \"xnc-patient\"\n", client(""));
    let file = read::<ClientFile>(&streams).expect("complete");
    assert_eq!(file.streams.expect("a section").to_config().lane, default);
}

#[test]
fn uplinks_have_technologies_and_these_an_order() {
    let file = read::<ClientFile>(&client("")).expect("complete");
    assert_eq!(file.technologies(), (vec![], Technology::ORDER.to_vec()));
    for technology in Technology::ORDER {
        let text = format!(
            "[uplinks]\norder = [\"{technology}\"]\n\
             [[uplinks.policies]]\nname = \"a\"\ntechnology = \"{technology}\"\n"
        );
        let file = read::<ClientFile>(&format!("{}{text}", client(""))).expect("complete");
        let told = vec![(UplinkMatch::by_name("a"), Some(technology))];
        assert_eq!(file.technologies(), (told, vec![technology]));
    }
    let order = |order: &str| format!("{}[uplinks]\norder = [{order}]\n", client(""));
    check_client(&order("\"lte\", \"wifi\", \"lte\""), &["line 7", "names \"lte\" twice"]);
    check_client(&order("\"umts\""), &["line 7", "unknown variant `umts`"]);
}

#[test]
fn a_page_that_tells_of_portals_is_fetched_by_http_and_by_default_there_is_none() {
    let probe = |text: &str| format!("{}[uplinks]\nportal_probe = \"{text}\"\n", client(""));
    let file = read::<ClientFile>(&client("")).expect("complete");
    assert_eq!(file.portal_probe(), None);
    let file = read::<ClientFile>(&probe("http://probe.example/a")).expect("complete");
    assert_eq!(file.portal_probe().map(|url| url.target().to_owned()), Some("/a".to_owned()));
    for wrong in ["https://probe.example/a", "probe.example", ""] {
        check_client(&probe(wrong), &["line 7", "uplinks.portal_probe", "http://host/path"]);
    }
}

#[test]
fn ports_of_plain_http_are_ports() {
    let ports = |ports: &str| {
        format!("{}[streams]\nlisten = \"192.168.1.1:1080\"\nhttp_ports = {ports}\n", client(""))
    };
    let read_ports = |text: &str| {
        let file = read::<ClientFile>(text).expect("complete");
        file.streams.expect("a section").http_ports
    };
    assert!(read_ports(&ports("[]")).is_empty());
    assert_eq!(read_ports(&ports("[80, 8080]")), [80, 8080]);
    check_client(&ports("[80, 0]"), &["line 8", "0 is no port"]);
    check_client(&ports("[65536]"), &["line 8"]);
    let many: Vec<u16> = (1..=17).collect();
    check_client(&ports(&format!("{many:?}")), &["17 ports"]);
}

#[test]
fn an_unknown_field_is_named_with_its_line_and_the_known_ones() {
    check_client(
        &format!("{}[tun]\nmtu = 1400\n", client("")),
        &["line 7", "unknown field `mtu`", "`mtu_bytes`"],
    );
}

#[test]
fn values_that_cannot_be_are_named_with_what_would_be_right() {
    check_client(
        &format!("{}[tun]\nmtu_bytes = 90\n", client("")),
        &["line 7", "mtu_bytes = 90", "1280 to 9000"],
    );
    check_client(
        &format!("{}[transport]\ncongestion = \"reno\"\n", client("")),
        &["line 7", "reno", "`bbr`"],
    );
    check_client(
        &format!("{}[[lanes]]\nstrategy = \"best\"\n", client("")),
        &["line 7", "best", "known are: xnc"],
    );
    let bound = "[uplinks]\ninclude = [\"wwan*\"]\n[[lanes]]\nstrategy = \"single:eth0\"\n";
    check_client(
        &format!("{}{bound}", client("")),
        &["line 9", "single:eth0", "`uplinks.include` does not name it"],
    );
    check_client(
        &format!("{}[[lanes]]\nstrategy = \"single:a/b\"\n", client("")),
        &["line 7", "single:a/b", "1 to 15 bytes"],
    );
    check_client(&client("name = 3"), &["line 2", "name = 3", "expected a string"]);
    check_client(
        &client("").replacen(PRIVATE, "abc", 1),
        &["line 1", "private_key", "44 characters", "roadweave keygen"],
    );
    check_client(
        &client("").replace(":4433", ""),
        &["line 4", "server.addresses", "192.0.2.1", "host:port"],
    );
    check_client(
        &format!("{}[tun]\nname = \"Vehicle\"\n", client("")),
        &["line 7", "name = \"Vehicle\"", "1 to 15 lower-case letters"],
    );
    check_client(
        &format!("{}[routes]\ninto_tunnel = [\"10.0.0.1\"]\n", client("")),
        &["line 7", "into_tunnel", "\"10.0.0.1\" is no network", "10.77.0.2/32"],
    );
    check_client(
        &format!("{}[routes]\ninto_tunnel = [\"10.1.0.0/16\", \"10.0.0.1/8\"]\n", client("")),
        &["line 7", "10.0.0.1/8", "write 10.0.0.1/32 or 10.0.0.0/8"],
    );
    let routes = |text: &str| format!("{}[routes]\n{text}\n", client(""));
    check_client(&routes("exclude = [\"0.0.0.0/0\"]"), &["line 7", "0.0.0.0/0", "into_tunnel"]);
    check_client(
        &routes("into_tunnel = [\"10.1.0.0/16\"]\nexclude = [\"10.2.0.0/16\", \"10.1.0.0/16\"]"),
        &["line 8", "10.1.0.0/16 is in routes.into_tunnel too"],
    );
    check_client(&routes("exclude_mark = \"voice\""), &["line 7", "no mark", "\"0x10/0xf0\""]);
    let own = ["line 7", "routes.exclude_mark", "the bits 0xffff0000 are the client's own"];
    check_client(&routes("exclude_mark = \"0x10/0x100ff\""), &own);
    let marks = |mask: &str| client(&format!("packet_marks = \"{mask}\""));
    check_client(&marks("0x7f"), &["line 2", "0x7f has 7 bits, and 8 are needed", "0x00ff0000"]);
    let both = format!("{}[routes]\nexclude_mark = \"0x10/0xff\"\n", marks("0xfff0"));
    check_client(&both, &["line 7", "the bits 0xfff0 are the client's own", "0xffff000f"]);
    read::<ClientFile>(&both.replace("0xfff0", "0xfff00")).expect("they are apart");
    check_client(
        &format!("{}[transport]\nidle_timeout_seconds = 10\nkeep_alive_ms = 10000\n", client("")),
        &["line 8", "transport.keep_alive_ms = 10000", "less than 10000"],
    );
    let lane = "[[lanes]]\nmatch = { ports = [1, 2] }\n";
    check_client(
        &format!("{}{lane}[[lanes]]\nname = \"two\"\nmatch = {{ ports = [5, 3] }}\n", client("")),
        &["line 10", "lane \"two\": match.ports", "the lower port first"],
    );
    check_client(&format!("{}{lane}{lane}", client("")), &["line 8", "two lanes are called"]);
    let lane = |fields: &str| format!("{}[[lanes]]\n{fields}\n", client(""));
    check_client(&lane("ordering = \"sorted\""), &["line 7", "sorted", "`reorder-adaptive`"]);
    check_client(&lane("max_buffer_ms = 20000"), &["line 7", "1 to 10000"]);
    let frames = "ordering = \"frames\"\ndeadline_ms = 10";
    check_client(&lane(frames), &["line 6", "decode_ms = 10", "deadline_ms = 10"]);
    check_client(&lane("insurance_percent = 150"), &["line 7", "150", "0 to 100"]);
    let uncoded = lane("strategy = \"minrtt\"\ninsurance_percent = 20");
    check_client(&uncoded, &["line 8", "\"minrtt\" has no insurance_percent", "take \"xnc\""]);
    let hasty = lane("strategy = \"raven\"\npatient = true");
    check_client(&hasty, &["line 8", "\"raven\" has no patient; leave patient out"]);
    check_client(&lane("match = { classes = [\"video\"] }"), &["line 7", "video", "`real-time`"]);
    check_client(&lane("match = { ports = [5] }"), &["line 7", "[first, last]"]);
    check_client(&lane("match = { source_ports = [5, 3] }"), &["line 7", "match.source_ports"]);
    check_client(&lane("match = { source = [\"10.0.0.1/8\"] }"), &["line 7", "10.0.0.0/8"]);
    let policy = |fields: &str| format!("{}[[uplinks.policies]]\n{fields}\n", client(""));
    check_client(&policy("weight = 2"), &["line 6", "for which uplinks?", "or iccid"]);
    check_client(&policy("name = \"\""), &["line 7", "uplinks.policies.name is empty"]);
    check_client(&policy("device = \"\""), &["line 7", "uplinks.policies.device is empty"]);
    check_client(&policy("device = \"usb[12]\""), &["line 7", "brackets"]);
    for number in ["", "wwan0", "89490200000123456", "89490200000123456789012"] {
        check_client(&policy(&format!("iccid = \"{number}\"")), &["line 7", "18 to 22 digits"]);
    }
    check_client(&policy("name = \"a\"\npriority = \"first\""), &["line 8", "`secondary`"]);
    check_client(&policy("name = \"a\"\nweight = 0"), &["line 8", "1 to 100"]);
    for rate in ["99", "100000001"] {
        let limit = policy(&format!("name = \"a\"\nrate_limit_kbps = {rate}"));
        check_client(&limit, &["line 8", "100 to 100000000"]);
    }
    let metered = |field: &str| policy(&format!("name = \"a\"\nmetered.{field}"));
    check_client(&metered("monthly_cap_mb = 0"), &["line 8", "1 to 1000000000"]);
    check_client(&metered("daily_cap_mb = 0"), &["line 8", "1 to 1000000000"]);
    check_client(&metered("billing_day = 29"), &["line 8", "1 to 28"]);
    check_client(&metered("redundancy_percent = 101"), &["line 8", "0 to 100"]);
    check_client(&metered("cap = 5"), &["line 8", "`monthly_cap_mb`"]);
    let behind_all = format!("{}[[uplinks.policies]]\nname = \"a\"\n", policy("name = \"*\""));
    check_client(&behind_all, &["line 9", "\"a\" never counts"]);
    let by_iccid = policy("iccid = \"8949020000012345678F\"");
    let twice = format!("{by_iccid}[[uplinks.policies]]\niccid = \"8949020000012345678\"\n");
    check_client(&twice, &["line 8", "\"8949020000012345678\" never counts"]);
    check_client("= broken", &["line 1"]);
}

#[test]
fn what_is_possible_and_cannot_be_meant_is_refused() {
    let own =
        roadweave_identity::Identity::from_base64(PRIVATE).expect("a key").public_key().to_string();
    let text =
        client("").replace(&format!("public_key = \"{KEY}\""), &format!("public_key = \"{own}\""));
    check_client(&text, &["line 5", "server.public_key is that of this client's own private_key"]);
    let pasted = client("").replace(KEY, PRIVATE);
    check_client(&pasted, &["line 5", "server.public_key is this client's own private_key"]);
    let lane = |fields: &str| format!("{}[[lanes]]\nname = \"video\"\n{fields}\n", client(""));
    check_client(
        &lane("expire_after_ms = 50"),
        &["lane \"video\": deadline_ms = 100 is above expire_after_ms = 50"],
    );
    check_client(&lane("deadline_ms = 800"), &["line 8", "deadline_ms = 800 is above"]);
    let uplinks = |fields: &str| format!("{}[uplinks]\n{fields}\n", client(""));
    let told = ["\"wwan[0-9]\" holds brackets", "\"wwan?\"", "\"wwan*\""];
    check_client(
        &uplinks("include = [\"eth1\", \"wwan[0-9]\"]"),
        &[&["line 7"], &told[..]].concat(),
    );
    check_client(&uplinks("exclude = [\"wwan[0-9]\"]"), &told);
    check_client(&uplinks("policies = [{ name = \"wwan[0-9]\" }]"), &told);
    let address = |address: &str| client("").replace("192.0.2.1:4433", address);
    check_client(
        &address("2001:db8::1:4433"),
        &["line 4", "without brackets", "\"[2001:db8::1:4433]:4433\""],
    );
    check_client(&address("[vpn]:4433"), &["line 4", "server.addresses", "[vpn]"]);
    check_client(&address(":4433"), &["line 4", "host:port"]);
    read::<ClientFile>(&address("2001:db8:1:2:3:4:5:6:4433")).expect("one meaning");

    let server = format!(
        "private_key = \"{PRIVATE}\"\n[[peers]]\nname = \"bus\"\npublic_key = \"{own}\"\n\
         addresses = [\"10.77.0.2/32\"]\n"
    );
    let error = read::<ServerFile>(&server).expect_err("its own key");
    assert!(
        error.starts_with(
            "test.toml: line 4, column 14: peer \"bus\": public_key is that of this server's"
        ),
        "{error}"
    );
}

#[test]
fn a_peer_whose_key_has_expired_is_told() {
    let text = format!(
        "private_key = \"{PRIVATE}\"\n[[peers]]\nname = \"bus\"\npublic_key = \"{KEY}\"\n\
         addresses = [\"10.77.0.2/32\"]\nexpires = 2027-01-31T00:00:00Z\n"
    );
    let file = read::<ServerFile>(&text).expect("complete");
    assert_eq!(file.warnings(1_801_353_599), [""; 0]);
    let warnings = file.warnings(1_801_353_600);
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].starts_with("peer \"bus\" is let in no more"), "{warnings:?}");
}

#[test]
fn the_fields_that_differ_are_named_without_their_values() {
    let lanes = "[[lanes]]\nname = \"a\"\n[[lanes]]\nname = \"b\"\n";
    let old =
        read::<ClientFile>(&format!("{}{lanes}", client("name = \"bus\""))).expect("complete");
    let other = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let text = client("name = \"van\"").replacen(PRIVATE, other, 1);
    let lanes = lanes.replace("\"b\"", "\"b\"\nrank = 3");
    let new =
        read::<ClientFile>(&format!("{text}[tun]\nmtu_bytes = 1400\n{lanes}")).expect("complete");
    let fields: Vec<String> = differing(&old, &new).into_iter().collect();
    assert_eq!(fields, ["lanes.rank", "name", "private_key", "tun.mtu_bytes"]);
    assert!(differing(&old, &old).is_empty());
}

#[test]
fn peers_that_collide_are_refused() {
    let peer = |name: &str, key: &str, address: &str| {
        format!("[[peers]]\nname = \"{name}\"\npublic_key = \"{key}\"\naddresses = [{address}]\n")
    };
    let other = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let check = |peers: String, expected: &str| {
        let text = format!("private_key = \"{PRIVATE}\"\n{peers}");
        let error = read::<ServerFile>(&text).expect_err("they collide");
        assert!(error.contains(expected), "{error}");
    };
    let bus = peer("bus", KEY, "\"10.77.0.2/32\"");
    let check = |peers: String, line: usize, expected: &str| {
        check(peers.clone(), expected);
        check(peers, &format!("line {line}, column "));
    };
    check(format!("{bus}{}", peer("van", KEY, "\"10.77.0.3/32\"")), 8, "same public_key");
    check(format!("{bus}{}", peer("van", other, "\"10.77.0.2/32\"")), 9, "10.77.0.2/32");
    check(format!("{bus}{}", peer("van", other, "\"10.77.0.0/30\"")), 9, "server's own address");
    check(format!("{bus}{}", peer("van", other, "\"10.77.0.2/31\"")), 9, "share addresses");
    check(peer("van", other, "\"10.77.0.2/24\""), 5, "write 10.77.0.2/32 or 10.77.0.0/24");
    check(peer("van", other, "\"10.77.0.1/32\""), 5, "holds the server's own address");
    check(peer("van", other, ""), 5, "addresses is empty");
    check(format!("{bus}expires = 2027-01-31\n"), 6, "time zone");
    check("addresses = []\n".into(), 2, "addresses is empty");
    check("[[lanes]]\nstrategy = \"single:lte\"\n".into(), 3, "is for clients");
    let text = format!("private_key = \"{PRIVATE}\"\n{bus}expires = 2027-01-31T00:00:00Z\n");
    let file = read::<ServerFile>(&text).expect("complete");
    assert_eq!(file.peers()[0].1.expires_unix, Some(1_801_353_600));
}

#[test]
fn what_a_fleet_may_have_behind_its_boxes_is_bounded() {
    let of = |line: &str| format!("private_key = \"{PRIVATE}\"\n[fleet]\n{line}\n");
    let check = |line: &str, expected: &str| {
        let error = read::<ServerFile>(&of(line)).expect_err("it is broken");
        assert!(error.contains(expected) && error.contains("line 3, column "), "{error}");
        let error = read::<AnchorFile>(&of(line)).expect_err("it is broken");
        assert!(error.contains(expected), "{error}");
    };
    check("accept = [\"10.80.0.1/16\"]", "write 10.80.0.1/32 or 10.80.0.0/16");
    check("accept = [\"10.80.0.0/16\", \"0.0.0.0/1\"]", "0.0.0.0/1 would let a controller");
    check("accept = [\"::/0\"]", "::/0 would let a controller");
    check("accept = [\"10.80\"]", "is no network");
    let file =
        read::<ServerFile>(&of("accept = [\"10.0.0.0/8\", \"fd00::/8\"]")).expect("it is fine");
    assert_eq!(file.fleet.accept.len(), 2);
    // A proxy leads nowhere by addresses.
    let error = read::<ProxyFile>(&of("accept = [\"10.0.0.0/8\"]")).expect_err("it has none");
    assert!(error.contains("accept"), "{error}");
}

#[test]
fn destinations_that_cannot_be_are_refused() {
    let check = |line: &str, expected: &str| {
        let text = format!("private_key = \"{PRIVATE}\"\n{line}\n");
        let error = read::<ServerFile>(&text).expect_err("it is broken");
        for part in ["line 2", expected] {
            assert!(error.contains(part), "{part:?} is not in:\n{error}");
        }
    };
    check("deny_destinations = [\"10.0.0.1\"]", "is no network; write");
    check("deny_destinations = [\"10.0.0.1/8\"]", "write 10.0.0.1/32 or 10.0.0.0/8");
    check("allow_destinations = [\"10.0.0.1/8\"]", "write 10.0.0.1/32 or 10.0.0.0/8");
    check("allow_destinations = [\"a.example:53\"]", "\"a.example:53\" is no destination; write");
}

/// A server with a client and these forwards.
fn with_forwards(forwards: &str) -> Result<ServerFile, String> {
    let peer = format!(
        "[[peers]]\nname = \"bus\"\npublic_key = \"{OTHER_KEY}\"\n\
         addresses = [\"10.77.0.5/32\", \"fd77::5/128\", \"192.168.5.0/24\"]\n"
    );
    read(&format!("private_key = \"{PRIVATE}\"\n{METRICS}{forwards}{peer}"))
}

fn forward(protocol: &str, port: &str, to: &str) -> String {
    format!("[[forwards]]\nprotocol = \"{protocol}\"\nport = {port}\nto = {to}\n")
}

#[test]
fn forwards_lead_to_addresses_of_clients_and_what_lies_behind_them() {
    let check = |ports: &str, to: &str, to_ports: RangeInclusive<u16>, near: &[&str]| {
        let file = with_forwards(&forward("both", ports, to)).expect(to);
        let found = &file.forwards[0];
        let near: Vec<IpNet> = near.iter().map(|net| net.parse().expect("a network")).collect();
        assert_eq!((found.to_ports(), found.near(&file.peers)), (to_ports, near), "{to}");
    };
    let near = ["10.77.0.5/32", "192.168.5.0/24"];
    check("8443", "\"10.77.0.5\"", 8443..=8443, &near);
    check("8443", "\"192.168.5.9\"\nto_port = 443", 443..=443, &near);
    check("[1, 9]", "\"fd77::5\"\nto_port = [11, 19]", 11..=19, &["fd77::5/128"]);
    check("[10000, 40000]", "\"fd77::5\"", 10000..=40000, &["fd77::5/128"]);
    let (four, six) = ("\"10.77.0.5\"", "\"fd77::5\"");
    let apart = forward("tcp", "7", four) + &forward("udp", "7", four) + &forward("both", "7", six);
    assert_eq!(with_forwards(&apart).expect("each leads elsewhere").forwards.len(), 3);
}

#[test]
fn forwards_that_cannot_be_are_refused() {
    let check = |forwards: &str, part: &str| {
        let error = with_forwards(forwards).expect_err(part);
        assert!(error.contains(part), "{part:?} is not in:\n{error}");
    };
    let bus = "\"10.77.0.5\"";
    check(&forward("sctp", "1", bus), "unknown variant `sctp`");
    for port in ["0", "[0, 5]", "[9, 5]"] {
        check(&forward("tcp", port, bus), "forwards.port: write a port from 1 to 65535");
    }
    check(&forward("tcp", "70000", bus), "write a port, or [first, last]");
    check(&forward("both", "4433", bus), "has port 4433 itself, by `listen`");
    check(&forward("tcp", "[9000, 9999]", bus), "has port 9474 itself, by `metrics.listen`");
    assert!(with_forwards(&forward("tcp", "4433", bus)).is_ok(), "it listens to UDP there");
    assert!(with_forwards(&forward("udp", "9474", bus)).is_ok(), "it listens to TCP there");
    let to = |ports: &str, to: &str| forward("tcp", ports, &format!("{bus}\nto_port = {to}"));
    check(&to("1", "0"), "forwards.to_port: write a port from 1 to 65535");
    check(&to("[1, 9]", "7"), "9 ports cannot lead to 1");
    check(&to("[1, 9]", "[11, 20]"), "9 ports cannot lead to 10");
    check(&to("[1, 65]", "[11, 75]"), "more than 64 ports keep their numbers");
    check(&forward("tcp", "1", "\"bus\""), "\"bus\" is no address");
    let nobodys =
        ["10.77.0.6", "10.77.0.1", "192.0.2.1", "fd77::6", "127.0.0.1", "::1", "224.0.0.1"];
    for address in nobodys {
        check(&forward("tcp", "1", &format!("\"{address}\"")), "is none of a client's");
    }
    let twice = forward("both", "[1, 9]", bus) + &forward("udp", "[9, 12]", "\"192.168.5.1\"");
    check(&twice, "forwards.port: 9 leads to another place already");
    let many: String = (1..=65).map(|port| forward("tcp", &port.to_string(), bus)).collect();
    check(&many, "64 may be");
    let proxy = format!("private_key = \"{PRIVATE}\"\n{}", forward("tcp", "1", bus));
    assert!(read::<crate::ProxyFile>(&proxy).expect_err("it has none").contains("`forwards`"));
}

#[test]
fn private_keys_are_not_shown() {
    let file = read::<ClientFile>(&client("")).expect("complete");
    let shown = format!("{file:?}");
    assert!(shown.contains("private_key: (hidden)"), "{shown}");
}

/// The first two columns of the tables in `text` whose first has code in it.
pub(super) fn table_of(text: &str) -> std::collections::BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            Some((cells.next()?.trim_end_matches('`'), cells.next()?))
        })
        .collect()
}

#[test]
fn the_documentation_names_every_strategy() {
    let text = include_str!("../../../docs/configuration.md");
    let (_, strategies) = text.split_once("## Strategies").expect("a section of its own");
    let mut known: Vec<&str> = STRATEGIES.iter().map(StrategyEntry::name).collect();
    known.sort_unstable();
    assert_eq!(table_of(strategies).into_keys().collect::<Vec<_>>(), known);
    for entry in STRATEGIES {
        let row =
            strategies.lines().find(|row| row.starts_with(&format!("| `{}` |", entry.name())));
        assert!(row.is_some_and(|row| row.ends_with(&format!(" | {} |", entry.when()))), "{row:?}");
    }
}

/// Every file of docs/recipes.md is one that the programs take, once it has keys.
#[test]
fn the_recipes_are_files_that_work() {
    let text = include_str!("../../../docs/recipes.md");
    let files: Vec<String> = text
        .split("```toml\n")
        .skip(1)
        .map(|block| block.split_once("```").expect("an end").0)
        .map(|file| {
            file.replacen("private_key = \"...\"", &format!("private_key = \"{PRIVATE}\""), 1)
        })
        .map(|file| file.replacen("public_key = \"...\"", &format!("public_key = \"{KEY}\""), 1))
        .map(|file| file.replace("public_key = \"...\"", &format!("public_key = \"{OTHER_KEY}\"")))
        .collect();
    for file in &files {
        if file.starts_with("# server.toml\n") {
            read::<ServerFile>(file).expect("a server's file");
        } else {
            read::<ClientFile>(file).expect("a client's file");
        }
    }
    assert!(files.len() >= 6, "{}", files.len());
}

const METRICS: &str = "metrics = { listen = \"127.0.0.1:9474\" }\n";

/// The tables of docs/configuration.md and the types name the same fields.
#[test]
fn the_documentation_names_every_field_with_its_default() {
    let text = include_str!("../../../docs/configuration.md");
    let (fields, _) = text.split_once("## Strategies").expect("a section of its own");
    let documented = table_of(fields);
    let peer = format!(
        "[[peers]]\nname = \"a\"\npublic_key = \"{KEY}\"\naddresses = [\"10.0.0.1/32\"]\n\
         expires = 2027-01-31T00:00:00Z\nrate_limit_mbps = 100\n"
    );
    let lane = "[[lanes]]\n\
                expire_after_ms = 300\n\
                match = { ports = [1, 2], source_ports = 53, destination_ports = [1, 2] }\n";
    let policy = "[uplinks]\nportal_probe = \"http://probe.example/\"\n\
                  [[uplinks.policies]]\nname = \"wwan1\"\ntechnology = \"5g-sa\"\n\
                  device = \"*/usb1/*\"\niccid = \"8949020000012345678\"\n\
                  rate_limit_kbps = 8000\n\
                  metered = { monthly_cap_mb = 5000, daily_cap_mb = 300, billing_day = 1, \
                  redundancy_percent = 2 }\n";
    let place = "name = \"fra-1\"\nsite = \"frankfurt\"\nto_anchor_ms = 2\n";
    let proxy = format!("[[proxies]]\naddresses = [\"a:1\"]\npublic_key = \"{OTHER_KEY}\"\n");
    let fleet = "[fleet]\noffline_max_seconds = 600\n";
    let streams = "[streams]\nlisten = \"192.168.1.1:1080\"\n\
                   rules = [{ to = [\"192.0.2.0/24\"], ports = [22, [80, 81]], tcp = \"split\" }]\n";
    let routes = "[routes]\nexclude_mark = \"0x10\"\n";
    let all = format!("{}{place}{policy}{lane}{proxy}{streams}{routes}", client(""));
    let client: ClientFile = read(&all).expect("complete");
    let forward =
        "[[forwards]]\nprotocol = \"both\"\nport = [1, 2]\nto = \"10.0.0.1\"\nto_port = [3, 4]\n";
    let server =
        format!("private_key = \"{PRIVATE}\"\n{METRICS}{lane}{forward}{peer}{fleet}[streams]\n");
    let server: ServerFile = read(&server).expect("complete");
    let mut fields = std::collections::BTreeMap::new();
    for text in [toml::to_string(&client), toml::to_string(&server)] {
        let table: toml::Table = text.expect("writable").parse().expect("readable");
        flatten("", &toml::Value::Table(table), &mut fields);
    }
    // They have the fields of `server`.
    fields.retain(|name, _| !name.starts_with("proxies."));
    fields.insert("proxies".to_owned(), String::new());
    let documented_names: Vec<String> = documented.keys().map(ToString::to_string).collect();
    let known: Vec<String> = fields.keys().cloned().collect();
    assert_eq!(documented_names, known);
    for (name, value) in &fields {
        let default = documented[name.as_str()];
        if default.starts_with('`') {
            assert_eq!(default.trim_matches('`'), value, "the default of {name}");
        }
    }
    let mut examples = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let servers = examples.next().expect("an example of several servers");
    let [first, second] = [KEY, OTHER_KEY].map(|key| format!("\"{key}\""));
    let servers = servers.replacen("\"...\"", &first, 1).replacen("\"...\"", &second, 1);
    let file: ClientFile =
        read(&format!("private_key = \"{PRIVATE}\"\n{servers}")).expect("it works");
    assert_eq!(file.servers().count(), 2);
    let policies = examples.next().expect("an example of policies");
    let text = format!("{}{policies}", self::client(""));
    assert_eq!(read::<ClientFile>(&text).expect("it works").policies().len(), 2);
    read::<ClientFile>(examples.next().expect("an example")).expect("the example works");
}

#[test]
fn streams_need_a_lane_of_their_own() {
    let streams = "[streams]\nlisten = \"192.168.1.1:1080\"\n";
    let with = |lanes: &str| read::<ClientFile>(&format!("{}{lanes}{streams}", client("")));
    let file = with("").expect("the usual lanes leave room").streams.expect("a section");
    assert_eq!(file.to_config().lane.name, "streams");
    let lanes = |count: usize| -> String {
        (0..count).map(|number| format!("[[lanes]]\nname = \"{number}\"\n")).collect()
    };
    with(&lanes(7)).expect("one is left");
    let error = with(&lanes(8)).expect_err("none is left");
    assert!(error.contains("[streams] takes one of 8"), "{error}");
    let error = with("[[lanes]]\nname = \"streams\"\n").expect_err("two of a name");
    assert!(error.contains("give this one another name"), "{error}");
    let server = format!("private_key = \"{PRIVATE}\"\n[streams]\nstrategy = \"single:wwan0\"\n");
    let error = read::<ServerFile>(&server).expect_err("no uplinks");
    assert!(error.contains("a server has no uplinks"), "{error}");
    let error = read::<crate::ProxyFile>(&server).expect_err("no uplinks");
    assert!(error.contains("a server has no uplinks"), "{error}");
    // A proxy that was content with eight lanes is so still, and relays none.
    let proxy =
        |more: &str| read::<crate::ProxyFile>(&format!("private_key = \"{PRIVATE}\"\n{more}"));
    let relays =
        |more: &str| proxy(more).expect("good").streams_config().map(|it| it.lane.strategy);
    assert_eq!(relays(&lanes(8)), None);
    assert_eq!(relays(&lanes(7)), Some(roadweave_tunnel::StreamsConfig::default().lane.strategy));
    let strategy = relays("[streams]\nstrategy = \"xlink\"\n").expect("a place");
    assert_eq!(strategy.as_str(), "xlink");
    proxy(&format!("{}[streams]\n", lanes(8))).expect_err("none is left");
    let bad = streams.replace("192.168.1.1:1080", "lan");
    let error = read::<ClientFile>(&format!("{}{bad}", client(""))).expect_err("no address");
    assert!(error.contains("\"lan\" is no address to listen on"), "{error}");
}

#[test]
fn a_box_is_told_which_connections_it_may_split() {
    let with = |streams: &str| read::<ClientFile>(&format!("{}[streams]\n{streams}", client("")));
    let streams = |text: &str| with(text).expect("good").streams.expect("a section");
    assert!(!streams("listen = \"192.168.1.1:1080\"\ntcp = \"tunnel\"\n").splits());
    assert!(streams("").splits() && streams("tcp = \"split\"\n").splits());
    assert!(streams("[[streams.rules]]\nports = [22]\ntcp = \"tunnel\"\n").splits());
    let some = streams(
        "tcp = \"tunnel\"\n[[streams.rules]]\nports = [443, [8000, 8999]]\nto = [\"2001:db8::/32\"]\n\
         tcp = \"split\"\n",
    );
    assert!(some.splits() && some.tcp == crate::TcpWay::Tunnel && some.listen.is_none());
    assert_eq!(some.rules[0].port_ranges(), [443..=443, 8000..=8999]);
    for (text, part) in [
        ("tcp = \"tunnel\"\n", "[streams] takes no connection; leave out tcp = \"tunnel\""),
        ("tcp = \"tunnel\"\n[[streams.rules]]\ntcp = \"tunnel\"\n", "or write listen"),
        ("tcp = \"stream\"\n", "expected `tunnel` or `split`"),
        ("tcp = \"split\"\n[[streams.rules]]\nports = [22]\n", "missing field `tcp`"),
        (
            "[[streams.rules]]\nto = [\"192.0.2.1/24\"]\ntcp = \"split\"\n",
            "192.0.2.1/24 is neither an address nor a network",
        ),
        ("[[streams.rules]]\nports = [[2, 1]]\ntcp = \"split\"\n", "write the smaller one first"),
        ("[[streams.rules]]\nports = [70000]\ntcp = \"split\"\n", "ports go from 0 to 65535"),
    ] {
        let error = with(text).expect_err("bad");
        assert!(error.contains(part), "{text}: {error}");
    }
}

/// All leaves of a file, named as the documentation names them.
pub(super) fn flatten(
    prefix: &str,
    value: &toml::Value,
    fields: &mut std::collections::BTreeMap<String, String>,
) {
    match value {
        toml::Value::Table(table) => {
            for (name, value) in table {
                let dot = if prefix.is_empty() { "" } else { "." };
                flatten(&format!("{prefix}{dot}{name}"), value, fields);
            }
        }
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
            items.iter().for_each(|item| flatten(prefix, item, fields));
        }
        leaf => _ = fields.insert(prefix.to_owned(), leaf.to_string()),
    }
}

/// The tables of docs/proxy.md name the fields that proxies and anchors have of their own.
#[test]
fn the_documentation_names_every_field_of_proxies_and_anchors() {
    let text = include_str!("../../../docs/proxy.md");
    let (proxy, anchor) = text
        .split_once("## `proxy.toml`")
        .and_then(|(_, rest)| rest.split_once("## `anchor.toml`"))
        .expect("a section for each");
    let own = roadweave_identity::Identity::from_seed([9; 32]).public_key();
    let peer = "name = \"a\"\naddresses = [\"10.0.0.1/32\"]\n";
    let fleet = "[fleet]\noffline_max_seconds = 600\n";
    let head = format!("private_key = \"{PRIVATE}\"\nleg_rate_mbps = 5\n{METRICS}");
    let proxy_text = format!(
        "{head}[[tenants]]\nname = \"acme\"\nrate_limit_mbps = 5\n\
         anchor = {{ addresses = [\"192.0.2.1:4434\"], public_key = \"{own}\" }}\n\
         [[peers]]\n{peer}tenant = \"acme\"\npublic_key = \"{own}\"\n{fleet}[streams]\n"
    );
    let anchor_text = format!(
        "{head}rate_limit_mbps = 5\ntenant = \"acme\"\n\
         [[proxies]]\nname = \"p\"\npublic_key = \"{own}\"\n\
         [[devices]]\n{peer}public_key = \"{own}\"\n{fleet}[streams]\n"
    );
    let shared = ["lanes", "transport.", "limits.", "tun."];
    let check = |text: Result<String, toml::ser::Error>, section| {
        let table: toml::Table = text.expect("writable").parse().expect("readable");
        let mut fields = std::collections::BTreeMap::new();
        flatten("", &toml::Value::Table(table), &mut fields);
        fields.retain(|name, _| !shared.iter().any(|prefix| name.starts_with(prefix)));
        let documented: Vec<&str> = table_of(section).into_keys().collect();
        assert_eq!(documented, fields.keys().collect::<Vec<_>>());
    };
    let read_proxy = read::<ProxyFile>(&proxy_text).expect("complete");
    check(toml::to_string(&read_proxy), proxy);
    check(toml::to_string(&read::<AnchorFile>(&anchor_text).expect("complete")), anchor);
    let strange = proxy_text.replace("tenant = \"acme\"", "tenant = \"other\"");
    let error = read::<ProxyFile>(&strange).expect_err("no such tenant");
    assert!(error.contains("write one of those in tenants: acme"), "{error}");
    let twice = format!("{proxy_text}[[peers]]\nname = \"b\"\naddresses = [\"10.0.0.1/32\"]\n");
    let other = roadweave_identity::Identity::from_seed([8; 32]).public_key();
    let twice = format!("{twice}tenant = \"acme\"\npublic_key = \"{other}\"\n");
    assert!(read::<ProxyFile>(&twice).expect_err("shared").contains("share addresses"));
}
