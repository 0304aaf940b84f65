//! One path: its gate and pacer, whether it answers, and the snapshot that schedulers see.
//!
//! ```text
//! Validating --peer answers the challenge--> Usable --owes an answer for a PTO--> Suspect
//!      ^                                      ^  '---the peer's address changes---.  |
//!      '--------------------------------------|------------------------------------'  |
//!                                             '----------an acknowledgement-----------'
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use roadweave_proto::{
    Instant, Pacing, PathId, PathSnapshot, PathStatus, Policy, Rate, UplinkId, earliest,
};

use crate::ecn::Ecn;
use crate::gate::{Gate, GateState};
use crate::meter::Meter;
use crate::meter::ramp::Ramp;
use crate::pacer::{Pacer, PacerInput};
use crate::stats::PathStats;
use crate::unread::Unread;

/// One path of a connection.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) id: PathId,
    pub(crate) uplink: Option<UplinkId>,
    pub(crate) remote: SocketAddr,
    pub(crate) gate: Arc<Gate>,
    pacers: [Pacer; Pacing::ALL.len()],
    /// Whether the peer has answered from its present address.
    pub(crate) validated: bool,
    /// Since when the peer's present address owes its first answer, or owed it.
    pub(crate) asked_since: Instant,
    pub(crate) ecn: Ecn,
    /// Whether the user has been told that it is usable.
    pub(crate) announced: bool,
    pub(crate) standby: bool,
    pub(crate) standby_by_peer: bool,
    pub(crate) suspect: Option<Suspicion>,
    probation: Option<Probation>,
    /// By pacing: whether a sender waits for the pacer.
    waiting: [bool; Pacing::ALL.len()],
    pub(crate) last_sent: Instant,
    /// When something that wants an answer was last sent.
    pub(crate) last_asked: Instant,
    pub(crate) last_heard: Instant,
    /// The frames that had come in on it by then.
    pub(crate) frames_heard: noq_proto::FrameStats,
    /// The time from one packet that came in on it to the next, averaged over some.
    heard_interval: Duration,
    /// The answers to challenges that had come in when the address changed; one more validates it.
    pub(crate) answers_before: Option<u64>,
    pub(crate) policy: Policy,
    pub(crate) stats: PathStats,
}

/// A path that owes an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspicion {
    pub(crate) since: Instant,
    /// An answer to what left earlier says nothing of it.
    pub(crate) asked_from: Instant,
    /// When it was last asked for a sign of life since, if it was.
    pub(crate) asked: Option<Instant>,
    /// How often it was asked while nothing was to be carried.
    pub(crate) idle_questions: u32,
    /// When it is its turn among all paths of an endpoint that are asked without need.
    pub(crate) turn: Option<Instant>,
}

/// A path that was cleared of a suspicion by the answer to something that left before.
///
/// That answer may have been late itself: where the path that brings acknowledgements died as well,
/// they come by another, and tell of better days. Round trips as long as theirs excuse no second
/// silence.
#[derive(Clone, Copy, Debug)]
struct Probation {
    /// The suspicion's; it ends with the answer to something that left later.
    since: Instant,
    /// How long an answer may take.
    answer_timeout: Duration,
}

/// What a new [`Path`] is made of.
pub(crate) struct NewPath {
    pub(crate) id: PathId,
    pub(crate) uplink: Option<UplinkId>,
    pub(crate) remote: SocketAddr,
    pub(crate) gate: Arc<Gate>,
}

impl Path {
    pub(crate) fn new(now: Instant, new: NewPath) -> Self {
        Self {
            id: new.id,
            uplink: new.uplink,
            remote: new.remote,
            gate: new.gate,
            pacers: Pacing::ALL.map(|_| Pacer::new(now)),
            validated: false,
            asked_since: now,
            ecn: Ecn::default(),
            announced: false,
            standby: false,
            standby_by_peer: false,
            suspect: None,
            probation: None,
            waiting: Pacing::ALL.map(|_| false),
            last_sent: now,
            last_asked: Instant::ZERO,
            last_heard: now,
            frames_heard: noq_proto::FrameStats::default(),
            heard_interval: QUIET_MAX,
            answers_before: None,
            policy: Policy::default(),
            stats: PathStats::default(),
        }
    }

