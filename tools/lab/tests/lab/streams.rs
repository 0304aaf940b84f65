//! Streams over simulated links: requests and answers while links and sessions fail.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::apps::{Apps, RequestId};
use crate::world::*;
use roadweave_emulate::{Direction, LinkSettings};
use roadweave_proto::Policy;
use roadweave_tunnel::{
    ClientEvent, LaneConfig, PathStatusReport, Qoe, SessionStatus, Strategy, StreamsConfig,
    UplinkPolicy,
};

struct Fetching {
    world: World,
    apps: Apps,
}

impl Fetching {
    fn new(plan: WorldConfig) -> Self {
        Self { world: World::joined(plan), apps: Apps::default() }
    }

    /// Runs for `time`, or until all requests are over.
    fn run(&mut self, time: Duration) {
        self.run_while(time, |apps| !apps.all_over());
    }

    fn run_while(&mut self, time: Duration, goes_on: impl Fn(&Apps) -> bool) {
        let world: &mut roadweave_lab::world::World = &mut self.world;
        let end = world.now() + time;
        self.apps.act_in(world);
        while let Some(due) = world.poll_timeout().filter(|due| *due <= end) {
            world.handle_timeout(due.max(world.now()));
            self.apps.act_in(world);
            if !goes_on(&self.apps) {
                return;
            }
        }
        world.run_until(end);
    }

    fn fetch(&mut self, length: u64) -> RequestId {
        self.apps.act_in(&mut self.world);
        let (now, client) = (self.world.now(), self.world.ends_mut().0);
        self.apps.request(now, (0, client), [0, length]).expect("the server takes streams")
    }

    fn took(&self, id: RequestId) -> Duration {
        let fetch = &self.apps.requests[&id];
        fetch.done.unwrap_or_else(|| panic!("{fetch:?}")).since(fetch.begun)
    }
}

fn fetching(links: Vec<LinkSettings>) -> WorldConfig {
    WorldConfig { streams: Some(StreamsConfig::default()), ..plan("xnc", links) }
}

#[test]
fn an_answer_takes_the_rate_of_all_links_together() {
    let mut it = Fetching::new(fetching(vec![link(20, 20), link(20, 25), link(10, 30)]));
    let id = it.fetch(20_000_000);
    it.run(ms(20_000));
    let mbps = 20e6 * 8.0 / it.took(id).as_secs_f64() / 1e6;
    assert!(mbps > 0.8 * 50.0, "{mbps:.1} of 50 Mbit/s");
}

#[test]
fn a_stream_survives_the_loss_of_any_path_and_of_all_for_a_while() {
    for dead in [vec![0], vec![1], vec![0, 1]] {
        let mut it = Fetching::new(fetching(vec![link(10, 20), link(10, 30)]));
        let id = it.fetch(4_000_000);
        it.run(ms(700));
        dead.iter().for_each(|link| it.world.set_dead(*link, true));
        it.run(ms(3_000));
        dead.iter().for_each(|link| it.world.set_dead(*link, false));
        it.run(ms(20_000));
        assert!(it.took(id) < ms(10_000), "{dead:?}: {:?}", it.took(id));
    }
}

#[test]
fn streams_go_on_in_the_next_session_with_the_same_server() {
    let mut it = Fetching::new(fetching(vec![link(10, 20), link(10, 30)]));
    let ids = [0; 5].map(|_| it.fetch(1_000_000));
    it.run(ms(1_000));
    let now = it.world.now();
    let lanes = vec![LaneConfig::new("another", Strategy::xnc())];
    it.world.ends_mut().0.set_lanes(now, lanes).expect("lanes");
    it.run(ms(20_000));
    let joins = count(it.world.client_events(), |it| matches!(it, ClientEvent::Joined { .. }));
    assert!(joins > 1, "another session was needed");
    ids.iter().for_each(|id| assert!(it.took(*id) < ms(5_000), "{:?}", it.apps.requests[id]));
    assert!(it.apps.over.is_empty());
}

#[test]
fn a_server_that_restarts_resets_streams_at_once_and_takes_new_ones() {
    let mut it = Fetching::new(fetching(vec![link(10, 20), link(10, 30)]));
    let id = it.fetch(50_000_000);
    it.run(ms(1_000));
    let restarted = it.world.now();
    it.world.restart_server().unwrap();
    it.apps.on_far_end_restart();
    it.run(ms(10_000));
    let at = it.apps.requests[&id].reset.expect("nobody knows the stream");
    assert!(at.since(restarted) < ms(2_000), "after {:?}", at.since(restarted));
    // More than the initial credit, which both ends count from the start.
    let next = it.fetch(3_000_000);
    it.run(ms(20_000));
    assert!(it.took(next) < ms(5_000), "{:?}", it.took(next));
}

