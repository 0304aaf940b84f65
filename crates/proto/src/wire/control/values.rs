//! Values of fields that have a meaning of their own.

/// What a client wants a connection for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// A session.
    #[default]
    Join,
    /// A session perhaps, later: it waits idle beside a session with another server, until the
    /// client says hello again, to join.
    Standby,
    /// The sessions of others, whose inner packets it passes on.
    Proxy,
}

/// Why a server does not take a client, or asks it to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// The server does not say why, or by a number that is not known here.
    #[default]
    Other,
    /// The server is about to stop, and others are not.
    Drain,
    /// A newer session with the client's key is elsewhere, and the client does not seem to know.
    Superseded,
}

/// Whose inner packets a proxy passes on, and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantAnchor {
    /// The client's tenant.
    pub tenant: String,
    /// The key of the tenant's anchor.
    pub key: [u8; 32],
}

/// What a player tells of its buffer (XLINK section 5.2.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlayerReport {
    /// The lane of the receiver's direction that brings its video, by its name, at most 256 bytes.
    pub lane: String,
    /// Tells the players of one side apart.
    pub player: u64,
    /// Bytes in the buffer.
    pub cached_bytes: u64,
    /// Frames in the buffer.
    pub cached_frames: u64,
    /// The rate of the video, bits per second; 0: it is not known.
    pub bps: u64,
    /// The rate of the video, frames in 1,000 seconds; 0: it is not known.
    pub milli_fps: u64,
}
