//! The first message of an application. Its first byte identifies the protocol: 5 for SOCKS5, which
//! no method of HTTP begins with.

use roadweave_proto::wire::{
    Destination, ResetCode, SOCKS_MESSAGE_MAX, SOCKS_VERSION, SocksConnect, SocksGreeting,
    SocksReply,
};

use super::EntranceEnd;
use super::encoder::ListenRequest;
use super::http::{self, HEAD_MAX};
use super::report::PlayerTold;

pub(super) const MESSAGE_MAX: usize = HEAD_MAX;
const _: () = assert!(SOCKS_MESSAGE_MAX <= MESSAGE_MAX);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Socks,
    Http,
    /// HTTP, with the host's answer.
    Forwarded,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Handshake {
    dialect: Option<Dialect>,
    is_greeted: bool,
}

/// `length`: its size in bytes, or that of its head.
#[derive(Debug, PartialEq)]
pub(super) enum Asked {
    /// The message is incomplete.
    More,
    /// The greeting of SOCKS.
    Greeted { length: usize, answer: [u8; 2] },
    /// A connection; the bytes that follow are for the destination.
    /// With a head that goes on to the host, and how many bytes of content follow it.
    Connect {
        length: usize,
        destination: Destination,
        dialect: Dialect,
        head: Option<(Vec<u8>, u64)>,
    },
    /// Reports of players.
    Told { players: Vec<PlayerTold>, answer: Vec<u8> },
    /// An event stream.
    Listen { length: usize, request: ListenRequest },
    /// Not served here.
    Refused { answer: Vec<u8>, end: EntranceEnd },
}

impl Handshake {
    /// `bytes`: all that is not consumed yet, at least one. `origins`: the origins that may report.
    pub(super) fn read(&mut self, bytes: &[u8], origins: &[String]) -> Asked {
        let first =
            if bytes.first() == Some(&SOCKS_VERSION) { Dialect::Socks } else { Dialect::Http };
        match *self.dialect.get_or_insert(first) {
            Dialect::Http | Dialect::Forwarded => http::read(bytes, origins),
            Dialect::Socks if self.is_greeted => read_request(bytes),
            Dialect::Socks => match SocksGreeting::parse(bytes) {
                Ok(None) => Asked::More,
                Ok(Some((greeting, length))) if greeting.without_authentication => {
                    self.is_greeted = true;
                    Asked::Greeted { length, answer: greeting.answer() }
                }
                Ok(Some((greeting, _))) => {
                    let answer = greeting.answer().to_vec();
                    Asked::Refused { answer, end: EntranceEnd::BadRequest }
                }
                Err(_) => Asked::Refused { answer: Vec::new(), end: EntranceEnd::BadRequest },
            },
        }
    }

    pub(super) fn too_slow(self) -> Vec<u8> {
        match self.dialect {
            Some(Dialect::Http | Dialect::Forwarded) => http::answer(408, ""),
            Some(Dialect::Socks) | None => Vec::new(),
        }
    }
}

fn read_request(bytes: &[u8]) -> Asked {
    match SocksConnect::parse(bytes) {
        Ok(None) => Asked::More,
        Ok(Some((SocksConnect { destination }, length))) => {
            Asked::Connect { length, destination, dialect: Dialect::Socks, head: None }
        }
        Err(error) => {
            let answer = error.reply().to_bytes().to_vec();
            Asked::Refused { answer, end: EntranceEnd::BadRequest }
        }
    }
}

impl Dialect {
    pub(super) fn connected(self) -> &'static [u8] {
        const SUCCEEDED: [u8; 10] = SocksReply::Succeeded.to_bytes();
        match self {
            Self::Socks => &SUCCEEDED,
            // RFC 9110 section 9.3.6: no Content-Length, no Transfer-Encoding.
            Self::Http => b"HTTP/1.1 200 Connection established\r\n\r\n",
            Self::Forwarded => b"",
        }
    }

    pub(super) fn refused(self, code: ResetCode) -> Vec<u8> {
        let (reply, status) = refusal(code);
        match self {
            Self::Socks => reply.to_bytes().to_vec(),
            Self::Http | Self::Forwarded => http::answer(status, code.name()),
        }
    }
}

fn refusal(code: ResetCode) -> (SocksReply, u16) {
    match code {
        ResetCode::Refused => (SocksReply::ConnectionRefused, 502),
        ResetCode::Unreachable => (SocksReply::HostUnreachable, 502),
        ResetCode::Forbidden => (SocksReply::NotAllowed, 403),
        ResetCode::TimedOut => (SocksReply::TtlExpired, 504),
        ResetCode::TooMany => (SocksReply::GeneralFailure, 503),
        ResetCode::Other
        | ResetCode::Aborted
        | ResetCode::Violation
        | ResetCode::Unknown
        | ResetCode::Unread => (SocksReply::GeneralFailure, 502),
    }
}
