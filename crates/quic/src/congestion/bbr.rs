//! BBR for datagrams on vehicles' links: sends at the path's proven rate with a short queue.
//!
//! ```text
//! acknowledgements > rounds > delay: base round-trip time, is there a queue?
//!                       |         |
//!                       '-> model: rate, volume -> phase: gains -> window, pacing rate
//!
//!             full, or a queue         queue gone
//!  > Startup -----------------> Drain -----------> Cruise <--------------------.
//!    2                          0.5                 1.0  \                      |
//!                                                    ^ |  '--- 5 s off base --> ProbeRtt
//!                                         queue gone | | within 2 s             1.0, 0.75 volumes
//!                                                    | v
//!                                                  Down <-- Up
//!                                                   0.9  queue  1.25 to 2
//! ```
//!
//! Phases, gains and model follow draft-ietf-ccwg-bbr-05, BBR version 3, with these differences:
//!
//! - base stations queue for half a second and rarely drop: delay is the first sign of congestion,
//!   loss the second; random loss of 5 %, and more for half a second, hardly cost rate (`model`)
//! - the rate follows a link that slows down within a round or two, or resumes (`model`)
//! - jitter and reordering do not lower the round-trip time that the window is made of; a longer
//!   route is distinguished from a queue (`delay`, `drift`)
//! - a real-time stream leaves room, and so always shows the base round-trip time: no ProbeRTT. For
//!   a stream that leaves none it costs a quarter of the volume instead of a half
//! - no Refill phase: bounds grow back round by round before Up
//! - the times of probing come from a seed: equal seeds give equal runs

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use roadweave_proto::{Rate, SplitMix64};

mod delay;
mod drift;
mod filters;
mod model;
mod rounds;
#[cfg(test)]
mod tests;

use self::model::Model;
use self::rounds::{Collector, Round};

#[derive(Debug)]
pub(crate) struct BbrFactory {
    seed: u64,
    built: AtomicU64,
}

impl BbrFactory {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, built: AtomicU64::new(0) }
    }
}

impl ControllerFactory for BbrFactory {
    fn build(self: Arc<Self>, _now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let number = self.built.fetch_add(1, Ordering::Relaxed);
        // An odd factor, so that no two controllers of a factory begin alike.
        let random = SplitMix64::new(self.seed ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Box::new(Bbr::new(current_mtu, random))
    }
}

#[derive(Clone, Debug)]
struct Bbr {
    mtu: u64,
    random: SplitMix64,
    collector: Collector,
    model: Model,
    phase: Phase,
    /// When to probe for more bandwidth; `None` until the path has been full.
    probe_at: Option<Instant>,
    /// Bytes allowed in flight after a round with loss; the draft's `inflight_longterm`.
    cap: Option<f64>,
    acknowledged: u64,
    app_limited: bool,
    window: u64,
    pacing_rate: Option<Rate>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Doubles the rate in each round, until it stops growing or a queue shows.
    Startup {
        /// The best rate so far, bytes per second.
        best: f64,
        stalled: u32,
    },
    /// Empties the queue of `Startup`.
    Drain,
    /// Sends at the rate of the path.
    Cruise,
    /// Probes for more bandwidth until a queue shows; faster with each round that brought more.
    Up {
        /// The best rate so far, bytes per second.
        best: f64,
        pacing: f64,
    },
    /// Empties the queue.
    Down,
    /// Measures the base round-trip time.
    ProbeRtt { until: Instant },
}

/// Multiples of the model's rate and volume.
struct Gains {
    pacing: f64,
    window: f64,
}

impl Bbr {
    fn new(mtu: u16, random: SplitMix64) -> Self {
        let mtu = u64::from(mtu);
        Self {
            mtu,
            random,
            collector: Collector::default(),
            model: Model::new(),
            phase: Phase::Startup { best: 0.0, stalled: 0 },
            probe_at: None,
            cap: None,
            acknowledged: 0,
            app_limited: true,
            window: mtu * INITIAL_WINDOW,
            pacing_rate: None,
        }
    }

    fn on_acknowledged(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.collector.on_acknowledged(now, sent, bytes);
        self.acknowledged += bytes;
    }

    fn on_lost(&mut self, bytes: u64) {
        self.collector.on_lost(bytes);
    }

