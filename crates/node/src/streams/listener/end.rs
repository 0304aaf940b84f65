//! How connections end.

use roadweave_proto::wire::ResetCode;

roadweave_proto::named! {
    /// How a connection of an application ended.
    ListenerEnd {
        /// In order, in both directions.
        Closed = "closed",
        /// The application broke it off.
        Aborted = "aborted",
        /// The stream was reset after the far end had connected.
        Reset = "reset",
        /// Like `Reset`, because its unread bytes took room that others needed.
        Unread = "unread",
        /// The far end could not connect; the application got the reason.
        Unconnected = "unconnected",
        /// No stream could be opened.
        NoStream = "no-stream",
        /// The request was malformed or is not served.
        BadRequest = "bad-request",
        /// The request was not for a connection, and was answered.
        Served = "served",
        /// The application left before its request was complete.
        Left = "left",
        /// The request was not complete in time.
        Slow = "slow",
        /// It came from outside the LAN.
        Stranger = "stranger",
        /// A limit of connections was reached.
        TooMany = "too-many",
    }
}

impl ListenerEnd {
    pub(super) fn of_reset(code: ResetCode) -> Self {
        if code == ResetCode::Unread { Self::Unread } else { Self::Reset }
    }
}
