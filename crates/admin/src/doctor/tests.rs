//! What follows from which facts.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roadweave_identity::Identity;
use roadweave_linux::{Gateway, SendFailure};
use serde_json::{Value, json};

use super::facts::{
    ClientFacts, Facts, FileFacts, MachineFacts, Probe, ProbeOutcome, RoleFacts, ServerFacts,
    UplinkFacts,
};
use super::firewall::{Hook, Owner, dropping};
use super::marks::{in_iptables, in_ruleset};
use super::*;

const NOW: u64 = 1_790_000_000;

fn good(role: Option<RoleFacts>) -> Facts {
    let file = FileFacts {
        path: PathBuf::from("client.toml"),
        error: None,
        mode: Some(0o600),
        runs_as: None,
        written: Some(NOW - 9_000),
        has_key: true,
        state: Some((PathBuf::from("/var/lib/roadweave"), Ok((0, 0o700)))),
    };
    let machine = MachineFacts {
        is_root: true,
        now: NOW,
        is_synchronised: true,
        has_tun: true,
        has_nft: true,
        buffer: Some(4 << 20),
        crypto_bps: Some(9_000_000_000),
        has_aes: Some(true),
        overwriting: Vec::new(),
    };
    Facts { file, machine, role }
}

fn server_address() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 1], 4433))
}

fn answered(mtu: u32) -> ProbeOutcome {
    ProbeOutcome::Answered { round_trip: Duration::from_millis(42), mtu }
}

fn uplink(name: &str, outcome: ProbeOutcome) -> UplinkFacts {
    UplinkFacts {
        name: name.to_owned(),
        carrier: true,
        mtu: 1500,
        has_ipv4: true,
        has_ipv6: false,
        gateway_v4: Some(Gateway::Known([192, 0, 2, 1].into())),
        gateway_v6: None,
        reverse_path_filter: Some(2),
        conflict: None,
        probes: vec![Probe { server: server_address(), outcome }],
    }
}

fn client(uplinks: Vec<UplinkFacts>) -> ClientFacts {
    let servers = vec![("vpn.example:4433".to_owned(), Ok(vec![server_address().ip()]))];
    let deadlines = vec![("video".to_owned(), Duration::from_millis(22))];
    ClientFacts { servers, uplinks, deadlines, ..ClientFacts::default() }
}

fn of_client(client: ClientFacts) -> Facts {
    good(Some(RoleFacts::Client(client)))
}

fn server() -> ServerFacts {
    ServerFacts {
        listen: SocketAddr::from(([0_u16; 8], 4433)),
        runs: false,
        bind: None,
        tun: "rws".to_owned(),
        drops: Ok(Vec::new()),
        has_legacy: false,
    }
}

fn wrong(facts: &Facts) -> Vec<String> {
    let checks = judge::judge(facts).into_iter().filter(|it| it.verdict != Verdict::Ok);
    checks.map(|check| check.line()).collect()
}

/// A row of `expected` has the beginning and further parts of a line, with ` .. ` between.
fn check(facts: &Facts, expected: &[&str]) {
    let lines = wrong(facts);
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, row) in lines.iter().zip(expected) {
        let mut parts = row.split(" .. ");
        assert!(parts.next().is_some_and(|begin| line.starts_with(begin)), "{row}: {line}");
        parts.for_each(|part| assert!(line.contains(part), "{part} is not in {line}"));
    }
}

#[test]
fn nothing_is_wrong_where_nothing_is_wrong() {
    let facts = of_client(client(vec![uplink("wwan0", answered(1500))]));
    let lines: Vec<String> = judge::judge(&facts).iter().map(Check::line).collect();
    let expected = [
        "ok   config: client.toml is valid",
        "ok   permissions: other users cannot read the private key",
        "ok   state: /var/lib/roadweave exists",
        "ok   clock: the kernel reports it as synchronised",
        "ok   tun: /dev/net/tun exists",
        "ok   nft: the program nft runs",
        "ok   buffers: socket buffers are 4096 KiB",
        "ok   crypto: one core encrypts 9000 Mbit/s, with AES instructions",
        "ok   lookup vpn.example:4433: 203.0.113.1",
        "ok   uplink wwan0: up, with IPv4",
        "ok   reach wwan0 203.0.113.1:4433: the server answered after 42.0 ms",
        "ok   mtu wwan0: 1500 bytes arrive",
        "ok   rp_filter wwan0: loose",
        "ok   ipv6: not available on any uplink; IPv4 is enough",
        "ok   deadlines: half the round trip to the nearest server is 21 ms, within every lane's \
         deadline",
    ];
    assert_eq!(lines, expected);
    check(&good(Some(RoleFacts::Server(server()))), &[]);
}

