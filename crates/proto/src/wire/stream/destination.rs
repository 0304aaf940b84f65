//! Where the far end connects a stream to.
//!
//! ```text
//! 04 | address:4  | port:2
//! 06 | address:16 | port:2
//! 01 | length:1 | name | port:2
//! ```

use std::net::IpAddr;

use bytes::{Buf, BufMut, Bytes};

use super::StreamFrameError;
use crate::ServerHost;

const BY_NAME: u8 = 1;
const BY_V4: u8 = 4;
const BY_V6: u8 = 6;
/// The longest name of a host, bytes (RFC 1035 section 2.3.4).
const NAME_MAX: usize = 254;

/// A host and a TCP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    host: ServerHost,
    port: u16,
}

impl Destination {
    /// The destination at `address`; `None` if the port is 0.
    pub fn of_address(address: IpAddr, port: u16) -> Option<Self> {
        (port > 0).then_some(Self { host: ServerHost::Address(address), port })
    }

    /// The destination that the far end looks up; `None` if the name is invalid or the port 0.
    pub fn of_name(name: &str, port: u16) -> Option<Self> {
        let host = ServerHost::named(name).filter(|_| port > 0)?;
        Some(Self { host, port })
    }

    /// The host.
    pub fn host(&self) -> &ServerHost {
        &self.host
    }

    /// The TCP port, never 0.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn encoded_len(&self) -> usize {
        3 + match &self.host {
            ServerHost::Address(IpAddr::V4(_)) => 4,
            ServerHost::Address(IpAddr::V6(_)) => 16,
            ServerHost::Name(name) => 1 + name.len(),
        }
    }

    pub(super) fn put(&self, out: &mut impl BufMut) {
        match &self.host {
            ServerHost::Address(IpAddr::V4(address)) => {
                out.put_u8(BY_V4);
                out.put_slice(&address.octets());
            }
            ServerHost::Address(IpAddr::V6(address)) => {
                out.put_u8(BY_V6);
                out.put_slice(&address.octets());
            }
            ServerHost::Name(name) => {
                out.put_u8(BY_NAME);
                out.put_u8(name.len() as u8);
                out.put_slice(name.as_bytes());
            }
        }
        out.put_u16(self.port);
    }

    pub(super) fn take(bytes: &mut Bytes) -> Result<Self, StreamFrameError> {
        let truncated = |_| StreamFrameError::Truncated;
        let host = match bytes.try_get_u8().map_err(truncated)? {
            BY_V4 => {
                ServerHost::Address(IpAddr::V4(bytes.try_get_u32().map_err(truncated)?.into()))
            }
            BY_V6 => {
                ServerHost::Address(IpAddr::V6(bytes.try_get_u128().map_err(truncated)?.into()))
            }
            BY_NAME => {
                let length = usize::from(bytes.try_get_u8().map_err(truncated)?);
                if length > bytes.len() {
                    return Err(StreamFrameError::Truncated);
                }
                let name = bytes.split_to(length);
                let name = std::str::from_utf8(&name).ok().filter(|_| length <= NAME_MAX);
                name.and_then(ServerHost::named).ok_or(StreamFrameError::Destination)?
            }
            _ => return Err(StreamFrameError::Destination),
        };
        let port = bytes.try_get_u16().map_err(truncated)?;
        if port == 0 {
            return Err(StreamFrameError::Destination);
        }
        Ok(Self { host, port })
    }
}
