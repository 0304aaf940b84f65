//! A WebRTC call from one end of the tunnel to the other.

use std::time::Duration;

use bytes::Bytes;
use roadweave_emulate::Direction;
use roadweave_proto::{Instant, Rate};
use serde::Serialize;

use super::{DataStream, Detail, Percentiles, Traffic, TrafficReport, TrafficSpec, TwoWay};
use crate::call::{CallReceiver, CallSender, Peer};
use crate::inner;
use crate::video::quality::STALL_GAP;

/// What both ends of a call saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CallReport {
    /// Bits per second of the frames shown.
    pub shown_bps: f64,
    pub frames_sent: u64,
    pub frames_shown: u64,
    /// Gaps above 200 ms before, between and after the shown frames.
    pub freezes: u64,
    /// Share of the time in freezes, 0..1.
    pub frozen: f64,
    /// From the capture of a frame to when it is shown.
    pub frame_delay_ms: Percentiles,
    /// Share of the frames captured up to 400 ms before the end that are shown later than that,
    /// or never, 0..1.
    pub late: f64,
    /// Packets that the receiver requested again, each as often as requested.
    pub nacked: u64,
    pub key_frames: u64,
    /// The estimate after each second but the last, bits per second.
    pub estimates_bps: Vec<u64>,
    /// Send and arrival times of packets in the direction of the video.
    #[serde(skip)]
    pub stream: DataStream,
}

#[derive(Debug)]
pub struct CallTraffic {
    run: TwoWay,
    sender: CallSender,
    receiver: CallReceiver,
    estimates_bps: Vec<u64>,
}

impl CallTraffic {
    pub fn new(spec: &TrafficSpec, rate_max: Rate, start: Instant, seed: u64) -> Self {
        let run = TwoWay::of(spec, start);
        let [sender, receiver] = Peer::pair(run.begin, rate_max);
        Self {
            sender: CallSender::new(sender, run.begin, rate_max, seed),
            receiver: CallReceiver::new(receiver, run.begin),
            estimates_bps: Vec::new(),
            run,
        }
    }

    fn note_estimates(&mut self, now: Instant) {
        let seconds = now.since(self.run.begin).as_secs() as usize;
        self.estimates_bps.resize(seconds, self.sender.estimate().as_bps());
    }
}

impl Traffic for CallTraffic {
    fn port(&self) -> u16 {
        self.run.base.port
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.run.poll_timeout(Some(self.sender.poll_timeout().min(self.receiver.poll_timeout())))
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<(Direction, Bytes)> {
        if !self.run.is_on(now) {
            return None;
        }
        self.run.has_begun = true;
        self.note_estimates(now);
        self.sender.handle_timeout(now);
        self.receiver.handle_timeout(now);
        let forth = self.run.base.direction;
        let (direction, datagram) = match self.sender.poll_transmit() {
            Some(datagram) => (forth, datagram),
            None => (forth.opposite(), self.receiver.poll_transmit()?),
        };
        let packet = inner::udp(direction, self.run.base.port, &datagram);
        Some((direction, self.run.number(now, direction, packet)))
    }

    fn handle_arrival(&mut self, now: Instant, direction: Direction, packet: &Bytes) {
        let is_new = self.run.note_arrival(now, direction, packet);
        if self.run.base.count(is_new) && now < self.run.end {
            let datagram = inner::payload(packet);
            if direction == self.run.base.direction {
                self.receiver.handle_datagram(now, &datagram);
            } else {
                self.sender.handle_datagram(now, &datagram);
            }
        }
    }

    fn report(&self, end: Instant) -> TrafficReport {
        let end = end.min(self.run.end);
        let seconds = end.since(self.run.begin).as_secs_f64().max(f64::MIN_POSITIVE);
        let (sent, shown) = (self.sender.sent(), self.receiver.shown());
        let frame = |number: u32| sent.frames[number as usize];
        let mut delays: Vec<Duration> =
            shown.iter().map(|it| it.at.since(frame(it.frame).0)).collect();
        delays.sort_unstable();
        let due = sent.frames.partition_point(|(captured, _)| *captured + LATE <= end);
        let in_time = shown.iter().filter(|it| (it.frame as usize) < due);
        let in_time = in_time.filter(|it| it.at.since(frame(it.frame).0) <= LATE).count();
        let bytes: usize = shown.iter().map(|it| frame(it.frame).1).sum();
        let times = [self.run.begin].into_iter().chain(shown.iter().map(|it| it.at)).chain([end]);
        let gaps = times.clone().zip(times.skip(1)).map(|(a, b)| b.since(a));
        let freezes: Vec<Duration> = gaps.filter(|gap| *gap > STALL_GAP).collect();
        let frames_sent = sent.frames.len();
        self.run.report(Detail::Call(Box::new(CallReport {
            shown_bps: bytes as f64 * 8.0 / seconds,
            frames_sent: frames_sent as u64,
            frames_shown: shown.len() as u64,
            freezes: freezes.len() as u64,
            frozen: freezes.iter().sum::<Duration>().as_secs_f64() / seconds,
            frame_delay_ms: Percentiles::of_sorted(&delays),
            late: 1.0 - in_time as f64 / due.max(1) as f64,
            nacked: self.receiver.requested(),
            key_frames: sent.key_frames,
            estimates_bps: self.estimates_bps.clone(),
            stream: self.run.data.clone(),
        })))
    }
}

/// People talk at once above this delay (ITU-T G.114).
const LATE: Duration = Duration::from_millis(400);