#[test]
fn faults_of_the_file_and_the_machine_are_reported() {
    let of = |change: fn(&mut Facts), expected: &[&str]| {
        let mut facts = good(None);
        change(&mut facts);
        check(&facts, expected);
    };
    of(|it| it.file.error = Some("line 3: x".into()), &["fail config: line 3: x .. fix the file"]);
    of(|it| it.file.mode = Some(0o640), &["warn permissions .. chmod 600 client.toml"]);
    let state = |there, runs_as, expected: &[&str]| {
        let mut facts = good(None);
        (facts.file.state, facts.file.runs_as) = (Some((PathBuf::from("/s"), there)), runs_as);
        check(&facts, expected);
    };
    state(Ok((1000, 0o700)), None, &[]);
    state(Ok((1000, 0o700)), Some(1000), &[]);
    state(Ok((1000, 0o700)), Some(995), &["warn state .. user 1000 .. chown 995 /s"]);
    state(Ok((0, 0o777)), None, &["fail state .. chmod 700 /s"]);
    state(Err("permission denied".into()), None, &["warn state .. permission denied"]);
    of(|it| it.machine.now = NOW - 10_000, &["fail clock .. 1000 s behind"]);
    of(|it| it.machine.is_synchronised = false, &["warn clock .. timedatectl"]);
    of(|it| it.machine.has_tun = false, &["fail tun .. modprobe tun"]);
    of(|it| it.machine.has_nft = false, &["fail nft .. nftables"]);
    of(|it| it.machine.buffer = Some(212_992), &["warn buffers .. net.core.rmem_max=4194304"]);
    of(|it| it.machine.crypto_bps = Some(90_000_000), &["warn crypto .. 90 Mbit/s"]);
    of(|it| it.machine.is_root = false, &["warn rights .. root"]);
    of(|it| (it.machine.buffer, it.machine.crypto_bps, it.file.written) = (None, None, None), &[]);
}

#[test]
fn faults_of_an_uplink_are_reported() {
    let of = |change: fn(&mut UplinkFacts), expected: &[&str]| {
        let mut bad = uplink("wwan0", answered(1500));
        change(&mut bad);
        check(&of_client(client(vec![uplink("eth0", answered(1500)), bad])), expected);
    };
    of(|it| it.carrier = false, &["fail uplink wwan0 .. ip link set wwan0 up"]);
    of(|it| it.has_ipv4 = false, &["fail uplink wwan0 .. no address"]);
    of(|it| it.gateway_v4 = None, &["warn uplink wwan0 .. ip route add default"]);
    let strict = "warn rp_filter wwan0 .. wwan0.rp_filter=2";
    of(|it| it.reverse_path_filter = Some(1), &[strict]);
    of(|it| it.reverse_path_filter = None, &[]);
    let probe = |filter, mtu, outcome, expected: &[&str]| {
        let mut bad = uplink("wwan0", outcome);
        (bad.reverse_path_filter, bad.mtu) = (Some(filter), mtu);
        check(&of_client(client(vec![uplink("eth0", answered(1500)), bad])), expected);
    };
    let silent = "fail reach wwan0 203.0.113.1:4433: no answer, while .. UDP port 4433";
    probe(2, 1500, ProbeOutcome::NoAnswer, &[silent]);
    probe(1, 1500, ProbeOutcome::NoAnswer, &["warn reach wwan0 .. strict", strict]);
    let unreachable = ProbeOutcome::NotSent(SendFailure::Unreachable);
    let route = "fail reach wwan0 .. route add default via 192.0.2.1 dev wwan0";
    probe(2, 1500, unreachable, &[route]);
    let forbidden = ProbeOutcome::NotSent(SendFailure::Forbidden);
    probe(2, 1500, forbidden, &["fail reach wwan0 .. nft list ruleset"]);
    probe(2, 1500, answered(1400), &["warn mtu wwan0 .. 1400 .. ip link set wwan0 mtu 1400"]);
    probe(2, 1200, answered(1280), &["fail mtu wwan0 .. mtu 1280"]);
}

