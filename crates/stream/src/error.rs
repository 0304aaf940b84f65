//! What can go wrong, by whose fault it is.

use roadweave_proto::wire::{ResetCode, StreamFrameError};

/// The peer broke the rules. What is of one stream resets that stream; the others end all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Bytes beyond the credit of their stream.
    #[error("peer sent beyond the credit of a stream")]
    StreamCredit,
    /// A final size that changed, or is below what had come.
    #[error("peer changed the final size of a stream")]
    FinalSize,
    /// An acknowledgement of bytes that were never sent.
    #[error("peer acknowledged what was never sent")]
    NeverSent,
    /// Bytes beyond the credit of all streams together.
    #[error("peer sent beyond the credit of the session")]
    SessionCredit,
    /// A frame of a stream that could only have been opened here, and was not; or one that the
    /// opener of the stream sends, from the other.
    #[error("peer used a stream that is not its to use")]
    StreamState,
}

impl Violation {
    /// Whether one stream alone is to be reset for it.
    pub(crate) const fn is_of_one_stream(self) -> bool {
        matches!(self, Self::StreamCredit | Self::FinalSize | Self::NeverSent)
    }
}

/// Why a symbol was not taken, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// Not frames; those before the broken one count.
    #[error(transparent)]
    Malformed(#[from] StreamFrameError),
    /// The peer broke a rule of the whole session: all streams are reset.
    #[error(transparent)]
    Violation(#[from] Violation),
}

/// Why something cannot be done with a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// There is no such stream, or no more.
    #[error("no such stream")]
    NoSuchStream,
    /// As many streams as may be are open.
    #[error("too many streams are open")]
    TooMany,
    /// The peer broke the rules: nothing can be opened any more.
    #[error("streams were closed: {0}")]
    Closed(Violation),
    /// The stream was reset.
    #[error("stream was reset: {}", .0.name())]
    Reset(ResetCode),
    /// Nothing more can be written: it was finished, or the peer wants no more.
    #[error("stream is finished")]
    Finished,
    /// The peer opened it, and it was not accepted yet; or it was opened here, and needs not be.
    #[error("stream is not to be used so")]
    NotAccepted,
}
