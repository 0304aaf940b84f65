//! One path: its gate and pacer, whether it answers, and the snapshot for schedulers.
//!
//! ```text
//! Validating --peer answers the challenge--> Usable --owes an answer for a PTO--> Suspect
//!      ^                                      ^  '---the peer's address changes---.  |
//!      '--------------------------------------|------------------------------------'  |
//!                                             '----------an acknowledgement-----------'
//! ```

mod ecn;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use roadweave_proto::{
    Instant, Pacing, PathId, PathSnapshot, PathStatus, Policy, Rate, UplinkId, earliest,
};

use self::ecn::Ecn;
use crate::gate::Gate;
use crate::meter::Meter;
use crate::meter::forecast::expected_rtt;
use crate::meter::ramp::Ramp;
use crate::pacer::{Pacer, PacerInput};
use crate::read_delay::{ReadDelay, SUSPICION_MIN};
use crate::stats::PathStats;

#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) id: PathId,
    pub(crate) uplink: Option<UplinkId>,
    pub(crate) remote: SocketAddr,
    pub(crate) gate: Arc<Gate>,
    pacers: [Pacer; Pacing::ALL.len()],
    pub(crate) validated: bool,
    /// Since when the peer's present address owes, or owed, its first answer.
    pub(crate) asked_since: Instant,
    pub(crate) ecn: Ecn,
    pub(crate) announced: bool,
    pub(crate) standby_by_peer: bool,
    pub(crate) suspect: Option<Suspicion>,
    probation: Option<Probation>,
    /// By pacing: a sender waits for the pacer.
    waiting: [bool; Pacing::ALL.len()],
    pub(crate) last_sent: Instant,
    pub(crate) last_asked: Instant,
    pub(crate) arrivals: Arrivals,
    pub(crate) frames_heard: noq_proto::FrameStats,
    /// Answers to challenges before the address changed; one more validates it.
    pub(crate) answers_before: Option<u64>,
    pub(crate) policy: Policy,
    pub(crate) stats: PathStats,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspicion {
    pub(crate) since: Instant,
    pub(crate) asked_from: Instant,
    pub(crate) asked: Option<Instant>,
    pub(crate) idle_questions: u32,
    pub(crate) turn: Option<Instant>,
}

/// A path cleared of a suspicion by the answer to a packet sent before it. That answer may have
/// been late itself: where the path of acknowledgements died as well, they come by another. Round
/// trips as long as theirs excuse no second silence.
#[derive(Clone, Copy, Debug)]
struct Probation {
    /// Of the suspicion; it ends with the answer to a later packet.
    since: Instant,
    answer_timeout: Duration,
}

#[derive(Debug)]
pub(crate) struct Arrivals {
    pub(crate) last: Instant,
    interval: Duration,
}

impl Arrivals {
    fn add(&mut self, now: Instant) {
        let gap = (now - self.last).min(QUIET_MAX);
        self.interval = (self.interval * 7 + gap) / 8;
        self.last = self.last.max(now);
    }

    /// A longer silence is unusual.
    pub(crate) fn quiet_after(&self) -> Duration {
        (self.interval * QUIET_INTERVALS).clamp(QUIET_MIN, QUIET_MAX)
    }
}

impl Path {
    pub(crate) fn new(
        now: Instant,
        id: PathId,
        uplink: Option<UplinkId>,
        remote: SocketAddr,
        gate: Arc<Gate>,
    ) -> Self {
        Self {
            id,
            uplink,
            remote,
            gate,
            pacers: Pacing::ALL.map(|_| Pacer::new(now)),
            validated: false,
            asked_since: now,
            ecn: Ecn::default(),
            announced: false,
            standby_by_peer: false,
            suspect: None,
            probation: None,
            waiting: Pacing::ALL.map(|_| false),
            last_sent: now,
            last_asked: Instant::ZERO,
            arrivals: Arrivals { last: now, interval: QUIET_MAX },
            frames_heard: noq_proto::FrameStats::default(),
            answers_before: None,
            policy: Policy::default(),
            stats: PathStats::default(),
        }
    }

    pub(crate) fn quic_id(&self) -> noq_proto::PathId {
        noq_proto::PathId::from(self.id.0)
    }

    pub(crate) fn status(&self) -> PathStatus {
        if !self.validated {
            PathStatus::Validating
        } else if self.standby_by_peer {
            PathStatus::Standby
        } else if self.suspect.is_some() {
            PathStatus::Suspect
        } else {
            PathStatus::Usable
        }
    }