#[test]
fn every_check_has_a_row_in_the_docs() {
    let mut facts = of_client(client(vec![uplink("wwan0", answered(1500))]));
    facts.machine.is_root = false;
    let mut checks = judge::judge(&facts);
    let unnamed = ClientFacts { unnamed: Some("not named"), ..client(Vec::new()) };
    checks.extend(judge::judge(&of_client(unnamed)));
    checks.extend(judge::judge(&good(Some(RoleFacts::Server(server())))));
    let page = include_str!("../../../../docs/operate.md");
    let (_, rest) = page.split_once("\n## Checks of `roadweave doctor`\n").expect("a section");
    let section = rest.split("\n## ").next().unwrap_or_default();
    for Check { name, .. } in checks {
        let word = name.split(' ').next().unwrap_or_default();
        let is_row = |line: &str| {
            let cell = line.strip_prefix("| `").and_then(|rest| rest.split('`').next());
            cell.is_some_and(|cell| cell.split(' ').next() == Some(word))
        };
        assert!(section.lines().any(is_row), "docs/operate.md has no row for {word}");
    }
}

#[test]
fn faults_of_servers_and_the_choice_of_uplinks_are_reported() {
    let with = |change: fn(&mut ClientFacts), expected: &[&str]| {
        let mut facts = client(vec![uplink("wwan0", answered(1500))]);
        change(&mut facts);
        check(&of_client(facts), expected);
    };
    let lookup = "fail lookup vpn.example:4433: Temporary failure .. /etc/resolv.conf";
    with(|it| it.servers[0].1 = Err("Temporary failure".to_owned()), &[lookup]);
    with(|it| it.servers[0].1 = Ok(Vec::new()), &["fail lookup .. no address"]);
    let ipv6 = "fail ipv6 .. IPv4 address";
    with(|it| it.servers[0].1 = Ok(vec!["2001:db8::1".parse().unwrap()]), &[ipv6]);
    with(|it| it.missing = vec!["wwan7".to_owned()], &["fail uplink wwan7 .. plug it"]);
    with(|it| it.uplinks.clear(), &["fail uplinks .. default route"]);
    with(|it| it.servers.clear(), &[]);
    let late = "warn deadlines: half the round trip to the nearest server is 21 ms .. video .. 21";
    with(|it| it.deadlines[0].1 = Duration::from_millis(21), &[late]);
    let unnamed = "warn inside: uplinks.inside names no interface .. uplinks.inside =";
    with(|it| it.unnamed = Some("uplinks.inside names no interface"), &[unnamed]);
    let taken = "fail uplink wwan0: it is not used: it is the server's .. lease another address";
    with(|it| it.uplinks[0].conflict = Some("it is the server's".to_owned()), &[taken]);
    let silent = "warn reach wwan0 203.0.113.1:4433: no answer .. silent to strangers .. 4433";
    with(|it| it.uplinks[0].probes[0].outcome = ProbeOutcome::NoAnswer, &[silent]);
}

