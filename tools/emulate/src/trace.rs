//! Capacity, delay and loss of a link over time.

use std::sync::Arc;
use std::time::Duration;

use roadweave_proto::Rate;

use crate::capacity::Capacity;
use crate::timeline::Timeline;

/// Capacity, delay and loss of a link in one direction. Cheap to clone: links share a recording.
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

    /// A copy with another capacity.
    #[must_use]
    pub fn with_capacity(&self, capacity: impl Into<Capacity>) -> Self {
        Self { capacity: Arc::new(capacity.into()), ..self.clone() }
    }

    /// A copy with another one-way propagation delay.
    #[must_use]
    pub fn with_delay(&self, delay: Timeline<Duration>) -> Self {
        Self { delay: Arc::new(delay), ..self.clone() }
    }

    /// A copy with another loss, share of packets, 0..=1.
    #[must_use]
    pub fn with_loss(&self, loss: Timeline<f64>) -> Self {
        Self { loss: Arc::new(loss), ..self.clone() }
    }

    /// The capacity.
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

    /// How long one pass takes; `None` if all values are constant.
    pub fn length(&self) -> Option<Duration> {
        self.capacity.length().max(self.delay.length()).max(self.loss.length())
    }

    /// A queue of 500 ms at the mean rate, at least [`Trace::QUEUE_BYTES_MIN`].
    ///
    /// Cellular modems and base stations buffer some hundreds of milliseconds up to a second, which
    /// hides scheduling gaps and increases delay before packets are lost.
    pub fn default_queue_bytes(&self) -> usize {
        let bytes = self.capacity.mean_rate().bytes_in(Duration::from_millis(500));
        usize::try_from(bytes).unwrap_or(usize::MAX).max(Self::QUEUE_BYTES_MIN)
    }

    /// The smallest default queue, bytes: 64 full packets.
    pub const QUEUE_BYTES_MIN: usize = 96_000;
}
