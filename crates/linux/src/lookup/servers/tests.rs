use std::fs;

use super::*;

struct Root(tempfile::TempDir);

impl Root {
    fn new(files: &[(&str, &str)]) -> Self {
        let root = Self(tempfile::tempdir().unwrap());
        for (path, text) in files {
            let path = root.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn check(&self, network: &Network, expected: &[&str]) {
        let expected: Vec<SocketAddr> = expected
            .iter()
            .map(|text| text.parse().unwrap_or_else(|_| SocketAddr::new(text.parse().unwrap(), 53)))
            .collect();
        assert_eq!(name_servers(self.0.path(), network), expected);
    }
}

fn network() -> Network {
    Network {
        interface: "eth1".to_owned(),
        index: 7,
        gateways: vec!["192.168.8.1".parse().unwrap()],
        advertised: Vec::new(),
    }
}

#[test]
fn the_portal_that_dhcp_announced_for_an_uplink_is_that_of_its_own_file() {
    let portal = "ADMIN_STATE=configured\nCAPTIVE_PORTAL=https://a.test/api\n";
    let other = ("run/systemd/netif/links/8", "CAPTIVE_PORTAL=https://b.test/\n");
    let root = Root::new(&[("run/systemd/netif/links/7", portal), other]);
    let portal_of = |index| advertised_portal(root.0.path(), &Network { index, ..network() });
    assert_eq!(portal_of(7).as_deref(), Some("https://a.test/api"));
    assert_eq!((portal_of(8).as_deref(), portal_of(9)), (Some("https://b.test/"), None));
}

#[test]
fn the_resolvers_of_a_session_are_not_asked_but_those_of_before() {
    let ours = "# Of roadweave (rw0), while its session is up; /var/state/rw0.resolv.json has what was here before.\n\
                nameserver 10.77.0.1\n";
    for (before, expected) in [
        (r#"{"contents":"nameserver 192.0.2.99\n"}"#, &["192.0.2.99", "192.168.8.1"][..]),
        (r#"{"link":"../run/stub.conf"}"#, &["192.0.2.98", "192.168.8.1"]),
        (r#""nothing""#, &["192.168.8.1"]),
    ] {
        let kept = format!(r#"{{"ours":"","before":{before}}}"#);
        let files = [
            ("etc/resolv.conf", ours),
            ("var/state/rw0.resolv.json", kept.as_str()),
            ("run/stub.conf", "nameserver 192.0.2.98\n"),
        ];
        Root::new(&files).check(&network(), expected);
    }
}

#[test]
fn what_dhcp_gave_the_uplink_counts_before_the_systems() {
    let system = ("etc/resolv.conf", "nameserver 192.0.2.99\n");
    for file in [
        ("run/systemd/netif/links/7", "DNS=10.0.0.1\n"),
        ("run/systemd/netif/leases/7", "DNS=10.0.0.1\n"),
        ("run/NetworkManager/devices/7", "[dhcp4]\ndomain_name_servers=10.0.0.1\n"),
        ("run/resolvconf/interface/eth1.dhclient", "nameserver 10.0.0.1\n"),
        ("run/resolvconf/interfaces/eth1", "nameserver 10.0.0.1\n"),
        ("run/dhcpcd/hook-state/resolv.conf/eth1.dhcp", "nameserver 10.0.0.1\n"),
        (
            "var/lib/dhcp/dhclient.eth1.leases",
            "lease {\n interface \"eth1\";\n option domain-name-servers 10.0.0.1;\n}\n",
        ),
        ("tmp/resolv.conf.d/resolv.conf.auto", "# Interface eth1\nnameserver 10.0.0.1\n"),
    ] {
        let root = Root::new(&[system, file]);
        root.check(&network(), &["10.0.0.1"]);
        let other = Network { interface: "eth10".to_owned(), index: 70, ..network() };
        root.check(&other, &["192.0.2.99", "192.168.8.1"]);
    }
}

#[test]
fn what_a_router_advertised_counts_and_knows_its_link() {
    let root = Root::new(&[("etc/resolv.conf", "nameserver 192.0.2.99\n")]);
    let advertised = vec!["fe80::1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    let servers = name_servers(root.0.path(), &Network { advertised, ..network() });
    assert_eq!(servers[0], with_scope("[fe80::1]:53".parse().unwrap(), 7));
    assert_eq!(servers[1..], ["[2001:db8::1]:53".parse().unwrap()]);
}

#[test]
fn behind_a_stub_are_the_servers_that_it_asks() {
    let stub = ("etc/resolv.conf", "nameserver 127.0.0.53\noptions edns0\n");
    let upstream = ("run/systemd/resolve/resolv.conf", "nameserver 192.0.2.7\n");
    Root::new(&[stub, upstream]).check(&network(), &["192.0.2.7", "192.168.8.1"]);
    Root::new(&[stub]).check(&network(), &["192.168.8.1"]);
}

#[test]
fn no_more_than_four_are_asked() {
    let many: String = (1..=9).map(|number| format!("nameserver 192.0.2.{number}\n")).collect();
    let root = Root::new(&[("etc/resolv.conf", &many)]);
    root.check(&network(), &["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.168.8.1"]);
    let lease = format!("DNS={}\n", "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5");
    let root = Root::new(&[("run/systemd/netif/leases/7", &lease)]);
    assert_eq!(name_servers(root.0.path(), &network()).len(), SERVERS_MAX);
}

#[test]
fn without_an_uplink_the_systems_are_asked_and_stubs_as_well() {
    let files = [
        ("etc/resolv.conf", "search example.org\nnameserver 127.0.0.53\nnameserver 10.96.0.10\n"),
        ("run/systemd/netif/leases/0", "DNS=192.0.2.1\n"),
    ];
    let system = Network::default();
    Root::new(&files).check(&system, &["127.0.0.53", "10.96.0.10"]);
    Root::new(&[]).check(&system, &[]);
}
