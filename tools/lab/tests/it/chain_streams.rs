//! Streams through proxies to an anchor: failures of proxies and backhauls, older peers, shares and
//! limits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::nodes::{ANY, Config, Nodes, StreamsAt};
use crate::requests::{Answer, Request};
use crate::world::{ms, udp_v4};
use roadweave_proto::wire::StreamId;
use roadweave_proto::{DropReason, Rate};
use roadweave_stream::Event;
use roadweave_tunnel::{DrainReason, EndsStreams as _, StreamsOwner, TenantStats};

const STEP: Duration = Duration::from_millis(2);

type RequestId = (usize, StreamsOwner, StreamId);

/// Applications of a chain whose boxes have one client each.
#[derive(Debug, Default)]
struct Apps {
    /// Index of the client that each box uses.
    proxy: usize,
    requests: BTreeMap<RequestId, Request>,
    answers: BTreeMap<(StreamsOwner, StreamId), Answer>,
    /// Clients whose streams are closed at the anchor.
    over: Vec<StreamsOwner>,
    /// Boxes read nothing.
    is_idle: bool,
}

impl Apps {
    fn new(proxy: usize) -> Self {
        Self { proxy, ..Self::default() }
    }

    /// Sends `up` bytes and requests `down`; `None` without a far end that accepts streams.
    fn request(
        &mut self,
        chain: &mut Nodes,
        number: usize,
        up: u64,
        down: u64,
    ) -> Option<RequestId> {
        let now = chain.now();
        let (owner, streams) = chain.client((number, self.proxy))?.streams(now)?;
        let (id, request) = Request::open(now, streams, up, down);
        self.requests.insert((number, owner, id), request);
        self.act(chain);
        Some((number, owner, id))
    }

    fn run(&mut self, chain: &mut Nodes, time: Duration) {
        let end = chain.now() + time;
        while chain.now() < end {
            chain.run_until((chain.now() + STEP).min(end));
            self.act(chain);
        }
    }

    /// Runs until all requests have ended, for at most `time`; returns how long it took.
    fn finish(&mut self, chain: &mut Nodes, time: Duration) -> Duration {
        let begun = chain.now();
        while chain.now().since(begun) < time && !self.requests.values().all(Request::is_over) {
            self.run(chain, STEP);
        }
        chain.now().since(begun)
    }

    fn all_done(&self) -> bool {
        self.requests.values().all(|request| request.done.is_some())
    }

    fn on_anchor_restart(&mut self) {
        self.answers.clear();
    }

    fn act(&mut self, chain: &mut Nodes) {
        self.act_at_boxes(chain);
        self.act_at_anchor(chain);
        chain.flush();
    }

    fn act_at_boxes(&mut self, chain: &mut Nodes) {
        let now = chain.now();
        let numbers: BTreeSet<usize> = self.requests.keys().map(|(number, ..)| *number).collect();
        for number in numbers {
            let Some(client) = chain.client((number, self.proxy)) else { continue };
            let mut streams = client.streams(now);
            if let Some((_, streams)) = &mut streams {
                while streams.poll_event(now).is_some() {}
            }
            for ((of, owner, id), request) in &mut self.requests {
                if *of != number || request.is_over() {
                    continue;
                }
                match &mut streams {
                    Some((present, streams)) if present == owner => {
                        request.act(now, *id, streams, !self.is_idle);
                    }
                    _ => request.reset = Some(now),
                }
            }
        }
    }

    fn act_at_anchor(&mut self, chain: &mut Nodes) {
        let now = chain.now();
        let Some(anchor) = chain.anchor() else { return };
        while let Some(owner) = anchor.poll_streams_over() {
            self.over.push(owner);
            self.answers.retain(|(of, _), _| *of != owner);
        }
        while let Some((owner, event)) = anchor.poll_stream_event(now) {
            let Some(streams) = anchor.streams(owner) else { continue };
            match event {
                Event::Opened { id, .. } => {
                    streams.accept(now, id).unwrap();
                    assert!(self.answers.insert((owner, id), Answer::default()).is_none());
                }
                Event::Reset { id, .. } => _ = self.answers.remove(&(owner, id)),
                Event::Finished(id) => {
                    let answer = self.answers.get_mut(&(owner, id));
                    answer.into_iter().for_each(|answer| answer.ended = true);
                }
                _ => {}
            }
        }
        self.answers.retain(|(owner, id), answer| {
            let Some(streams) = anchor.streams(*owner) else { return false };
            answer.act(now, *id, streams)
        });
    }
}

