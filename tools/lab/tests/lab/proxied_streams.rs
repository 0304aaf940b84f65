//! Streams through proxies to an anchor: failures, older peers, shares and limits.

use std::time::Duration;

use crate::apps::{Apps, RequestId};
use crate::nodes::{ANY, Config, Nodes, StreamsAt};
use crate::world::{ms, udp_v4};
use roadweave_proto::{DropReason, Rate};
use roadweave_tunnel::{DrainReason, TenantStats};

pub const STEP: Duration = Duration::from_millis(2);

/// Nodes and their applications, which use the clients for `proxy`.
struct StreamsWorld {
    nodes: Nodes,
    proxy: usize,
    apps: Apps,
}

impl StreamsWorld {
    fn at_one_proxy(config: &Config) -> Self {
        Self::new(config, 0, ms(500))
    }

    fn roaming(config: &Config) -> Self {
        Self::new(config, ANY, ms(3_000))
    }

    fn new(config: &Config, proxy: usize, time: Duration) -> Self {
        let mut nodes = Nodes::new(config.clone());
        nodes.run(ms(500));
        (0..config.boxes).for_each(|number| nodes.start((number, proxy)));
        nodes.run(time);
        Self { nodes, proxy, apps: Apps::default() }
    }

    fn request(&mut self, number: usize, up_and_down: [u64; 2]) -> Option<RequestId> {
        let now = self.nodes.now();
        let client = self.nodes.client((number, self.proxy))?;
        let id = self.apps.request(now, (number, client), up_and_down);
        self.apps.act_on(&mut self.nodes, self.proxy);
        id
    }

    fn run(&mut self, time: Duration) {
        let end = self.nodes.now() + time;
        while self.nodes.now() < end {
            self.nodes.run_until((self.nodes.now() + STEP).min(end));
            self.apps.act_on(&mut self.nodes, self.proxy);
        }
    }

    /// Runs until all requests have ended, for at most `time`; returns how long it took.
    fn finish(&mut self, time: Duration) -> Duration {
        let begun = self.nodes.now();
        while self.nodes.now().since(begun) < time && !self.apps.all_over() {
            self.run(STEP);
        }
        self.nodes.now().since(begun)
    }

    fn finish_all(&mut self) -> Duration {
        let took = self.finish(ms(60_000));
        assert!(self.apps.all_done(), "{:#?}", self.apps.requests);
        took
    }
}

pub fn config(boxes: usize) -> Config {
    Config { streams: StreamsAt::all(), ..Config::proxied(boxes) }
}

pub fn limited(boxes: usize, kbps: u64) -> Config {
    Config { tenant_rates: [(0, Rate::from_kbps(kbps))].into(), ..config(boxes) }
}

#[test]
fn requests_and_answers_pass_through_a_proxy() {
    let mut world = StreamsWorld::at_one_proxy(&config(2));
    for number in 0..2 {
        for up_and_down in [[0, 2_000], [3_000_000, 10], [10, 3_000_000]] {
            world.request(number, up_and_down).expect("the anchor takes streams");
        }
    }
    let took = world.finish_all();
    assert!(took < ms(3_000), "{took:?}");
    let times = world.apps.requests.values().map(|it| it.done.unwrap().since(it.begun));
    let least = times.min().unwrap();
    assert!(least < ms(60), "a round trip and what the loops take: {least:?}");
}

#[test]
fn a_proxy_or_a_leg_that_is_gone_breaks_no_stream() {
    for fault in ["the proxy dies", "the proxy drains", "the legs are cut for a while"] {
        let mut world = StreamsWorld::roaming(&Config { leg_loss: 0.02, ..limited(3, 100_000) });
        for number in 0..3 {
            world.request(number, [200, 5_000_000]).unwrap();
            world.request(number, [5_000_000, 200]).unwrap();
        }
        world.run(ms(700));
        let before = world.apps.requests.values().filter(|request| request.done.is_some()).count();
        assert_eq!(before, 0, "it was too late");
        let left = world.nodes.proxy_of_last();
        match fault {
            "the proxy dies" => world.nodes.kill_server(left),
            "the proxy drains" => world.nodes.drain(left),
            _ => {
                (0..2).for_each(|proxy| world.nodes.cut_leg(proxy, true));
                world.run(ms(8_000));
                (0..2).for_each(|proxy| world.nodes.cut_leg(proxy, false));
            }
        }
        world.finish_all();
        assert!(world.apps.over.is_empty(), "{fault}");
        let is_there = fault == "the legs are cut for a while";
        assert!(is_there || world.nodes.proxy_of_last() != left, "{fault}");
    }
}

#[test]
fn an_anchor_that_restarts_resets_streams_at_once_and_takes_new_ones() {
    let mut world = StreamsWorld::at_one_proxy(&config(1));
    let id = world.request(0, [100, 900_000_000]).unwrap();
    world.run(ms(500));
    world.nodes.start_anchor();
    world.apps.on_far_end_restart();
    let restarted = world.nodes.now();
    world.run(ms(15_000));
    let at = world.apps.requests[&id].reset.expect("nobody knows the stream");
    assert!(at.since(restarted) < ms(10_000), "{:?}", at.since(restarted));
    // More than the initial credit, which both ends count from the start.
    world.apps.requests.clear();
    world.request(0, [2_000_000, 2_000_000]).unwrap();
    assert!(world.finish_all() < ms(10_000));
}

