//! What the path can carry, as the rounds have shown it.
//!
//! ```text
//! rounds > max rate      the best of the last seconds: what the path can do
//!          short rate    what came through beside a queue or loss: what it does at present; grows back
//!          rate = the lower of the two;  rate x base round-trip time = the path's volume (BDP)
//! ```
//!
//! Rates here are fractions of bytes per second: gains multiply them, and rounding would add up.

use std::time::{Duration, Instant};

use super::delay::{Delay, QueueState};
use super::filters::Best;
use super::rounds::Round;

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) delay: Delay,
    max_rate: Best,
    max_rate_age: Duration,
    short_rate: Option<f64>,
    aggregation: Aggregation,
    pub(super) queued: bool,
    pub(super) lossy: bool,
    losses: Losses,
    /// The last round lost much, and it is open whether that is congestion: nothing grows.
    pub(super) held: bool,
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            delay: Delay::new(),
            max_rate: Best::greatest(),
            max_rate_age: Duration::ZERO,
            short_rate: None,
            aggregation: Aggregation::new(),
            queued: false,
            lossy: false,
            losses: Losses::default(),
            held: false,
        }
    }

    /// Bytes per second; 0 before the first round.
    pub(super) fn rate(&self) -> f64 {
        self.max_rate().min(self.short_rate.unwrap_or(f64::INFINITY))
    }

    fn max_rate(&self) -> f64 {
        self.max_rate.get().unwrap_or(0.0)
    }

    /// Bytes in flight when the path is full and the queue empty; 0 before the first round.
    pub(super) fn volume(&self) -> f64 {
        self.delay.base().map_or(0.0, |base| self.rate() * (base + ACKNOWLEDGEMENT_DELAY))
    }

    /// Bytes in flight beyond the volume, since acknowledgements come in bunches.
    pub(super) fn aggregated(&self) -> f64 {
        self.aggregation.best.get().unwrap_or(0.0).min(self.volume())
    }

    pub(super) fn on_batch(&mut self, now: Instant, bytes: u64) {
        let rate = self.rate();
        self.aggregation.on_batch(now, bytes as f64, rate);
    }

    pub(super) fn on_round(&mut self, now: Instant, round: &Round, in_flight: u64) {
        let verdict = self.delay.on_round(now, round);
        let queued = verdict != QueueState::Clear;
        if queued && !self.queued {
            // Rates from before the last queue but one are outdated: one pause keeps the estimate.
            self.begin_window();
        }
        self.queued = verdict == QueueState::Queue;
        if let QueueState::LongerRoute(rate) = verdict {
            self.short_rate = Some(rate * AFTER_TEST);
        }
        let lost_much = round.loss > if self.queued { LOSS_IN_QUEUE } else { LOSS_BY_CHANCE };
        let congested = lost_much && (self.queued || self.losses.last_too_long(now, round.elapsed));
        self.lossy = congested || round.marked;
        self.held = lost_much && !self.lossy;
        self.update_max(round);
        self.update_short(round, in_flight as f64);
        self.aggregation.on_round();
    }

    /// Starts again at `rate`, bytes per second, as after persistent congestion.
    pub(super) fn begin_at(&mut self, rate: f64) {
        self.short_rate = Some(rate);
    }

    fn update_max(&mut self, round: &Round) {
        let limited_by_path = !round.app_limited || self.queued;
        let ageing = if limited_by_path { 1 } else { APP_LIMITED_AGEING };
        self.max_rate_age += (round.elapsed / ageing).min(MAX_RATE_WINDOW);
        if self.max_rate_age >= MAX_RATE_WINDOW {
            self.begin_window();
        }
        if limited_by_path || round.rate > self.max_rate() {
            self.max_rate.update(round.rate);
        }
    }

    fn begin_window(&mut self) {
        self.max_rate.rotate();
        self.max_rate_age = Duration::ZERO;
    }

    fn update_short(&mut self, round: &Round, in_flight: f64) {
        if self.queued && in_flight > self.volume() * OURS {
            // A queue that never emptied means a link that never rested: the round shows its rate.
            self.short_rate = Some(round.rate);
        } else if self.lossy {
            self.short_rate = Some(round.rate.max(self.rate() * BETA));
        } else if let Some(rate) = self.short_rate {
            let growth = if self.queued || self.held { 1.0 } else { GROWTH };
            let grown = rate.max(round.rate) * growth;
            self.short_rate = (grown < self.max_rate()).then_some(grown);
        }
    }
}

/// Distinguishes congestion from a radio link that loses everything for a moment.
#[derive(Clone, Debug, Default)]
struct Losses {
    present: Option<(Instant, Instant)>,
}

impl Losses {
    fn last_too_long(&mut self, now: Instant, round: Duration) -> bool {
        let memory = LOSSES_APART.max(round * 3);
        let recent =
            |(_, latest): &(Instant, Instant)| now.saturating_duration_since(*latest) < memory;
        let (began, _) = self.present.filter(recent).unwrap_or((now, now));
        self.present = Some((began, now));
        now.saturating_duration_since(began) > OUTAGE
    }
}

/// Acknowledged bytes beyond the rate, at times (draft section 5.5.9).
#[derive(Clone, Debug)]
struct Aggregation {
    best: Best,
    rounds: u32,
    /// When the present bunch began, and bytes acknowledged since.
    bunch: Option<(Instant, f64)>,
}

impl Aggregation {
    fn new() -> Self {
        Self { best: Best::greatest(), rounds: 0, bunch: None }
    }

    fn on_batch(&mut self, now: Instant, bytes: f64, rate: f64) {
        let (began, before) = self.bunch.unwrap_or((now, 0.0));
        let expected = rate * now.saturating_duration_since(began).as_secs_f64();
        let surplus = if before <= expected {
            self.bunch = Some((now, bytes));
            bytes
        } else {
            self.bunch = Some((began, before + bytes));
            before + bytes - expected
        };
        self.best.update(surplus);
    }

    fn on_round(&mut self) {
        self.rounds += 1;
        if self.rounds >= AGGREGATION_ROUNDS {
            self.rounds = 0;
            self.best.rotate();
        }
    }
}

/// Seconds that acknowledging may add to a round-trip time.
const ACKNOWLEDGEMENT_DELAY: f64 = 0.002;
/// The draft keeps the best rate for 4 s and more (sections 2.10, 5.5.6): our links change sooner.
const MAX_RATE_WINDOW: Duration = Duration::from_secs(1);
/// An idle sender's estimate ages slower: when the other link dies, the stream comes here at once.
const APP_LIMITED_AGEING: u32 = 30;
/// Beside a queue: the draft's LossThresh, 2 % in a round (section 5.5.10).
const LOSS_IN_QUEUE: f64 = 0.02;
/// Without a queue: radio links lose up to 5 % by chance, and more in a single round.
const LOSS_BY_CHANCE: f64 = 0.10;
/// Such loss for no longer than this is poor coverage and no congestion: the rate stays and does
/// not grow.
const OUTAGE: Duration = Duration::from_millis(500);
/// Between lossy rounds that belong together: a short buffer overflows with each frame of a video.
const LOSSES_APART: Duration = Duration::from_millis(500);
/// Share kept after a round with loss, the draft's Beta (section 5.5.10).
const BETA: f64 = 0.7;
/// The queue is ours when more than this many volumes are in flight.
const OURS: f64 = 1.1;
const GROWTH: f64 = 1.5;
/// Share of its rate with which a path resumes on a longer route.
const AFTER_TEST: f64 = 0.5;
/// Rounds in half of the draft's ExtraAckedFilterLen (section 2.11).
const AGGREGATION_ROUNDS: u32 = 5;
