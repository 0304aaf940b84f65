//! Links driven by traces, for simulations and for the emulator.
//!
//! ```text
//! Mahimahi file ─┐
//! CSV ───────────┼─> Trace ─> Link ─┐
//! synthetic ─────┤                  ├─> Bridge (links x 2 directions)
//! constant ──────┘                  └─> simulations in virtual time
//! ```
//!
//! A [`Trace`] gives a link's capacity, delay and loss over time. A [`Link`] carries packets
//! accordingly. Neither reads a clock nor the system's entropy, so equal seeds give equal runs.
//! [`forge`] writes packets of attackers beside a link.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use roadweave_emulate::{Link, LinkSettings, read_trace};
//! use roadweave_proto::Instant;
//!
//! let trace = read_trace("recorded.csv".as_ref(), Duration::from_millis(60))?;
//! let mut link = Link::new(LinkSettings::new(trace, 1));
//! link.push(Instant::ZERO, 1_200, "a packet").expect("the queue is empty");
//! while let Some(now) = link.poll_timeout() {
//!     while let Some(packet) = link.poll(now) {
//!         println!("{packet} arrives at {now}");
//!     }
//! }
//! # Ok::<(), roadweave_emulate::TraceError>(())
//! ```

#![allow(missing_docs, reason = "the tools alone use it: a name may say it all")]

mod bridge;
mod capacity;
mod csv;
mod drive;
mod duplex;
mod error;
pub mod forge;
mod link;
mod load;
mod loss;
mod mahimahi;
mod random;
mod statistics;
mod synthetic;
mod timeline;
mod trace;

pub use bridge::{Bridge, Direction, LinkDirection};
pub use capacity::{Capacity, Opportunities, Transmitter};
pub use csv::{UNKNOWN_RTT, format_csv};
pub use drive::{Drive, DriveLink, LinkFiles};
pub use duplex::{DuplexLink, LINKS_MAX, LinkError, LinkFields};
pub use error::TraceError;
pub use link::{Jitter, Link, LinkSettings, LinkStats};
pub use load::{FILE_BYTES_MAX, read_mahimahi, read_trace};
pub use loss::{AddedLoss, GilbertElliott};
pub use mahimahi::format_mahimahi;
pub use random::Random;
pub use statistics::{
    Autocorrelation, CapacityQuantiles, DelayQuantiles, DeliveryGaps, Dips, LENGTH_MAX, Lengths,
    LossStatistics, PairStatistics, Quantiles, RoundTripStatistics, TraceStatistics,
};
pub use synthetic::{DriveSet, Gaps, Operator, RttQuantiles, synthetic_trace};
pub use timeline::{AtEnd, Timeline, TimelineError};
pub use trace::Trace;
