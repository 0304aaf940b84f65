//! What a congestion control is told, and what it decides.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

use super::bbr::Bbr;
use super::cubic::Cubic;
use super::rate::RateSample;

/// The congestion control of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// CUBIC with hybrid slow start.
    #[default]
    Cubic,
    /// BBR, version 1.
    Bbr,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Cubic, Self::Bbr];

    /// What it is called, as by the kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }

    pub(super) fn build(self, segment: (u32, u32), seed: u64) -> Box<dyn Congestion> {
        match self {
            Self::Cubic => Box::new(Cubic::default()),
            Self::Bbr => Box::new(Bbr::new(segment, seed)),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|it| it.name() == name);
        known.ok_or_else(|| format!("`{name}` is no congestion control; there are cubic and bbr"))
    }
}

/// How much may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Segments.
    pub(super) cwnd: u32,
    /// From here on it grows slowly.
    pub(super) ssthresh: u32,
}

/// What the sender is doing about losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing.
    Open,
    /// It repairs what is lost.
    Recovery,
    /// It begins again after a timeout.
    Loss,
}

/// What an acknowledgement means to a congestion control.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    pub(super) now: Instant,
    /// Segments that are there now and were not known to be; those that were found lost.
    pub(super) delivered: u32,
    pub(super) lost: u32,
    /// Segments delivered in all.
    pub(super) delivered_total: u64,
    /// Segments under way, after it.
    pub(super) in_flight: u32,
    /// The round trip that it shows, the smoothed one, and whether the receiver may have waited
    /// before it answered.
    pub(super) round_trip: Option<Duration>,
    pub(super) smoothed: Option<Duration>,
    pub(super) is_delayed: bool,
    pub(super) rate: Option<RateSample>,
    pub(super) phase: Phase,
    /// Whether more would have left with a larger window.
    pub(super) is_cwnd_limited: bool,
    /// All before this byte is acknowledged, and all before that one has left.
    pub(super) una: u64,
    pub(super) nxt: u64,
}

/// A congestion control.
pub(super) trait Congestion: fmt::Debug + Send {
    /// An acknowledgement has come; losses are being dealt with as `acked.phase` says.
    fn on_ack(&mut self, acked: &Acked, window: &mut Window);

    /// Congestion is found: how much shall be under way from now on, segments. Called once for each
    /// window of data.
    fn on_congestion(&mut self, now: Instant, phase: Phase, window: &Window) -> u32;

    /// A timeout has passed.
    fn on_timeout(&mut self);

    /// The window of a sender that found a loss to be none, from that before it.
    fn undone(&self, window: &Window, cwnd_before: u32) -> u32 {
        window.cwnd.max(cwnd_before)
    }

    /// How fast segments shall leave, bytes of data per second; `None`: as the window lets them.
    fn pacing_rate(&self) -> Option<f64> {
        None
    }

    /// How many segments leave together.
    fn burst(&self) -> u32 {
        u32::MAX
    }

    /// Whether it sets the window in recovery too; otherwise the sender does (PRR).
    fn rules_in_recovery(&self) -> bool {
        false
    }
}

/// The window at the beginning, segments (RFC 6928).
pub(super) const INITIAL_WINDOW: u32 = 10;

#[cfg(test)]
pub(super) mod tests_support {
    use super::*;

    /// An acknowledgement of so many segments to a sender that is limited by its window.
    pub(in super::super) fn acked(now: Instant, delivered: u32, round_trip: Duration) -> Acked {
        Acked {
            now,
            delivered,
            lost: 0,
            delivered_total: 0,
            in_flight: 0,
            round_trip: Some(round_trip),
            smoothed: Some(round_trip),
            is_delayed: false,
            rate: None,
            phase: Phase::Open,
            is_cwnd_limited: true,
            una: 0,
            nxt: 0,
        }
    }
}