    pub(crate) fn smoothed_rtt(&self) -> Duration {
        self.gate.meter().rtt.smoothed()
    }

    pub(crate) fn on_heard(&mut self, now: Instant, bytes: usize) {
        self.arrivals.add(now);
        self.stats.packets_received += 1;
        self.stats.bytes_received += bytes as u64;
    }

    /// Whether its silence is unusual at `newest`, the receipt of the last packet on any path.
    pub(crate) fn is_quiet(&self, newest: Instant) -> bool {
        newest - self.arrivals.last > self.arrivals.quiet_after()
    }

    fn suspicion_due(&self, meter: &Meter, read_delay: &ReadDelay) -> Option<Instant> {
        if self.suspect.is_some() || !self.validated {
            return None;
        }
        let since = meter.unanswered_since()?;
        Some(read_delay.put_off(since + self.answer_timeout(meter.rtt.pto())))
    }

    /// The next time of a suspicion, a loss, or a pacer that releases a packet.
    pub(crate) fn poll_timeout(&self, read_delay: &ReadDelay) -> Option<Instant> {
        let meter = self.gate.meter();
        let release = self.release_due(meter.mtu);
        earliest([self.suspicion_due(&meter, read_delay), meter.loss_due(), release])
    }

    fn answer_timeout(&self, pto: Duration) -> Duration {
        let answer_timeout = pto.max(SUSPICION_MIN);
        self.probation
            .map_or(answer_timeout, |probation| probation.answer_timeout.min(answer_timeout))
    }

    pub(crate) fn judge(&mut self, now: Instant, read_delay: &ReadDelay) -> bool {
        let answered = self.gate.meter().acknowledged_up_to();
        self.probation.take_if(|probation| answered.is_some_and(|sent| sent >= probation.since));
        if self.suspect.is_some() {
            return self.judge_answer();
        }
        let due = self.suspicion_due(&self.gate.meter(), read_delay);
        let due = due.is_some_and(|due| due <= now);
        if due {
            self.set_suspect(now, Instant::ZERO);
        }
        due
    }

    /// Makes it suspect, or probes again. An answer to a packet from `asked_from` on clears it.
    pub(crate) fn set_suspect(&mut self, now: Instant, asked_from: Instant) {
        if !self.validated {
            return;
        }
        let answer_timeout = self.answer_timeout(self.gate.meter().rtt.pto());
        self.probation = Some(Probation { since: now, answer_timeout });
        let suspicion =
            Suspicion { since: now, asked_from, asked: None, idle_questions: 0, turn: None };
        if self.suspect.replace(suspicion).is_none() {
            self.stats.suspicions += 1;
        }
    }

    pub(crate) fn judge_answer(&mut self) -> bool {
        let Some(suspicion) = self.suspect else { return false };
        let meter = self.gate.meter();
        let answered = meter.last_acknowledged;
        let asked = meter.acknowledged_up_to();
        let cleared = answered.is_some_and(|at| at > suspicion.since)
            && asked.is_some_and(|at| at >= suspicion.asked_from);
        if cleared {
            self.suspect = None;
        }
        cleared
    }

    pub(crate) fn redundancy_left(&self) -> u64 {
        self.policy.redundancy_left(self.stats.source_bytes, self.stats.redundant_bytes)
    }

