//! Streams over simulated links: requests and their answers, through whatever happens to the links
//! and to the ends.

mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_emulate::Direction;
use roadweave_lab::world::World as Inner;
use roadweave_stream::{Event, Streams};
use roadweave_tunnel::{ClientEvent, LaneConfig, Strategy, StreamsConfig, StreamsOwner};
use roadweave_types::{Instant, SplitMix64};
use roadweave_wire::{Destination, ResetCode, StreamId, StreamPriority};
use world::*;

/// One request of the client, and what came of it.
#[derive(Debug)]
struct Fetch {
    begun: Instant,
    length: u64,
    read: u64,
    done: Option<Instant>,
    reset: Option<(Instant, ResetCode)>,
}

/// One answer of the server.
#[derive(Debug)]
struct Answer {
    /// Of the request, as far as it was read: the length that is asked for.
    request: Vec<u8>,
    written: u64,
}

/// Applications at both ends: a request is the length of what is wanted.
#[derive(Debug, Default)]
struct Apps {
    fetches: BTreeMap<StreamId, Fetch>,
    answers: BTreeMap<(StreamsOwner, StreamId), Answer>,
    owner: Option<StreamsOwner>,
    over: Vec<StreamsOwner>,
    /// Whether the client reads what comes.
    is_reading: bool,
}

impl Apps {
    fn new() -> Self {
        Self { is_reading: true, ..Self::default() }
    }

    fn fetch(&mut self, world: &mut Inner, length: u64) -> StreamId {
        let in_turns = StreamPriority::new(3, true);
        let opened = world.use_client_streams(|now, owner, streams| {
            let id = streams.open(now, website(), in_turns).expect("room");
            assert_eq!(streams.write(now, id, &length.to_be_bytes()), Ok(8));
            streams.finish(now, id).expect("it is open");
            (now, owner, id)
        });
        let (begun, owner, id) = opened.expect("the server takes streams");
        assert!(self.owner.replace(owner).is_none_or(|before| before == owner), "another owner");
        let fetch = Fetch { begun, length, read: 0, done: None, reset: None };
        self.fetches.insert(id, fetch);
        id
    }

    /// Lets both do what they can.
    fn act(&mut self, world: &mut Inner) {
        let (fetches, is_reading) = (&mut self.fetches, self.is_reading);
        let owner = world.use_client_streams(|now, owner, streams| {
            while let Some(event) = streams.poll_event(now) {
                if let Event::Reset { id, code, .. } = event {
                    let fetch = fetches.get_mut(&id).expect("it was opened here");
                    fetch.reset = Some((now, code));
                }
            }
            for (id, fetch) in fetches.iter_mut().filter(|_| is_reading) {
                read(now, streams, *id, fetch);
            }
            owner
        });
        if let (Some(before), Some(owner)) = (self.owner, owner)
            && before != owner
        {
            let lost = (world.now(), ResetCode::Aborted);
            let open = self.fetches.values_mut().filter(|fetch| fetch.done.is_none());
            open.for_each(|fetch| _ = fetch.reset.get_or_insert(lost));
            self.owner = Some(owner);
        }
        while let Some(owner) = world.poll_server_streams_over() {
            self.answers.retain(|(of, _), _| *of != owner);
            self.over.push(owner);
        }
        while let Some((owner, event)) = world.poll_server_stream() {
            match event {
                Event::Opened { id, destination, .. } => {
                    assert_eq!(destination, website());
                    let accepted = world.use_server_streams(owner, |now, s| s.accept(now, id));
                    accepted.expect("they are there").expect("it was opened");
                    self.answers.insert((owner, id), Answer { request: vec![], written: 0 });
                }
                Event::Reset { id, .. } => _ = self.answers.remove(&(owner, id)),
                _ => {}
            }
        }
        for ((owner, id), answer) in &mut self.answers {
            world.use_server_streams(*owner, |now, streams| write(now, streams, *id, answer));
        }
        self.answers.retain(|_, answer| answer.written != u64::MAX);
        world.flush();
    }

    /// Runs until all requests have an end, or for so long.
    fn run(&mut self, world: &mut World, time: Duration) {
        let is_over = |fetch: &Fetch| fetch.done.is_some() || fetch.reset.is_some();
        let all_over = |apps: &Self| apps.is_reading && apps.fetches.values().all(is_over);
        self.run_while(world, time, |apps| !all_over(apps));
    }

