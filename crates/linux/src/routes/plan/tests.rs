use roadweave_proto::UplinkSelector;

use super::*;
use crate::netlink::test_link as link;
use crate::{Excluded, Gateway};

const TUN: u32 = 9;
const LAN: u32 = 2;
const WWAN: u32 = 3;

fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn route(destination: &str, interface: u32, gateway: Option<&str>) -> Route {
    Route {
        gateway: gateway.map(|text| text.parse().unwrap()),
        interface: Some(interface),
        protocol: 4,
        ..refusal(prefix(destination), MAIN_TABLE, 0)
    }
}

/// A box with a camera's network, a modem, and routes announced by the modem's network.
struct World {
    settings: RouteSettings,
    uplinks: BTreeMap<UplinkId, Uplink>,
    outside: BTreeSet<String>,
    split: BTreeSet<String>,
    grant: Option<Grant>,
    seen: KernelState,
}

impl World {
    fn new(include: &[&str], lease: &str, routes: &[Route]) -> Self {
        let connected = prefix(lease).trunc().to_string();
        let mut all = vec![route("192.168.50.0/24", LAN, None), route("fe80::/64", LAN, None)];
        all.extend([
            route("0.0.0.0/0", WWAN, Some("10.9.0.1")),
            route(&connected, WWAN, None),
            route("fe80::/64", WWAN, None),
        ]);
        all.extend_from_slice(routes);
        let selector = UplinkSelector {
            include: include.iter().map(|name| (*name).to_owned()).collect(),
            exclude: Vec::new(),
            inside: Vec::new(),
        };
        let uplink = Uplink {
            gateway_v4: Some(Gateway::Known("10.9.0.1".parse().unwrap())),
            ..Uplink::new(UplinkId(0), "wwan0", WWAN, vec![prefix(lease)])
        };
        Self {
            settings: RouteSettings {
                into_tunnel: vec![DEFAULT_V4, DEFAULT_V6],
                excluded: Excluded::default(),
                closed_before_join: true,
                local: LocalNetworks::Network,
                accept: Vec::new(),
                selector,
            },
            uplinks: BTreeMap::from([(UplinkId(0), uplink)]),
            outside: BTreeSet::new(),
            split: BTreeSet::new(),
            grant: None,
            seen: KernelState {
                links: vec![link(LAN, "lan0"), link(WWAN, "wwan0"), link(TUN, "rw0")],
                addresses: vec![
                    (LAN, prefix("192.168.50.1/24")),
                    (LAN, prefix("fe80::1/64")),
                    (WWAN, prefix(lease)),
                    (TUN, prefix("10.77.0.2/32")),
                ],
                routes: all,
            },
        }
    }

    fn grant(mut self) -> Self {
        self.grant = Some(Grant {
            addresses: vec![prefix("10.77.0.2/32")],
            gateways: vec![prefix("10.77.0.1/32")],
            networks: vec![prefix("10.77.0.0/16")],
            mtu: 1400,
        });
        self
    }