    fn on_batch_end(&mut self, now: Instant, in_flight: u64, app_limited: bool) {
        self.model.on_batch(now, std::mem::take(&mut self.acknowledged));
        let base = Duration::from_secs_f64(self.model.delay.base().unwrap_or(0.0));
        if let Some(round) = self.collector.on_batch_end(now, app_limited, base.max(ROUND_MIN)) {
            self.app_limited = round.app_limited;
            self.model.on_round(now, &round, in_flight);
            self.update_cap(in_flight);
            self.phase = self.next_phase(now, &round, in_flight);
        }
        if matches!(self.phase, Phase::Down | Phase::Drain) && !self.exceeds_volume(in_flight) {
            self.phase = Phase::Cruise;
        }
        self.control();
    }

    fn next_phase(&mut self, now: Instant, round: &Round, in_flight: u64) -> Phase {
        let congested = self.model.queued || self.model.lossy;
        match self.phase {
            Phase::Startup { .. } if congested && !round.app_limited => self.leave_startup(now),
            Phase::Startup { best, .. } if round.rate > best * FULL_GROWTH => {
                Phase::Startup { best: round.rate, stalled: 0 }
            }
            Phase::Startup { .. } if round.app_limited => self.phase,
            Phase::Startup { best, stalled } if stalled + 1 < FULL_ROUNDS => {
                Phase::Startup { best, stalled: stalled + 1 }
            }
            Phase::Startup { .. } => self.leave_startup(now),
            Phase::Drain | Phase::Down if !congested => Phase::Cruise,
            Phase::Drain | Phase::Down => self.phase,
            Phase::Cruise if congested && self.exceeds_volume(in_flight) => Phase::Down,
            Phase::Cruise if !congested && self.probe_at.is_some_and(|at| now >= at) => {
                self.plan_probe(now);
                // A sender that leaves room learns nothing by sending faster.
                match round.app_limited {
                    true => Phase::Cruise,
                    false => Phase::Up { best: self.model.rate(), pacing: UP_PACING },
                }
            }
            Phase::Cruise if !round.app_limited && self.model.delay.since_base(now) > BASE_AGE => {
                Phase::ProbeRtt { until: now + PROBE_RTT_TIME }
            }
            Phase::Cruise => Phase::Cruise,
            Phase::Up { .. } if congested || self.model.held => Phase::Down,
            Phase::Up { .. } if round.app_limited => Phase::Cruise,
            Phase::Up { best, pacing } if round.rate > best * UP_SUCCESS => {
                Phase::Up { best: round.rate, pacing: (pacing * UP_PACING).min(UP_PACING_MAX) }
            }
            Phase::Up { .. } => self.phase,
            Phase::ProbeRtt { until } if now >= until => {
                self.model.delay.probed(now);
                Phase::Cruise
            }
            Phase::ProbeRtt { .. } => self.phase,
        }
    }

    fn leave_startup(&mut self, now: Instant) -> Phase {
        self.plan_probe(now);
        Phase::Drain
    }

    /// Flows that share a link must not probe together. A flow with a small share probes sooner,
    /// after as many rounds as it has packets in flight, as Reno would (draft section 5.3.3.8.2).
    fn plan_probe(&mut self, now: Instant) {
        let wait = PROBE_WAIT + PROBE_WAIT_RANDOM.mul_f64(self.random.unit());
        let rounds = (self.model.volume() / self.mtu as f64).max(WINDOW_MIN as f64);
        let base = self.model.delay.base().unwrap_or(0.0).max(ROUND_MIN.as_secs_f64());
        let as_reno = Duration::try_from_secs_f64(rounds * base).unwrap_or(wait);
        self.probe_at = Some(now + wait.min(as_reno));
    }

    fn exceeds_volume(&self, in_flight: u64) -> bool {
        in_flight as f64 > self.model.volume()
    }

    fn update_cap(&mut self, in_flight: u64) {
        let volume = self.model.volume();
        if self.model.lossy {
            self.cap = Some((in_flight as f64).max(volume * CAP_MIN));
        } else if !self.model.queued && !self.model.held {
            let grown = self.cap.map(|cap| cap * CAP_GROWTH);
            self.cap = grown.filter(|cap| *cap < volume * CAP_FORGOTTEN);
        }
    }

    fn gains(&self) -> Gains {
        let (pacing, window) = match self.phase {
            // A frame of a stream that leaves room may leave faster than the stream's own rate.
            Phase::Startup { .. } | Phase::Cruise if self.app_limited => (1.5, CRUISE_WINDOW),
            Phase::Startup { .. } => (2.0, 2.0),
            Phase::Drain => (0.5, 1.25),
            Phase::Down => (0.9, 1.25),
            Phase::Cruise => (1.0, CRUISE_WINDOW),
            Phase::Up { pacing, .. } => (pacing, CRUISE_WINDOW + pacing - 1.0),
            Phase::ProbeRtt { .. } => (1.0, 0.75),
        };
        Gains { pacing, window }
    }

