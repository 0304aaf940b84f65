//! The gate technique: it makes a library that schedules paths by itself use the path we chose.
//!
//! Each path has its own congestion controller. Ours wraps the real one and is a gate:
//!
//! ```text
//!            congestion window    pacing rate     what the library sends on the path
//!  Open      endless              none            whatever is queued
//!  Closed    0                    none            what must not wait: probes, challenges, pings
//!  Sealed    0                    1 byte/s        nothing
//! ```
//!
//! With one gate open and others sealed, the next packet can leave on one path only.
//! [`Connection`](crate::Connection) enforces the real controller's window.
//!
//! The wrapper also records the fate of each packet number in the [`Meter`] behind the gate.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as StdInstant};

use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use noq_proto::{Connection, PathId, RttEstimator};
use roadweave_proto::Instant;

use crate::epoch::Epoch;
use crate::meter::{Meter, WindowUse};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum GateState {
    /// Nothing, not even acknowledgements.
    Sealed,
    /// What congestion control does not hold back.
    Closed,
    Open,
}

#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicU8,
    changed: AtomicBool,
    meter: Mutex<Meter>,
}

impl Gate {
    fn new(meter: Meter) -> Arc<Self> {
        // Closed, not sealed: a path that the peer opened must answer its challenge at once.
        let state = AtomicU8::new(GateState::Closed as u8);
        Arc::new(Self { state, changed: AtomicBool::new(false), meter: Mutex::new(meter) })
    }

    /// The present gate of a path. It changes with the peer's IP address: ask again after that.
    pub(crate) fn of(connection: &Connection, path: PathId) -> Option<Arc<Self>> {
        let controller = connection.congestion_state(path)?.clone_box().into_any();
        Some(controller.downcast::<GatedController>().ok()?.gate)
    }

