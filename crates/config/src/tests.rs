mod pages;

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_proto::{Order, Policy, Priority, Rate, Technology};
use roadweave_tunnel::{Caps, FlowClass, STRATEGIES, Strategy, UplinkPolicy};
use serde::de::DeserializeOwned;

use super::*;
use crate::golden::assert_golden;

pub(crate) fn read<T: DeserializeOwned + Validate>(text: &str) -> Result<T, String> {
    let path = Path::new("test.toml");
    reader::check(path, text).map_err(|error| error.to_string())
}

pub(super) const PRIVATE: &str = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
pub(super) const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

const OTHER_KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

fn client(extra: &str) -> String {
    format!(
        "private_key = \"{PRIVATE}\"\n{extra}\n\
         [server]\naddresses = [\"192.0.2.1:4433\"]\npublic_key = \"{KEY}\"\n"
    )
}

fn server(extra: &str) -> String {
    format!("private_key = \"{PRIVATE}\"\n{extra}\n")
}

#[test]
fn the_smallest_files_are_complete() {
    let file = read::<ClientFile>(&client("")).expect("complete");
    assert_eq!(lane_configs(&file.lanes), roadweave_tunnel::default_lanes());
    read::<ServerFile>(&server("")).expect("complete");
}

#[test]
fn a_lane_may_say_all_that_there_is_to_say() {
    let text = "[[lanes]]\nordering = \"reorder\"\nmax_buffer_ms = 50\nrank = 2\n\
                match = { classes = [\"tcp\"], source = [\"10.0.0.0/8\"], ports = 80, \
                destination_ports = [1, 9] }\n";
    let file = read::<ClientFile>(&format!("{}{text}", client(""))).expect("complete");
    let lane = &lane_configs(&file.lanes)[0];
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
        lane_configs(&read::<ClientFile>(&text).expect("complete").lanes)[0].order
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
    let policies: Vec<_> = file.uplinks.policies.iter().map(PolicyFields::to_policy).collect();
    assert_eq!(policies, [metered, UplinkPolicy::default(), UplinkPolicy::default()]);
    let [first, second, third] = &file.uplinks.policies[..] else { panic!("{policies:?}") };
    assert_eq!(first.name.as_deref(), Some("wwan1"));
    assert_eq!((&second.name, second.device.as_deref()), (&None, Some("*/usb1/1-2/*")));
    assert_eq!(third.iccid.as_deref(), Some("8949020000012345678"));
}

