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
    #[error("it was stopped before the first cycle had measured anything")]
    TooShort,
    /// No probe arrived in one of the directions.
    #[error("no probe came through, so that the delay is not known")]
    NoProbe,
}
