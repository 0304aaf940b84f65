//! Errors of recordings.

use thiserror::Error;

use crate::message::RecordRefusal;

/// Why there is no recording of a link.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecordError {
    #[error("{0}")]
    Refused(RecordRefusal),
    #[error("the server did not answer")]
    NoAnswer,
    #[error("it was stopped before the first cycle was measured")]
    TooShort,
    #[error("no probe arrived: the delay is unknown")]
    NoProbe,
}
