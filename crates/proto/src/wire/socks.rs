//! SOCKS5 for a proxy (RFC 1928): the greeting, one request, and the answers.
//!
//! ```text
//! greeting   05 | count:1 | count * method:1
//! method     05 | method:1                                    ff: none of them
//! request    05 | command:1 | 00 | destination | port:2
//! reply      05 | reply:1   | 00 | 01 | address:4 | port:2
//!
//! destination   01 | address:4      03 | length:1 | name      04 | address:16
//! ```
//!
//! Both parsers take all bytes so far, and return the length once complete, or an error.

use std::net::IpAddr;

use crate::wire::Destination;

/// The first byte of all messages.
pub const SOCKS_VERSION: u8 = 5;
/// The longest message of a client, bytes: a request with a name of 255 bytes.
pub const SOCKS_MESSAGE_MAX: usize = 262;

const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const BY_V4: u8 = 1;
const BY_NAME: u8 = 3;
const BY_V6: u8 = 4;

/// The authentication methods of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocksGreeting {
    /// Whether no authentication is among them.
    pub without_authentication: bool,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocksConnect {
    /// The destination.
    pub destination: Destination,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocksReply {
    /// Connected.
    Succeeded = 0,
    /// The proxy failed.
    GeneralFailure = 1,
    /// Not allowed by the proxy.
    NotAllowed = 2,
    /// No route to the network.
    NetworkUnreachable = 3,
    /// No such host, or no route to it.
    HostUnreachable = 4,
    /// Refused by the host.
    ConnectionRefused = 5,
    /// No answer from the host.
    TtlExpired = 6,
    /// Not CONNECT.
    CommandNotSupported = 7,
    /// Unknown form of destination.
    AddressTypeNotSupported = 8,
}

/// Why bytes are not a client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocksError {
    #[error("message of version {0} of SOCKS")]
    Version(u8),
    #[error("SOCKS request with reserved bits {0:#04x}")]
    Reserved(u8),
    #[error("SOCKS command {0} is not served")]
    Command(u8),
    #[error("SOCKS destination of unknown form {0}")]
    AddressType(u8),
    #[error("SOCKS destination is invalid")]
    Destination,
}

impl SocksGreeting {
    /// The greeting at the start of `bytes`, and its length; `None` if it is incomplete.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, SocksError> {
        check_version(bytes)?;
        let [_, count, rest @ ..] = bytes else { return Ok(None) };
        let Some(methods) = rest.get(..usize::from(*count)) else { return Ok(None) };
        let greeting = Self { without_authentication: methods.contains(&NO_AUTHENTICATION) };
        Ok(Some((greeting, 2 + methods.len())))
    }

    /// The answer.
    pub fn answer(self) -> [u8; 2] {
        [SOCKS_VERSION, if self.without_authentication { NO_AUTHENTICATION } else { NO_METHOD }]
    }
}

impl SocksConnect {
    /// The request at the start of `bytes`, and its length; `None` if it is incomplete. Answer an
    /// error with its `reply`.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, SocksError> {
        check_version(bytes)?;
        let [_, command, reserved, kind, rest @ ..] = bytes else { return Ok(None) };
        match (*command, *reserved) {
            (CONNECT, 0) => {}
            (CONNECT, reserved) => return Err(SocksError::Reserved(reserved)),
            (command, _) => return Err(SocksError::Command(command)),
        }
        let (head, length) = match (*kind, rest.first()) {
            (BY_V4, _) => (0, 4),
            (BY_V6, _) => (0, 16),
            (BY_NAME, Some(length)) => (1, usize::from(*length)),
            (BY_NAME, None) => return Ok(None),
            (kind, _) => return Err(SocksError::AddressType(kind)),
        };
        let Some((host, rest)) = rest.get(head..).and_then(|rest| rest.split_at_checked(length))
        else {
            return Ok(None);
        };
        let Some(port) = rest.first_chunk().map(|port| u16::from_be_bytes(*port)) else {
            return Ok(None);
        };
        let destination = destination(*kind, host, port).ok_or(SocksError::Destination)?;
        Ok(Some((Self { destination }, 4 + head + length + 2)))
    }
}

impl SocksError {
    /// The answer to such a request.
    pub fn reply(self) -> SocksReply {
        match self {
            Self::Command(_) => SocksReply::CommandNotSupported,
            Self::AddressType(_) => SocksReply::AddressTypeNotSupported,
            Self::Destination => SocksReply::HostUnreachable,
            Self::Version(_) | Self::Reserved(_) => SocksReply::GeneralFailure,
        }
    }
}

impl SocksReply {
    /// The answer's bytes, without the proxy's own address, which would disclose the far end's.
    pub const fn to_bytes(self) -> [u8; 10] {
        [SOCKS_VERSION, self as u8, 0, BY_V4, 0, 0, 0, 0, 0, 0]
    }
}

