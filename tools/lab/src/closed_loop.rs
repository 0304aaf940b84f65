//! A video whose encoder follows the tunnel's target: quality and delay at the viewer.
//!
//! ```text
//! links ─► Scenario with an adaptive (or a fixed) encoder ─► run ─► ViewerFigures: SSIM, delays,
//!                                                                  stalls
//! ```
//!
//! Delays are those of all frames: an incomplete frame counts as the player's deadline. SSIM is
//! that of frames shown undamaged, by the model of the encoder.

use std::time::Duration;

use roadweave_emulate::DuplexLink;
use roadweave_proto::Rate;
use roadweave_tunnel::Strategy;

use crate::run::{RunOutcome, run};
use crate::scenario::Scenario;
use crate::traffic::{Detail, FrameSource, TrafficKind, TrafficSpec, VideoReport};
use crate::video::encoder::AdaptiveEncoder;
use crate::video::quality::Player;
use crate::world::WorldError;

/// One video over some links.
#[derive(Clone, Debug)]
pub struct ClosedLoop {
    pub links: Vec<DuplexLink>,
    pub strategy: Strategy,
    /// How the encoder finds the size of frames.
    pub encoder: Encoder,
    pub deadline: Duration,
    pub fps: u32,
    pub seconds: u32,
    pub seed: u64,
}

/// How an encoder determines the size of its next frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoder {
    /// Each frame has the size of the tunnel's target, up to this rate.
    Adaptive(Rate),
    /// A constant rate, with a key frame each second.
    Fixed(Rate),
}

/// What a viewer saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ViewerFigures {
    /// Mean SSIM of the frames shown undamaged, dB.
    pub ssim_db: f64,
    /// SSIM of each frame shown undamaged, dB, ascending.
    pub ssims_db: Vec<f64>,
    /// Mean SSIM of all frames, dB; 0 for frames damaged or later than the lane's deadline.
    pub in_time_db: f64,
    /// Share of frames shown undamaged, 0..1.
    pub undamaged: f64,
    /// Share of the time in stalls above 200 ms, 0..1.
    pub stall_ratio: f64,
    pub stalls: usize,
    /// From the capture of each frame to its last packet, ms, ascending.
    pub frame_delays_ms: Vec<f64>,
    pub sent_mbps: f64,
    /// Bytes beyond the inner packets, as a share of the inner packets.
    pub redundancy: f64,
}

impl ClosedLoop {
    /// Runs the video; fails if the world cannot be created.
    pub fn run(&self) -> Result<ViewerFigures, WorldError> {
        Ok(ViewerFigures::of(&run(&self.scenario())?, self.deadline))
    }

    fn scenario(&self) -> Scenario {
        let name = self.strategy.to_string();
        let mut scenario = Scenario::new(name, self.links.clone(), self.strategy.clone());
        scenario.lanes[0].deadline = self.deadline;
        let frames = match self.encoder {
            Encoder::Adaptive(rate_max) => FrameSource::Adaptive(AdaptiveEncoder { rate_max }),
            Encoder::Fixed(bitrate) => FrameSource::Synthetic { bitrate },
        };
        let lasting = Duration::from_secs(self.seconds.into());
        // Key frames are made on request; a key frame each second would only skip frames.
        let jumps = matches!(self.encoder, Encoder::Adaptive(_));
        let player = Player { fps: self.fps, jumps, ..Player::default() };
        let video = TrafficSpec::video(Rate::ZERO, lasting);
        scenario.traffic =
            vec![TrafficSpec { kind: TrafficKind::Video { frames, player }, ..video }];
        (scenario.seconds, scenario.seed) = (self.seconds, self.seed);
        scenario
    }
}

impl ViewerFigures {
    fn of(outcome: &RunOutcome, deadline: Duration) -> Self {
        let Some(traffic) = outcome.traffic.first() else { return Self::default() };
        let Detail::Video(video) = &traffic.detail else { return Self::default() };
        let VideoReport { stream, playout, quality, player, .. } = &**video;
        let mut delays: Vec<f64> = playout
            .frames
            .iter()
            .zip(&stream.log.frames)
            .map(|(fate, frame)| {
                let delay = fate.completed.map_or(player.deadline, |at| at.since(frame.captured));
                delay.min(player.deadline).as_secs_f64() * 1e3
            })
            .collect();
        delays.sort_unstable_by(f64::total_cmp);
        let shown = || playout.frames.iter().enumerate().filter(|(_, fate)| fate.undamaged);
        let in_time = shown().filter(|(number, fate)| {
            let captured = stream.log.frames[*number].captured;
            fate.completed.is_some_and(|at| at.since(captured) <= deadline)
        });
        let in_time: f64 = in_time.map(|(number, _)| video.quality_of(number)).sum();
        let quality_of = |(number, _)| video.quality_of(number);
        let mut qualities: Vec<f64> = shown().map(quality_of).collect();
        let seconds = stream.log.frames.len() as f64 / f64::from(player.fps);
        let ssim_db = qualities.iter().sum::<f64>() / qualities.len().max(1) as f64;
        let undamaged = qualities.len() as f64 / playout.frames.len().max(1) as f64;
        qualities.sort_unstable_by(f64::total_cmp);
        Self {
            ssim_db,
            ssims_db: qualities,
            in_time_db: in_time / playout.frames.len().max(1) as f64,
            undamaged,
            stall_ratio: quality.stall_ratio,
            stalls: quality.stalls.len(),
            frame_delays_ms: delays,
            sent_mbps: traffic.sent_bytes as f64 * 8e-6 / seconds.max(1e-9),
            redundancy: outcome.run.figures.redundancy,
        }
    }
}

#[cfg(test)]
mod tests;