fn config(boxes: usize) -> Config {
    Config { streams: StreamsAt::all(), ..Config::chain(boxes) }
}

/// Limits the tenant to 100 Mbit/s in each direction, so that transfers take some time.
fn limited(boxes: usize) -> Config {
    let rates = [(0, Rate::from_kbps(100_000))].into();
    Config { tenant_rates: rates, ..config(boxes) }
}

/// A chain with all boxes at the first proxy.
fn at_one_proxy(config: &Config) -> (Nodes, Apps) {
    let mut chain = Nodes::new(config.clone());
    chain.run(ms(500));
    (0..config.boxes).for_each(|number| chain.start((number, 0)));
    chain.run(ms(500));
    (chain, Apps::new(0))
}

/// A chain whose boxes choose among the proxies.
fn roaming(config: &Config) -> (Nodes, Apps) {
    let mut chain = Nodes::new(config.clone());
    chain.run(ms(500));
    (0..config.boxes).for_each(|number| chain.start(number));
    chain.run(ms(3_000));
    (chain, Apps::new(ANY))
}

#[test]
fn requests_and_answers_pass_through_a_proxy() {
    let (mut chain, mut apps) = at_one_proxy(&config(2));
    for number in 0..2 {
        apps.request(&mut chain, number, 0, 2_000).expect("the anchor takes streams");
        apps.request(&mut chain, number, 3_000_000, 10).unwrap();
        apps.request(&mut chain, number, 10, 3_000_000).unwrap();
    }
    let took = apps.finish(&mut chain, ms(20_000));
    assert!(apps.all_done(), "{:#?}", apps.requests);
    assert!(took < ms(3_000), "{took:?}");
    let least = apps.requests.values().map(|it| it.done.unwrap().since(it.begun)).min().unwrap();
    assert!(least < ms(60), "a round trip and what the loops take: {least:?}");
}

#[test]
fn a_proxy_that_dies_breaks_no_stream() {
    let (mut chain, mut apps) = roaming(&Config { leg_loss: 0.02, ..limited(3) });
    for number in 0..3 {
        apps.request(&mut chain, number, 200, 8_000_000).unwrap();
        apps.request(&mut chain, number, 8_000_000, 200).unwrap();
    }
    apps.run(&mut chain, ms(700));
    let before = apps.requests.values().filter(|request| request.done.is_some()).count();
    let dead = chain.proxy_of_last();
    chain.kill_server(dead);
    apps.finish(&mut chain, ms(60_000));
    assert_eq!(before, 0, "it was too late");
    assert!(apps.all_done() && apps.over.is_empty(), "{:#?}", apps.requests);
    assert_ne!(chain.proxy_of_last(), dead);
}

#[test]
fn a_proxy_that_drains_breaks_no_stream() {
    let (mut chain, mut apps) = roaming(&limited(2));
    for number in 0..2 {
        apps.request(&mut chain, number, 200, 40_000_000).unwrap();
        apps.request(&mut chain, number, 40_000_000, 200).unwrap();
    }
    apps.run(&mut chain, ms(700));
    let drained = chain.proxy_of_last();
    let now = chain.now();
    chain.server(drained).drain(now, DrainReason::Command, ms(100));
    chain.flush();
    apps.run(&mut chain, ms(4_000));
    assert_eq!(chain.server(drained).sessions(), 0);
    assert!(apps.requests.values().all(|request| request.done.is_none()), "it was too late");
    apps.finish(&mut chain, ms(60_000));
    assert!(apps.all_done() && apps.over.is_empty(), "{:#?}", apps.requests);
}