fn check_version(bytes: &[u8]) -> Result<(), SocksError> {
    match bytes.first() {
        Some(&version) if version != SOCKS_VERSION => Err(SocksError::Version(version)),
        _ => Ok(()),
    }
}

/// A name may be an address: clients send addresses as text.
fn destination(kind: u8, host: &[u8], port: u16) -> Option<Destination> {
    let address = match kind {
        BY_V4 => IpAddr::from(<[u8; 4]>::try_from(host).ok()?),
        BY_V6 => IpAddr::from(<[u8; 16]>::try_from(host).ok()?),
        _ => {
            let name = std::str::from_utf8(host).ok()?;
            match name.parse() {
                Ok(address) => address,
                Err(_) => return Destination::of_name(name, port),
            }
        }
    };
    Destination::of_address(address, port)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(kind: u8, host: &[u8], port: u16) -> Vec<u8> {
        [&[5, 1, 0, kind][..], host, &port.to_be_bytes()].concat()
    }

    fn by_name(name: &[u8]) -> Vec<u8> {
        [&[name.len() as u8][..], name].concat()
    }

    fn check(bytes: &[u8], expected: Result<Destination, SocksError>) {
        let expected =
            expected.map(|destination| Some((SocksConnect { destination }, bytes.len())));
        assert_eq!(SocksConnect::parse(bytes), expected);
    }

    #[test]
    fn requests_lead_to_addresses_and_names() {
        let address = |text: &str, port| Destination::of_address(text.parse().unwrap(), port);
        let expected = address("192.0.2.1", 443).unwrap();
        check(&request(1, &[192, 0, 2, 1], 443), Ok(expected.clone()));
        check(&request(3, &by_name(b"192.0.2.1"), 443), Ok(expected));
        let six = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        check(&request(4, &six, 80), Ok(address("2001:db8::1", 80).unwrap()));
        let named = Destination::of_name("a.example", 80).unwrap();
        check(&request(3, &by_name(b"a.example"), 80), Ok(named));
    }

    #[test]
    fn what_is_not_served_is_answered_as_the_rfc_says() {
        let refused = |bytes: &[u8], reply: u8| {
            let error = SocksConnect::parse(bytes).unwrap_err();
            assert_eq!(error.reply().to_bytes()[..4], [5, reply, 0, 1], "{error}");
        };
        refused(&[5, 2, 0, 1, 192, 0, 2, 1, 0, 80], 7);
        refused(&[5, 3, 0, 1], 7);
        refused(&[5, 1, 0, 2], 8);
        refused(&[5, 1, 1, 1], 1);
        refused(&[4, 1, 0, 80], 1);
        refused(&request(1, &[192, 0, 2, 1], 0), 4);
        refused(&request(3, &by_name(b"a b"), 80), 4);
        refused(&request(3, &by_name(b"\xff"), 80), 4);
        refused(&request(3, &by_name(b""), 80), 4);
    }

    #[test]
    fn a_greeting_without_the_one_method_is_refused() {
        let answer = |bytes: &[u8]| SocksGreeting::parse(bytes).unwrap().map(|it| it.0.answer());
        assert_eq!([&[5, 1, 0][..], &[5, 2, 2, 0]].map(answer), [Some([5, 0]); 2]);
        assert_eq!([&[5, 1, 2][..], &[5, 0]].map(answer), [Some([5, 0xff]); 2]);
        assert_eq!(answer(&[5, 2, 0]), None);
    }

    proptest! {
        #[test]
        fn a_message_ends_where_it_says(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            head in prop::sample::select(vec![vec![], vec![5], vec![5, 1, 0, 1], vec![5, 1, 0, 3],
                vec![5, 1, 0, 4]]),
        ) {
            let bytes = [head, bytes].concat();
            let lengths = [
                SocksGreeting::parse(&bytes).map(|it| it.map(|(_, length)| length)),
                SocksConnect::parse(&bytes).map(|it| it.map(|(_, length)| length)),
            ];
            let whole = [
                |bytes: &[u8]| matches!(SocksGreeting::parse(bytes), Ok(Some(_))),
                |bytes: &[u8]| matches!(SocksConnect::parse(bytes), Ok(Some(_))),
            ];
            for (length, is_whole) in lengths.into_iter().zip(whole) {
                match length {
                    Ok(Some(length)) => {
                        prop_assert!(length <= SOCKS_MESSAGE_MAX);
                        prop_assert!(is_whole(&bytes[..length]));
                        prop_assert!(!(0..length).any(|shorter| is_whole(&bytes[..shorter])));
                    }
                    Ok(None) => prop_assert!(bytes.len() < SOCKS_MESSAGE_MAX),
                    Err(_) => {}
                }
            }
        }
    }
}
