//! Errors, by whose fault they are.

use roadweave_proto::wire::{ResetCode, StreamFrameError};

/// A protocol violation by the peer. It resets its stream, or ends all streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// A frame of a stream that this end never opened; or a frame that only the opener may send,
    /// from the other end.
    #[error("peer used a stream that is not its to use")]
    StreamState,
}

impl Violation {
    pub(crate) const fn is_of_one_stream(self) -> bool {
        matches!(self, Self::StreamCredit | Self::FinalSize | Self::NeverSent)
    }
}

/// Why a symbol was not handled to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// Not frames; those before the malformed one are handled.
    #[error(transparent)]
    Malformed(#[from] StreamFrameError),
    /// A violation that resets all streams.
    #[error(transparent)]
    Violation(#[from] Violation),
}

/// Why a call on a stream fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The stream was never opened, or is over.
    #[error("no such stream")]
    NoSuchStream,
    /// The limit of open streams is reached.
    #[error("too many streams are open")]
    TooMany,
    /// The peer violated the protocol: no stream can be opened any more.
    #[error("streams were closed: {0}")]
    Closed(Violation),
    /// The stream was reset.
    #[error("stream was reset: {}", .0.name())]
    Reset(ResetCode),
    /// Nothing more can be written: it was finished, or the peer wants no more.
    #[error("stream is finished")]
    Finished,
    /// The peer opened it, and it is not accepted yet; or it was opened here.
    #[error("stream does not allow this operation")]
    NotAccepted,
}
