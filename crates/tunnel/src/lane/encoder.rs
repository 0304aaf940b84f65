//! What the encoder behind a lane is told, under every strategy: how large its next frame may be so
//! that all of it arrives in time, and a rate for encoders that know nothing of frames.
//!
//! ```text
//! acknowledged ─► Windows ─► rooms by path ─┬─► scheduler: which of them a video has ─► next frame
//!                            rates by path ─┘                                        └► smoothed: rate
//! ```
//!
//! It costs nothing until somebody asks for the first time. A path that stops answering is out of
//! the sum at once; the smoothed rate follows downwards quickly and upwards slowly, since an
//! encoder that overshoots has its pictures late, and one that undershoots only less sharp.
//!
//! Source: LoLa section 3.3, equations 2 and 3.

use std::time::Duration;

use roadweave_schedule::{AcknowledgedDatagram, Scheduler, Windows};
use roadweave_types::{Instant, PathOffer, Rate};
use serde::{Deserialize, Serialize};

/// What an encoder should do. Both count the bytes of the tunnel's datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderTarget {
    /// The bytes that the next frame may have to arrive within the lane's deadline; zero: nothing
    /// would.
    pub frame_bytes: u64,
    /// The rate that the paths have kept of late.
    #[serde(rename = "bitrate_bps")]
    pub bitrate: Rate,
}

/// The targets of one lane.
#[derive(Debug)]
pub(super) struct Targets {
    windows: Windows,
    /// Bytes a second, and when that was so.
    smoothed: Option<(Instant, f64)>,
    told: EncoderTarget,
}

impl Targets {
    /// Targets for frames that are to arrive within `deadline`.
    pub(super) fn new(deadline: Duration) -> Self {
        Self { windows: Windows::new(deadline), smoothed: None, told: EncoderTarget::default() }
    }

    /// The peer has a datagram of the lane.
    pub(super) fn on_acknowledged(&mut self, now: Instant, acknowledged: &AcknowledgedDatagram) {
        self.windows.on_acknowledged(now, acknowledged);
    }

    /// What was told last.
    pub(super) fn told(&self) -> EncoderTarget {
        self.told
    }

    /// What an encoder should do now, with `waiting` bytes of the lane that no path has yet.
    pub(super) fn take(
        &mut self,
        now: Instant,
        scheduler: &dyn Scheduler,
        paths: &[PathOffer<'_>],
        waiting: u64,
    ) -> EncoderTarget {
        self.windows.look_at(paths);
        let room = scheduler.share_of(paths, &self.windows.rooms(now, paths));
        let rate = scheduler.share_of(paths, &self.windows.rates(now, paths));
        let rate = match self.smoothed {
            Some((at, before)) => {
                let takes = if rate < before { FALL } else { RISE };
                let kept = (-now.since(at).as_secs_f64() / takes.as_secs_f64()).exp();
                rate + (before - rate) * kept
            }
            None => rate,
        };
        self.smoothed = Some((now, rate));
        self.told = EncoderTarget {
            frame_bytes: (room - waiting as f64 + ROUNDING).max(0.0) as u64,
            bitrate: Rate::from_bytes_per_second(rate as u64),
        };
        self.told
    }
}

/// How long the smoothed rate takes for two thirds of the way down.
const FALL: Duration = Duration::from_millis(50);
/// And up: nine tenths of a path that has returned are used a second later.
const RISE: Duration = Duration::from_millis(400);
/// Bytes by which a sum may be off for being rounded.
const ROUNDING: f64 = 1e-3;