    /// Runs for so long.
    fn run_on(&mut self, world: &mut World, time: Duration) {
        self.run_while(world, time, |_| true);
    }

    fn run_while(&mut self, world: &mut World, time: Duration, goes_on: impl Fn(&Self) -> bool) {
        let end = world.inner.now() + time;
        self.act(&mut world.inner);
        while let Some(due) = world.inner.poll_timeout().filter(|due| *due <= end) {
            world.inner.handle_timeout(due.max(world.inner.now()));
            self.act(&mut world.inner);
            if !goes_on(self) {
                return;
            }
        }
        world.inner.run_until(end);
    }

    /// How long the request took.
    fn took(&self, id: StreamId) -> Duration {
        let fetch = &self.fetches[&id];
        fetch.done.unwrap_or_else(|| panic!("{fetch:?}")).since(fetch.begun)
    }
}

fn website() -> Destination {
    Destination::of_address([192, 0, 2, 80].into(), 80).expect("a port")
}

/// The byte of the answer at this place.
fn content(id: StreamId, offset: u64) -> u8 {
    SplitMix64::word(id.0, offset / 8).to_le_bytes()[(offset % 8) as usize]
}

fn read(now: Instant, streams: &mut Streams, id: StreamId, fetch: &mut Fetch) {
    let mut buffer = [0; 4096];
    while fetch.done.is_none()
        && let Ok(length @ 1..) = streams.read(now, id, &mut buffer)
    {
        for (at, byte) in (fetch.read..).zip(&buffer[..length]) {
            assert_eq!(*byte, content(id, at), "at {at} of {id:?}");
        }
        fetch.read += length as u64;
        if fetch.read == fetch.length {
            fetch.done = Some(now);
        }
    }
}

fn write(now: Instant, streams: &mut Streams, id: StreamId, answer: &mut Answer) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = streams.read(now, id, &mut buffer) {
        answer.request.extend(&buffer[..length]);
    }
    let Ok(length) = <[u8; 8]>::try_from(&answer.request[..]).map(u64::from_be_bytes) else {
        return;
    };
    while answer.written < length {
        let bytes: Vec<u8> =
            (answer.written..length.min(answer.written + 4096)).map(|at| content(id, at)).collect();
        match streams.write(now, id, &bytes) {
            Ok(taken @ 1..) => answer.written += taken as u64,
            _ => return,
        }
    }
    streams.finish(now, id).expect("all was written");
    answer.written = u64::MAX;
}

fn plan(links: Vec<LinkPlan>) -> Plan {
    Plan { streams: Some(StreamsConfig::default()), ..Plan::new("xnc", links) }
}

#[test]
fn a_request_takes_one_round_trip_beyond_the_session() {
    let mut world = plan(vec![link(20, 25), link(20, 40)]).build().join();
    let mut apps = Apps::new();
    let id = apps.fetch(&mut world.inner, 2_000);
    apps.run(&mut world, ms(1_000));
    assert!(apps.took(id) < ms(60), "{:?}", apps.took(id));
}

#[test]
fn an_answer_takes_the_rate_of_all_links_together() {
    let mut world = plan(vec![link(20, 20), link(20, 25), link(10, 30)]).build().join();
    let mut apps = Apps::new();
    let id = apps.fetch(&mut world.inner, 20_000_000);
    apps.run(&mut world, ms(20_000));
    dbg!(world.inner.server_status()[0].stats.lanes.last());
    for p in &world.inner.server_status()[0].paths {
        dbg!(p);
    }
    let mbps = 20e6 * 8.0 / apps.took(id).as_secs_f64() / 1e6;
    assert!(mbps > 0.8 * 50.0, "{mbps:.1} of 50 Mbit/s");
}

#[test]
fn a_stream_survives_the_loss_of_any_path_and_of_all_for_a_while() {
    for dead in [vec![0], vec![1], vec![0, 1]] {
        let mut world = plan(vec![link(10, 20), link(10, 30)]).build().join();
        let mut apps = Apps::new();
        let id = apps.fetch(&mut world.inner, 4_000_000);
        apps.run(&mut world, ms(700));
        dead.iter().for_each(|link| world.set_dead(*link, true));
        apps.run(&mut world, ms(3_000));
        dead.iter().for_each(|link| world.set_dead(*link, false));
        apps.run(&mut world, ms(20_000));
        assert!(apps.took(id) < ms(10_000), "{dead:?}: {:?}", apps.took(id));
    }
}