    fn planner(&mut self) -> Planner<'_> {
        self.outside.extend(leading_out(&self.settings, &self.seen).collect::<Vec<_>>());
        Planner {
            tables: TABLES,
            marks: Marks::default().of_instance(7),
            settings: &self.settings,
            uplinks: &self.uplinks,
            outside: &self.outside,
            tun: TUN,
            split: &self.split,
            grant: self.grant.as_ref(),
            seen: &self.seen,
        }
    }

    /// The interface of an unbound packet; `None`: refused. Panics if the main table decides.
    fn way(&mut self, destination: &str) -> Option<u32> {
        self.own_way(destination)
            .unwrap_or_else(|| panic!("{destination} is left to the main table"))
    }

    fn own_way(&mut self, destination: &str) -> Option<Option<u32>> {
        let destination: IpAddr = destination.parse().unwrap();
        let plan = self.planner().whole();
        Self::look(&plan, destination, None)
    }

    fn marked_way(&mut self, destination: &str) -> Option<Option<u32>> {
        let mark = self.settings.excluded.marks.first().copied();
        Self::look(&self.planner().whole(), destination.parse().unwrap(), mark)
    }

    fn look(
        plan: &RoutePlan,
        destination: IpAddr,
        mark: Option<(u32, u32)>,
    ) -> Option<Option<u32>> {
        let rules = plan.rules.iter().filter(|rule| {
            rule.ipv4 == destination.is_ipv4()
                && rule.output_interface.is_none()
                && rule.input_interface.is_none()
                && (rule.mark.is_none() || rule.mark == mark)
        });
        for rule in rules {
            if rule.goto.is_some() {
                return None;
            }
            let fitting = plan.routes.iter().filter(|route| {
                route.table == rule.table && route.destination.contains(&destination)
            });
            let best = fitting
                .max_by_key(|route| (route.destination.prefix_len(), u32::MAX - route.metric));
            if let Some(route) = best.filter(|route| !route.passes_by) {
                return Some(route.interface);
            }
        }
        None
    }
}

impl Planner<'_> {
    fn whole(&self) -> RoutePlan {
        let mut plan = self.plan();
        plan.routes.extend(self.passing());
        plan
    }
}

const TABLES: RangeInclusive<u32> = 0x5200_0100..=0x5200_01ff;

#[test]
fn all_that_is_not_behind_the_box_is_refused_until_its_family_is_granted() {
    let mut world = World::new(&["wwan*"], "10.9.0.7/24", &[]);
    for destination in ["8.8.8.8", "10.77.0.1", "2001:db8::1", "192.168.51.1"] {
        assert_eq!(world.way(destination), None, "{destination}");
    }
    assert_eq!(world.way("192.168.50.2"), Some(LAN));
    assert_eq!(world.way("10.9.0.1"), Some(WWAN), "a neighbour");
    let mut world = world.grant();
    for (destination, way) in
        [("8.8.8.8", Some(TUN)), ("10.77.0.1", Some(TUN)), ("2001:db8::1", None)]
    {
        assert_eq!(world.way(destination), way, "{destination}");
    }
    world.settings.closed_before_join = false;
    assert_eq!(world.way("2001:db8::1"), None, "open is for the time before the first session");
    world.grant = None;
    assert!(world.planner().whole().rules.iter().all(|rule| rule.priority <= PRIORITY_UPLINK));
}

#[test]
fn what_a_network_under_an_uplink_says_of_routes_draws_nothing_out() {
    let hostile = [
        route("0.0.0.0/1", WWAN, Some("10.9.0.1")),
        route("128.0.0.0/1", WWAN, Some("10.9.0.1")),
        route("8.8.8.8/32", WWAN, Some("10.9.0.1")),
        route("192.168.50.2/32", WWAN, Some("10.9.0.1")),
        route("10.77.0.1/32", WWAN, Some("10.9.0.1")),
        route("2000::/3", WWAN, Some("fe80::1")),
    ];
    for include in [&["wwan*"][..], &[]] {
        let mut world = World::new(include, "10.9.0.7/24", &hostile).grant();
        assert_eq!(world.way("8.8.8.8"), Some(TUN), "{include:?}");
        assert_eq!(world.way("200.1.1.1"), Some(TUN), "{include:?}");
        assert_eq!(world.way("192.168.50.2"), Some(LAN), "{include:?}");
        assert_eq!(world.way("2001:db8::1"), None, "{include:?}");
        // Wide leases cover no public space; granted and named prefixes stay in the tunnel.
        for lease in ["10.9.0.7/4", "10.9.0.7/1"] {
            let mut world = World::new(include, lease, &[]).grant();
            assert_eq!(world.way("12.1.1.1"), Some(TUN), "{lease}");
        }
        let mut world = World::new(include, "10.9.0.7/8", &hostile).grant();
        world.settings.into_tunnel.push(prefix("10.50.0.0/16"));
        assert_eq!(world.way("10.77.0.1"), Some(TUN), "granted");
        assert_eq!(world.way("10.50.1.1"), Some(TUN), "named");
        assert_eq!(world.way("10.9.0.200"), Some(WWAN), "near its gateway");
        assert_eq!(world.way("10.200.1.1"), Some(TUN), "farther");
        world.settings.local = LocalNetworks::None;
        assert_eq!(world.way("10.9.0.200"), Some(TUN), "uplinks.local = false");
    }
}

