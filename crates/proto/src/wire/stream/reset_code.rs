//! Why a stream is reset or stopped.

/// Why a stream ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetCode {
    /// Not given, or unknown here.
    Other,
    /// The connection that it carries was aborted.
    Aborted,
    /// The destination refused the connection.
    Refused,
    /// The destination is unreachable, or its name is unknown.
    Unreachable,
    /// The destination is not allowed.
    Forbidden,
    /// Nothing was acknowledged for too long.
    TimedOut,
    /// The peer takes no more streams.
    TooMany,
    /// The peer broke the rules.
    Violation,
    /// The peer does not know the stream, or has forgotten it.
    Unknown,
    /// It was not read, and its waiting bytes left no room for others.
    Unread,
}

impl ResetCode {
    const ALL: [Self; 10] = [
        Self::Other,
        Self::Aborted,
        Self::Refused,
        Self::Unreachable,
        Self::Forbidden,
        Self::TimedOut,
        Self::TooMany,
        Self::Violation,
        Self::Unknown,
        Self::Unread,
    ];

    /// The name that statistics use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Other => "other",
            Self::Aborted => "aborted",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Forbidden => "forbidden",
            Self::TimedOut => "timed-out",
            Self::TooMany => "too-many",
            Self::Violation => "violation",
            Self::Unknown => "unknown",
            Self::Unread => "unread",
        }
    }

    pub(super) const fn to_byte(self) -> u8 {
        self as u8
    }

    pub(super) fn from_byte(byte: u8) -> Self {
        Self::ALL.get(usize::from(byte)).copied().unwrap_or(Self::Other)
    }
}
