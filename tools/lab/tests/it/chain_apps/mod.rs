//! Applications at both ends of a chain: each request is so many bytes up and asks for so many
//! down; both are patterns, so that what comes is known byte by byte.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_lab::chain::Chain;
use roadweave_proto::Instant;
use roadweave_proto::wire::{Destination, ResetCode, StreamId, StreamPriority};
use roadweave_stream::{Event, Streams};
use roadweave_tunnel::StreamsOwner;

/// How often applications act.
const STEP: Duration = Duration::from_millis(2);
const HEAD: u64 = 16;

/// The byte at an offset of what `seed` names.
fn byte(seed: u64, offset: u64) -> u8 {
    (offset.wrapping_mul(31) ^ (offset >> 9).wrapping_mul(7) ^ seed.wrapping_mul(131)) as u8
}

fn pattern(seed: u64, from: u64, until: u64) -> Vec<u8> {
    (from..until).map(|offset| byte(seed, offset)).collect()
}

/// One request, at the box that asks.
#[derive(Debug)]
pub struct Request {
    pub up: u64,
    pub down: u64,
    written: u64,
    pub read: u64,
    pub begun: Instant,
    pub done: Option<Instant>,
    pub reset: Option<(Instant, ResetCode)>,
}

/// One answer, at the anchor.
#[derive(Debug, Default)]
struct Answer {
    head: Vec<u8>,
    read: u64,
    written: u64,
    ended: bool,
}

impl Answer {
    fn down(&self) -> u64 {
        u64::from_be_bytes(self.head[8..16].try_into().unwrap())
    }

    fn seed(&self) -> u64 {
        u64::from_be_bytes(self.head[..8].try_into().unwrap())
    }
}

pub type RequestId = (usize, StreamsOwner, StreamId);

/// All applications of a chain, whose boxes have one client each.
#[derive(Debug, Default)]
pub struct Apps {
    /// Which client of a box is the one.
    pub proxy: usize,
    pub requests: BTreeMap<RequestId, Request>,
    answers: BTreeMap<(StreamsOwner, StreamId), Answer>,
    /// Whose streams are over at the anchor.
    pub over: Vec<StreamsOwner>,
    /// Whether boxes read nothing.
    pub is_idle: bool,
    requested: u64,
}

impl Apps {
    pub fn new(proxy: usize) -> Self {
        Self { proxy, ..Self::default() }
    }

    /// Asks for so many bytes with so many; `None` without a far end that takes streams.
    pub fn request(
        &mut self,
        chain: &mut Chain,
        number: usize,
        up: u64,
        down: u64,
    ) -> Option<RequestId> {
        let now = chain.now();
        let (owner, streams) = chain.client(number, self.proxy)?.streams(now)?;
        let to = Destination::of_address([192, 0, 2, 1].into(), 80).unwrap();
        let id = streams.open(now, to, StreamPriority::new(3, true)).unwrap();
        self.requested += 1;
        let head = [id.0.to_be_bytes(), down.to_be_bytes()].concat();
        assert_eq!(streams.write(now, id, &head), Ok(HEAD as usize));
        let request =
            Request { up, down, written: 0, read: 0, begun: now, done: None, reset: None };
        self.requests.insert((number, owner, id), request);
        self.act(chain);
        Some((number, owner, id))
    }

    /// Lets so much time pass.
    pub fn run(&mut self, chain: &mut Chain, time: Duration) {
        let end = chain.now() + time;
        while chain.now() < end {
            chain.run_until((chain.now() + STEP).min(end));
            self.act(chain);
        }
    }

    /// Runs until all requests have an end, `time` at most; how long it took.
    pub fn finish(&mut self, chain: &mut Chain, time: Duration) -> Duration {
        let begun = chain.now();
        let is_over = |request: &Request| request.done.is_some() || request.reset.is_some();
        while chain.now().since(begun) < time && !self.requests.values().all(is_over) {
            self.run(chain, STEP);
        }
        chain.now().since(begun)
    }

    pub fn all_done(&self) -> bool {
        self.requests.values().all(|request| request.done.is_some())
    }

    /// Another anchor, that knows nothing.
    pub fn on_anchor_restart(&mut self) {
        self.answers.clear();
    }

    fn act(&mut self, chain: &mut Chain) {
        self.act_at_boxes(chain);
        self.act_at_anchor(chain);
        chain.flush();
    }

    fn act_at_boxes(&mut self, chain: &mut Chain) {
        let now = chain.now();
        let numbers: std::collections::BTreeSet<usize> =
            self.requests.keys().map(|(number, ..)| *number).collect();
        for number in numbers {
            let Some(client) = chain.client(number, self.proxy) else { continue };
            let mut streams = client.streams(now);
            if let Some((_, streams)) = &mut streams {
                while streams.poll_event(now).is_some() {}
            }
            for ((of, owner, id), request) in &mut self.requests {
                if *of != number || request.done.is_some() || request.reset.is_some() {
                    continue;
                }
                match &mut streams {
                    Some((present, streams)) if present == owner => {
                        request.act(now, *id, streams, !self.is_idle);
                    }
                    _ => request.reset = Some((now, ResetCode::Other)),
                }
            }
        }
    }

    fn act_at_anchor(&mut self, chain: &mut Chain) {
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

impl Request {
    fn act(&mut self, now: Instant, id: StreamId, streams: &mut Streams, reads: bool) {
        while self.written < self.up {
            let bytes = pattern(id.0, self.written, self.up.min(self.written + (64 << 10)));
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
                        self.reset = Some((now, ResetCode::Other));
                    }
                    return;
                }
            }
        }
    }
}

impl Answer {
    /// Whether it goes on.
    fn act(&mut self, now: Instant, id: StreamId, streams: &mut Streams) -> bool {
        let mut out = [0; 16 << 10];
        loop {
            let room = if self.head.len() < 16 { 16 - self.head.len() } else { out.len() };
            match streams.read(now, id, &mut out[..room]) {
                Ok(0) => break,
                Ok(length) if self.head.len() < 16 => self.head.extend(&out[..length]),
                Ok(length) => {
                    let end = self.read + length as u64;
                    assert_eq!(out[..length], pattern(id.0, self.read, end), "{id:?}");
                    self.read = end;
                }
                Err(_) => return false,
            }
        }
        // The answer says that all has come.
        if !self.ended || self.head.len() < 16 {
            return true;
        }
        while self.written < self.down() {
            let end = self.down().min(self.written + (64 << 10));
            match streams.write(now, id, &pattern(!self.seed(), self.written, end)) {
                Ok(0) | Err(_) => return true,
                Ok(taken) => self.written += taken as u64,
            }
        }
        let _ = streams.finish(now, id);
        false
    }
}