    /// The library's name for it.
    pub(crate) fn quic_id(&self) -> noq_proto::PathId {
        noq_proto::PathId::from(self.id.0)
    }

    pub(crate) fn status(&self) -> PathStatus {
        if !self.validated {
            PathStatus::Validating
        } else if self.standby || self.standby_by_peer {
            PathStatus::Standby
        } else if self.suspect.is_some() {
            PathStatus::Suspect
        } else {
            PathStatus::Usable
        }
    }

    /// The round trip as of now; a snapshot's is as old as the snapshot.
    pub(crate) fn smoothed_rtt(&self) -> Duration {
        self.gate.meter().rtt.smoothed()
    }

    /// Whether a datagram can leave on it.
    pub(crate) fn carries_data(&self) -> bool {
        self.validated && !self.standby
    }

    /// Notes that a packet of the peer came in.
    pub(crate) fn on_heard(&mut self, now: Instant, bytes: usize) {
        let gap = (now - self.last_heard).min(QUIET_MAX);
        self.heard_interval = (self.heard_interval * 7 + gap) / 8;
        self.last_heard = self.last_heard.max(now);
        self.stats.packets_received += 1;
        self.stats.bytes_received += bytes as u64;
    }

    /// Whether nothing has come in for far longer than was usual of late, by the time `newest` at
    /// which something came in on any path.
    pub(crate) fn is_quiet(&self, newest: Instant) -> bool {
        newest - self.last_heard > self.quiet_after()
    }

    /// After how long without a packet it is quiet.
    pub(crate) fn quiet_after(&self) -> Duration {
        (self.heard_interval * QUIET_INTERVALS).clamp(QUIET_MIN, QUIET_MAX)
    }

    /// When it becomes suspect unless it answers, where answers may lie here `unread`.
    fn suspicion_due(&self, meter: &Meter, unread: &Unread) -> Option<Instant> {
        if self.suspect.is_some() || !self.validated {
            return None;
        }
        let since = meter.unanswered_since()?;
        Some(unread.put_off(since + self.answer_timeout(meter.rtt.pto())))
    }

    /// When it wants to be looked after: it becomes suspect, as [`Path::suspicion_due`] says, a
    /// packet counts as lost, or a pacer lets a packet through that somebody waits to send.
    pub(crate) fn poll_timeout(&self, unread: &Unread) -> Option<Instant> {
        let meter = self.gate.meter();
        let release = self.release_due(meter.mtu);
        earliest([self.suspicion_due(&meter, unread), meter.loss_due(), release])
    }

    /// How long an answer may take before the path is suspect.
    fn answer_timeout(&self, pto: Duration) -> Duration {
        let answer_timeout = pto.max(SUSPICION_MIN);
        self.probation
            .map_or(answer_timeout, |probation| probation.answer_timeout.min(answer_timeout))
    }

    /// Becomes suspect, or is cleared of suspicion. Returns whether anything changed.
    pub(crate) fn judge(&mut self, now: Instant, unread: &Unread) -> bool {
        let answered = self.gate.meter().acknowledged_up_to();
        self.probation.take_if(|probation| answered.is_some_and(|sent| sent >= probation.since));
        if self.suspect.is_some() {
            return self.judge_answer();
        }
        let due = self.suspicion_due(&self.gate.meter(), unread);
        let due = due.is_some_and(|due| due <= now);
        if due {
            self.set_suspect(now, Instant::ZERO);
        }
        due
    }

    /// Becomes suspect, if it was in use, and is asked at once, though it was suspect already. The
    /// suspicion ends with the answer to what leaves from `asked_from` on.
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

    /// Is cleared of suspicion if it has answered. Returns whether anything changed.
    pub(crate) fn judge_answer(&mut self) -> bool {
        let Some(suspicion) = self.suspect else { return false };
        let meter = self.gate.meter();
        let answered = meter.last_acknowledged();
        let asked = meter.acknowledged_up_to();
        let cleared = answered.is_some_and(|at| at > suspicion.since)
            && asked.is_some_and(|at| at >= suspicion.asked_from);
        if cleared {
            self.suspect = None;
        }
        cleared
    }

