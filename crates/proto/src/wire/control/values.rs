//! Values of fields with their own meaning.

/// What a client wants a connection for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// A session.
    #[default]
    Join,
    /// Perhaps a session later: it idles beside one with another server until a hello to join.
    Standby,
    /// The sessions of others, whose inner packets it forwards.
    Proxy,
}

/// Why a server refuses a client, or asks it to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// Not given, or a number unknown here.
    #[default]
    Other,
    /// The server is about to stop.
    Drain,
    /// A newer session with the client's key is elsewhere, probably unknown to this client.
    Superseded,
}

/// A proxy's tenant and its anchor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantAnchor {
    /// The client's tenant.
    pub tenant: String,
    /// The key of the tenant's anchor.
    pub key: [u8; 32],
}

/// The state of a player's buffer (XLINK section 5.2.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlayerReport {
    /// The lane of the receiver's direction that carries its video, by name, at most 256 bytes.
    pub lane: String,
    /// Identifies a player of one side.
    pub player: u64,
    /// Bytes in the buffer.
    pub cached_bytes: u64,
    /// Frames in the buffer.
    pub cached_frames: u64,
    /// Rate of the video, bits per second; 0: unknown.
    pub bps: u64,
    /// Frames of the video in 1,000 seconds; 0: unknown.
    pub milli_fps: u64,
}
