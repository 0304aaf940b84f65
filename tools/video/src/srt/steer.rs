//! The bit rate of an SRT connection, by its round trip and its send buffer.
//!
//! ```text
//! round trip or buffer ─► far too much: the least rate, at once
//!                      ─► too much: a tenth less     ─► more than recently: a step less
//!                      ─► minimal and steady: a thirtieth more, twice a second
//! ```
//!
//! Rules and constants are those of belacoder (github.com/BELABOX/belacoder, `update_bitrate` in
//! belacoder.c, commit 898d9ce), which crews know. Its averages are over turns of 20 ms; these are
//! over time, so that a turn may be late. In addition, dropped late packets and a second without a
//! reading count as far too much, and silence counts as a round trip.

use std::ops::RangeInclusive;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkReading {
    /// The smoothed round trip, in ms.
    pub rtt_ms: f64,
    /// Packets not acknowledged yet, unsent ones included.
    pub unacknowledged: f64,
    /// The rate of sending, bit/s.
    pub sent_bps: f64,
    /// Packets dropped so far because they were too late to be sent.
    pub dropped: u64,
}

#[derive(Debug)]
pub struct Steer {
    least: f64,
    most: f64,
    latency_ms: f64,
    bps: f64,
    known: Option<Known>,
    lower: Duration,
    raise: Duration,
    /// Time of the last valid reading.
    read: Duration,
}

/// Averages of readings: round trips in ms, buffers in packets.
#[derive(Debug)]
struct Known {
    at: Duration,
    rtt: f64,
    rtt_mean: f64,
    rtt_least: f64,
    /// Recent growth of the round trip between readings: mean and maximum.
    rtt_trend: f64,
    rtt_jitter: f64,
    buffer: f64,
    buffer_mean: f64,
    buffer_jitter: f64,
    sent_bps: f64,
    dropped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Congestion {
    Severe,
    Heavy,
    Light,
    None,
    /// No congestion, and the round trip is near its minimum.
    Clear,
}

impl Steer {
    /// Steers between these rates, bit/s, over a connection of this latency, from the maximum on.
    pub fn new(least_bps: u64, most_bps: u64, latency: Duration) -> Self {
        let (least, most) = (least_bps.min(most_bps) as f64, most_bps as f64);
        let latency_ms = latency.as_secs_f64() * 1e3;
        let zero = Duration::ZERO;
        Self {
            least,
            most,
            latency_ms,
            bps: most,
            known: None,
            lower: zero,
            raise: zero,
            read: zero,
        }
    }

    /// Sets the negotiated latency; values out of range are ignored.
    pub fn on_latency(&mut self, ms: i32) {
        if LATENCIES_MS.contains(&ms) {
            self.latency_ms = f64::from(ms);
        }
    }

    /// The rate after the reading of `now`, bit/s.
    ///
    /// An invalid reading counts as none; before the first valid one the rate is the maximum.
    pub fn on_reading(&mut self, now: Duration, reading: Option<LinkReading>) -> u64 {
        let Some(reading) = reading.filter(LinkReading::is_sound) else {
            if self.known.is_some() && now.saturating_sub(self.read) > BLIND_MOST {
                self.bps = self.least;
            }
            return self.bps();
        };
        self.read = now;
        let congestion = self.congestion(now, reading);
        match congestion {
            Congestion::Severe => {
                self.bps = self.least;
                self.lower = now + LIGHT_PAUSE;
            }
            Congestion::Heavy if now > self.lower => {
                self.bps -= STEP_DOWN_BPS + self.bps / SHARE_DOWN;
                self.lower = now + HEAVY_PAUSE;
            }
            Congestion::Light if now > self.lower => {
                self.bps -= STEP_DOWN_BPS;
                self.lower = now + LIGHT_PAUSE;
            }
            Congestion::Clear if now > self.raise => {
                self.bps += STEP_UP_BPS + self.bps / SHARE_UP;
                self.raise = now + RAISE_PAUSE;
            }
            _ => {}
        }
        self.bps = self.bps.clamp(self.least, self.most);
        self.bps()
    }

    pub fn bps(&self) -> u64 {
        self.bps as u64
    }