    pub(crate) fn set(&self, state: GateState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    fn is(&self, state: GateState) -> bool {
        self.state.load(Ordering::Relaxed) == state as u8
    }

    pub(crate) fn meter(&self) -> MutexGuard<'_, Meter> {
        // A panic elsewhere leaves the counters as they were, which is good enough.
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes overdue packets for lost. The controller learns it with the next acknowledgement.
    pub(crate) fn detect_losses(&self, now: Instant) {
        if self.meter().detect_losses(now) {
            self.changed.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }
}

pub(crate) struct GateFactory {
    inner: Arc<dyn ControllerFactory + Send + Sync>,
    initial_rtt: Duration,
    epoch: Epoch,
}

impl GateFactory {
    pub(crate) fn new(
        inner: Arc<dyn ControllerFactory + Send + Sync>,
        initial_rtt: Duration,
        epoch: Epoch,
    ) -> Self {
        Self { inner, initial_rtt, epoch }
    }
}

impl ControllerFactory for GateFactory {
    fn build(self: Arc<Self>, now: StdInstant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = self.inner.clone().build(now, current_mtu);
        let mut meter = Meter::new(self.initial_rtt, current_mtu);
        meter.on_metrics(&inner.metrics(), inner.window());
        Box::new(GatedController { inner, gate: Gate::new(meter), epoch: self.epoch })
    }
}

#[derive(Debug)]
struct GatedController {
    inner: Box<dyn Controller>,
    gate: Arc<Gate>,
    epoch: Epoch,
}

impl GatedController {
    fn publish(&self, meter: &mut Meter) {
        meter.on_metrics(&self.inner.metrics(), self.inner.window());
    }

    fn report_losses(&mut self, now: StdInstant, is_persistent: bool) {
        let Some(losses) = self.gate.meter().take_losses() else { return };
        self.gate.changed.store(true, Ordering::Relaxed);
        for packet in &losses.packets {
            self.inner.on_packet_lost(packet.bytes, packet.pn, now);
        }
        let bytes = losses.packets.iter().map(|packet| u64::from(packet.bytes)).sum();
        let Some(last) = losses.packets.last() else { return };
        let is_persistent = is_persistent || losses.is_persistent;
        let sent = self.epoch.to_std(last.sent);
        self.inner.on_congestion_event(now, sent, is_persistent, false, bytes, last.pn);
    }
}

impl Controller for GatedController {
    fn on_sent(&mut self, now: StdInstant, bytes: u64, largest_pn: u64) {
        self.inner.on_sent(now, bytes, largest_pn);
    }

    fn on_packet_sent(&mut self, now: StdInstant, bytes: u16, pn: u64) {
        self.inner.on_packet_sent(now, bytes, pn);
        self.gate.meter().on_sent(self.epoch.of_std(now), bytes, pn);
    }

    fn on_cwnd_limited(&mut self) {}

    fn on_ack(
        &mut self,
        now: StdInstant,
        sent: StdInstant,
        bytes: u64,
        pn: u64,
        _app_limited: bool,
        rtt: &RttEstimator,
    ) {
        let [ours, ours_sent] = [now, sent].map(|at| self.epoch.of_std(at));
        let app_limited = self.gate.meter().is_app_limited(ours);
        self.inner.on_ack(now, sent, bytes, pn, app_limited, rtt);
        let none_was_lost = self.gate.meter().on_acknowledged(ours, ours_sent, bytes, pn);
        if none_was_lost {
            self.inner.on_spurious_congestion_event();
        }
        self.gate.changed.store(true, Ordering::Relaxed);
    }

    fn on_end_acks(
        &mut self,
        now: StdInstant,
        _in_flight: u64,
        _app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        let (WindowUse { app_limited, window_limited }, in_flight) = {
            let mut meter = self.gate.meter();
            (meter.on_acks_end(self.epoch.of_std(now)), meter.in_flight())
        };
        if window_limited {
            self.inner.on_cwnd_limited();
        }
        self.report_losses(now, false);
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
        self.publish(&mut self.gate.meter());
    }

    fn on_congestion_event(
        &mut self,
        now: StdInstant,
        sent: StdInstant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        lost_bytes: u64,
        largest_lost_pn: u64,
    ) {
        if is_ecn {
            let (lost, largest) = (lost_bytes, largest_lost_pn);
            self.inner.on_congestion_event(now, sent, false, true, lost, largest);
        }
        self.report_losses(now, is_persistent_congestion);
        self.publish(&mut self.gate.meter());
    }

    fn on_packet_lost(&mut self, _lost_bytes: u16, pn: u64, _now: StdInstant) {
        self.gate.meter().on_lost(pn);
        self.gate.changed.store(true, Ordering::Relaxed);
    }

    /// The meter's detection replaces the library's.
    fn on_spurious_congestion_event(&mut self) {}

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
        let mut meter = self.gate.meter();
        meter.mtu = new_mtu;
        self.publish(&mut meter);
    }

    fn on_ack_frequency_update(
        &mut self,
        ack_eliciting_threshold: u64,
        requested_max_ack_delay: Duration,
    ) {
        self.inner.on_ack_frequency_update(ack_eliciting_threshold, requested_max_ack_delay);
    }

    fn window(&self) -> u64 {
        if self.gate.is(GateState::Open) { u64::MAX } else { 0 }
    }

    /// Turns the library's pacer off, or, while sealed, fully on. To the library a window above
    /// `u32::MAX` without a rate means no pacing. A rate of one byte per second holds back even
    /// exempt packets, once the path's challenge has used up the pacer's burst. A window of 0 is
    /// never reported, since the library divides by it.
    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.inner.metrics();
        metrics.congestion_window = u64::from(u32::MAX) + 1;
        metrics.pacing_rate = self.gate.is(GateState::Sealed).then_some(1);
        metrics.send_quantum = None;
        metrics
    }

    /// The clone shares the gate: the library clones for a new port; [`Gate::of`] only looks.
    fn clone_box(&self) -> Box<dyn Controller> {
        let (inner, gate) = (self.inner.clone_box(), self.gate.clone());
        Box::new(Self { inner, gate, epoch: self.epoch })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
