//! What a link can do, over time.

use std::sync::Arc;
use std::time::Duration;

use roadweave_proto::Rate;

use crate::capacity::Capacity;
use crate::timeline::Timeline;

/// Capacity, delay and loss of a link in one direction, over time.
///
/// Cheap to clone: many links share one recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    capacity: Arc<Capacity>,
    delay: Arc<Timeline<Duration>>,
    loss: Arc<Timeline<f64>>,
}

impl Trace {
    /// A link that never changes: `rate`, one-way propagation `delay`, no loss.
    pub fn constant(rate: Rate, delay: Duration) -> Self {
        Self::new(Capacity::constant(rate), Timeline::constant(delay), Timeline::constant(0.0))
    }

    /// A link of this `capacity`, one-way propagation `delay` and `loss` (share of packets, 0..=1).
    pub fn new(
        capacity: impl Into<Capacity>,
        delay: Timeline<Duration>,
        loss: Timeline<f64>,
    ) -> Self {
        Self { capacity: Arc::new(capacity.into()), delay: Arc::new(delay), loss: Arc::new(loss) }
    }

    /// This link with `capacity` in the place of its own; delay and loss stay.
    #[must_use]
    pub fn with_capacity(&self, capacity: impl Into<Capacity>) -> Self {
        Self { capacity: Arc::new(capacity.into()), ..self.clone() }
    }

    /// This link with the one-way propagation `delay` in the place of its own; capacity and loss
    /// stay.
    #[must_use]
    pub fn with_delay(&self, delay: Timeline<Duration>) -> Self {
        Self { delay: Arc::new(delay), ..self.clone() }
    }

    /// This link with `loss` (share of packets, 0..=1) in the place of its own; capacity and delay
    /// stay.
    #[must_use]
    pub fn with_loss(&self, loss: Timeline<f64>) -> Self {
        Self { loss: Arc::new(loss), ..self.clone() }
    }

    /// Bytes that it can carry.
    pub fn capacity(&self) -> &Arc<Capacity> {
        &self.capacity
    }

    /// The one-way propagation delay.
    pub fn delay(&self) -> &Timeline<Duration> {
        &self.delay
    }

    /// The share of packets lost, 0..=1.
    pub fn loss(&self) -> &Timeline<f64> {
        &self.loss
    }

    /// How long one pass takes; `None` when nothing ever changes.
    pub fn length(&self) -> Option<Duration> {
        self.capacity.length().max(self.delay.length()).max(self.loss.length())
    }

    /// A queue of 500 ms at the mean rate, at least [`Trace::QUEUE_BYTES_MIN`].
    ///
    /// Cellular modems and base stations buffer some hundreds of milliseconds up to a second:
    /// deep enough to hide scheduling gaps, and the reason why delay grows before loss does.
    pub fn default_queue_bytes(&self) -> usize {
        let bytes = self.capacity.mean_rate().bytes_in(Duration::from_millis(500));
        usize::try_from(bytes).unwrap_or(usize::MAX).max(Self::QUEUE_BYTES_MIN)
    }

    /// The smallest default queue, bytes: 64 full packets.
    pub const QUEUE_BYTES_MIN: usize = 96_000;
}
