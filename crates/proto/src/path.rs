//! What a scheduler may know of a path.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Instant, PathId, Policy, Rate, UplinkId};

/// Whether a path may carry packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathStatus {
    /// The peer has not yet answered on the path (path validation, RFC 9000 section 8.2).
    Validating,
    /// The path answers, and carries data.
    Usable,
    /// A packet went unanswered for longer than the probe timeout, and nothing was heard since: the
    /// path gets probes, and data only where there is no other.
    Suspect,
    /// The path is kept alive, but not for data: the user or the peer wants it so.
    Standby,
}

impl PathStatus {
    /// All statuses that a path can have.
    pub const ALL: [Self; 4] = [Self::Validating, Self::Usable, Self::Suspect, Self::Standby];

    /// The name of the status in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Usable => "usable",
            Self::Suspect => "suspect",
            Self::Standby => "standby",
        }
    }
}

/// One path at one moment; the terms are those of RFC 9002.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathSnapshot {
    /// The path.
    pub id: PathId,
    /// The vehicle's interface it runs over; the server does not know it.
    pub uplink: Option<UplinkId>,
    /// Whether the path may carry packets.
    pub status: PathStatus,
    /// The congestion window, bytes.
    pub congestion_window: u64,
    /// Bytes sent and neither acknowledged nor declared lost.
    pub bytes_in_flight: u64,
    /// Bytes that the pacer lets through at this moment.
    pub pacing_budget: u64,
    /// The rate of the pacer, once the congestion control has one.
    pub pacing_rate: Option<Rate>,
    /// The smoothed round-trip time; the initial estimate before the first sample.
    pub smoothed_rtt: Duration,
    /// The round-trip time that a packet would have which left now, as far as can be told; unlike
    /// the smoothed one it knows of what is in flight, and of answers that are overdue.
    pub expected_rtt: Duration,
    /// The smallest round-trip time of the last seconds: routes change.
    pub min_rtt: Duration,
    /// The newest sample.
    pub latest_rtt: Duration,
    /// The mean deviation of the samples.
    pub rtt_deviation: Duration,
    /// The probe timeout (RFC 9002 section 6.2.1) without its backoff.
    pub pto: Duration,
    /// The share of packets lost of late, 0..1.
    pub loss: f32,
    /// The largest UDP payload that fits the path, bytes.
    pub mtu: u16,
    /// When the last acknowledgement for a packet of this path came.
    pub last_acknowledged: Option<Instant>,
    /// The policy by which the path may be used.
    pub policy: Policy,
    /// Bytes of redundancy that it may carry by its policy; `u64::MAX` for any number.
    pub redundancy_left: u64,
}

impl PathSnapshot {
    /// A usable path with a congestion window of `window` bytes, on which nothing is under way,
    /// nothing was lost, and each round trip took `rtt`.
    pub fn idle(id: PathId, rtt: Duration, window: u64) -> Self {
        Self {
            id,
            uplink: None,
            status: PathStatus::Usable,
            congestion_window: window,
            bytes_in_flight: 0,
            pacing_budget: u64::MAX,
            pacing_rate: None,
            smoothed_rtt: rtt,
            expected_rtt: rtt,
            min_rtt: rtt,
            latest_rtt: rtt,
            rtt_deviation: Duration::ZERO,
            pto: rtt,
            loss: 0.0,
            mtu: 1452,
            last_acknowledged: None,
            policy: Policy::default(),
            redundancy_left: u64::MAX,
        }
    }

    /// Bytes that the congestion window and the pacer let through now.
    pub fn room(&self) -> u64 {
        self.window_room().min(self.pacing_budget)
    }

    /// Bytes that the congestion window lets through, whatever the pacer says.
    pub fn window_room(&self) -> u64 {
        self.congestion_window.saturating_sub(self.bytes_in_flight)
    }

    /// Whether the path is used to its rate limit, so that nothing of `bytes` can leave now. Other
    /// than for a pacer without one, which only spreads what a window lets through, it is not to be
    /// waited for while others have room: the wait has no end.
    pub fn is_held_back(&self, bytes: u64) -> bool {
        self.policy.rate_max.is_some() && self.pacing_budget < bytes
    }

    /// Whether neither window nor rate limit lets `bytes` through.
    pub fn is_full(&self, bytes: u64) -> bool {
        self.window_room() < bytes || self.is_held_back(bytes)
    }

    /// Whether the path may carry data.
    pub fn is_usable(&self) -> bool {
        self.status == PathStatus::Usable
    }
}
