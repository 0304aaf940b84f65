//! Single streams through a proxy to an anchor: resets in any state, and priority changes.

use std::time::Duration;

use crate::nodes::{Config, Nodes, StreamsAt};
use crate::world::ms;
use roadweave_proto::wire::{Destination, ResetCode, StreamId, StreamPriority};
use roadweave_proto::{Instant, Rate};
use roadweave_stream::{Event, StreamError, Streams};
use roadweave_tunnel::{EndsStreams as _, Node, StreamsOwner};

/// Interval at which both ends are polled.
const STEP: Duration = Duration::from_millis(2);

/// The streams of one box, at both ends.
struct Pair {
    chain: Nodes,
    owner: StreamsOwner,
    /// By end: box, anchor.
    events: [Vec<Event>; 2],
}

const BOX: usize = 0;
const ANCHOR: usize = 1;

impl Pair {
    fn open(config: Config) -> (Self, StreamId) {
        let mut chain = Nodes::new(config);
        chain.run_until(Instant::from_millis(500));
        chain.start((0, 0));
        wait_for(&mut chain, |chain| {
            let now = chain.now();
            chain.client((0, 0)).unwrap().streams(now).map(|_| ())
        });
        let id = open(&mut chain, 0);
        let event = |chain: &mut Nodes| {
            let now = chain.now();
            chain.anchor().unwrap().poll_stream_event(now)
        };
        let (owner, event) = wait_for(&mut chain, event);
        assert!(matches!(event, Event::Opened { .. }), "{event:?}");
        (Self { chain, owner, events: [Vec::new(), Vec::new()] }, id)
    }

    fn end(&mut self, end: usize) -> &mut Streams {
        let now = self.chain.now();
        match end {
            BOX => self.chain.client((0, 0)).unwrap().streams(now).unwrap().1,
            _ => self.chain.anchor().unwrap().streams(self.owner).unwrap(),
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.chain.now() + time;
        while self.chain.now() < until {
            self.chain.flush();
            self.chain.run_until(self.chain.now() + STEP);
            let now = self.chain.now();
            while let Some(event) = self.end(BOX).poll_event(now) {
                self.events[BOX].push(event);
            }
            while let Some((owner, event)) = self.chain.anchor().unwrap().poll_stream_event(now) {
                assert_eq!(owner, self.owner);
                self.events[ANCHOR].push(event);
            }
        }
    }

    fn do_at(
        &mut self,
        end: usize,
        what: impl FnOnce(&mut Streams, Instant) -> Result<(), StreamError>,
    ) {
        let now = self.chain.now();
        what(self.end(end), now).unwrap();
    }

    fn read(&mut self, end: usize, id: StreamId) -> usize {
        let (now, mut out) = (self.chain.now(), [0; 16 << 10]);
        let streams = self.end(end);
        let read = || streams.read(now, id, &mut out).ok().filter(|length| *length > 0);
        std::iter::from_fn(read).sum()
    }
}

fn wait_for<T>(chain: &mut Nodes, mut what: impl FnMut(&mut Nodes) -> Option<T>) -> T {
    loop {
        chain.run_until(chain.now() + STEP);
        if let Some(found) = what(chain) {
            return found;
        }
        assert!(chain.now() < Instant::from_millis(10_000), "it does not come");
    }
}

fn open(chain: &mut Nodes, number: usize) -> StreamId {
    let now = chain.now();
    let (_, streams) = chain.client((number, 0)).unwrap().streams(now).unwrap();
    let to = Destination::of_address([192, 0, 2, 1].into(), 80).unwrap();
    let id = streams.open(now, to, StreamPriority::default()).unwrap();
    streams.write(now, id, &[1]).unwrap();
    chain.flush();
    id
}

fn config(boxes: usize) -> Config {
    Config { streams: StreamsAt::all(), ..Config::chain(boxes) }
}

fn write(streams: &mut Streams, now: Instant, id: StreamId, bytes: usize) -> usize {
    streams.write(now, id, &vec![7; bytes]).unwrap()
}

/// State of the stream when one end resets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opened,
    Accepted,
    UnderWay,
    BoxFinished,
    AnchorFinished,
}

impl State {
    const ALL: [Self; 5] =
        [Self::Opened, Self::Accepted, Self::UnderWay, Self::BoxFinished, Self::AnchorFinished];