#[test]
fn a_name_of_others_steers_no_terminal() {
    let mut facts = client(vec![uplink("w\u{1b}[2J", answered(1500))]);
    facts.servers[0].1 = Err("said\r\n\u{202e}so".to_owned());
    for check in judge::judge(&of_client(facts)) {
        let line = check.line();
        assert!(!line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
    }
}

#[test]
fn faults_of_a_server_are_reported() {
    let of = |change: fn(&mut ServerFacts), expected: &[&str]| {
        let mut facts = server();
        change(&mut facts);
        check(&good(Some(RoleFacts::Server(facts))), expected);
    };
    of(|it| it.bind = Some("in use".to_owned()), &["fail listen: in use .. ss -lunp"]);
    of(|it| (it.bind, it.runs) = (Some("in use".to_owned()), true), &[]);
    of(|it| it.drops = Err("not allowed".to_owned()), &["warn firewall .. not allowed"]);
    of(|it| it.has_legacy = true, &["warn firewall .. iptables-legacy -S"]);
    let line = "fail firewall ip filter FORWARD .. iptables -I DOCKER-USER -i rws -j ACCEPT";
    of(|it| it.drops = Ok(dropping(&docker(json!([])), "rws", 4433)), &[line]);
}

fn docker(rules: Value) -> Value {
    let mut objects = vec![
        json!({ "metainfo": { "json_schema_version": 1 } }),
        json!({ "table": { "family": "ip", "name": "filter", "handle": 1 } }),
        chain("filter", "FORWARD", Some("forward"), "drop"),
        chain("filter", "DOCKER-USER", None, ""),
        rule("filter", "FORWARD", json!([{ "jump": { "target": "DOCKER-USER" } }])),
    ];
    let rules = rules.as_array().cloned().unwrap_or_default();
    objects.extend(rules.into_iter().map(|expr| rule("filter", "DOCKER-USER", expr)));
    json!({ "nftables": objects })
}

fn chain(table: &str, name: &str, hook: Option<&str>, policy: &str) -> Value {
    let mut chain = json!({ "family": "ip", "table": table, "name": name, "handle": 2 });
    if let Some(hook) = hook {
        (chain["hook"], chain["policy"], chain["prio"]) = (hook.into(), policy.into(), 0.into());
    }
    json!({ "chain": chain })
}

fn rule(table: &str, chain: &str, expr: Value) -> Value {
    let rule = json!({ "family": "ip", "table": table, "chain": chain, "handle": 5, "expr": expr });
    json!({ "rule": rule })
}

fn by_interface(key: &str, name: &str, end: Value) -> Value {
    let matched = json!({ "op": "==", "left": { "meta": { "key": key } }, "right": name });
    json!([{ "match": matched }, { "counter": { "packets": 0, "bytes": 0 } }, end])
}

fn to_port(right: Value) -> Value {
    let left = json!({ "payload": { "protocol": "udp", "field": "dport" } });
    json!([{ "match": { "op": "==", "left": left, "right": right } }, { "accept": null }])
}

#[test]
fn a_chain_that_drops_all_counts_unless_a_rule_knows_the_tunnel() {
    let counts = |ruleset: &Value| dropping(ruleset, "rws", 4433).len();
    let accept = |name| json!([by_interface("iifname", name, json!({ "accept": null }))]);
    let map = json!([[{ "vmap": { "key": { "meta": { "key": "iifname" } }, "data": "@of" } }]]);
    for known in [accept("rws"), accept("rw*"), accept("@tunnels"), map] {
        assert_eq!(counts(&docker(known.clone())), 0, "{known}");
    }
    let drop = json!([by_interface("iifname", "rws", json!({ "drop": null }))]);
    for other in [json!([]), accept("rwx"), accept("eth*"), accept("iifname"), drop] {
        assert_eq!(counts(&docker(other.clone())), 1, "{other}");
    }
    for other in [
        json!({ "nftables": [chain("roadweave_rws", "forward", Some("forward"), "drop")] }),
        json!({ "nftables": [chain("filter", "OUTPUT", Some("output"), "drop")] }),
        json!({ "nftables": [chain("filter", "FORWARD", Some("forward"), "accept")] }),
        json!({ "nftables": [{ "chain": [] }, 7, null, { "chain": { "hook": "forward" } }] }),
        json!([]),
        json!({}),
        Value::Null,
    ] {
        assert_eq!(counts(&other), 0, "{other}");
    }
}

#[test]
fn ufw_firewalld_and_others_have_lines_of_their_own() {
    let check = |ruleset: Value, owner: Owner, mend: &str| {
        let all = dropping(&json!({ "nftables": ruleset }), "rws", 4433);
        assert_eq!((all.len(), all[0].hook, all[0].owner), (1, Hook::Forward, owner), "{all:?}");
        let line = all[0].mend("rws", 4433);
        assert!(line.contains(mend), "{line}");
    };
    let forward = chain("filter", "FORWARD", Some("forward"), "drop");
    let ufw = json!([forward, chain("filter", "ufw-user-forward", None, "")]);
    check(ufw, Owner::Ufw, "ufw route allow in on rws && ufw route allow out on rws");
    let reject = json!([{ "reject": { "type": "icmpx", "expr": "admin-prohibited" } }]);
    let last = rule("firewalld", "filter_FORWARD", reject);
    let first = chain("firewalld", "filter_FORWARD", Some("forward"), "accept");
    check(json!([first, last]), Owner::Firewalld, "--add-interface=rws");
    let handed = by_interface("iifname", "rws", json!({ "goto": { "target": "x" } }));
    let open = json!({ "nftables": [first, rule("firewalld", "filter_FORWARD", handed), last] });
    assert_eq!(dropping(&open, "rws", 4433), []);
    let own = json!([chain("mine", "fwd", Some("forward"), "drop")]);
    check(own, Owner::Other, "nft insert rule ip mine fwd iifname rws accept");
}

#[test]
fn an_open_port_is_found_as_a_number_a_range_or_in_a_set() {
    let closed = |right: Value| {
        let objects = json!({ "nftables": [
            chain("filter", "INPUT", Some("input"), "drop"),
            rule("filter", "INPUT", to_port(right)),
        ] });
        !dropping(&objects, "rws", 4433).is_empty()
    };
    let nested = json!({ "set": [53, { "range": [4433, 4440] }] });
    let (set, range) = (json!({ "set": [53, 4433] }), json!({ "range": [4000, 5000] }));
    for right in [json!(4433), set, range, nested] {
        assert!(!closed(right.clone()), "{right}");
    }
    for right in [json!(443), json!({ "set": [53] }), json!({ "range": [1] }), json!("x")] {
        assert!(closed(right.clone()), "{right}");
    }
}

fn file(folder: &Path, text: &str, mode: u32) -> PathBuf {
    let path = folder.join("client.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn a_file_that_cannot_be_used_fails_and_the_machine_is_looked_at_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let key = Identity::from_seed([7; 32]).to_base64();
    let config = |path: &Path| {
        let checks = judge::judge(&gather::gather(path));
        let names: Vec<&str> = checks.iter().map(|check| check.name.as_str()).collect();
        assert!(["clock", "tun", "crypto"].iter().all(|it| names.contains(it)), "{names:?}");
        let all = serde_json::to_string(&checks).unwrap();
        assert!(!all.contains(key.as_str()) && !all.contains(&key[..20]), "a key is shown: {all}");
        assert_eq!(checks[0].name, "config");
        (checks[0].verdict, checks[0].line())
    };
    let line = format!("private_key = \"{}\"", key.as_str());
    for (text, mode, part) in [
        ("not toml".to_owned(), 0o600, "client.toml"),
        (line.trim_end_matches('"').to_owned(), 0o600, "client.toml"),
        (line.replace("key =", "keys ="), 0o600, "client.toml"),
        (format!("{line}\n[server]\naddresses = []\n"), 0o644, "chmod 600"),
    ] {
        let (verdict, line) = config(&file(folder.path(), &text, mode));
        assert_eq!(verdict, Verdict::Fail);
        assert!(line.contains(part), "{line}");
    }
    assert!(config(&folder.path().join("nothing.toml")).1.contains("cannot read"));
    assert_eq!(config(folder.path()).0, Verdict::Fail);
}

#[test]
fn a_client_and_a_server_are_distinguished_by_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let private = Identity::from_seed([7; 32]).to_base64();
    let other = Identity::from_seed([8; 32]).public_key();
    let state = folder.path().display();
    let head = format!("private_key = \"{}\"\nstate_directory = \"{state}\"\n", private.as_str());
    let facts = |text: &str| gather::gather(&file(folder.path(), &(head.clone() + text), 0o600));
    let client = facts(&format!(
        "[server]\naddresses = [\"127.0.0.1:9\"]\npublic_key = \"{other}\"\n\
         [uplinks]\ninclude = [\"no-such-if\"]\n"
    ));
    assert_eq!(client.file.error, None);
    let Some(RoleFacts::Client(client)) = client.role else { panic!("{:?}", client.role) };
    assert_eq!((client.missing, client.unnamed), (vec!["no-such-if".to_owned()], None));
    assert!(client.uplinks.is_empty());
    let server = facts("listen = \"127.0.0.1:0\"\n");
    assert!(matches!(server.role, Some(RoleFacts::Server(_))), "{:?}", server.file.error);
}

fn mark(of: &str) -> Value {
    json!({ of: { "key": "mark" } })
}

fn set_mark(of: &str, value: Value, used: u32) -> Vec<String> {
    let set = json!([{ "mangle": { "key": mark(of), "value": value } }]);
    let ruleset = json!({ "nftables": [rule("vpn", "pre", set)] });
    let mut facts = of_client(client(vec![uplink("wwan0", answered(1500))]));
    facts.machine.overwriting = in_ruleset(&ruleset, used);
    wrong(&facts)
}

#[test]
fn a_rule_that_copies_marks_without_a_mask_is_named_with_the_cure() {
    let used = 0xffff_0000;
    for (of, other) in [("meta", "ct"), ("ct", "meta")] {
        let lines = set_mark(of, mark(other), used);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("warn marks ip vpn pre: a rule there copies"), "{lines:?}");
        assert!(lines[0].ends_with("give the rule a mask without 0xffff0000"), "{lines:?}");
        // The copied bits have a mask, but the other bits of the mark are not kept.
        let lost = json!({ "&": [mark(other), 0x00ff_0000] });
        assert_eq!(set_mark(of, lost.clone(), used).len(), 1);
        let kept = json!({ "|": [{ "&": [mark(of), 0xff00_ffff_u32] }, lost] });
        let lines = set_mark(of, kept.clone(), used);
        assert!(lines[0].ends_with("or write packet_marks = \"0xff00ffff\""), "{lines:?}");
        assert!(lines[0].contains("Roadweave uses 0xff0000 of them"), "{lines:?}");
        assert_eq!(set_mark(of, kept, 0x0700_fff8), [""; 0]);
        assert_eq!(set_mark(of, json!(7), used), [""; 0]);
        let own = json!({ "|": [{ "&": [mark(of), 0xff] }, 0x10] });
        assert_eq!(set_mark(of, own, used), [""; 0]);
    }
    let ours = json!([{ "mangle": { "key": mark("meta"), "value": mark("ct") } }]);
    let ruleset = json!({ "nftables": [rule("roadweave_rw0_answers", "pre", ours), 7, null] });
    assert_eq!(in_ruleset(&ruleset, used), []);
}

#[test]
fn the_masks_of_iptables_are_read() {
    let places = |rule: &str, used| {
        let saved = format!("*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING {rule}\nCOMMIT\n");
        let found = in_iptables("ip", &saved, used).into_iter();
        found.map(|it| (it.place, it.bits)).collect::<Vec<_>>()
    };
    let here = |bits| vec![("ip mangle PREROUTING".to_owned(), bits)];
    let whole = "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff";
    assert_eq!(places(whole, 0x0001_0000), here(u32::MAX));
    assert_eq!(places("-j CONNMARK --save-mark", 0x0001_0000), here(u32::MAX));
    let byte = "-m mark --mark 0x1/0x1 -j CONNMARK --save-mark --nfmask 0xff0000 --ctmask 0xff0000";
    assert_eq!(places(byte, 0x0001_0000), here(0x00ff_0000));
    assert_eq!(places(byte, 0xff00_ffff), []);
    assert_eq!(places("-j CONNMARK --set-xmark 0x1/0xffffffff", u32::MAX), []);
    assert_eq!(places("-j ACCEPT", u32::MAX), []);
}
