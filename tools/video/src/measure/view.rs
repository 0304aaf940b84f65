//! The quality of each frame as seen by a viewer, compared with the encoder's input.
//!
//! ```text
//! original ─► encoder ─┬─► decoder ───────────► clean
//!                      └─► link ─► decoder ───► arrived, or the last one before ─► SSIM to original
//! ```

use std::time::Duration;

use serde::Serialize;

use super::ssim;
use crate::statistics::rounded;

#[derive(Debug)]
pub struct View {
    width: usize,
    original: Option<Picture>,
    clean: Option<Vec<u8>>,
    arrived: Option<Vec<u8>>,
    shown: Option<Vec<u8>>,
    pub seen: Vec<Seen>,
    unmatched: u64,
}

#[derive(Debug)]
struct Picture {
    at: Duration,
    luma: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub db: f64,
    pub is_whole: bool,
}

/// The report on a link with losses.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Over all frames, repeated ones included, in dB.
    ssim_db: f64,
    ssim_p5_db: f64,
    /// Share of frames shown as they were encoded.
    undamaged: f64,
    /// Number of interruptions of undamaged display.
    outages: usize,
    /// Times until the next undamaged picture, in ms: median, p95, longest.
    whole_after_ms: [f64; 3],
    /// Decoded frames without an original.
    unmatched: u64,
}

impl View {
    pub fn new(width: usize) -> Self {
        let (clean, arrived, shown) = (None, None, None);
        Self { width, original: None, clean, arrived, shown, seen: Vec::new(), unmatched: 0 }
    }

    /// The next picture enters the encoder; finishes the previous one.
    pub fn begin(&mut self, at: Duration, luma: Vec<u8>) {
        self.finish();
        self.original = Some(Picture { at, luma });
    }

    /// A decoder returned the picture of time `at`; `lossy` is the decoder behind the link.
    pub fn decoded(&mut self, at: Duration, luma: Vec<u8>, lossy: bool) {
        let original = self.original.as_ref();
        if original.is_none_or(|it| it.at.abs_diff(at) > ROUNDED_BY_MOST) {
            self.unmatched += 1;
            return;
        }
        *(if lossy { &mut self.arrived } else { &mut self.clean }) = Some(luma);
    }

    pub fn finish(&mut self) {
        let Some(original) = self.original.take() else { return };
        let (clean, arrived) = (self.clean.take(), self.arrived.take());
        let is_whole = arrived.is_some() && arrived == clean;
        self.shown = arrived.or(self.shown.take());
        let shown = self.shown.as_ref();
        let db = shown.map_or(0.0, |it| ssim::db(ssim::ssim(&original.luma, it, self.width)));
        tracing::debug!("frame {}: {db:.4} dB", self.seen.len());
        self.seen.push(Seen { db, is_whole });
    }

    pub fn report(&self, frame: Duration) -> Report {
        let mut sorted: Vec<f64> = self.seen.iter().map(|seen| seen.db).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len().max(1) as f64;
        let runs = self.seen.chunk_by(|a, b| a.is_whole == b.is_whole);
        let outages = runs.filter(|run| !run[0].is_whole).map(<[Seen]>::len);
        let mut outages: Vec<f64> =
            outages.map(|frames| frames as f64 * frame.as_secs_f64() * 1e3).collect();
        outages.sort_by(f64::total_cmp);
        let whole = self.seen.iter().filter(|seen| seen.is_whole).count();
        let at = |share: f64| quantile(&outages, share).round();
        Report {
            ssim_db: rounded(sorted.iter().sum::<f64>() / count),
            ssim_p5_db: rounded(quantile(&sorted, 0.05)),
            undamaged: (whole as f64 / count * 1e4).round() / 1e4,
            outages: outages.len(),
            whole_after_ms: [at(0.5), at(0.95), at(1.0)],
            unmatched: self.unmatched,
        }
    }
}

pub fn mean_db(seen: impl Iterator<Item = Seen>) -> Option<f64> {
    let (sum, count) = seen.fold((0.0, 0_u32), |(sum, count), it| (sum + it.db, count + 1));
    (count > 0).then(|| rounded(sum / f64::from(count)))
}

pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Encoders and decoders round times.
const ROUNDED_BY_MOST: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Duration = Duration::from_millis(40);

    fn noise(seed: usize) -> Vec<u8> {
        (0..1024).map(|i| ((i * 31 + seed) * (i + 7) % 253) as u8).collect()
    }

    #[test]
    fn what_does_not_arrive_leaves_the_last_and_an_outage() {
        let mut view = View::new(32);
        for i in 0..10 {
            let at = FRAME * i;
            view.begin(at, noise(i as usize));
            view.decoded(at, noise(i as usize), false);
            match i {
                3 | 4 => {}
                7 => view.decoded(at, noise(0), true),
                _ => view.decoded(at, noise(i as usize), true),
            }
        }
        view.finish();
        let whole: Vec<bool> = view.seen.iter().map(|seen| seen.is_whole).collect();
        assert_eq!(whole, [true, true, true, false, false, true, true, false, true, true]);
        assert!(view.seen[3].db < 10.0 && view.seen[5].db > 90.0);
        let report = view.report(FRAME);
        assert_eq!((report.outages, report.whole_after_ms), (2, [40.0, 80.0, 80.0]));
        assert_eq!((report.undamaged, report.unmatched), (0.7, 0));
    }

    #[test]
    fn a_picture_of_another_time_is_none() {
        let mut view = View::new(32);
        view.begin(FRAME, noise(1));
        view.decoded(FRAME * 2, noise(1), false);
        assert_eq!(view.report(FRAME).unmatched, 1);
    }
}
