//! Links driven by traces: the ground on which everything else is tried.
//!
//! ```text
//! Mahimahi file ─┐
//! CSV ───────────┼─> Trace ─> Link ─┐
//! synthetic ─────┤                  ├─> Bridge (links x 2 directions) ─> TUN devices
//! constant ──────┘                  └─> simulations in virtual time
//! ```
//!
//! A [`Trace`] says what a link can do at any time: its capacity, delay and loss. A [`Link`]
//! carries packets as a trace says. Neither reads a clock nor the system's entropy, so equal seeds
//! give equal runs.

mod bridge;
mod capacity;
mod config;
mod csv;
mod drive;
mod error;
mod link;
mod load;
mod loss;
mod mahimahi;
mod random;
mod realtime;
mod recorder;
mod reshape;
mod statistics;
mod synthetic;
mod timeline;
mod trace;

pub use bridge::{Bridge, Direction, Way};
pub use capacity::{Capacity, Opportunities, Transmitter};
pub use config::{
    EmulateFile, EmulatedLink, Emulation, EmulationError, LINKS_MAX, LinkFields, Place, TunEnd,
};
pub use csv::{Unknown, format_csv, parse_csv};
pub use drive::{Drive, DriveLink, LinkFiles};
pub use error::TraceError;
pub use link::{Jitter, Link, LinkSettings, LinkStats};
pub use load::{FILE_BYTES_MAX, read_at_most, read_csv, read_mahimahi, read_trace};
pub use loss::GilbertElliott;
pub use mahimahi::{format_mahimahi, parse_mahimahi};
pub use realtime::{EmulateError, Emulator, LinkReport, WayReport};
pub use recorder::{
    DelayClock, DirectionRecording, DirectionSummary, LinkRecording, PlanError, RecordClient,
    RecordError, RecordLimits, RecordMode, RecordPeer, RecordPhase, RecordPlan, RecordProgress,
    RecordServer, RecordServerStatistics, RecordToken, Refusal, TokenError,
};
pub use statistics::{
    Autocorrelation, CapacityQuantiles, DelayQuantiles, DeliveryGaps, Dips, LENGTH_MAX, Lengths,
    LossStatistics, PairStatistics, RoundTripStatistics, TraceStatistics,
};
pub use synthetic::{Gaps, Operator, RttQuantiles, synthetic_trace};
pub use timeline::{AtEnd, Timeline, TimelineError};
pub use trace::Trace;