    fn bring(self, pair: &mut Pair, id: StreamId) {
        if self == Self::Opened {
            return;
        }
        pair.do_at(ANCHOR, |streams, now| streams.accept(now, id));
        if self != Self::Accepted {
            for end in [BOX, ANCHOR] {
                let now = pair.chain.now();
                assert!(write(pair.end(end), now, id, 3_000_000) > 100_000);
            }
        }
        match self {
            Self::BoxFinished => pair.do_at(BOX, |streams, now| streams.finish(now, id)),
            Self::AnchorFinished => pair.do_at(ANCHOR, |streams, now| streams.finish(now, id)),
            _ => {}
        }
        pair.run(ms(60));
    }
}

#[test]
fn a_reset_reaches_the_other_end_from_every_state() {
    for lossy in [false, true] {
        for state in State::ALL {
            for by in [BOX, ANCHOR] {
                let loss = if lossy { 0.1 } else { 0.0 };
                let config = Config { leg_loss: loss, loss, ..config(1) };
                let (mut pair, id) = Pair::open(config);
                state.bring(&mut pair, id);
                pair.do_at(by, |streams, now| streams.reset(now, id, ResetCode::Unreachable));
                pair.run(ms(3_000));
                let events = &pair.events[1 - by];
                let expected = Event::Reset { id, code: ResetCode::Unreachable, by_peer: true };
                assert!(events.contains(&expected), "{state:?} by {by}: {events:?}");
                for end in [BOX, ANCHOR] {
                    assert_eq!(pair.end(end).open_streams(), 0, "{state:?} by {by} at {end}");
                }
            }
        }
    }
}

#[test]
fn a_priority_that_a_box_asks_for_reaches_the_anchor_and_holds_by_the_next_leg() {
    let rates = [(0, Rate::from_kbps(20_000))].into();
    let (mut pair, first) = Pair::open(Config { tenant_rates: rates, ..config(1) });
    let second = open(&mut pair.chain, 0);
    pair.run(ms(200));
    for id in [first, second] {
        pair.do_at(ANCHOR, |streams, now| streams.accept(now, id));
        let now = pair.chain.now();
        assert_eq!(write(pair.end(ANCHOR), now, id, 2_000_000), 2_000_000);
    }
    let late = StreamPriority::new(6, true);
    pair.do_at(BOX, |streams, now| streams.ask_priority(now, first, late));
    let mut read = [0, 0];
    while read[1] < 2_000_000 {
        pair.run(STEP);
        read[0] += pair.read(BOX, first);
        read[1] += pair.read(BOX, second);
        assert!(pair.chain.now() < Instant::from_millis(10_000), "{read:?}");
    }
    assert_eq!(pair.end(ANCHOR).asked_priority(first), Ok(late));
    assert!(read[0] < 500_000, "what is asked for later leaves later: {read:?}");

    // A request made while the backhaul is down arrives once it is back.
    let urgent = StreamPriority::new(1, true);
    pair.chain.cut_leg(0, true);
    pair.run(ms(8_000));
    pair.do_at(BOX, |streams, now| streams.ask_priority(now, first, urgent));
    pair.run(ms(1_000));
    assert_eq!(pair.end(ANCHOR).asked_priority(first), Ok(late));
    pair.chain.cut_leg(0, false);
    pair.run(ms(5_000));
    assert_eq!(pair.end(ANCHOR).asked_priority(first), Ok(urgent));
}

#[test]
fn an_anchor_hands_the_network_no_more_than_a_megabyte_at_once() {
    const BOXES: usize = 48;
    let mut chain = Nodes::new(config(BOXES));
    chain.run_until(Instant::from_millis(500));
    (0..BOXES).for_each(|number| chain.start((number, 0)));
    chain.run_until(Instant::from_millis(2_000));
    // Enough streams for their initial credit to fill the initial room.
    (0..BOXES * 4).for_each(|at| _ = open(&mut chain, at % BOXES));
    chain.run_until(Instant::from_millis(2_300));
    let now = chain.now();
    let anchor = chain.anchor().unwrap();
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
        let mut bytes = 0;
        while let Some(transmit) = anchor.poll_transmit() {
            bytes += transmit.runs().map(|run| run.data.len()).sum::<usize>();
        }
        at_once.push(bytes);
    }
    assert!(at_once.iter().all(|bytes| *bytes < 1_300_000), "{at_once:?}");
    assert!(at_once.iter().sum::<usize>() > 2_000_000, "all that there is room for: {at_once:?}");
}
