//! Why a stream is reset or stopped.

crate::named! {
    /// Why a stream ended early.
    ResetCode {
        /// Not given, or unknown here.
        Other = "other",
        /// The connection that it carries was aborted.
        Aborted = "aborted",
        /// The destination refused the connection.
        Refused = "refused",
        /// The destination is unreachable, or its name is unknown.
        Unreachable = "unreachable",
        /// The destination is not allowed.
        Forbidden = "forbidden",
        /// Nothing was acknowledged for too long.
        TimedOut = "timed-out",
        /// The peer takes no more streams.
        TooMany = "too-many",
        /// The peer broke the rules.
        Violation = "violation",
        /// The peer does not know the stream, or has forgotten it.
        Unknown = "unknown",
        /// It was not read, and its waiting bytes left no room for others.
        Unread = "unread",
    }
}

impl ResetCode {
    pub(super) const fn to_byte(self) -> u8 {
        self as u8
    }

    pub(super) fn from_byte(byte: u8) -> Self {
        Self::ALL.get(usize::from(byte)).copied().unwrap_or(Self::Other)
    }
}
