//! Errors of control messages.

use crate::DropReason;

/// Why bytes are not a control message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Empty, or it ends within a field.
    #[error("control message ends within a field")]
    Truncated,
    /// Longer than [`MAX_CONTROL_MESSAGE`](crate::wire::MAX_CONTROL_MESSAGE).
    #[error("control message of {0} bytes, at most 4,096 are allowed")]
    TooLong(usize),
    /// Unknown kind.
    #[error("control message of unknown kind {0}")]
    UnknownKind(u8),
    /// A field with an invalid value.
    #[error("control message with a bad field of type {0}")]
    BadField(u16),
    /// A required field is missing.
    #[error("control message without its field of type {0}")]
    MissingField(u16),
}

impl From<ControlError> for DropReason {
    /// A message of an unknown kind may be of a later version.
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::UnknownKind(_) => Self::UnknownMessage,
            _ => Self::MalformedMessage,
        }
    }
}