    fn congestion(&mut self, now: Duration, reading: LinkReading) -> Congestion {
        let Some(known) = &mut self.known else {
            self.known = Some(Known::new(now, reading));
            return Congestion::None;
        };
        let dropped = reading.dropped > known.dropped;
        known.add(now, reading);
        let (rtt, buffer) = (reading.rtt_ms, reading.unacknowledged);
        let (mean, jitter) = (known.buffer_mean, known.buffer_jitter);
        let carried = known.sent_bps / 8e3 / PACKET_BYTES * (self.latency_ms / 2.0);
        let light = BUFFER_LEAST.max(mean + 2.5 * jitter);
        let heavy = BUFFER_LEAST.max(mean + mean.max(3.0 * jitter)).min(carried.max(BUFFER_LEAST));
        // Belacoder has no minimum here: a few packets after silence would count as severe.
        let severe = (2.0 * BUFFER_LEAST).max(4.0 * (mean + jitter));
        let rtt_light = known.rtt_mean + (4.0 * known.rtt_jitter).max(0.15 * known.rtt_mean);
        let rtt_clear = known.rtt_least + (2.0 * known.rtt_jitter).max(1.0);
        if dropped || rtt >= self.latency_ms / 3.0 || buffer > severe {
            Congestion::Severe
        } else if rtt > self.latency_ms / 5.0 || buffer > heavy {
            Congestion::Heavy
        } else if rtt > rtt_light || buffer > light {
            Congestion::Light
        } else if rtt < rtt_clear && known.rtt_trend < STEADY_MS {
            Congestion::Clear
        } else {
            Congestion::None
        }
    }
}

impl LinkReading {
    /// Whether the reading is plausible; a round trip above a minute is not.
    fn is_sound(&self) -> bool {
        (0.0..=60e3).contains(&self.rtt_ms)
            && (0.0..=1e6).contains(&self.unacknowledged)
            && (0.0..=1e11).contains(&self.sent_bps)
    }
}

impl Known {
    fn new(at: Duration, reading: LinkReading) -> Self {
        Self {
            at,
            rtt: reading.rtt_ms,
            rtt_mean: reading.rtt_ms,
            rtt_least: reading.rtt_ms.min(RTT_LEAST_FIRST),
            rtt_trend: 0.0,
            rtt_jitter: 0.0,
            buffer: reading.unacknowledged,
            buffer_mean: 0.0,
            buffer_jitter: 0.0,
            sent_bps: 0.0,
            dropped: reading.dropped,
        }
    }

    fn add(&mut self, now: Duration, reading: LinkReading) {
        let LinkReading { rtt_ms: rtt, unacknowledged: buffer, sent_bps, dropped } = reading;
        let turns = now.saturating_sub(self.at).as_secs_f64() / TURN_SECONDS;
        // The remaining share of a mean that keeps `share` in each turn.
        let kept = |share: f64| share.powf(turns.min(1e4));
        let mean = |mean: &mut f64, value: f64, share: f64| {
            *mean = value + (*mean - value) * kept(share);
        };
        mean(&mut self.buffer_mean, buffer, 0.99);
        self.buffer_jitter = (self.buffer_jitter * kept(0.99)).max(buffer - self.buffer);
        mean(&mut self.rtt_mean, rtt, 0.99);
        mean(&mut self.rtt_trend, rtt - self.rtt, 0.8);
        // Vehicles move, so the minimum round trip decays, by a twentieth each second.
        self.rtt_least = (self.rtt_least / kept(0.999)).min(1e6);
        if rtt != RTT_UNKNOWN && self.rtt_trend < 1.0 {
            self.rtt_least = self.rtt_least.min(rtt);
        }
        self.rtt_jitter = (self.rtt_jitter * kept(0.99)).max(rtt - self.rtt);
        mean(&mut self.sent_bps, sent_bps, 0.97);
        (self.at, self.rtt, self.buffer, self.dropped) = (now, rtt, buffer, dropped);
    }
}

const STEP_DOWN_BPS: f64 = 100e3;
/// A tenth of the rate.
const SHARE_DOWN: f64 = 10.0;
const LIGHT_PAUSE: Duration = Duration::from_millis(200);
const HEAVY_PAUSE: Duration = Duration::from_millis(250);
const STEP_UP_BPS: f64 = 30e3;
/// A thirtieth of the rate.
const SHARE_UP: f64 = 30.0;
const RAISE_PAUSE: Duration = Duration::from_millis(500);
/// Belacoder's turn, the unit of its averages.
const TURN_SECONDS: f64 = 0.020;
/// This many packets in the buffer do not count.
const BUFFER_LEAST: f64 = 50.0;
/// The payload of a packet: seven MPEG-TS packets.
pub const PACKET_BYTES: f64 = 1316.0;
/// The library's value before the first measurement (SRT draft, section 4.10), in ms.
const RTT_UNKNOWN: f64 = 100.0;
const RTT_LEAST_FIRST: f64 = 200.0;
/// Growth of a steady round trip, in ms per turn.
const STEADY_MS: f64 = 0.01;
/// Belacoder's limits.
const LATENCIES_MS: RangeInclusive<i32> = 100..=10_000;
const BLIND_MOST: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
