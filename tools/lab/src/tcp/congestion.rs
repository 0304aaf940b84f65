//! The interface between the sender and its congestion control.

use std::fmt;
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_quic::CongestionControl;

use super::bbr::Bbr;
use super::cubic::Cubic;
use super::rate::RateSample;

/// CUBIC with hybrid slow start, or version 1 of BBR.
pub(super) fn controller(
    algorithm: CongestionControl,
    segment: (u32, u32),
    seed: u64,
) -> Box<dyn Congestion> {
    match algorithm {
        CongestionControl::Cubic => Box::new(Cubic::default()),
        CongestionControl::Bbr => Box::new(Bbr::new(segment, seed)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) cwnd: u32,
    pub(super) ssthresh: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CongestionPhase {
    Open,
    Recovery,
    Loss,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    pub(super) now: Instant,
    pub(super) delivered: u32,
    pub(super) lost: u32,
    pub(super) delivered_total: u64,
    pub(super) in_flight: u32,
    /// The round trip of this acknowledgement, the smoothed round trip, and whether the receiver
    /// may have delayed the acknowledgement.
    pub(super) round_trip: Option<Duration>,
    pub(super) smoothed: Option<Duration>,
    pub(super) is_delayed: bool,
    pub(super) rate: Option<RateSample>,
    pub(super) phase: CongestionPhase,
    pub(super) is_cwnd_limited: bool,
    pub(super) una: u64,
    pub(super) nxt: u64,
}

pub(super) trait Congestion: fmt::Debug + Send {
    fn on_ack(&mut self, acked: &Acked, window: &mut Window);

    /// Returns the new threshold, segments. Called once for each window of data.
    fn on_congestion(&mut self, now: Instant, phase: CongestionPhase, window: &Window) -> u32;

    fn on_timeout(&mut self);

    fn undone(&self, window: &Window, cwnd_before: u32) -> u32 {
        window.cwnd.max(cwnd_before)
    }

    /// Bytes of data per second; `None`: no pacing.
    fn pacing_rate(&self) -> Option<f64> {
        None
    }

    fn burst(&self) -> u32 {
        u32::MAX
    }

    /// Whether it also sets the window during recovery; otherwise the sender does (PRR).
    fn rules_in_recovery(&self) -> bool {
        false
    }
}

/// Segments (RFC 6928).
pub(super) const INITIAL_WINDOW: u32 = 10;

#[cfg(test)]
pub(super) mod tests_support {
    use super::*;

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
            phase: CongestionPhase::Open,
            is_cwnd_limited: true,
            una: 0,
            nxt: 0,
        }
    }
}
