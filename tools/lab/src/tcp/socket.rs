//! One end of a connection. It never closes: the user knows the number of bytes to expect.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::{Instant, earliest};
use roadweave_quic::CongestionControl;

use super::receiver::{Receiver, WINDOW_FIRST};
use super::rtt::INITIAL;
use super::segment::{Segment, data_max};
use super::sender::{Sender, SenderStats, millis};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketConfig {
    pub algorithm: CongestionControl,
    /// The largest IP packet, bytes.
    pub mtu: u16,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketRole {
    Client,
    Server,
}

pub type SocketStats = SenderStats;

#[derive(Debug)]
pub struct Socket {
    role: SocketRole,
    state: SocketState,
    sender: Sender,
    receiver: Receiver,
    opened_at: Option<Instant>,
    answers: VecDeque<Segment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketState {
    Idle,
    Opening(Instant, u32),
    Open,
}

impl Socket {
    pub fn new(role: SocketRole, config: &SocketConfig) -> Self {
        let mss = data_max(config.mtu);
        Self {
            role,
            state: SocketState::Idle,
            sender: Sender::new(config.algorithm, (mss, config.mtu.into()), config.seed),
            receiver: Receiver::new(mss),
            opened_at: None,
            answers: VecDeque::new(),
        }
    }

    pub fn connect(&mut self, now: Instant) {
        if self.state == SocketState::Idle {
            self.state = SocketState::Opening(now, 0);
        }
    }

    pub fn write(&mut self, bytes: u64) {
        self.sender.write(bytes);
    }

    pub fn received(&self) -> u64 {
        self.receiver.next
    }

    pub fn stats(&self) -> SocketStats {
        self.sender.counts
    }

    pub fn smoothed_rtt(&self) -> Option<Duration> {
        self.sender.rtt.smoothed()
    }

    /// Approximate positions in both directions, for [`Segment::parse`].
    pub fn position(&self) -> (u64, u64) {
        (self.sender.nxt, self.receiver.next)
    }

    pub fn handle_segment(&mut self, now: Instant, segment: &Segment) {
        match (self.state, self.role, segment.is_syn) {
            (SocketState::Idle, SocketRole::Server, true) => {
                self.state = SocketState::Opening(now, 0);
                self.receiver.on_segment(now, segment, None);
            }
            (SocketState::Opening(..), SocketRole::Server, true) => {
                self.state = SocketState::Opening(now, 0);
            }
            (SocketState::Opening(_, times), SocketRole::Client, true) if segment.ack.is_some() => {
                self.receiver.on_segment(now, segment, None);
                self.open(now, segment, times);
                self.receiver.answer_by(now);
            }
            (SocketState::Opening(_, times), SocketRole::Server, false) => {
                self.open(now, segment, times);
                self.take(now, segment);
            }
            // The final ACK of the handshake was lost.
            (SocketState::Open, SocketRole::Client, true) => self.receiver.answer_by(now),
            (SocketState::Open, _, false) => self.take(now, segment),
            _ => {}
        }
    }

    fn open(&mut self, now: Instant, segment: &Segment, times: u32) {
        self.state = SocketState::Open;
        self.sender.allowed = segment.window.into();
        if let Some(at) = self.opened_at.filter(|_| times == 1) {
            self.sender.rtt.on_sample(now, now.since(at));
        }
    }

    fn answers_now(&self, now: Instant) -> bool {
        self.receiver.due.is_some_and(|due| due <= now)
    }

    fn answer(&mut self, now: Instant) -> Segment {
        let seq = self.sender.nxt;
        let mut segment = Segment { timestamp: millis(now), seq, ..Segment::default() };
        self.receiver.acknowledge(&mut segment);
        segment
    }

    fn take(&mut self, now: Instant, segment: &Segment) {
        if self.answers_now(now) && segment.len > 0 && !self.receiver.joins(now, segment) {
            let answer = self.answer(now);
            self.answers.push_back(answer);
        }
        self.receiver.on_segment(now, segment, self.sender.rtt.least());
        if let Some(ack) = segment.ack {
            self.sender.on_ack(now, ack, segment);
        }
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            SocketState::Idle => None,
            SocketState::Opening(at, _) => Some(at),
            SocketState::Open => {
                let answers = self.answers.front().map(|_| Instant::ZERO);
                earliest([answers, self.sender.poll_timeout(), self.receiver.due])
            }
        }
    }

    /// The next segment to send at `now`. Call it until it returns `None`, after passing all
    /// segments that arrived by `now`: segments that GRO would merge are acknowledged once.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Segment> {
        let mut segment = Segment { timestamp: millis(now), ..Segment::default() };
        match self.state {
            SocketState::Idle => return None,
            SocketState::Opening(at, times) if at <= now => {
                let backoff = INITIAL * 2_u32.pow(times.min(6));
                self.state = SocketState::Opening(now + backoff, times + 1);
                self.opened_at = Some(now);
                segment.is_syn = true;
                if self.role == SocketRole::Server {
                    self.receiver.acknowledge(&mut segment);
                }
                segment.window = WINDOW_FIRST;
                return Some(segment);
            }
            SocketState::Opening(..) => return None,
            SocketState::Open => {}
        }
        if let Some(answer) = self.answers.pop_front() {
            return Some(answer);
        }
        // An immediate acknowledgement precedes the application's data.
        if self.answers_now(now) {
            return Some(self.answer(now));
        }
        self.sender.handle_timeout(now);
        (segment.seq, segment.len) = self.sender.poll_transmit(now)?;
        self.receiver.acknowledge(&mut segment);
        Some(segment)
    }
}
