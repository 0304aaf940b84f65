//! Errors of recordings.

use thiserror::Error;

use crate::message::RecordRefusal;

/// Why there is no recording of a link.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The server refused.
    #[error("{0}")]
    Refused(RecordRefusal),
    /// The server never answered.
    #[error("the server did not answer")]
    NoAnswer,
    /// The recording was stopped before any measurement.
    #[error("it was stopped before the first cycle was measured")]
    TooShort,
    /// No probe arrived in one of the directions.
    #[error("no probe arrived: the delay is unknown")]
    NoProbe,
}