#[test]
fn streams_go_on_in_the_next_session_with_the_same_server() {
    let mut world = plan(vec![link(10, 20), link(10, 30)]).build().join();
    let mut apps = Apps::new();
    let ids = [0; 5].map(|_| apps.fetch(&mut world.inner, 1_000_000));
    apps.run(&mut world, ms(1_000));
    let now = world.inner.now();
    let lanes = vec![LaneConfig::new("another", Strategy::xnc())];
    world.inner.ends_mut().0.set_lanes(now, lanes).expect("lanes");
    apps.run(&mut world, ms(20_000));
    let joined = |event: &&(Instant, ClientEvent)| matches!(event.1, ClientEvent::Joined { .. });
    let joins = world.inner.client_events().iter().filter(joined).count();
    assert!(joins > 1, "another session was needed");
    ids.iter().for_each(|id| assert!(apps.took(*id) < ms(5_000), "{:?}", apps.fetches[id]));
    assert!(apps.over.is_empty());
}

#[test]
fn a_server_that_restarts_resets_streams_at_once_and_takes_new_ones() {
    let mut world = plan(vec![link(10, 20), link(10, 30)]).build().join();
    let mut apps = Apps::new();
    let id = apps.fetch(&mut world.inner, 50_000_000);
    apps.run(&mut world, ms(1_000));
    let restarted = world.inner.now();
    world.restart_server();
    apps.answers.clear();
    apps.run(&mut world, ms(10_000));
    let (at, _) = apps.fetches[&id].reset.expect("nobody knows the stream");
    assert!(at.since(restarted) < ms(2_000), "after {:?}", at.since(restarted));
    // More than the credit that there is at first: it counts from the beginning at both ends.
    let next = apps.fetch(&mut world.inner, 3_000_000);
    apps.run(&mut world, ms(20_000));
    assert!(apps.took(next) < ms(5_000), "{:?}", apps.took(next));
}

#[test]
fn what_is_not_read_is_not_sent_and_holds_nobody_else_up() {
    let mut world = plan(vec![link(50, 10), link(50, 10)]).build().join();
    let mut apps = Apps { is_reading: false, ..Apps::new() };
    let id = apps.fetch(&mut world.inner, 100_000_000);
    apps.run(&mut world, ms(10_000));
    let received = world.client_status().stats.lanes.last().expect("lanes").received.clone();
    let bytes = received.delivered_bytes;
    assert!(bytes < 9 << 20, "{bytes} bytes came that nobody reads");
    apps.is_reading = true;
    let small = apps.fetch(&mut world.inner, 10_000);
    apps.run(&mut world, ms(30_000));
    assert!(apps.took(small) < ms(500), "{:?}", apps.took(small));
    assert!(apps.fetches[&id].done.is_some());
}

#[test]
fn a_peer_without_streams_goes_on_with_packets() {
    let mut world = Plan::new("xnc", vec![link(10, 20)]).build().join();
    assert!(world.inner.use_client_streams(|_, _, _| ()).is_none());
    world.send_up(&packet_up(1, 100));
    // Frames that nobody has agreed on are no inner packets.
    world.run(ms(200));
    assert_eq!(world.up.len(), 1);
}

#[test]
fn streams_leave_room_to_packets_that_rank_before_them() {
    let delays_beside = |bytes: Option<u64>| {
        let mut world = plan(vec![link(10, 20), link(10, 30)]).build().join();
        let mut apps = Apps::new();
        bytes.into_iter().for_each(|bytes| _ = apps.fetch(&mut world.inner, bytes));
        apps.run(&mut world, ms(2_000));
        let mut sent = BTreeMap::new();
        for number in 0..300 {
            sent.insert(number, world.inner.now());
            world.inner.handle_inner(Direction::Down, &packet_down(number, 1_000));
            apps.run_on(&mut world, ms(10));
        }
        world.flush();
        let delays = delays(&sent, &arrivals(&world.down));
        assert!(delays.len() > 295, "{} of 300 came", delays.len());
        percentile(&delays, 0.95)
    };
    let (alone, beside) = (delays_beside(None), delays_beside(Some(50_000_000)));
    assert!(beside < alone + 40.0, "p95 {alone:.1} ms alone, {beside:.1} beside a transfer");
}
