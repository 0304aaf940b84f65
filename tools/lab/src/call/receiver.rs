//! The receiving end: frames, requests for lost packets, and what is shown.
//!
//! A frame is shown when it is complete and the one before it was shown, or it is a key frame.
//! There is no further delay for smoothness. Limits are libwebrtc's.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::Instant;

use super::{FramePacket, Peer};

/// A frame that was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub frame: u32,
    pub at: Instant,
}

/// The end with the screen.
#[derive(Debug)]
pub struct CallReceiver {
    peer: Peer,
    frames: BTreeMap<u32, Partial>,
    shown: Vec<Shown>,
    next: u32,
    missing: BTreeMap<u64, Missing>,
    next_check: Option<Instant>,
    highest: Option<u64>,
    reordering: Reordering,
    rtt: Duration,
    /// Since when no frame was shown.
    waiting: Instant,
    key_frame_asked: Option<Instant>,
    /// Packets requested, each as often as requested.
    requested: u64,
}

/// A frame that is not shown yet.
#[derive(Debug)]
struct Partial {
    is_key: bool,
    first: u64,
    arrived: Vec<bool>,
    left: usize,
}

/// A packet that later ones have overtaken.
#[derive(Debug, Default)]
struct Missing {
    requests: u32,
    requested: Option<Instant>,
    /// The highest number that must have arrived before the first request.
    wait_for: u64,
}

/// How many packets overtook each late one.
#[derive(Debug, Default)]
struct Reordering {
    recent: VecDeque<usize>,
    counts: [usize; REORDERING_BUCKETS],
}

impl CallReceiver {
    pub fn new(peer: Peer, begin: Instant) -> Self {
        Self {
            peer,
            frames: BTreeMap::new(),
            shown: Vec::new(),
            next: 0,
            missing: BTreeMap::new(),
            next_check: None,
            highest: None,
            reordering: Reordering::default(),
            rtt: RTT_FIRST,
            waiting: begin,
            key_frame_asked: None,
            requested: 0,
        }
    }

    pub fn shown(&self) -> &[Shown] {
        &self.shown
    }

    /// Packets requested again, each as often as requested.
    pub fn requested(&self) -> u64 {
        self.requested
    }

