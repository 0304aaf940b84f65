//! Applications on streams: a request sends `up` bytes and asks for `down`, the far end answers.
//! Both are patterns, so that every byte is checked.

use std::collections::BTreeMap;

use crate::nodes::Nodes;
use roadweave_lab::world::World;
use roadweave_proto::Instant;
use roadweave_proto::wire::{Destination, StreamId, StreamPriority};
use roadweave_stream::{Event, Streams};
use roadweave_tunnel::{Client, EndsStreams, StreamsOwner};

const HEAD: usize = 16;
/// Bytes made at a time; most writes take less.
const CHUNK: u64 = 4 << 10;

pub type RequestId = (usize, StreamsOwner, StreamId);

#[derive(Debug, Default)]
pub struct Apps {
    pub requests: BTreeMap<RequestId, Request>,
    answers: BTreeMap<(StreamsOwner, StreamId), Answer>,
    /// Clients whose streams are closed at the far end.
    pub over: Vec<StreamsOwner>,
    /// Clients read nothing.
    pub is_idle: bool,
}

impl Apps {
    /// Sends `up` bytes and requests `down`; `None` without a far end that accepts streams.
    pub fn request(
        &mut self,
        now: Instant,
        (number, client): (usize, &mut Client),
        [up, down]: [u64; 2],
    ) -> Option<RequestId> {
        let (owner, streams) = client.streams(now)?;
        let (id, request) = Request::open(now, streams, up, down);
        self.requests.insert((number, owner, id), request);
        Some((number, owner, id))
    }

    pub fn on_far_end_restart(&mut self) {
        self.answers.clear();
    }

    pub fn all_over(&self) -> bool {
        self.requests.values().all(Request::is_over)
    }

    pub fn all_done(&self) -> bool {
        self.requests.values().all(|request| request.done.is_some())
    }

    pub fn act_in(&mut self, world: &mut World) {
        let now = world.now();
        let (client, server) = world.ends_mut();
        self.act_at_client(now, 0, client);
        self.act_at_far_end(now, server);
        world.flush();
    }

    /// For boxes with a client for `proxy`, or for [`ANY`](crate::nodes::ANY).
    pub fn act_on(&mut self, nodes: &mut Nodes, proxy: usize) {
        let now = nodes.now();
        for number in 0..nodes.config().boxes {
            if let Some(client) = nodes.client((number, proxy)) {
                self.act_at_client(now, number, client);
            }
        }
        if let Some(anchor) = nodes.anchor() {
            self.act_at_far_end(now, anchor);
        }
        nodes.flush();
    }

    fn act_at_client(&mut self, now: Instant, number: usize, client: &mut Client) {
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

    fn act_at_far_end(&mut self, now: Instant, end: &mut impl EndsStreams) {
        while let Some(owner) = end.poll_streams_over() {
            self.over.push(owner);
            self.answers.retain(|(of, _), _| *of != owner);
        }
        end.hand_over_symbols(now);
        while let Some((owner, event)) = end.poll_stream_event(now) {
            let Some(streams) = end.streams(owner) else { continue };
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
            end.streams(*owner).is_some_and(|streams| answer.act(now, *id, streams))
        });
    }
}

fn pattern(seed: u64, from: u64, until: u64) -> Vec<u8> {
    let seed = seed.wrapping_mul(131);
    let byte = |at: u64| (at.wrapping_mul(31) ^ (at >> 9).wrapping_mul(7) ^ seed) as u8;
    (from..until).map(byte).collect()
}

#[derive(Debug)]
pub struct Request {
    up: u64,
    down: u64,
    written: u64,
    read: u64,
    pub begun: Instant,
    pub done: Option<Instant>,
    pub reset: Option<Instant>,
}

#[derive(Debug, Default)]
struct Answer {
    head: Vec<u8>,
    read: u64,
    written: u64,
    ended: bool,
}

impl Request {
    fn open(now: Instant, streams: &mut Streams, up: u64, down: u64) -> (StreamId, Self) {
        let to = Destination::of_address([192, 0, 2, 1].into(), 80).unwrap();
        let id = streams.open(now, to, StreamPriority::new(3, true)).unwrap();
        let head = [id.0.to_be_bytes(), down.to_be_bytes()].concat();
        assert_eq!(streams.write(now, id, &head), Ok(HEAD));
        let (written, read, done, reset) = (0, 0, None, None);
        (id, Self { up, down, written, read, begun: now, done, reset })
    }

    fn is_over(&self) -> bool {
        self.done.is_some() || self.reset.is_some()
    }

    fn act(&mut self, now: Instant, id: StreamId, streams: &mut Streams, reads: bool) {
        while self.written < self.up {
            let bytes = pattern(id.0, self.written, self.up.min(self.written + CHUNK));
            match streams.write(now, id, &bytes) {
                Ok(0) | Err(_) => break,
                Ok(taken) => self.written += taken as u64,
            }
        }
        if self.written == self.up {
            let _ = streams.finish(now, id);
        }
        if reads {
            self.read_all(now, id, streams);
        }
        if self.read == self.down {
            self.done = Some(now);
        }
        assert!(self.read <= self.down, "more than was asked for");
    }

    fn read_all(&mut self, now: Instant, id: StreamId, streams: &mut Streams) {
        let mut out = [0; 16 << 10];
        loop {
            match streams.read(now, id, &mut out) {
                Ok(0) => return,
                Ok(length) => {
                    let end = self.read + length as u64;
                    assert_eq!(out[..length], pattern(!id.0, self.read, end), "{id:?}");
                    self.read = end;
                }
                Err(_) => {
                    if self.read < self.down {
                        self.reset = Some(now);
                    }
                    return;
                }
            }
        }
    }
}

impl Answer {
    fn act(&mut self, now: Instant, id: StreamId, streams: &mut Streams) -> bool {
        let mut out = [0; 16 << 10];
        loop {
            let room = if self.head.len() < HEAD { HEAD - self.head.len() } else { out.len() };
            match streams.read(now, id, &mut out[..room]) {
                Ok(0) => break,
                Ok(length) if self.head.len() < HEAD => self.head.extend(&out[..length]),
                Ok(length) => {
                    let end = self.read + length as u64;
                    assert_eq!(out[..length], pattern(id.0, self.read, end), "{id:?}");
                    self.read = end;
                }
                Err(_) => return false,
            }
        }
        // The answer begins when the request is complete.
        if !self.ended || self.head.len() < HEAD {
            return true;
        }
        let [seed, down] =
            [0, 8].map(|at| u64::from_be_bytes(self.head[at..at + 8].try_into().unwrap()));
        while self.written < down {
            let end = down.min(self.written + CHUNK);
            match streams.write(now, id, &pattern(!seed, self.written, end)) {
                Ok(0) | Err(_) => return true,
                Ok(taken) => self.written += taken as u64,
            }
        }
        let _ = streams.finish(now, id);
        false
    }
}
