//! Requests over streams and their answers: a request sends `up` bytes and asks for `down`. Both
//! are patterns, so that every byte is checked.

use roadweave_proto::Instant;
use roadweave_proto::wire::{Destination, StreamId, StreamPriority};
use roadweave_stream::Streams;

const HEAD: u64 = 16;

fn byte(seed: u64, offset: u64) -> u8 {
    (offset.wrapping_mul(31) ^ (offset >> 9).wrapping_mul(7) ^ seed.wrapping_mul(131)) as u8
}

fn pattern(seed: u64, from: u64, until: u64) -> Vec<u8> {
    (from..until).map(|offset| byte(seed, offset)).collect()
}

#[derive(Debug)]
pub struct Request {
    pub up: u64,
    pub down: u64,
    written: u64,
    pub read: u64,
    pub begun: Instant,
    pub done: Option<Instant>,
    pub reset: Option<Instant>,
}

#[derive(Debug, Default)]
pub struct Answer {
    head: Vec<u8>,
    read: u64,
    written: u64,
    pub ended: bool,
}

impl Answer {
    fn down(&self) -> u64 {
        u64::from_be_bytes(self.head[8..16].try_into().unwrap())
    }

    fn seed(&self) -> u64 {
        u64::from_be_bytes(self.head[..8].try_into().unwrap())
    }
}

impl Request {
    pub fn open(now: Instant, streams: &mut Streams, up: u64, down: u64) -> (StreamId, Self) {
        let to = Destination::of_address([192, 0, 2, 1].into(), 80).unwrap();
        let id = streams.open(now, to, StreamPriority::new(3, true)).unwrap();
        let head = [id.0.to_be_bytes(), down.to_be_bytes()].concat();
        assert_eq!(streams.write(now, id, &head), Ok(HEAD as usize));
        let (written, read, done, reset) = (0, 0, None, None);
        (id, Self { up, down, written, read, begun: now, done, reset })
    }

    pub fn is_over(&self) -> bool {
        self.done.is_some() || self.reset.is_some()
    }

    pub fn act(&mut self, now: Instant, id: StreamId, streams: &mut Streams, reads: bool) {
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
                        self.reset = Some(now);
                    }
                    return;
                }
            }
        }
    }
}

impl Answer {
    /// Returns whether more of the answer is expected.
    pub fn act(&mut self, now: Instant, id: StreamId, streams: &mut Streams) -> bool {
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
        // The answer begins when the request is complete.
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