    /// Bytes of redundancy that it may still carry.
    pub(crate) fn redundancy_left(&self) -> u64 {
        self.policy.redundancy_left(self.stats.source_bytes, self.stats.redundant_bytes)
    }

    /// Brings a pacer up to `now` and takes a snapshot for packets that are paced as `pacing` says.
    pub(crate) fn snapshot(&mut self, now: Instant, pacing: Pacing) -> PathSnapshot {
        let meter = self.gate.meter();
        let most = self.policy.rate_max;
        let input = pacer_input(&meter, now, pacing, most);
        // A link of no more than that rate would take so long for what is under way.
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
            pacing_rate: Some(pacer.rate()),
            smoothed_rtt: meter.rtt.smoothed().max(at_least(input.window)),
            expected_rtt: meter.expected_rtt(now, pacing).max(at_least(under_way)),
            min_rtt: meter.rtt.least(),
            latest_rtt: meter.rtt.latest(),
            rtt_deviation: meter.rtt.deviation(),
            pto: meter.rtt.pto(),
            loss: meter.loss(),
            mtu: meter.mtu,
            last_acknowledged: meter.last_acknowledged(),
            policy: self.policy,
            redundancy_left: self.redundancy_left(),
        }
    }

    /// Notes that a packet of `bytes` bytes left.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.pacers.iter_mut().for_each(|pacer| pacer.on_sent(now, bytes));
    }

    /// Notes that a sender found no room, so that the congestion control learns that the path is
    /// used to the full, and the connection wakes up when there is room again.
    pub(crate) fn on_limited(&mut self, now: Instant, snapshot: &PathSnapshot, pacing: Pacing) {
        let by_window = snapshot.window_room() < u64::from(snapshot.mtu);
        let interval = self.pacers[pacing as usize].rate().time_for(u64::from(snapshot.mtu));
        self.gate.meter().on_limited(now, by_window, interval);
        // Where the window is full, an acknowledgement is what wakes.
        self.waiting[pacing as usize] |= !by_window;
    }

    /// Notes that packets wait which are paced as `pacing` says.
    pub(crate) fn on_backlog(&mut self, snapshot: &PathSnapshot, pacing: Pacing) {
        let mtu = u64::from(snapshot.mtu);
        self.waiting[pacing as usize] |=
            snapshot.window_room() >= mtu && snapshot.pacing_budget < mtu;
    }

    /// When a pacer lets a packet through again, if a sender waits for that.
    fn release_due(&self, mtu: u16) -> Option<Instant> {
        let waiting = self.pacers.iter().zip(self.waiting).filter(|(_, waits)| *waits);
        waiting.map(|(pacer, _)| pacer.next_release(u64::from(mtu))).min()
    }

    /// Forgets senders that need not wait any longer.
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

    pub(crate) fn set_gate(&self, state: GateState) {
        self.gate.set(state);
    }
}

/// What the pacer of packets goes by that are paced as `pacing` says; by its policy a path carries
/// no more than `most`.
fn pacer_input(meter: &Meter, now: Instant, pacing: Pacing, most: Option<Rate>) -> PacerInput {
    let ramp = match pacing {
        Pacing::Controller => Ramp::default(),
        Pacing::Window | Pacing::Rate => meter.ramp(now),
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

/// The window of a path that carries no more than `rate`: what is on the way in a round trip then.
/// With more, one whose pacer holds it back would seem to have room to those who ask windows alone.
fn window_at(rate: Rate, meter: &Meter) -> u64 {
    rate.bytes_in(meter.rtt.smoothed()).max(u64::from(meter.mtu) * WINDOW_PACKETS_MIN)
}

/// The least window, packets: that of BBR.
const WINDOW_PACKETS_MIN: u64 = 4;
/// A path is quiet when so many packets are overdue.
const QUIET_INTERVALS: u32 = 16;
/// No path is quiet sooner: video comes in frames.
const QUIET_MIN: Duration = Duration::from_millis(60);
/// A path is quiet after this in any case: paths are asked once a second while data comes in.
const QUIET_MAX: Duration = Duration::from_millis(2500);
/// No path is suspected sooner: a system under load is late by this much without any network's
/// fault.
pub(crate) const SUSPICION_MIN: Duration = Duration::from_millis(30);
