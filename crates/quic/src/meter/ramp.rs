//! Slow start for a path that others have to be replaced by.

use std::time::Duration;

use roadweave_proto::{Instant, Rate};

use super::Meter;
use super::rtt::GRANULARITY;

/// What a path may carry beyond what its congestion controller allows, while it shows no
/// congestion.
///
/// The controller of a path that carried little knows little of it: BBR has measured what it was
/// given, and from there it probes upwards by a quarter every few seconds. When the path that
/// carried the video dies, the others must take over within a few round trips. So a path without a
/// queue (its round-trip time is near its minimum) and without loss may carry an initial window,
/// and twice what it delivered in the last round trip: slow start (RFC 9002 section 7.3.1) that
/// ends with the first sign of a queue, as HyStart++ (RFC 9406) ends it. After a second of full use
/// the controller knows enough, and the path is its own again: it keeps queues shorter than a slow
/// start does. RFC 7661 has the case for not holding an application-limited sender to what it
/// happened to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ramp {
    /// Bytes.
    pub(crate) window: u64,
    pub(crate) rate: Rate,
}

impl Meter {
    pub(crate) fn ramp(&self, now: Instant) -> Ramp {
        let rtt = &self.rtt;
        let least = rtt.recent_min();
        let jitter = self.reordering.most().saturating_sub(rtt.smoothed());
        let calm = rtt.smoothed() <= least + least / 2 + RAMP_SLACK + jitter
            && self.loss() < RAMP_LOSS_MAX;
        let busy = self.utilization.is_busy_for(now, RAMP_TIME);
        if !calm || busy || !rtt.is_sampled() {
            return Ramp::default();
        }
        let delivered =
            (self.delivery.newest().bytes_per_second() * rtt.smoothed().as_secs_f64()) as u64;
        let window = (delivered * 2).max(u64::from(self.mtu) * RAMP_PACKETS);
        Ramp { window, rate: Rate::of(window, rtt.smoothed().max(GRANULARITY)) }
    }
}

/// How much above its recent minimum the round-trip time of a path without a queue may be, beyond a
/// half: that of a moving vehicle varies by as much.
const RAMP_SLACK: Duration = Duration::from_millis(10);
/// For how long a path that is used to the full may outrun its controller.
const RAMP_TIME: Duration = Duration::from_millis(1000);
/// The share of lost packets above which a path is left to its controller.
const RAMP_LOSS_MAX: f32 = 0.05;
/// What any path without congestion may have in flight: a new connection may send 10 (RFC 6928),
/// content networks use 32.
const RAMP_PACKETS: u64 = 32;
