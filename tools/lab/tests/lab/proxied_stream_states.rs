//! Single streams through a proxy to an anchor: resets in any state, and priority changes.

use std::time::Duration;

use crate::nodes::{Config, Nodes};
use crate::proxied_streams::{STEP, config, limited};
use crate::world::ms;
use roadweave_proto::Instant;
use roadweave_proto::wire::{Destination, ResetCode, StreamId, StreamPriority};
use roadweave_stream::{Event, Streams};
use roadweave_tunnel::{EndsStreams as _, Node, StreamsOwner};

struct Pair {
    nodes: Nodes,
    /// At the anchor.
    owner: StreamsOwner,
    events: [Vec<Event>; 2],
}

const BOX: usize = 0;
const ANCHOR: usize = 1;

impl Pair {
    fn open(config: Config) -> (Self, StreamId) {
        let mut nodes = Nodes::new(config);
        nodes.run(ms(500));
        nodes.start((0, 0));
        while !takes_streams(&mut nodes) {
            assert!(nodes.now() < Instant::from_millis(10_000), "the anchor takes none");
            nodes.run(STEP);
        }
        let id = open(&mut nodes, 0);
        let mut pair = Self { nodes, owner: StreamsOwner(0), events: Default::default() };
        while pair.events[ANCHOR].is_empty() {
            assert!(pair.nodes.now() < Instant::from_millis(10_000), "it does not come");
            pair.run(STEP);
        }
        (pair, id)
    }

