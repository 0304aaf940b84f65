//! Slow start for a path that takes over from others.

use std::time::Duration;

use roadweave_proto::{Instant, Rate};

use super::Meter;
use super::rtt::GRANULARITY;

/// What a path may carry beyond its congestion controller, while it shows no congestion.
///
/// The controller of a path that carried little knows little about it: BBR probes upwards by a
/// quarter every few seconds. When the path of a video dies, others must take over within a few
/// round trips. So a path without a queue and without loss may carry an initial window, and twice
/// what it delivered in the last round trip: slow start (RFC 9002 section 7.3.1) that ends with the
/// first sign of a queue, as in HyStart++ (RFC 9406). After a second of full use the controller
/// takes over. RFC 7661 says why an application-limited sender may send more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ramp {
    /// Bytes.
    pub(crate) window: u64,
    pub(crate) rate: Rate,
}

impl Ramp {
    pub(crate) fn of(meter: &Meter, now: Instant) -> Self {
        let rtt = &meter.rtt;
        let least = rtt.recent_min();
        let jitter = meter.reordering.most().saturating_sub(rtt.smoothed());
        let calm =
            rtt.smoothed() <= least + least / 2 + RAMP_SLACK + jitter && meter.loss < RAMP_LOSS_MAX;
        let busy = meter.utilization.is_busy_for(now, RAMP_TIME);
        if !calm || busy || !rtt.is_sampled() {
            return Self::default();
        }
        let delivered =
            (meter.delivery.newest().bytes_per_second() * rtt.smoothed().as_secs_f64()) as u64;
        let window = (delivered * 2).max(u64::from(meter.mtu) * RAMP_PACKETS);
        Self { window, rate: Rate::of(window, rtt.smoothed().max(GRANULARITY)) }
    }
}

/// Beyond half of the recent minimum: a moving vehicle's round-trip time varies by as much.
const RAMP_SLACK: Duration = Duration::from_millis(10);
const RAMP_TIME: Duration = Duration::from_millis(1000);
const RAMP_LOSS_MAX: f32 = 0.05;
/// In flight on any path without congestion: RFC 6928 allows 10, content networks use 32.
const RAMP_PACKETS: u64 = 32;
