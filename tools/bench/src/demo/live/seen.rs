//! What the viewer of a live encoder saw. Pure: frames in, figures out.
//!
//! The camera delivers each frame of the film at its time. A frame that was not sent, was lost, or
//! depends on a lost one is not shown: the previous picture remains.

use std::ops::Range;
use std::time::Duration;

use roadweave_lab::figures::Timeline;
use roadweave_lab::video::quality::{Percentiles, Player, STALL_GAP};
use serde::Serialize;

use super::logs::LiveFrame;
use crate::demo::clip::FPS;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveFigures {
    pub strategy: String,
    /// Shown pictures per second, all undamaged.
    pub fps: f64,
    /// Sum of the gaps above 200 ms between shown pictures, divided by the stream time.
    pub stall_ratio: f64,
    pub stalls: usize,
    /// Mean SSIM of all frames of the camera, 0..1; absent, like the next two, without pictures.
    pub ssim: Option<f64>,
    /// Mean of `-10 log10(1 - SSIM)` of the shown pictures.
    pub ssim_shown_db: Option<f64>,
    /// The same over all frames of the camera, 0 for frames not shown within 100 ms.
    pub ssim_in_time_db: Option<f64>,
    /// Capture to display of all frames of the camera, ms; the deadline for missing or late ones.
    pub frame_delay_ms: Percentiles,
    pub bitrate_bps: f64,
    pub frames: usize,
    pub frames_sent: usize,
    pub frames_shown: usize,
    /// Bytes sent beyond the distinct inner packets, as a share of these.
    pub redundancy: f64,
    /// CPU time of the sender with its encoder, percent of one core.
    pub encoder_cpu_percent: f64,
    pub cpu_percent: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveRun {
    pub figures: LiveFigures,
    pub delays: Vec<Duration>,
    /// Begin and end of every stall, since the start of the stream.
    pub stalls: Vec<(Duration, Duration)>,
    pub timeline: Timeline,
    pub rates: Rates,
}

/// Mbit/s in each [`Timeline::STEP`]; 0 for a frame that was not sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// The tunnel's target, with headers.
    pub target: Vec<f64>,
    /// The encoder's output, without headers.
    pub encoded: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
pub struct FrameWindow {
    pub start: Duration,
    pub first: usize,
    pub seconds: u32,
}

impl FrameWindow {
    pub fn frames(&self) -> Range<usize> {
        self.first..self.first + (self.seconds * FPS) as usize
    }

    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    /// Measures the film's `frames`; `ssim` has a value for each, if pictures were compared.
    pub fn measure(&self, frames: &[LiveFrame], ssim: Option<&[f32]>, player: &Player) -> LiveRun {
        let window = self.frames();
        let sent: Vec<&LiveFrame> = frames.iter().filter(|it| window.contains(&it.index)).collect();
        let shown: Vec<(&LiveFrame, Duration)> =
            sent.iter().filter_map(|frame| Some((*frame, frame.shown_after?))).collect();
        let mut delays: Vec<Duration> = shown.iter().map(|(_, delay)| *delay).collect();
        delays.sort_unstable();
        let mut of_all: Vec<_> = delays.iter().map(|delay| (*delay).min(player.deadline)).collect();
        of_all.resize(window.len(), player.deadline);
        let stalls = self.stalls(&shown);
        let stalled: Duration = stalls.iter().map(|(from, to)| *to - *from).sum();
        let in_time = |ssim: &[f32]| {
            let punctual = shown.iter().filter(|(_, delay)| *delay <= IN_TIME);
            punctual.map(|(frame, _)| decibels(ssim, frame.index)).sum::<f64>()
        };
        let all = |ssim: &[f32]| shown.iter().map(|(it, _)| decibels(ssim, it.index)).sum::<f64>();
        let seconds = f64::from(self.seconds);
        let bytes: usize = sent.iter().map(|frame| frame.sent.frame_bytes).sum();
        let mean = |sum: f64, count: usize| sum / count.max(1) as f64;
        LiveRun {
            figures: LiveFigures {
                fps: shown.len() as f64 / seconds,
                stall_ratio: stalled.as_secs_f64() / seconds,
                stalls: stalls.len(),
                ssim: ssim.map(|ssim| {
                    let of_window = ssim.get(window.clone()).unwrap_or_default();
                    mean(of_window.iter().map(|it| f64::from(*it)).sum(), of_window.len())
                }),
                ssim_shown_db: ssim.map(|ssim| mean(all(ssim), shown.len())),
                ssim_in_time_db: ssim.map(|ssim| mean(in_time(ssim), window.len())),
                frame_delay_ms: Percentiles::of_sorted(&of_all),
                bitrate_bps: bytes as f64 * 8.0 / seconds,
                frames: window.len(),
                frames_sent: sent.len(),
                frames_shown: shown.len(),
                ..LiveFigures::default()
            },
            rates: self.rates(&sent),
            delays,
            stalls,
            timeline: Timeline::default(),
        }
    }

    fn stalls(&self, shown: &[(&LiveFrame, Duration)]) -> Vec<(Duration, Duration)> {
        let since_start = |(frame, delay): &(&LiveFrame, Duration)| {
            (frame.captured + *delay).saturating_sub(self.start)
        };
        let mut moments: Vec<_> = shown.iter().map(since_start).collect();
        moments.extend([Duration::ZERO, self.duration()]);
        moments.retain(|moment| *moment <= self.duration());
        moments.sort_unstable();
        let gaps = moments.windows(2).map(|pair| (pair[0], pair[1]));
        gaps.filter(|(from, to)| *to - *from > STALL_GAP).collect()
    }

    fn rates(&self, sent: &[&LiveFrame]) -> Rates {
        let steps = (self.duration().as_millis() / Timeline::STEP.as_millis()) as usize;
        let mbps = 8.0 / 1e6 / Timeline::STEP.as_secs_f64();
        let frames_in_step = f64::from(FPS) * Timeline::STEP.as_secs_f64();
        let mut rates = Rates { target: vec![0.0; steps], encoded: vec![0.0; steps] };
        for frame in sent {
            // By index, since capture times jitter.
            let step = ((frame.index - self.first) as f64 / frames_in_step) as usize;
            if let (Some(target), Some(encoded)) =
                (rates.target.get_mut(step), rates.encoded.get_mut(step))
            {
                *target += frame.sent.target_bytes as f64 * mbps;
                *encoded += frame.sent.frame_bytes as f64 * mbps;
            }
        }
        rates
    }
}

fn decibels(ssim: &[f32], index: usize) -> f64 {
    let missing = 1.0 - ssim.get(index).copied().map_or(0.0, f64::from);
    -10.0 * missing.max(1e-4).log10()
}

/// The delay within which a driver can still react.
const IN_TIME: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::live::logs::tests::frame;

    const START: Duration = Duration::from_secs(1_000);

    fn window() -> FrameWindow {
        FrameWindow { start: START, first: 60, seconds: 2 }
    }

    fn film(shown_after: impl Fn(usize) -> Option<u64>) -> Vec<LiveFrame> {
        let from = START - Duration::from_secs(2);
        (0..150)
            .map(|index| {
                let captured = from + Duration::from_secs(1) * index as u32 / FPS;
                frame(index, captured, shown_after(index).map(Duration::from_millis))
            })
            .collect()
    }

    #[test]
    fn what_is_outside_the_window_does_not_count() {
        let frames = film(|index| (60..120).contains(&index).then_some(50));
        let ssim: Vec<f32> =
            (0..150).map(|index| if (60..120).contains(&index) { 0.99 } else { 0.0 }).collect();
        let run = window().measure(&frames, Some(&ssim), &Player::default());
        let figures = run.figures;
        assert_eq!((figures.frames, figures.frames_sent, figures.frames_shown), (60, 60, 60));
        assert_eq!((figures.fps, figures.stalls, figures.stall_ratio), (30.0, 0, 0.0));
        assert!((figures.ssim.unwrap() - 0.99).abs() < 1e-6);
        assert!((figures.ssim_shown_db.unwrap() - 20.0).abs() < 1e-3);
        assert!((figures.ssim_in_time_db.unwrap() - 20.0).abs() < 1e-3);
        assert_eq!(figures.frame_delay_ms.p99, 50.0);
        assert_eq!(figures.bitrate_bps, 7_000.0 * 8.0 * 30.0);
        assert_eq!((run.rates.encoded.len(), run.delays.len()), (20, 60));
        assert!((run.rates.encoded[7] - 1.68).abs() < 1e-9, "{:?}", run.rates.encoded);
    }

    #[test]
    fn frames_that_are_not_shown_stall_and_count_as_the_deadline() {
        // Ten frames are missing, and five are late.
        let frames = film(|index| match index {
            80..90 => None,
            100..105 => Some(150),
            _ => Some(40),
        });
        let ssim = vec![0.9; 150];
        let run = window().measure(&frames, Some(&ssim), &Player::default());
        assert_eq!(run.figures.frames_shown, 50);
        assert_eq!(run.stalls.len(), 1);
        let (from, to) = run.stalls[0];
        assert_eq!((from.as_millis(), to.as_millis()), (673, 1_040));
        let delays = &run.figures.frame_delay_ms;
        assert_eq!((delays.p50, delays.p95), (40.0, 700.0));
        let in_time = run.figures.ssim_in_time_db.unwrap();
        assert!((in_time - 10.0 * 45.0 / 60.0).abs() < 1e-3, "{in_time}");
        assert!((run.figures.ssim_shown_db.unwrap() - 10.0).abs() < 1e-3);
    }

    #[test]
    fn of_nothing_there_is_one_stall() {
        let run = window().measure(&[], None, &Player::default());
        assert_eq!((run.figures.stalls, run.figures.stall_ratio), (1, 1.0));
        assert_eq!((run.figures.ssim, run.figures.frame_delay_ms.p50), (None, 700.0));
    }
}
