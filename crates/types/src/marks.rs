//! The marks by which a client's packet filters know packets of their own: of the lower half, since
//! the upper one tells instances and uplinks apart.

/// Of packets and connections that are for sockets of a box which bear addresses of hosts.
pub const TAKEN_MARK: u32 = 0x5258;
/// Of a socket of a box whose host does not answer.
pub const FAILED_MARK: u32 = 0x5259;