#[test]
fn a_network_under_an_uplink_draws_nothing_out_by_calling_itself_what_is_in_the_tunnel() {
    let neighbours = |uplinks: LocalNetworks, lease: &str, gateway: &str| {
        let mut world = World::new(&["wwan*"], lease, &[]).grant();
        world.settings.local = uplinks;
        world.settings.into_tunnel.push(prefix("10.20.0.0/16"));
        let uplink = world.uplinks.get_mut(&UplinkId(0)).unwrap();
        let (of_v4, gateway) = (!gateway.contains(':'), gateway.parse().unwrap());
        let known = Some(Gateway::Known(gateway));
        (uplink.gateway_v4, uplink.gateway_v6) = if of_v4 { (known, None) } else { (None, known) };
        let plan = world.planner().plan();
        let own = plan.routes.iter().filter(|route| route.table == neighbours_table(&TABLES));
        own.map(|route| route.destination.to_string()).collect::<Vec<_>>()
    };
    for (lease, gateway, gateway_alone, network) in [
        ("192.168.8.100/24", "192.168.8.1", &["192.168.8.1/32"][..], &["192.168.8.0/24"][..]),
        ("10.9.7.7/16", "10.9.0.1", &["10.9.0.1/32"], &["10.9.0.0/24"]),
        ("10.9.7.7/26", "10.9.7.1", &["10.9.7.1/32"], &["10.9.7.0/26"]),
        ("10.20.0.7/16", "10.20.0.1", &[], &[]),
        ("10.77.0.2/24", "10.77.0.9", &[], &[]),
        ("10.77.200.2/24", "10.77.200.1", &[], &[]),
        ("192.168.8.100/24", "10.66.0.5", &[], &["192.168.8.0/24"]),
        ("8.8.8.7/24", "8.8.8.8", &[], &[]),
        ("100.64.0.7/32", "100.64.0.1", &[], &[]),
        ("fd09::7/48", "fd09::1", &["fd09::1/128"], &["fd09::/64"]),
        ("fd09::7/64", "fe80::1", &[], &["fd09::/64"]),
    ] {
        let found = |uplinks| neighbours(uplinks, lease, gateway);
        assert_eq!(found(LocalNetworks::Gateway), gateway_alone, "{lease} {gateway}");
        assert_eq!(found(LocalNetworks::Network), network, "{lease} {gateway}");
        assert_eq!(found(LocalNetworks::None), [""; 0]);
    }
    let near = neighbours(LocalNetworks::Network, "10.19.255.7/14", "10.19.255.1");
    assert_eq!(near, ["10.19.255.0/24"]);
}

#[test]
fn an_unnamed_interface_is_trusted_in_private_space_alone() {
    let strange = [
        route("9.0.0.0/8", LAN, Some("192.168.50.2")),
        route("172.16.0.0/12", LAN, Some("192.168.50.2")),
    ];
    let mut world = World::new(&[], "10.9.0.7/24", &strange).grant();
    assert_eq!(world.way("9.9.9.9"), Some(TUN));
    assert_eq!(world.way("172.17.0.1"), Some(LAN));
    // Uplinks are named, and it is not one of them.
    let mut world = World::new(&["wwan*"], "10.9.0.7/24", &strange).grant();
    assert_eq!(world.way("9.9.9.9"), Some(LAN));
    let networks = world.planner().local_networks();
    assert_eq!(networks, ["9.0.0.0/8", "172.16.0.0/12", "192.168.50.0/24"].map(prefix));
}