    fn with<T>(&mut self, end: usize, act: impl FnOnce(&mut Streams, Instant) -> T) -> T {
        let now = self.nodes.now();
        match end {
            BOX => act(self.nodes.client((0, 0)).unwrap().streams(now).unwrap().1, now),
            _ => act(self.nodes.anchor().unwrap().streams(self.owner).unwrap(), now),
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.nodes.now() + time;
        while self.nodes.now() < until {
            self.nodes.flush();
            self.nodes.run(STEP);
            let now = self.nodes.now();
            while let Some(event) = self.with(BOX, Streams::poll_event) {
                self.events[BOX].push(event);
            }
            while let Some((owner, event)) = self.nodes.anchor().unwrap().poll_stream_event(now) {
                self.owner = owner;
                self.events[ANCHOR].push(event);
            }
        }
    }
}

fn takes_streams(nodes: &mut Nodes) -> bool {
    let now = nodes.now();
    nodes.client((0, 0)).unwrap().streams(now).is_some()
}

fn open(nodes: &mut Nodes, number: usize) -> StreamId {
    let now = nodes.now();
    let (_, streams) = nodes.client((number, 0)).unwrap().streams(now).unwrap();
    let to = Destination::of_address([192, 0, 2, 1].into(), 80).unwrap();
    let id = streams.open(now, to, StreamPriority::default()).unwrap();
    streams.write(now, id, &[1]).unwrap();
    nodes.flush();
    id
}

fn write(streams: &mut Streams, now: Instant, id: StreamId, bytes: usize) -> usize {
    streams.write(now, id, &vec![7; bytes]).unwrap()
}

#[test]
fn a_reset_reaches_the_other_end_from_every_state() {
    // Whether the anchor has accepted the stream, whether both ends wrote, and who has finished.
    let states = [
        (false, false, None),
        (true, false, None),
        (true, true, None),
        (true, true, Some(BOX)),
        (true, true, Some(ANCHOR)),
    ];
    let ways = [(0.0, BOX), (0.0, ANCHOR), (0.1, BOX), (0.1, ANCHOR)];
    for (state, (loss, by)) in states.into_iter().flat_map(|it| ways.map(|way| (it, way))) {
        let (mut pair, id) = Pair::open(Config { leg_loss: loss, loss, ..config(1) });
        let (is_accepted, is_under_way, finished) = state;
        if is_accepted {
            pair.with(ANCHOR, |streams, now| streams.accept(now, id)).unwrap();
        }
        for end in [BOX, ANCHOR].into_iter().filter(|_| is_under_way) {
            assert!(pair.with(end, |streams, now| write(streams, now, id, 3_000_000)) > 100_000);
        }
        if let Some(end) = finished {
            pair.with(end, |streams, now| streams.finish(now, id)).unwrap();
        }
        pair.run(ms(60));
        let code = ResetCode::Unreachable;
        pair.with(by, |streams, now| streams.reset(now, id, code)).unwrap();
        pair.run(ms(3_000));
        let events = &pair.events[1 - by];
        let expected = Event::Reset { id, code, by_peer: true };
        assert!(events.contains(&expected), "{state:?} by {by}: {events:?}");
        let left = [BOX, ANCHOR].map(|end| pair.with(end, |streams, _| streams.open_streams()));
        assert_eq!(left, [0, 0], "{state:?} by {by}");
    }
}

#[test]
fn a_priority_that_a_box_asks_for_reaches_the_anchor_and_holds_by_the_next_leg() {
    let (mut pair, first) = Pair::open(limited(1, 20_000));
    let second = open(&mut pair.nodes, 0);
    pair.run(ms(200));
    for id in [first, second] {
        let written = pair.with(ANCHOR, |streams, now| {
            streams.accept(now, id).unwrap();
            write(streams, now, id, 2_000_000)
        });
        assert_eq!(written, 2_000_000);
    }
    let ask = |pair: &mut Pair, priority| {
        pair.with(BOX, |streams, now| streams.ask_priority(now, first, priority)).unwrap();
    };
    let asked = |pair: &mut Pair| pair.with(ANCHOR, |streams, _| streams.asked_priority(first));
    let late = StreamPriority::new(6, true);
    ask(&mut pair, late);
    let mut read = [0, 0];
    while read[1] < 2_000_000 {
        pair.run(STEP);
        for (id, read) in [first, second].into_iter().zip(&mut read) {
            let mut out = [0; 16 << 10];
            *read += pair.with(BOX, |streams, now| {
                let next = || streams.read(now, id, &mut out).ok().filter(|length| *length > 0);
                std::iter::from_fn(next).sum::<usize>()
            });
        }
        assert!(pair.nodes.now() < Instant::from_millis(10_000), "{read:?}");
    }
    assert_eq!(asked(&mut pair), Ok(late));
    assert!(read[0] < 500_000, "what is asked for later leaves later: {read:?}");

    // A request made while the backhaul is down arrives once it is back.
    let urgent = StreamPriority::new(1, true);
    pair.nodes.cut_leg(0, true);
    pair.run(ms(8_000));
    ask(&mut pair, urgent);
    pair.run(ms(1_000));
    assert_eq!(asked(&mut pair), Ok(late));
    pair.nodes.cut_leg(0, false);
    pair.run(ms(5_000));
    assert_eq!(asked(&mut pair), Ok(urgent));
}

#[test]
fn an_anchor_hands_the_network_no_more_than_a_megabyte_at_once() {
    const BOXES: usize = 48;
    let mut nodes = Nodes::new(config(BOXES));
    nodes.run(ms(500));
    (0..BOXES).for_each(|number| nodes.start((number, 0)));
    nodes.run(ms(1_500));
    // Enough streams for their initial credit to fill the initial room.
    (0..BOXES * 4).for_each(|at| _ = open(&mut nodes, at % BOXES));
    nodes.run(ms(300));
    let now = nodes.now();
    let anchor = nodes.anchor().unwrap();
    let mut opened = 0;
    while let Some((owner, event)) = anchor.poll_stream_event(now) {
        let Event::Opened { id, .. } = event else { continue };
        let streams = anchor.streams(owner).unwrap();
        streams.accept(now, id).unwrap();
        write(streams, now, id, 50_000);
        opened += 1;
    }
    assert_eq!(opened, BOXES * 4);
    let mut at_once = Vec::new();
    while anchor.poll_timeout().is_some_and(|at| at <= now) && at_once.len() < 100 {
        anchor.handle_timeout(now);
        let sent = std::iter::from_fn(|| {
            anchor
                .poll_transmit()
                .map(|sent| sent.packets().map(|(_, packet)| packet.len()).sum::<usize>())
        });
        at_once.push(sent.sum::<usize>());
    }
    assert!(at_once.iter().all(|bytes| *bytes < 1_300_000), "{at_once:?}");
    assert!(at_once.iter().sum::<usize>() > 2_000_000, "all that there is room for: {at_once:?}");
}