#[test]
fn a_metered_uplink_carries_insurance_only_where_the_file_says_so() {
    let takes = |metered: &str| {
        let text = format!("{}[[uplinks.policies]]\nname = \"a\"\n{metered}", client(""));
        let file = read::<ClientFile>(&text).expect("complete");
        file.uplinks.policies[0].to_policy().policy.takes_insurance
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
    assert_eq!(file.uplinks.order, Technology::ORDER);
    for technology in Technology::ORDER {
        let text = format!(
            "[uplinks]\norder = [\"{technology}\"]\n\
             [[uplinks.policies]]\nname = \"a\"\ntechnology = \"{technology}\"\n"
        );
        let file = read::<ClientFile>(&format!("{}{text}", client(""))).expect("complete");
        let policy = file.uplinks.policy_of(&UplinkTraits::by_name("a")).expect("a policy");
        assert_eq!((policy.technology, &file.uplinks.order), (Some(technology), &vec![technology]));
    }
}

/// `whole` completes the lines of each broken file.
pub(crate) fn check_broken<T: DeserializeOwned + Validate>(
    name: &str,
    whole: impl Fn(&str) -> String,
) {
    let own = roadweave_identity::Identity::from_base64(PRIVATE).expect("a key").public_key();
    let own = own.to_string();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let known = std::fs::read_to_string(folder.join(name)).expect(name);
    let said = known.split("\n\n").map(|case| {
        let lines: Vec<&str> = case.lines().filter(|line| !line.starts_with('>')).collect();
        let keys =
            [("$PRIVATE", PRIVATE), ("$KEY", KEY), ("$OTHER", OTHER_KEY), ("$OWN", own.as_str())];
        let text = lines.join("\n") + "\n";
        let text = keys.iter().fold(whole(&text), |text, (word, key)| text.replace(word, key));
        let error = read::<T>(&text).err().unwrap_or_else(|| panic!("this is right:\n{text}"));
        let error: String = error.lines().map(|line| format!("> {line}\n")).collect();
        format!("{}\n{}", lines.join("\n"), error.replace(" \n", "\n"))
    });
    assert_golden(name, &said.collect::<Vec<_>>().join("\n"));
}

#[test]
fn errors_name_the_line_and_what_would_be_right() {
    let head = |lines: &str| match lines.contains("private_key") {
        true => lines.to_owned(),
        false => format!("private_key = \"$PRIVATE\"\n{lines}"),
    };
    let server = "[server]\naddresses = [\"192.0.2.1:4433\"]\npublic_key = \"$KEY\"\n";
    check_broken::<ClientFile>("broken-client.txt", |lines| {
        head(lines) + if lines.contains("[server]") { "" } else { server }
    });
    check_broken::<ServerFile>("broken-server.txt", head);
    check_broken::<ProxyFile>("broken-proxy.txt", head);
    check_broken::<AnchorFile>("broken-anchor.txt", head);
    check_broken::<ServerFile>("broken-forwards.txt", |lines| {
        format!("{}{METRICS}{lines}{BUS}", head(""))
    });
}

#[test]
fn values_near_broken_ones_are_taken() {
    let marks = "packet_marks = \"0xfff00\"\n[routes]\nexclude_mark = \"0x10/0xff\"\n";
    read::<ClientFile>(&client(marks)).expect("they are apart");
    let address = client("").replace("192.0.2.1:4433", "2001:db8:1:2:3:4:5:6:4433");
    read::<ClientFile>(&address).expect("one meaning");
    let streams = format!("{}[streams]\nhttp_ports = []\n", client(""));
    read::<ClientFile>(&streams).expect("it reads no HTTP");
    let file = read::<ServerFile>(&server("shards = 16")).expect("64 MiB each");
    assert_eq!(file.shards.get(), 16);
    let networks = "[fleet]\naccept = [\"10.0.0.0/8\", \"fd00::/8\"]\n";
    read::<ServerFile>(&server(networks)).expect("private networks behind boxes");
}

#[test]
fn a_peer_whose_key_has_expired_is_reported() {
    let peer = BUS.replace("$OTHER", OTHER_KEY) + "expires = 2027-01-31T00:00:00Z\n";
    let file = read::<ServerFile>(&server(&peer)).expect("complete");
    assert_eq!(peers(&file.peers)[0].1.expires_unix, Some(1_801_353_600));
    assert_eq!(file.warnings(1_801_353_599), [""; 0]);
    let warnings = file.warnings(1_801_353_600);
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].starts_with("peer \"bus\" is no longer admitted"), "{warnings:?}");
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

const BUS: &str = "[[peers]]\nname = \"bus\"\npublic_key = \"$OTHER\"\n\
                   addresses = [\"10.77.0.5/32\", \"fd77::5/128\", \"192.168.5.0/24\"]\n";