#[test]
fn what_lies_behind_the_box_is_behind_it_also_by_way_of_others_but_for_what_is_named_to_be_elsewhere()
 {
    let routes = [
        route("10.0.0.0/8", LAN, Some("192.168.50.2")),
        route("192.168.60.0/24", LAN, Some("192.168.50.2")),
        // Routes of an uplink's network, of the tunnel itself, and of link-local scope.
        route("192.168.61.0/24", WWAN, Some("10.9.0.1")),
        route("192.168.62.0/24", TUN, None),
        route("224.0.0.0/4", LAN, None),
    ];
    let mut world = World::new(&["wwan*"], "10.9.0.7/24", &routes).grant();
    let near = ["192.168.50.0/24", "192.168.60.0/24"].map(prefix);
    let with = |wide: &[&str]| wide.iter().map(|text| prefix(text)).chain(near).collect::<Vec<_>>();
    assert_eq!(world.planner().local_networks(), with(&["10.0.0.0/8"]));
    world.settings.accept = vec![prefix("10.0.0.0/8"), prefix("192.168.0.0/16")];
    assert_eq!(world.planner().local_networks(), with(&["10.0.0.0/8"]), "none is narrower");
    world.settings.accept.push(prefix("10.77.0.0/10"));
    world.settings.into_tunnel.push(prefix("10.128.0.0/9"));
    assert_eq!(world.planner().local_networks(), with(&["10.0.0.0/10"]));
}

#[test]
fn prefixes_alone_leave_the_rest_to_the_main_table_but_are_not_drawn_out() {
    let hostile = [route("10.88.0.0/25", WWAN, Some("10.9.0.1"))];
    let mut world = World::new(&["wwan*"], "10.9.0.7/24", &hostile);
    world.settings.into_tunnel = vec![prefix("10.88.0.0/24")];
    assert_eq!(world.way("10.88.0.1"), None, "refused before the first session");
    let mut world = world.grant();
    assert_eq!(world.way("10.88.0.1"), Some(TUN));
    let plan = world.planner().whole();
    assert!(plan.rules.iter().all(|rule| rule.priority <= PRIORITY_NEAR), "{plan:#?}");
}

#[test]
fn sockets_bound_to_an_interface_with_its_own_default_route_keep_it() {
    let office = [route("0.0.0.0/0", LAN, Some("192.168.50.254"))];
    let mut world = World::new(&["wwan*"], "10.9.0.7/24", &office);
    let bound = |world: &mut World| -> Vec<(String, u32)> {
        let plan = world.planner().whole();
        let rules = plan.rules.into_iter().filter(|rule| rule.ipv4);
        rules.filter_map(|rule| Some((rule.output_interface?, rule.priority))).collect()
    };
    let (lan, wwan) = ("lan0".to_owned(), "wwan0".to_owned());
    assert_eq!(bound(&mut world), [(wwan.clone(), PRIORITY_UPLINK), (lan.clone(), PRIORITY_BOUND)]);
    world.uplinks.clear();
    assert_eq!(bound(&mut world), [(lan, PRIORITY_BOUND), (wwan, PRIORITY_BOUND)]);
    assert_eq!(world.way("8.8.8.8"), None, "nobody else does");
}

#[test]
fn what_is_marked_is_taken_by_the_interfaces_inside_alone() {
    let mut world = World::new(&[], "10.9.0.2/24", &[]);
    let marked = |plan: &RoutePlan| {
        let rules = plan.rules.iter().filter(|rule| rule.mark == Some((0x5258, 0xffff)));
        rules.map(|rule| (rule.ipv4, rule.input_interface.clone())).collect::<Vec<_>>()
    };
    assert_eq!(marked(&world.planner().whole()), []);
    world.split.insert("lan0".to_owned());
    let plan = world.planner().whole();
    let by_lan = Some("lan0".to_owned());
    assert_eq!(marked(&plan), [(false, by_lan.clone()), (true, by_lan)]);
    let here: Vec<&Route> = plan.routes.iter().filter(|route| route.local).collect();
    assert!(here.iter().all(|route| route.table == split_table(&TABLES)) && here.len() == 2);
    let mut uplinks = (0..1000).map(|id| uplink_table(&TABLES, UplinkId(id)));
    assert!(uplinks.all(|table| table != split_table(&TABLES)));
}

