use super::*;

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn resolver(names: &[&str], address: &str) -> Resolver {
    let names = names.iter().map(|name| name.parse().unwrap()).collect();
    let mut resolver = Resolver::new(names, Waker::new().unwrap());
    resolver.set_uplink(at(0), &uplink(0, address));
    resolver
}

fn uplink(id: u32, address: &str) -> Uplink {
    let addresses = vec![address.parse().unwrap()];
    Uplink::new(UplinkId(id), format!("none{id}"), 900 + id, addresses)
}

const FIRST: UplinkId = UplinkId(0);

fn nat64(prefix: &str, seconds: u64) -> RouterUpdate {
    let prefix = Nat64Prefix::new(prefix.parse().unwrap(), 96).unwrap();
    let lasts = Duration::from_secs(seconds);
    RouterUpdate { index: 900, advertised: Advertised::Nat64(prefix), lasts }
}

fn poll(resolver: &mut Resolver, now: Instant) -> Vec<UplinkId> {
    assert!(roadweave_linux::wait_readable(&resolver.waker, Duration::from_secs(20)).unwrap());
    resolver.waker.clear();
    resolver.poll(now)
}

#[test]
fn addresses_need_no_search_and_count_for_the_families_of_the_uplink() {
    let mut resolver = resolver(&["192.0.2.1:4433", "[2001:db8::1]:4433"], "10.0.0.2/24");
    let mut second = uplink(1, "10.0.0.2/24");
    second.addresses.push("2001:db8:1::2/64".parse().unwrap());
    resolver.set_uplink(at(0), &second);
    assert_eq!(resolver.handle_timeout(at(0)), [FIRST, UplinkId(1)]);
    assert_eq!(resolver.found(FIRST), ["192.0.2.1:4433".parse().unwrap()]);
    assert_eq!(resolver.found(UplinkId(1)).len(), 2);
    assert_eq!(resolver.poll_timeout(), None, "once and for all");
    assert!(resolver.may_reach(true, false) && resolver.may_reach(false, true));
    let six = super::tests::resolver(&["[2001:db8::1]:4433"], "10.0.0.2/24");
    assert!(!six.may_reach(true, false) && six.may_reach(false, true));
}

#[test]
fn an_address_of_the_uplinks_own_family_waits_for_nothing() {
    for other in ["192.0.2.33:1", "nowhere.invalid:1"] {
        let mut resolver = resolver(&[other, "[2001:db8::1]:4433"], "2001:db8:1::2/64");
        assert_eq!(resolver.handle_timeout(at(0)), [FIRST], "{other}");
        let own = ["[2001:db8::1]:4433".parse().unwrap()];
        assert_eq!(resolver.found(FIRST), own, "{other}");
        let is_literal = other.starts_with("192");
        let changed = resolver.on_router_updates(at(0), vec![nat64("64:ff9b::", 60)]);
        assert_eq!(changed, if is_literal { vec![FIRST] } else { vec![] }, "{other}");
        assert_eq!(poll(&mut resolver, at(1)), [], "{other}");
        assert_eq!(resolver.found(FIRST).len(), if is_literal { 2 } else { 1 }, "{other}");
    }
}

#[test]
fn a_name_that_cannot_be_found_is_tried_again_ever_more_seldom() {
    let mut resolver = resolver(&["nowhere.invalid:1"], "10.0.0.2/24");
    let mut now = at(0);
    for rest in [2, 4, 8, 16, 30, 30] {
        assert_eq!(resolver.poll_timeout(), Some(now));
        assert_eq!(resolver.handle_timeout(now), []);
        assert_eq!(resolver.poll_timeout(), None, "one search at a time");
        assert_eq!(poll(&mut resolver, now), []);
        now += Duration::from_secs(rest);
    }
    assert!(!resolver.has_found());
    resolver.set_uplink(now, &uplink(0, "10.0.1.2/24"));
    assert_eq!(resolver.poll_timeout(), Some(now));
}

#[test]
fn a_server_that_may_have_moved_is_looked_up_again() {
    let mut resolver = resolver(&["localhost:4433"], "127.0.0.9/8");
    resolver.handle_timeout(at(0));
    assert_eq!(poll(&mut resolver, at(0)), [FIRST]);
    assert!(resolver.found(FIRST).iter().all(|found| found.ip().is_loopback()));
    let found = resolver.found(FIRST).to_vec();
    let answer = |lasts| Found {
        servers: found.clone(),
        lasts: Some(Duration::from_secs(lasts)),
        reason: None,
    };
    for (lasts, soon, seldom) in [(0, 10, 60), (30, 30, 60), (300, 60, 300), (86_400, 60, 3600)] {
        assert!(!resolver.on_answer(at(5), FIRST, 0, answer(lasts)), "the same is no news");
        resolver.set_content(false);
        assert_eq!(resolver.poll_timeout(), Some(at(5 + soon)), "{lasts}");
        resolver.set_content(true);
        assert_eq!(resolver.poll_timeout(), Some(at(5 + seldom)), "{lasts}");
    }
    let moved = Found { servers: vec!["192.0.2.9:1".parse().unwrap()], ..answer(60) };
    assert!(resolver.on_answer(at(6), FIRST, 0, moved));
    assert!(!resolver.on_answer(at(7), FIRST, 0, Found::default()));
    assert_eq!(resolver.found(FIRST), ["192.0.2.9:1".parse().unwrap()]);
}