fn with_forwards(forwards: &str) -> Result<ServerFile, String> {
    let peer = BUS.replace("$OTHER", OTHER_KEY);
    read(&server(&format!("{METRICS}{forwards}{peer}")))
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
fn forwards_are_bounded_and_leave_ports_of_the_other_protocol() {
    let bus = "\"10.77.0.5\"";
    assert!(with_forwards(&forward("tcp", "4433", bus)).is_ok(), "it listens to UDP there");
    assert!(with_forwards(&forward("udp", "9474", bus)).is_ok(), "it listens to TCP there");
    let many: String = (1..=65).map(|port| forward("tcp", &port.to_string(), bus)).collect();
    let error = with_forwards(&many).expect_err("too many");
    assert!(error.contains("64 may be"), "{error}");
}

#[test]
fn private_keys_are_not_shown() {
    let file = read::<ClientFile>(&client("")).expect("complete");
    let shown = format!("{file:?}");
    assert!(shown.contains("private_key: (hidden)"), "{shown}");
}

#[test]
fn the_documentation_names_every_strategy() {
    let text = include_str!("../../../docs/configuration.md");
    let (_, strategies) = text.split_once("## Strategies").expect("a section of its own");
    let rows: Vec<&str> = strategies.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows.len(), STRATEGIES.len());
    for entry in STRATEGIES {
        let (begin, end) = (format!("| `{}` |", entry.name()), format!(" | {} |", entry.when()));
        assert!(rows.iter().any(|row| row.starts_with(&begin) && row.ends_with(&end)), "{begin}");
    }
}

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

#[test]
fn the_examples_of_the_pages_are_files_that_work() {
    let text = include_str!("../../../docs/configuration.md");
    let mut examples = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let servers = examples.next().expect("an example of several servers");
    let [first, second] = [KEY, OTHER_KEY].map(|key| format!("\"{key}\""));
    let servers = servers.replacen("\"...\"", &first, 1).replacen("\"...\"", &second, 1);
    let file: ClientFile =
        read(&format!("private_key = \"{PRIVATE}\"\n{servers}")).expect("it works");
    assert_eq!(file.servers().count(), 2);
    let policies = examples.next().expect("an example of policies");
    let text = format!("{}{policies}", self::client(""));
    assert_eq!(read::<ClientFile>(&text).expect("it works").uplinks.policies.len(), 2);
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
    // A proxy whose lanes are all taken stays valid, and relays no streams.
    let proxy =
        |more: &str| read::<crate::ProxyFile>(&format!("private_key = \"{PRIVATE}\"\n{more}"));
    let relays = |more: &str| {
        let file = proxy(more).expect("good");
        ProxyStreams::to_config(file.streams.as_ref(), &file.lanes).map(|it| it.lane.strategy)
    };
    assert_eq!(relays(&lanes(8)), None);
    assert_eq!(relays(&lanes(7)), Some(roadweave_tunnel::StreamsConfig::default().lane.strategy));
    let strategy = relays("[streams]\nstrategy = \"xlink\"\n").expect("a place");
    assert_eq!(strategy.as_str(), "xlink");
    proxy(&format!("{}[streams]\n", lanes(8))).expect_err("none is left");
}

#[test]
fn a_box_knows_which_connections_it_may_split() {
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
}

#[test]
fn uci_is_converted_to_fields_that_exist() {
    let script = include_str!("../../../deploy/dist/openwrt/toml.sh");
    let known: Vec<String> = fields::<ClientFile>().into_iter().map(|it| it.name).collect();
    let tables = [("client", ""), ("server", "server."), ("policy", "uplinks.policies.")];
    const BY_HAND: [&str; 5] =
        ["enabled", "config", "private_key_file", "state_directory", "uplink_inside"];
    for (section, table) in tables {
        let (_, list) = script.split_once(&format!("toml_{section}_fields=\"")).expect(section);
        let (list, _) = list.split_once('"').expect(section);
        for option in list.split_whitespace().filter(|it| *it != "\\") {
            let [name, kind, field] = option.split(':').collect::<Vec<_>>()[..] else {
                panic!("{option} is not OPTION:KIND:FIELD")
            };
            assert!(["text", "list", "number", "truth", "local"].contains(&kind), "{option}");
            match field {
                "" => assert!(BY_HAND.contains(&name), "{option}"),
                _ => assert!(known.contains(&format!("{table}{field}")), "{option}"),
            }
        }
    }
}
