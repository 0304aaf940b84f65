//! What can be wrong with a control message.

/// Why bytes are no control message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Empty, or it ends within a field.
    #[error("control message ends within a field")]
    Truncated,
    /// Longer than [`MAX_CONTROL_MESSAGE`](crate::wire::MAX_CONTROL_MESSAGE).
    #[error("control message of {0} bytes, at most 4,096 are allowed")]
    TooLong(usize),
    /// No message of this kind is known.
    #[error("control message of unknown kind {0}")]
    UnknownKind(u8),
    /// A field whose value cannot be.
    #[error("control message with a bad field of type {0}")]
    BadField(u16),
    /// A field that must be there is not.
    #[error("control message without its field of type {0}")]
    MissingField(u16),
}