#[test]
fn the_longest_prefix_decides_between_the_tunnel_and_what_is_excluded_from_it() {
    let mut world = World::new(&["wwan*"], "10.9.0.2/24", &[]);
    world.settings.into_tunnel.push(prefix("203.0.113.128/25"));
    world.settings.excluded.destinations =
        ["203.0.113.0/24", "10.77.0.0/16", "192.168.50.0/28", "2001:db8::/32"].map(prefix).into();
    world.settings.excluded.marks = vec![(0x10, 0xff)];
    let check = |world: &mut World, inside: Option<u32>| {
        for outside in ["203.0.113.1", "10.77.1.1", "192.168.50.2", "2001:db8::1"] {
            assert_eq!(world.own_way(outside), None, "{outside}");
        }
        assert_eq!(world.way("203.0.113.129"), inside);
        assert_eq!(world.way("192.168.50.200"), Some(LAN));
        for ipv4 in [true, false] {
            let plan = world.planner().whole();
            let marked = |it: &&Rule| it.mark.is_some() && it.goto.is_some() && it.ipv4 == ipv4;
            let marked = plan.rules.iter().find(marked).unwrap();
            assert_eq!((marked.mark, marked.priority), (Some((0x10, 0xff)), 524));
            assert_eq!(marked.goto, Some(32766));
            assert!(TABLES.contains(&marked.table));
            let leads_in = |rule: &&Rule| rule.ipv4 == ipv4 && [525, 532].contains(&rule.priority);
            assert_eq!(plan.rules.iter().filter(leads_in).count(), 2);
        }
    };
    check(&mut world, None);
    let mut world = world.grant();
    check(&mut world, Some(TUN));
    assert_eq!(world.way("10.77.0.1"), Some(TUN), "the server's inner address");
}

#[test]
fn prefixes_are_excluded_from_wider_ones_where_not_all_belongs_into_the_tunnel() {
    let mut world = World::new(&["wwan*"], "10.9.0.2/24", &[]).grant();
    world.settings.into_tunnel = vec![prefix("203.0.113.0/24")];
    world.settings.excluded.destinations = vec![prefix("203.0.113.8/32")];
    assert_eq!(world.way("203.0.113.7"), Some(TUN));
    assert_eq!(world.own_way("203.0.113.8"), None);
    let plan = world.planner().whole();
    assert!(plan.routes.iter().all(|route| route.table != *TABLES.start()), "{plan:?}");
}

#[test]
fn the_server_s_inner_addresses_are_in_the_tunnel_whatever_is_excluded() {
    let mut world = World::new(&["wwan*"], "10.9.0.2/24", &[]);
    world.settings.excluded.destinations = ["10.77.0.1/32", "fd77::1/128"].map(prefix).into();
    world.settings.excluded.marks = vec![(0x10, 0xff)];
    assert_eq!(world.marked_way("10.77.0.1"), None, "it is not known yet");
    let mut world = world.grant();
    world.grant.as_mut().unwrap().gateways.push(prefix("fd77::1/128"));
    for (inner, way) in [("10.77.0.1", Some(TUN)), ("fd77::1", None)] {
        assert_eq!(world.way(inner), way);
        assert_eq!(world.marked_way(inner), Some(way));
    }
    for outside in ["10.77.0.3", "8.8.8.8", "2001:db8::1"] {
        assert_eq!(world.marked_way(outside), None, "{outside}");
    }
    world.settings.into_tunnel.clear();
    assert_eq!(world.marked_way("10.77.0.1"), Some(Some(TUN)), "named by the grant alone");
    world.settings.excluded.marks.clear();
    let plan = world.planner().whole();
    assert!(plan.routes.iter().all(|route| route.table != inner_table(&TABLES)), "{plan:?}");
}