    pub fn poll_timeout(&self) -> Instant {
        let due = self.peer.poll_timeout().min(self.key_frame_due());
        self.next_check.map_or(due, |check| due.min(check))
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.peer.handle_timeout(now);
        if self.next_check.is_some_and(|due| due <= now) {
            self.request_missing(now, true);
        }
        if self.key_frame_due() <= now {
            self.request_key_frame(now);
        }
    }

    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        self.peer.poll_transmit()
    }

    pub fn handle_datagram(&mut self, now: Instant, datagram: &Bytes) {
        let Some(arrived) = self.peer.handle_datagram(now, datagram) else { return };
        if let Some(packet) = FramePacket::parse(&arrived.payload) {
            self.handle_packet(now, &packet, arrived.is_retransmission);
        }
    }

    fn handle_packet(&mut self, now: Instant, packet: &FramePacket, is_retransmission: bool) {
        match self.highest {
            Some(highest) if packet.number <= highest => {
                let missing = self.missing.remove(&packet.number);
                match missing.and_then(|missing| missing.requested) {
                    Some(requested) if is_retransmission => {
                        self.rtt = (self.rtt * 7 + now.since(requested)) / 8;
                    }
                    _ if !is_retransmission => {
                        self.reordering.note((highest - packet.number) as usize);
                    }
                    _ => {}
                }
            }
            highest => {
                let wait_for = self.reordering.median() as u64;
                for number in highest.map_or(0, |it| it + 1)..packet.number {
                    let missing = Missing { wait_for: number + wait_for, ..Missing::default() };
                    self.missing.insert(number, missing);
                }
                self.highest = Some(packet.number);
                self.limit_missing(now);
                self.request_missing(now, false);
            }
        }
        if packet.frame < self.next {
            return;
        }
        let frame = self.frames.entry(packet.frame).or_insert_with(|| Partial {
            is_key: packet.is_key,
            first: packet.number - u64::from(packet.index),
            arrived: vec![false; packet.count.into()],
            left: packet.count.into(),
        });
        if let Some(arrived @ false) = frame.arrived.get_mut(usize::from(packet.index)) {
            *arrived = true;
            frame.left -= 1;
            self.show(now);
        }
    }

    fn show(&mut self, now: Instant) {
        loop {
            let follows = self.frames.get(&self.next).is_some_and(|frame| frame.left == 0);
            let key = || {
                let mut complete = self.frames.iter().filter(|(_, frame)| frame.left == 0);
                complete.find(|(_, frame)| frame.is_key).map(|(number, _)| *number)
            };
            let Some(number) = follows.then_some(self.next).or_else(key) else { break };
            self.frames = self.frames.split_off(&number);
            if let Some(frame) = self.frames.remove(&number) {
                // Earlier packets cannot be shown any more.
                self.missing = self.missing.split_off(&frame.first);
            }
            self.next = number + 1;
            self.shown.push(Shown { frame: number, at: now });
            self.waiting = now;
            self.key_frame_asked = None;
        }
    }

    fn limit_missing(&mut self, now: Instant) {
        let highest = self.highest.unwrap_or(0);
        self.missing = self.missing.split_off(&highest.saturating_sub(MISSING_AGE_MAX));
        if self.missing.len() > MISSING_MAX {
            self.missing.clear();
            self.request_key_frame(now);
        }
    }

    /// Requests what is due: at a check also what has not been requested yet, as
    /// `NackRequester::GetNackBatch` does.
    fn request_missing(&mut self, now: Instant, is_check: bool) {
        let (highest, rtt) = (self.highest.unwrap_or(0), self.rtt);
        let mut numbers = Vec::new();
        self.missing.retain(|number, missing| {
            let is_due = match missing.requested {
                Some(requested) => now.since(requested) >= rtt,
                None => is_check || highest >= missing.wait_for,
            };
            if is_due && missing.requests == REQUESTS_MAX {
                return false;
            }
            if is_due {
                missing.requests += 1;
                missing.requested = Some(now);
                numbers.push(*number);
            }
            true
        });
        let next = self.next_check.filter(|due| *due > now).unwrap_or(now + CHECK_INTERVAL);
        self.next_check = (!self.missing.is_empty()).then_some(next);
        self.requested += numbers.len() as u64;
        self.peer.request_again(&numbers);
    }

    fn key_frame_due(&self) -> Instant {
        self.key_frame_asked.map_or(self.waiting + FRAME_WAIT, |asked| asked + KEY_FRAME_WAIT)
    }

    fn request_key_frame(&mut self, now: Instant) {
        self.key_frame_asked = Some(now);
        self.peer.request_key_frame();
    }
}

impl Reordering {
    fn note(&mut self, packets: usize) {
        let bucket = packets.min(REORDERING_BUCKETS - 1);
        self.counts[bucket] += 1;
        self.recent.push_back(bucket);
        if self.recent.len() > REORDERING_MEMORY
            && let Some(oldest) = self.recent.pop_front()
        {
            self.counts[oldest] -= 1;
        }
    }

    /// One more than the packets that overtook half of the late ones, at most, as `Histogram` of
    /// libwebrtc; 0 without late ones.
    fn median(&self) -> usize {
        let mut sum = 0;
        let bucket = self.counts.iter().position(|count| {
            sum += count;
            2 * sum >= self.recent.len()
        });
        bucket.filter(|_| !self.recent.is_empty()).map_or(0, |bucket| bucket + 1)
    }
}

/// `NackRequester`: attempts, packets, their age in packets, how often it checks.
const REQUESTS_MAX: u32 = 10;
const MISSING_MAX: usize = 1_000;
const MISSING_AGE_MAX: u64 = 10_000;
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
const RTT_FIRST: Duration = Duration::from_millis(100);
const REORDERING_BUCKETS: usize = 10;
const REORDERING_MEMORY: usize = 128;
/// `VideoReceiveStream2`: how long it waits for a frame, and for a key frame that it needs.
const FRAME_WAIT: Duration = Duration::from_secs(3);
const KEY_FRAME_WAIT: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_until_half_of_what_is_overtaken_would_have_come() {
        let mut reordering = Reordering::default();
        assert_eq!(reordering.median(), 0);
        [1, 4, 4, 300].into_iter().for_each(|packets| reordering.note(packets));
        assert_eq!(reordering.median(), 5);
        (0..REORDERING_MEMORY).for_each(|_| reordering.note(300));
        assert_eq!(reordering.median(), REORDERING_BUCKETS, "at most, and old ones are gone");
    }
}
