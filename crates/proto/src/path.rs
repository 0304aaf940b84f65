//! The state of a path, for schedulers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Instant, PathId, Policy, Rate, UplinkId};

crate::named! {
    /// Whether a path may carry packets.
    #[derive(Default)]
    PathStatus {
        /// The peer has not yet answered on the path (path validation, RFC 9000 section 8.2).
        #[default]
        Validating = "validating",
        /// The path answers, and carries data.
        Usable = "usable",
        /// A packet was unanswered for longer than the probe timeout, and nothing arrived since:
        /// the path gets probes, and data only if there is no other.
        Suspect = "suspect",
        /// Kept alive without data, by request of the user or the peer.
        Standby = "standby",
    }
}

/// One path at one moment, in the terms of RFC 9002.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathSnapshot {
    /// The path.
    pub id: PathId,
    /// The vehicle's interface; unknown on the server.
    pub uplink: Option<UplinkId>,
    /// Whether the path may carry packets.
    pub status: PathStatus,
    /// The congestion window, bytes.
    pub congestion_window: u64,
    /// Bytes sent and neither acknowledged nor declared lost.
    pub bytes_in_flight: u64,
    /// Bytes that the pacer allows now.
    pub pacing_budget: u64,
    /// The pacer's rate, once the congestion control has one.
    pub pacing_rate: Option<Rate>,
    /// The smoothed round-trip time; the initial estimate before the first sample.
    pub smoothed_rtt: Duration,
    /// The expected round-trip time of a packet that leaves now; unlike the smoothed one it
    /// includes bytes in flight and overdue answers.
    pub expected_rtt: Duration,
    /// Minimum of the last seconds.
    pub min_rtt: Duration,
    /// The newest sample.
    pub latest_rtt: Duration,
    /// The mean deviation of the samples.
    pub rtt_deviation: Duration,
    /// The probe timeout (RFC 9002 section 6.2.1) without its backoff.
    pub pto: Duration,
    /// Recent share of lost packets, 0..1.
    pub loss: f32,
    /// The largest UDP payload that fits the path, bytes.
    pub mtu: u16,
    /// When the path's last acknowledgement arrived.
    pub last_acknowledged: Option<Instant>,
    /// The policy for its use.
    pub policy: Policy,
    /// Bytes of redundancy that its policy still allows; `u64::MAX`: unlimited.
    pub redundancy_left: u64,
}

impl PathSnapshot {
    /// A usable path with a window of `window` bytes, nothing in flight, and a constant round trip.
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

    /// Bytes that congestion window and pacer allow now.
    pub fn room(&self) -> u64 {
        self.window_room().min(self.pacing_budget)
    }

    /// Bytes that the congestion window allows, regardless of the pacer.
    pub fn window_room(&self) -> u64 {
        self.congestion_window.saturating_sub(self.bytes_in_flight)
    }

    /// Whether the path is at its rate limit, so that `bytes` cannot leave now. Others with room
    /// should be used then: unlike the wait for a pacer within a window, this one does not end.
    pub fn is_held_back(&self, bytes: u64) -> bool {
        self.policy.rate_max.is_some() && self.pacing_budget < bytes
    }

    /// Whether window or rate limit hold back `bytes`.
    pub fn is_full(&self, bytes: u64) -> bool {
        self.window_room() < bytes || self.is_held_back(bytes)
    }

    /// Whether the path may carry data.
    pub fn is_usable(&self) -> bool {
        self.status == PathStatus::Usable
    }
}