    pub(crate) fn snapshot(&mut self, now: Instant, pacing: Pacing) -> PathSnapshot {
        let meter = self.gate.meter();
        let most = self.policy.rate_max;
        let input = pacer_input(&meter, now, pacing, most);
        // A link of at most that rate would take this long for bytes in flight.
        let at_least = |bytes| most.map_or(Duration::ZERO, |most| most.time_for(bytes));
        let under_way = meter.in_flight() + u64::from(meter.mtu);
        self.pacers[pacing as usize].update(now, &input);
        let pacer = &self.pacers[pacing as usize];
        PathSnapshot {
            id: self.id,
            uplink: self.uplink,
            status: self.status(),
            congestion_window: input.window,
            bytes_in_flight: meter.in_flight(),
            pacing_budget: pacer.budget(),
            pacing_rate: Some(pacer.rate),
            smoothed_rtt: meter.rtt.smoothed().max(at_least(input.window)),
            expected_rtt: expected_rtt(&meter, now, pacing).max(at_least(under_way)),
            min_rtt: meter.rtt.least(),
            latest_rtt: meter.rtt.latest(),
            rtt_deviation: meter.rtt.deviation(),
            pto: meter.rtt.pto(),
            loss: meter.loss,
            mtu: meter.mtu,
            last_acknowledged: meter.last_acknowledged,
            policy: self.policy,
            redundancy_left: self.redundancy_left(),
        }
    }

    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.pacers.iter_mut().for_each(|pacer| pacer.on_sent(now, bytes));
    }

    pub(crate) fn on_probed(&mut self, now: Instant) {
        self.last_asked = now;
        self.stats.probes_sent += 1;
        if let Some(suspicion) = &mut self.suspect {
            (suspicion.asked, suspicion.turn) = (Some(now), None);
        }
    }

    pub(crate) fn marks(&mut self, now: Instant, wants: bool) -> bool {
        let is_late = match &self.suspect {
            _ if !self.validated => now >= self.asked_since + FIRST_ANSWER,
            Some(suspicion) => {
                now >= suspicion.since + SUSPECT_MARKED && self.stats.probes_sent % 2 == 1
            }
            None => false,
        };
        self.ecn.on_sent(wants, is_late)
    }

    /// Notes that a sender found no room: the path counts as full; room wakes the connection.
    pub(crate) fn on_limited(&mut self, now: Instant, snapshot: &PathSnapshot, pacing: Pacing) {
        let by_window = snapshot.window_room() < u64::from(snapshot.mtu);
        let interval = self.pacers[pacing as usize].rate.time_for(u64::from(snapshot.mtu));
        self.gate.meter().on_limited(now, by_window, interval);
        // Where the window is full, an acknowledgement wakes.
        self.waiting[pacing as usize] |= !by_window;
    }

    pub(crate) fn on_backlog(&mut self, snapshot: &PathSnapshot, pacing: Pacing) {
        let mtu = u64::from(snapshot.mtu);
        self.waiting[pacing as usize] |=
            snapshot.window_room() >= mtu && snapshot.pacing_budget < mtu;
    }

    fn release_due(&self, mtu: u16) -> Option<Instant> {
        let waiting = self.pacers.iter().zip(self.waiting).filter(|(_, waits)| *waits);
        waiting.map(|(pacer, _)| pacer.next_release(u64::from(mtu))).min()
    }

    pub(crate) fn release(&mut self, now: Instant) {
        let meter = self.gate.meter();
        for (pacing, waits) in Pacing::ALL.into_iter().zip(&mut self.waiting) {
            if *waits {
                let pacer = &mut self.pacers[pacing as usize];
                pacer.update(now, &pacer_input(&meter, now, pacing, self.policy.rate_max));
                *waits = pacer.budget() < u64::from(meter.mtu);
            }
        }
    }
}

fn pacer_input(meter: &Meter, now: Instant, pacing: Pacing, most: Option<Rate>) -> PacerInput {
    let ramp = match pacing {
        Pacing::Controller => Ramp::default(),
        Pacing::Window | Pacing::Rate => Ramp::of(meter, now),
    };
    let window = meter.window.max(ramp.window);
    PacerInput {
        pacing,
        controller_rate: meter.pacing_rate.map(|rate| rate.max(ramp.rate)),
        window: most.map_or(window, |most| window.min(window_at(most, meter))),
        smoothed_rtt: meter.rtt.smoothed(),
        delivered_rate: meter.delivery.best(),
        mtu: meter.mtu,
        rate_max: [meter.order_rate(), most].into_iter().flatten().min(),
    }
}

/// The window of a path of at most `rate`: bytes in flight in a round trip. With a larger one, a
/// path held back by its pacer would seem to have room by its window.
fn window_at(rate: Rate, meter: &Meter) -> u64 {
    rate.bytes_in(meter.rtt.smoothed()).max(u64::from(meter.mtu) * WINDOW_PACKETS_MIN)
}

/// Packets: that of BBR.
const WINDOW_PACKETS_MIN: u64 = 4;
/// An address without a first answer gets unmarked packets after this: satellites answer by then.
const FIRST_ANSWER: Duration = Duration::from_millis(700);
/// How long all questions to a suspect path are marked.
const SUSPECT_MARKED: Duration = Duration::from_millis(500);
const QUIET_INTERVALS: u32 = 16;
/// No path is quiet sooner: video comes in frames.
const QUIET_MIN: Duration = Duration::from_millis(60);
/// Always quiet after this: paths are probed once a second while data comes.
const QUIET_MAX: Duration = Duration::from_millis(2500);
