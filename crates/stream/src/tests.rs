//! Two ends and the frames between them, and peers that violate the protocol.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::Instant;
use roadweave_proto::wire::{
    Acknowledged, Data, Destination, Open, ResetCode, SESSION_CREDIT, STREAM_CREDIT, STREAM_TAG,
    StreamFrame, StreamFrames, StreamId, StreamPriority,
};

use super::*;

mod crowded;
mod hostile;
mod orderly;

const ROOM: usize = 1200;

/// Two ends that reach each other after 25 ms, without loss.
struct Pair {
    now: Instant,
    late: Duration,
    client: Streams,
    server: Streams,
    under_way: Vec<(Instant, bool, Bytes)>,
}

impl Pair {
    fn new(streams: usize) -> Self {
        let end = |side| Streams::new(Config::for_streams(side, streams));
        let now = Instant::from_millis(1);
        let (client, server) = (end(Side::Client), end(Side::Server));
        Self { now, late: Duration::ZERO, client, server, under_way: Vec::new() }
    }

    fn open(&mut self) -> StreamId {
        begin(&mut self.client, self.now)
    }

    fn run(&mut self, time: Duration, mut step: impl FnMut(&mut Self)) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(1);
            let now = self.now;
            let (arrived, later) = self.under_way.drain(..).partition(|(at, ..)| *at <= now);
            self.under_way = later;
            let arrived: Vec<(Instant, bool, Bytes)> = arrived;
            for (_, to_server, body) in arrived {
                let to = if to_server { &mut self.server } else { &mut self.client };
                to.handle_symbol(now, body).expect("a peer that keeps to the rules");
            }
            step(self);
            for (from, to_server) in [(&mut self.client, true), (&mut self.server, false)] {
                from.handle_timeout(now);
                for turn in 0.. {
                    let Some(body) = from.poll_transmit(now, ROOM) else { break };
                    let arrives = now + Duration::from_millis(25) + self.late * (turn % 2);
                    self.under_way.push((arrives, to_server, body));
                }
            }
        }
    }
}

impl Streams {
    fn unacknowledged(&self) -> u64 {
        self.table.streams.values().map(|stream| stream.send.unacknowledged()).sum()
    }
}

fn destination() -> Destination {
    Destination::of_address([192, 0, 2, 1].into(), 443).expect("a port")
}

fn begin(streams: &mut Streams, now: Instant) -> StreamId {
    streams.open(now, destination(), StreamPriority::default()).expect("room")
}

fn drain(streams: &mut Streams, now: Instant, id: StreamId) -> usize {
    let mut out = vec![0; 1 << 20];
    std::iter::from_fn(|| streams.read(now, id, &mut out).ok().filter(|length| *length > 0)).sum()
}

fn events(streams: &mut Streams, now: Instant) -> Vec<Event> {
    std::iter::from_fn(|| streams.poll_event(now)).collect()
}

fn body(frames: &[StreamFrame]) -> Bytes {
    let mut out = vec![STREAM_TAG];
    frames.iter().for_each(|frame| frame.write(&mut out));
    out.into()
}

fn sent(streams: &mut Streams, now: Instant) -> Vec<StreamFrame> {
    let bodies = std::iter::from_fn(|| streams.poll_transmit(now, ROOM));
    bodies.flat_map(|body| StreamFrames::new(body).expect("frames")).map(Result::unwrap).collect()
}

fn order(frames: Vec<StreamFrame>) -> Vec<StreamId> {
    let id = |frame| match frame {
        StreamFrame::Open(Open { id, .. }) | StreamFrame::Data(Data { id, .. }) => Some(id),
        _ => None,
    };
    frames.into_iter().filter_map(id).collect()
}

fn open(id: u64, data: Vec<u8>) -> StreamFrame {
    let priority = StreamPriority::default();
    let (id, destination, data) = (StreamId(id), destination(), data.into());
    StreamFrame::Open(Open { id, priority, destination, fin: false, data })
}

fn data(id: u64, offset: u64, length: usize, fin: bool) -> StreamFrame {
    StreamFrame::Data(Data { id: StreamId(id), offset, fin, data: vec![0; length].into() })
}

fn acknowledged(
    id: StreamId,
    (begun, fin): (bool, bool),
    contiguous: u64,
    credit: u64,
    ranges: Vec<Range<u64>>,
) -> StreamFrame {
    StreamFrame::Acknowledged(Acknowledged { id, begun, fin, contiguous, credit, ranges })
}