#[test]
fn a_leg_that_is_gone_for_a_while_breaks_no_stream() {
    let (mut chain, mut apps) = at_one_proxy(&config(1));
    apps.request(&mut chain, 0, 20_000_000, 20_000_000).unwrap();
    apps.run(&mut chain, ms(300));
    chain.cut_leg(0, true);
    apps.run(&mut chain, ms(8_000));
    chain.cut_leg(0, false);
    apps.finish(&mut chain, ms(60_000));
    assert!(apps.all_done() && apps.over.is_empty(), "{:#?}", apps.requests);
}

#[test]
fn an_anchor_that_restarts_resets_streams_at_once_and_takes_new_ones() {
    let (mut chain, mut apps) = at_one_proxy(&config(1));
    let id = apps.request(&mut chain, 0, 100, 900_000_000).unwrap();
    apps.run(&mut chain, ms(500));
    chain.kill_anchor();
    chain.start_anchor();
    apps.on_anchor_restart();
    let restarted = chain.now();
    apps.run(&mut chain, ms(15_000));
    let at = apps.requests[&id].reset.expect("nobody knows the stream");
    assert!(at.since(restarted) < ms(10_000), "{:?}", at.since(restarted));
    // More than the initial credit, which both ends count from the start.
    let next = apps.request(&mut chain, 0, 2_000_000, 2_000_000).unwrap();
    apps.finish(&mut chain, ms(10_000));
    assert!(apps.requests[&next].done.is_some(), "{:#?}", apps.requests);
}

#[test]
fn a_box_that_restarts_begins_anew() {
    let (mut chain, mut apps) = at_one_proxy(&config(1));
    apps.request(&mut chain, 0, 100, 900_000_000).unwrap();
    apps.run(&mut chain, ms(300));
    chain.kill((0, 0));
    apps.requests.clear();
    chain.start((0, 0));
    apps.run(&mut chain, ms(2_000));
    assert_eq!(apps.over.len(), 1, "the former streams are over");
    apps.request(&mut chain, 0, 1_000_000, 1_000_000).unwrap();
    apps.finish(&mut chain, ms(10_000));
    assert!(apps.all_done(), "{:#?}", apps.requests);
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
        let config = Config { streams, ..Config::chain(1) };
        let (mut chain, mut apps) = at_one_proxy(&config);
        assert!(apps.request(&mut chain, 0, 1, 1).is_none(), "{:?}", config.streams);
        let inner = config.inner_address(0).octets();
        chain.send_up((0, 0), &udp_v4(inner, [192, 0, 2, 1], 0, 28));
        chain.send_down(0, &udp_v4([192, 0, 2, 1], inner, 0, 28));
        chain.run(ms(200));
        assert_eq!(std::iter::from_fn(|| chain.poll_arrival()).count(), 2);
    }
}

#[test]
fn streams_end_at_once_where_the_next_proxy_is_an_older_one() {
    let mut config = config(1);
    config.streams.proxies = [0].into();
    let (mut chain, mut apps) = roaming(&config);
    if chain.proxy_of_last() != 0 {
        // The older proxy may have received it first.
        let now = chain.now();
        chain.server(1).drain(now, DrainReason::Command, ms(10));
        chain.flush();
        chain.run(ms(5_000));
        chain.server(1).undrain(DrainReason::Command);
        chain.run(ms(5_000));
    }
    let id = apps.request(&mut chain, 0, 100, 900_000_000).expect("the first proxy relays");
    apps.run(&mut chain, ms(300));
    chain.kill_server(0);
    let killed = chain.now();
    apps.finish(&mut chain, ms(60_000));
    let at = apps.requests[&id].reset.expect("the second one does not");
    assert!(at.since(killed) < ms(10_000), "{:?}", at.since(killed));
    chain.run(ms(100));
    apps.run(&mut chain, ms(100));
    assert_eq!(apps.over.len(), 1, "at the anchor as well");
}