#[test]
fn streams_leave_room_to_packets_that_rank_before_them() {
    let delays_beside = |bytes: Option<u64>| {
        let mut it = Fetching::new(fetching(vec![link(10, 20), link(10, 30)]));
        bytes.into_iter().for_each(|bytes| _ = it.fetch(bytes));
        it.run(ms(2_000));
        let mut sent = BTreeMap::new();
        for number in 0..300 {
            sent.insert(number, it.world.now());
            it.world.handle_inner(Direction::Down, &packet_down(number, 1_000));
            it.run_while(ms(10), |_| true);
        }
        it.world.flush();
        let delays = delays(&sent, &arrivals(&it.world.down));
        assert!(delays.len() > 295, "{} of 300 came", delays.len());
        percentile(&delays, 0.95)
    };
    let (alone, beside) = (delays_beside(None), delays_beside(Some(50_000_000)));
    assert!(beside < alone + 40.0, "p95 {alone:.1} ms alone, {beside:.1} beside a transfer");
}

#[test]
fn the_first_bytes_of_an_answer_go_before_what_others_have_waiting() {
    let small_beside_large = |head| {
        let streams = Some(StreamsConfig { head, ..StreamsConfig::default() });
        let links = vec![link(10, 20), link(10, 30)];
        let mut it = Fetching::new(WorldConfig { streams, ..plan("xnc", links) });
        (0..8).for_each(|_| _ = it.fetch(20_000_000));
        it.run(ms(2_000));
        let small = it.fetch(90_000);
        it.run_while(ms(5_000), |apps| apps.requests[&small].done.is_none());
        it.took(small)
    };
    let (in_turn, first) = (small_beside_large(0), small_beside_large(100_000));
    assert!(first < in_turn / 2, "{first:?}, in turn with the others {in_turn:?}");
}

/// Requests over two paths with this redundancy budget; a player reports `seconds` of buffer.
fn beside_a_player(seconds: u64, redundancy_percent: Option<u8>) -> World {
    let lane = LaneConfig::new(StreamsConfig::LANE, "xlink".parse().expect("a strategy"));
    let streams = Some(StreamsConfig { lane, ..StreamsConfig::default() });
    let links = vec![link(20, 10), link(20, 120)];
    let policy = Policy { redundancy_percent, ..Policy::default() };
    let policy = UplinkPolicy { policy, ..UplinkPolicy::default() };
    let policies = [0, 1].map(|index| (name(index), policy)).into();
    let mut it = Fetching::new(WorldConfig { streams, policies, ..plan("xnc", links) });
    for _ in 0..20 {
        let qoe = Qoe { cached_bytes: 0, cached_frames: 30 * seconds, bps: 0, fps: 30.0 };
        let now = it.world.now();
        let client = it.world.ends_mut().0;
        assert!(client.report_player(now, StreamsConfig::LANE, 7, qoe));
        assert!(!client.report_player(now, StreamsConfig::LANE, 7, qoe), "not twice at once");
        it.fetch(300_000);
        it.run_while(ms(300), |_| true);
    }
    it.world
}

#[test]
fn what_a_player_has_cached_decides_whether_copies_are_sent_and_a_budget_bounds_them() {
    let [rich, poor, bounded] = [(60, None), (0, None), (0, Some(1))]
        .map(|(seconds, percent)| beside_a_player(seconds, percent).server_status().remove(0));
    let copies =
        |server: &SessionStatus| server.stats.lanes.last().expect("lanes").sent.duplicate_datagrams;
    // Losses are always repaired.
    assert!(copies(&poor) > 5 * copies(&rich), "{} and {}", copies(&poor), copies(&rich));
    // A player that lies about its buffer has copies sent to itself, within the budget.
    assert!(copies(&bounded) > 0);
    let exceeds =
        |path: &PathStatusReport| path.counters.redundant_bytes * 100 > path.counters.source_bytes;
    assert!(!bounded.paths.iter().any(exceeds), "{bounded:?}");
    assert!(poor.paths.iter().any(exceeds), "{poor:?}");
}
