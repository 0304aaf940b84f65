//! Progress of a recording: a line per link on a terminal, a message per cycle elsewhere.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use roadweave_proto::{Instant, Rate};
use roadweave_record::{RecordPhase, RecordProgress};
use tracing::info;

use super::link::{LinkName, LinkRecorder};

pub struct Display {
    bars: Vec<ProgressBar>,
    pub next: Instant,
    last: Vec<(u16, u64, u64)>,
    looked_at: Instant,
    is_terminal: bool,
}

impl Display {
    pub fn new(links: &[LinkName]) -> Self {
        let all = MultiProgress::new();
        let style =
            ProgressStyle::with_template("{prefix:12} {bar:24.cyan/dim} {pos}/{len} s {msg}");
        let style = style.expect("the template is constant").progress_chars("━━─");
        let bar = |link: &LinkName| {
            let bar = ProgressBar::new(0).with_style(style.clone()).with_prefix(link.name.clone());
            all.add(bar)
        };
        Self {
            bars: links.iter().map(bar).collect(),
            next: Instant::ZERO,
            last: vec![(0, 0, 0); links.len()],
            looked_at: Instant::ZERO,
            is_terminal: !all.is_hidden(),
        }
    }

    pub fn show(&mut self, now: Instant, links: &[LinkRecorder]) {
        if now < self.next {
            return;
        }
        self.next = now + LOOK;
        let elapsed = now.since(self.looked_at).as_secs_f64().max(1e-3);
        self.looked_at = now;
        for ((link, bar), last) in links.iter().zip(&self.bars).zip(&mut self.last) {
            let progress = link.client.progress(now);
            let rate = |bytes: u64, before: u64| {
                Rate::from_bps((bytes.saturating_sub(before) as f64 * 8.0 / elapsed) as u64)
            };
            let (up, down) = (rate(progress.up_bytes, last.1), rate(progress.down_bytes, last.2));
            bar.set_length(link.client.plan().duration().as_secs());
            bar.set_position(progress.elapsed.as_secs());
            bar.set_message(describe(&progress, up, down));
            if !self.is_terminal && progress.cycle > last.0 {
                info!("{}: cycle {} begins", link.name.name, progress.cycle);
            }
            *last = (progress.cycle.max(last.0), progress.up_bytes, progress.down_bytes);
        }
    }

    pub fn finish(&self) {
        self.bars.iter().for_each(ProgressBar::finish);
    }
}

fn describe(progress: &RecordProgress, up: Rate, down: Rate) -> String {
    match (progress.phase, progress.round_trip) {
        (RecordPhase::Saturating, _) => format!("saturating, up {up}, down {down}"),
        (RecordPhase::Probing, Some(rtt)) => format!("probing, {:.0} ms", rtt.as_secs_f64() * 1e3),
        (phase, _) => phase.name().to_owned(),
    }
}

const LOOK: Duration = Duration::from_millis(500);