#[test]
fn a_restarted_box_begins_without_streams() {
    let mut world = StreamsWorld::at_one_proxy(&config(1));
    world.request(0, [100, 900_000_000]).unwrap();
    world.run(ms(300));
    world.apps.requests.clear();
    world.nodes.start((0, 0));
    world.run(ms(2_000));
    assert_eq!(world.apps.over.len(), 1, "the former streams are over");
    world.request(0, [1_000_000, 1_000_000]).unwrap();
    assert!(world.finish_all() < ms(10_000));
}

#[test]
fn older_boxes_proxies_and_anchors_go_on_with_packets() {
    let all = StreamsAt::all;
    let cases = [
        StreamsAt { boxes: false, ..all() },
        StreamsAt { proxies: [].into(), ..all() },
        StreamsAt { anchor: None, ..all() },
    ];
    for streams in cases {
        let config = Config { streams, ..Config::proxied(1) };
        let mut world = StreamsWorld::at_one_proxy(&config);
        assert!(world.request(0, [1, 1]).is_none(), "{:?}", config.streams);
        let inner = config.inner_address(0).octets();
        world.nodes.send_up((0, 0), &udp_v4(inner, [192, 0, 2, 1], 0, 28));
        world.nodes.send_down(0, &udp_v4([192, 0, 2, 1], inner, 0, 28));
        world.run(ms(200));
        assert_eq!(world.nodes.arrivals().len(), 2);
    }
}

#[test]
fn streams_end_at_once_where_the_next_proxy_is_an_older_one() {
    let mut config = config(1);
    config.streams.proxies = [0].into();
    let mut world = StreamsWorld::roaming(&config);
    if world.nodes.proxy_of_last() != 0 {
        // The older proxy may have received it first.
        world.nodes.drain(1);
        world.run(ms(5_000));
        world.nodes.server(1).undrain(DrainReason::Command);
        world.run(ms(5_000));
    }
    let id = world.request(0, [100, 900_000_000]).expect("the first proxy relays");
    world.run(ms(300));
    world.nodes.kill_server(0);
    let took = world.finish(ms(60_000));
    assert!(world.apps.requests[&id].reset.is_some(), "the second one does not");
    assert!(took < ms(10_000), "{took:?}");
    world.run(ms(200));
    assert_eq!(world.apps.over.len(), 1, "at the anchor as well");
}

#[test]
fn what_a_box_does_not_read_waits_at_the_anchor_and_not_at_the_proxy() {
    let mut world = StreamsWorld::at_one_proxy(&config(1));
    world.apps.is_idle = true;
    world.request(0, [100, 200_000_000]).unwrap();
    world.run(ms(5_000));
    assert!(world.nodes.server(0).memory() < 4 << 20);
    let status = world.nodes.anchor().unwrap().status();
    assert!(status.tenants.values().all(|it| it.bytes_down < 9 << 20), "{status:?}");
    world.apps.is_idle = false;
    let small = world.request(0, [100, 10_000]).unwrap();
    world.run(ms(500));
    assert!(world.apps.requests[&small].done.is_some(), "it waits behind nothing");
}

#[test]
fn clients_share_a_tenants_rate_or_a_narrow_leg_and_nothing_of_streams_is_dropped() {
    let by_leg = Config { leg_rate: Some(Rate::from_kbps(20_000)), ..config(3) };
    let configs = [limited(3, 20_000), by_leg];
    for (config, up_and_down) in
        configs.iter().flat_map(|config| [(config, [4_000_000, 10]), (config, [10, 4_000_000])])
    {
        let mut world = StreamsWorld::at_one_proxy(config);
        for number in 0..3 {
            world.request(number, up_and_down).unwrap();
        }
        let took = world.finish_all();
        // 12 MB at 20 Mbit/s.
        assert!((ms(4_300)..ms(9_600)).contains(&took), "{took:?}");
        let times = || world.apps.requests.values().map(|it| it.done.unwrap().since(it.begun));
        let (first, last) = (times().min().unwrap(), times().max().unwrap());
        assert!(first * 10 > last * 7, "{up_and_down:?}: {:#?}", world.apps.requests);
        let tenants = [
            world.nodes.anchor().unwrap().status().tenants,
            world.nodes.server(0).proxy_status().unwrap().tenants,
        ];
        let dropped = |it: &TenantStats| match config.leg_rate {
            Some(_) => it.drops.total(),
            None => it.drops.get(DropReason::RateLimited),
        };
        let dropped: u64 = tenants.iter().flat_map(|it| it.values()).map(dropped).sum();
        assert_eq!(dropped, 0, "{tenants:?}");
    }
}

#[test]
fn the_memory_of_an_anchor_is_bounded_for_all_clients_together() {
    let mut config = config(6);
    config.streams.anchor = Some(24 << 20);
    let mut world = StreamsWorld::at_one_proxy(&config);
    world.apps.is_idle = true;
    for number in 0..6 {
        world.request(number, [100, 100_000_000]).unwrap();
    }
    world.run(ms(5_000));
    let held = world.nodes.anchor().unwrap().stream_memory();
    assert!((4 << 20..=24 << 20).contains(&held), "{held}");
    world.apps.is_idle = false;
    world.run(ms(1_000));
    let reset = world.apps.requests.values().filter(|request| request.reset.is_some()).count();
    assert!((1..6).contains(&reset), "those that held most, and no more: {reset}");
}
