use netlink_packet_route::address::AddressMessage;

use super::*;

const WIFI: u32 = 3;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn lease(address: &str, broadcast: Option<&str>) -> Lease {
    Lease {
        index: WIFI,
        address: address.parse().unwrap(),
        broadcast: broadcast.map(ip),
        is_permanent: false,
        message: AddressMessage::default(),
    }
}

fn uplinks() -> BTreeMap<u32, String> {
    BTreeMap::from([(WIFI, "wlan0".to_owned())])
}

fn protected() -> Protected {
    let certain = [
        ("198.51.100.2/32", Owner::Server),
        ("2001:db8:5::/128", Owner::Server),
        ("10.77.0.2/32", Owner::Granted),
        ("10.77.0.1/32", Owner::Granted),
        ("192.168.50.0/24", Owner::Lan),
        ("fd50::/64", Owner::Lan),
    ];
    let certain = certain.map(|(network, owner)| (network.parse().unwrap(), owner)).into();
    Protected { certain, said: Vec::new() }
}

fn conflict(address: &str, broadcast: Option<&str>) -> Option<Owner> {
    protected().conflict("wlan0", &lease(address, broadcast), Standing::New).map(|(_, owner)| owner)
}

#[test]
fn a_lease_takes_its_address_its_broadcast_and_the_edges_of_its_network() {
    for (address, broadcast, owner) in [
        ("198.51.100.2/32", None, Some(Owner::Server)),
        ("198.51.100.2/24", None, Some(Owner::Server)),
        // DHCP option 28.
        ("10.9.0.7/24", Some("198.51.100.2"), Some(Owner::Server)),
        ("198.51.100.1/30", None, None),
        ("198.51.100.3/31", None, None),
        ("10.77.0.0/30", None, None),
        ("10.77.0.5/29", Some("10.77.0.1"), Some(Owner::Granted)),
        ("10.77.0.2/24", None, Some(Owner::Granted)),
        ("198.51.100.7/24", Some("198.51.100.255"), None),
        ("10.200.0.9/8", Some("10.255.255.255"), None),
        ("2001:db8:5::7/64", None, Some(Owner::Server)),
        ("2001:db8:5::/128", None, Some(Owner::Server)),
        ("2001:db8:6::7/64", None, None),
        ("192.168.50.77/24", None, Some(Owner::Lan)),
        // The broadcast address is not a host's.
        ("192.168.48.7/22", Some("192.168.50.255"), None),
        ("192.168.50.126/25", None, Some(Owner::Lan)),
        ("fd50::7/64", None, Some(Owner::Lan)),
        ("192.168.8.100/24", Some("192.168.8.255"), None),
    ] {
        assert_eq!(conflict(address, broadcast), owner, "{address} {broadcast:?}");
    }
    let edge = Protected {
        certain: vec![("198.51.100.7/32".parse().unwrap(), Owner::Server)],
        said: Vec::new(),
    };
    assert!(edge.conflict("wlan0", &lease("198.51.100.5/29", None), Standing::Reached).is_some());
}

#[test]
fn what_one_other_network_says_stops_no_uplink_that_had_its_address_before() {
    let modem = lease("192.168.8.100/24", None);
    let public = lease("198.51.100.2/32", None);
    let check = |lease: &Lease, by: &[&str], standing| {
        let said = |by: &&str| ((*by).to_owned(), lease.address.addr(), Owner::FoundServer);
        let protected = Protected { certain: Vec::new(), said: by.iter().map(said).collect() };
        protected.conflict("wlan0", lease, standing).is_some()
    };
    assert!(!check(&public, &["eth1"], Standing::Reached));
    assert!(check(&public, &["eth1"], Standing::New), "the address is new");
    assert!(check(&public, &["eth1"], Standing::Seen), "and has reached no server");
    assert!(!check(&public, &["wlan0"], Standing::New), "its own words");
    assert!(!check(&public, &["eth1", "eth1", "wlan0"], Standing::Reached), "said twice by one");
    assert!(check(&public, &["eth1", "eth2"], Standing::Reached));
    assert!(!check(&public, &["eth1", "eth2"], Standing::Inside));
    // A single name server that claims modems' well-known addresses.
    assert!(!check(&modem, &["eth1"], Standing::New));
    assert!(check(&modem, &["eth1", "eth2"], Standing::New));
}

#[test]
fn what_a_server_grants_takes_no_address_that_an_uplink_had_before() {
    let inner = lease("10.77.0.2/24", None);
    assert!(protected().conflict("wlan0", &inner, Standing::New).is_some(), "the address is new");
    assert_eq!(protected().conflict("wlan0", &inner, Standing::Seen), None);
}

#[test]
fn of_a_network_behind_the_box_its_hosts_are_protected_if_it_is_small_and_the_boxs_own() {
    for (address, is_permanent, protects) in [
        ("192.168.50.1/24", true, "192.168.50.0/24"),
        ("10.0.0.1/8", true, "10.0.0.1/32"),
        ("128.0.0.7/1", true, "128.0.0.7/32"),
        ("198.51.100.1/24", true, "198.51.100.1/32"),
        ("192.168.50.7/24", false, "192.168.50.7/32"),
        ("2001:db8::1/64", true, "2001:db8::1/128"),
    ] {
        let own = Lease { is_permanent, ..lease(address, None) };
        assert_eq!(protected_by(&own), protects.parse().unwrap(), "{address}");
    }
}

#[test]
fn an_address_in_conflict_is_taken_once_and_given_back_when_that_is_over() {
    let mut conflicts = Conflicts::default();
    let bad = lease("198.51.100.2/32", None);
    let mut look = |leases: &[Lease], protected: &Protected| {
        let changes = conflicts.look(&uplinks(), leases, protected, |_, _| Standing::Reached);
        let notified = changes.remove.iter().map(|(_, why)| why.is_some()).collect::<Vec<_>>();
        let restored = changes.restore.len();
        (notified, restored, conflicts.of(WIFI).map(str::to_owned))
    };
    let (notified, restored, why) = look(std::slice::from_ref(&bad), &protected());
    assert_eq!((notified, restored), (vec![true], 0));
    let why = why.unwrap();
    assert_eq!(why, "its address 198.51.100.2/32 conflicts with 198.51.100.2, the server's");
    let (notified, _, again) = look(std::slice::from_ref(&bad), &protected());
    assert_eq!((notified, again), (vec![false], Some(why)));
    let (notified, restored, why) = look(&[], &protected());
    assert!(notified.is_empty() && restored == 0 && why.is_some(), "as long as there is no other");
    let (.., why) = look(&[lease("fd09::7/64", None)], &protected());
    assert!(why.is_some(), "of the other family");
    let (notified, restored, why) = look(&[lease("10.9.0.7/24", None)], &protected());
    assert_eq!((notified, restored, why), (vec![], 0, None));
    let both = [bad.clone(), lease("10.9.0.7/24", None)];
    let (notified, _, why) = look(&both, &protected());
    assert_eq!((notified, why), (vec![false], None), "another address is left");
    look(std::slice::from_ref(&bad), &protected());
    assert_eq!(look(&[], &Protected::default()), (vec![], 1, None));
    let mut conflicts = Conflicts::default();
    conflicts.look(&uplinks(), std::slice::from_ref(&bad), &protected(), |_, _| Standing::Reached);
    let changes = conflicts.look(&BTreeMap::new(), &[], &protected(), |_, _| Standing::Reached);
    assert_eq!((changes, conflicts.of(WIFI)), (Changes::default(), None));
}