#[test]
fn what_a_box_does_not_read_waits_at_the_anchor_and_not_at_the_proxy() {
    let (mut chain, mut apps) = at_one_proxy(&config(1));
    apps.is_idle = true;
    apps.request(&mut chain, 0, 100, 200_000_000).unwrap();
    apps.run(&mut chain, ms(5_000));
    assert!(chain.server(0).memory() < 4 << 20);
    let status = chain.anchor().unwrap().status();
    assert!(status.tenants.values().all(|it| it.bytes_down < 9 << 20), "{status:?}");
    apps.is_idle = false;
    let small = apps.request(&mut chain, 0, 100, 10_000).unwrap();
    apps.run(&mut chain, ms(500));
    assert!(apps.requests[&small].done.is_some(), "it waits behind nothing");
}

/// 20 Mbit/s for the tenant, or on the backhaul.
fn narrow(boxes: usize) -> [Config; 2] {
    let rate = Rate::from_kbps(20_000);
    let by_rate = Config { tenant_rates: [(0, rate)].into(), ..config(boxes) };
    [by_rate, Config { leg_rate: Some(rate), ..config(boxes) }]
}

#[test]
fn a_tenants_rate_or_a_narrow_leg_holds_streams_back_and_drops_nothing_of_them() {
    for narrow in narrow(2) {
        let (mut chain, mut apps) = at_one_proxy(&narrow);
        for number in 0..2 {
            apps.request(&mut chain, number, 100, 2_500_000).unwrap();
            apps.request(&mut chain, number, 2_500_000, 100).unwrap();
        }
        let took = apps.finish(&mut chain, ms(30_000));
        assert!(apps.all_done(), "{:#?}", apps.requests);
        // 5 MB in each direction at 20 Mbit/s.
        assert!((ms(1_800)..ms(4_000)).contains(&took), "{took:?}");
        let tenants = [
            chain.anchor().unwrap().status().tenants,
            chain.server(0).proxy_status().unwrap().tenants,
        ];
        let dropped = |it: &TenantStats| match narrow.leg_rate {
            Some(_) => it.drops.total(),
            None => it.drops.get(DropReason::RateLimited),
        };
        let dropped: u64 = tenants.iter().flat_map(|it| it.values()).map(dropped).sum();
        assert_eq!(dropped, 0, "{tenants:?}");
    }
}

#[test]
fn clients_share_a_tenants_rate_and_a_narrow_leg() {
    for (what, config) in ["rate", "leg"].into_iter().zip(narrow(3)) {
        for (up, down) in [(4_000_000, 10), (10, 4_000_000)] {
            let (mut chain, mut apps) = at_one_proxy(&config);
            for number in 0..3 {
                apps.request(&mut chain, number, up, down).unwrap();
            }
            apps.finish(&mut chain, ms(30_000));
            assert!(apps.all_done(), "{what} {up} {down}: {:#?}", apps.requests);
            let took = apps.requests.values().map(|it| it.done.unwrap().since(it.begun));
            let took: Vec<Duration> = took.collect();
            let (first, last) = (took.iter().min().unwrap(), took.iter().max().unwrap());
            assert!(*first * 10 > *last * 7, "{what} {up} {down}: {took:?}");
        }
    }
}

#[test]
fn the_memory_of_an_anchor_is_bounded_for_all_clients_together() {
    let mut config = config(6);
    config.streams.anchor = Some(24 << 20);
    let (mut chain, mut apps) = at_one_proxy(&config);
    apps.is_idle = true;
    for number in 0..6 {
        apps.request(&mut chain, number, 100, 100_000_000).unwrap();
    }
    apps.run(&mut chain, ms(5_000));
    let held = chain.anchor().unwrap().stream_memory();
    assert!((4 << 20..=24 << 20).contains(&held), "{held}");
    apps.is_idle = false;
    apps.run(&mut chain, ms(1_000));
    let reset = apps.requests.values().filter(|request| request.reset.is_some()).count();
    assert!((1..6).contains(&reset), "those that held most, and no more: {reset}");
}