#[test]
fn an_answer_counts_for_its_uplink_and_for_the_network_that_gave_it() {
    let mut resolver = resolver(&["localhost:4433"], "127.0.0.9/8");
    resolver.handle_timeout(at(0));
    resolver.set_uplink(at(0), &uplink(1, "127.0.0.8/8"));
    resolver.set_uplink(at(0), &uplink(0, "127.0.1.9/8"));
    assert_eq!(poll(&mut resolver, at(0)), [], "the answer is that of the old network");
    assert_eq!((resolver.found(FIRST), resolver.found(UplinkId(1))), (&[][..], &[][..]));
    resolver.handle_timeout(at(0));
    // The old network's thread may have ended by now; its answer is ignored.
    while !resolver.threads.is_empty() || resolver.found(FIRST).is_empty() {
        resolver.handle_timeout(at(0));
        poll(&mut resolver, at(0));
    }
    assert!(!resolver.found(FIRST).is_empty() && !resolver.found(UplinkId(1)).is_empty());
    resolver.remove_uplink(FIRST);
    assert!(resolver.found(FIRST).is_empty() && resolver.has_found());
    let replugged = Uplink { index: 77, ..uplink(1, "127.0.0.8/8") };
    resolver.set_uplink(at(1), &replugged);
    assert!(!resolver.has_found());
}

#[test]
fn what_routers_say_is_kept_while_it_holds_and_bounded() {
    let mut resolver = resolver(&["192.0.2.33:1"], "2001:db8:1::2/64");
    let of_others = RouterUpdate { index: 901, ..nat64("2001:db8:66::", 60) };
    assert_eq!(resolver.on_router_updates(at(0), vec![of_others, nat64("64:ff9b::", 60)]), [FIRST]);
    assert_eq!(resolver.handle_timeout(at(0)), []);
    assert_eq!(resolver.found(FIRST), ["[64:ff9b::192.0.2.33]:1".parse().unwrap()]);
    assert_eq!(resolver.poll_timeout(), Some(at(60)), "then it may be over");
    for number in 0..100 {
        resolver.on_router_updates(at(1), vec![nat64(&format!("2001:db8:{number}::"), 60)]);
    }
    assert_eq!(resolver.uplinks[&FIRST].prefixes.len(), ADVERTISED_MAX);
    resolver.on_router_updates(at(1), vec![nat64("2001:db8:99::", 0)]);
    assert_eq!(resolver.uplinks[&FIRST].prefixes.len(), ADVERTISED_MAX - 1, "taken back");
}

fn name_server(number: u8) -> Vec<RouterUpdate> {
    vec![RouterUpdate {
        index: 900,
        advertised: Advertised::NameServers(vec![[192, 0, 2, number].into()]),
        lasts: Duration::from_secs(600),
    }]
}

#[test]
fn a_network_that_says_ever_new_things_has_one_thread_and_stops_no_other() {
    let mut resolver = resolver(&["nowhere.invalid:1"], "10.0.0.2/24");
    resolver.handle_timeout(at(0));
    for number in 1..=100 {
        resolver.on_router_updates(at(0), name_server(number));
        resolver.handle_timeout(at(0));
        resolver.set_uplink(at(0), &uplink(0, &format!("10.0.{number}.2/24")));
        resolver.handle_timeout(at(0));
    }
    assert_eq!(resolver.poll_timeout(), None, "the end of the thread wakes the loop");
    resolver.set_uplink(at(0), &uplink(1, "10.1.0.2/24"));
    assert_eq!(resolver.poll_timeout(), Some(at(0)));
    resolver.handle_timeout(at(0));
    let answers = [(); 2].map(|()| resolver.answers.recv_timeout(Duration::from_secs(20)));
    assert!(answers.iter().all(Result::is_ok), "one of each uplink");
    let more = resolver.answers.recv_timeout(Duration::from_millis(300));
    assert!(more.is_err(), "and no more");
}

#[test]
fn router_updates_shorten_a_rest_but_not_below_the_first() {
    let mut resolver = resolver(&["nowhere.invalid:1"], "10.0.0.2/24");
    let mut now = at(0);
    for _ in 0..4 {
        now = resolver.poll_timeout().unwrap();
        resolver.handle_timeout(now);
        poll(&mut resolver, now);
    }
    assert_eq!(resolver.poll_timeout(), Some(now + Duration::from_secs(16)));
    for number in 1..=100 {
        resolver.on_router_updates(now, name_server(number));
    }
    assert_eq!(resolver.poll_timeout(), Some(now + RETRY));
    now += RETRY;
    resolver.handle_timeout(now);
    resolver.on_router_updates(now, name_server(101));
    assert_eq!(poll(&mut resolver, now), []);
    assert_eq!(resolver.poll_timeout(), Some(now + RETRY));
}