    /// Draft section 5.6.
    fn control(&mut self) {
        let rate = self.model.rate();
        if rate <= 0.0 {
            return;
        }
        let gains = self.gains();
        let wanted = self.model.volume() * gains.window + self.model.aggregated();
        let capped = wanted.min(self.cap.unwrap_or(f64::INFINITY)) as u64;
        let in_startup = matches!(self.phase, Phase::Startup { .. });
        let least = self.mtu * if in_startup { INITIAL_WINDOW } else { WINDOW_MIN };
        self.window = capped.clamp(least, WINDOW_MAX);
        self.pacing_rate = Some(Rate::from_bytes_per_second((rate * gains.pacing) as u64));
    }

    /// "When persistent congestion is declared, the sender's congestion window MUST be reduced to
    /// the minimum congestion window" (RFC 9002 section 7.6.2;
    /// `persistent_congestion_leaves_the_least_window`).
    fn on_persistent_congestion(&mut self) {
        if let Some(base) = self.model.delay.base() {
            self.model.begin_at((self.mtu * WINDOW_MIN) as f64 / base.max(ROUND_MIN.as_secs_f64()));
        }
        self.window = self.mtu * WINDOW_MIN;
    }
}

impl Controller for Bbr {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        _pn: u64,
        _app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        self.on_acknowledged(now, sent, bytes);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
    ) {
        self.on_batch_end(now, in_flight, app_limited);
    }

    fn on_cwnd_limited(&mut self) {
        self.collector.limited = true;
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, _pn: u64, _now: Instant) {
        self.on_lost(lost_bytes.into());
    }

    fn on_congestion_event(
        &mut self,
        _now: Instant,
        _sent: Instant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        _lost_bytes: u64,
        _largest_lost_pn: u64,
    ) {
        if is_ecn {
            self.collector.marked = true;
        }
        if is_persistent_congestion {
            self.on_persistent_congestion();
        }
    }

    fn on_spurious_congestion_event(&mut self) {
        self.cap = None;
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
        self.window = self.window.max(self.mtu * WINDOW_MIN);
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window;
        metrics.pacing_rate = self.pacing_rate.map(|rate| rate.bytes_per_second() as u64);
        metrics.bandwidth_estimate = Some((self.model.rate() * 8.0) as u64);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.mtu * INITIAL_WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Packets (RFC 9002 section 7.2).
const INITIAL_WINDOW: u64 = 10;
/// Packets; the draft's MinPipeCwnd (section 2.7).
const WINDOW_MIN: u64 = 4;
/// Bytes: 10 Gbit/s for 3 s. Acknowledgements of a peer cannot make it larger.
const WINDOW_MAX: u64 = u32::MAX as u64;
/// Least length of a round: on short routes jitter is all there is.
const ROUND_MIN: Duration = Duration::from_millis(10);
/// Least growth of the rate in a round of `Startup` on a path that is not full (section 5.3.1.2).
const FULL_GROWTH: f64 = 1.25;
/// Rounds without `FULL_GROWTH` after which the path is full (section 5.3.1.2).
const FULL_ROUNDS: u32 = 3;
/// The draft waits for 2 to 3 s (section 5.3.3.5.3); links of vehicles change within a second.
const PROBE_WAIT: Duration = Duration::from_secs(1);
/// Most random time added to `PROBE_WAIT`: flows must not probe together.
const PROBE_WAIT_RANDOM: Duration = Duration::from_secs(1);
/// Pacing gain of the first round of `Up` (section 5.6.1), and its factor after each success.
const UP_PACING: f64 = 1.25;
/// A round of `Up` succeeds with this many times the best rate before.
const UP_SUCCESS: f64 = 1.1;
const UP_PACING_MAX: f64 = 2.0;
/// The draft's ProbeRTTInterval (section 5.3.4).
const BASE_AGE: Duration = Duration::from_secs(5);
/// The draft's ProbeRTTDuration (section 5.3.4).
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
/// Volumes in flight; the draft has 2 (section 5.6.1), as acknowledgements come more rarely there.
const CRUISE_WINDOW: f64 = 1.5;
/// Volumes that may always be in flight after loss: Beta of a full window.
const CAP_MIN: f64 = 1.4;
const CAP_GROWTH: f64 = 1.25;
/// Volumes at which the cap is dropped: beyond any window.
const CAP_FORGOTTEN: f64 = 4.0;
