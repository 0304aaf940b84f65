//! Why a stream is reset or stopped.

/// Why a stream is over before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetCode {
    /// It does not say, or says what is not known here.
    Other,
    /// The connection that it carries was aborted.
    Aborted,
    /// The destination refused the connection.
    Refused,
    /// The destination cannot be reached, or its name is not known.
    Unreachable,
    /// The destination is not allowed.
    Forbidden,
    /// Nothing was acknowledged for too long.
    TimedOut,
    /// There are as many streams as the peer takes.
    TooMany,
    /// The peer broke the rules.
    Violation,
    /// The peer knows no such stream, or has forgotten it.
    Unknown,
    /// Nobody read it, and what waited for its reader left no room for others.
    Unread,
}

impl ResetCode {
    /// All, by the byte that stands for each.
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
