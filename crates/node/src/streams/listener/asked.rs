//! What an application asks for in its first message, and how it is answered.

use std::time::Duration;

use roadweave_proto::wire::{Destination, ResetCode, SocksReply};

use super::super::player::PlayerReport;
use super::end::ListenerEnd;
use super::reply::answer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Socks,
    Http,
    Forwarded,
}

/// `length`: its size in bytes, or that of its head.
#[derive(Debug, PartialEq)]
pub(super) enum Asked {
    /// The message is incomplete.
    More,
    /// The greeting of SOCKS.
    Greeted { length: usize, answer: [u8; 2] },
    /// The rest is for the destination; with a head for the host, and the length of its content.
    Connect {
        length: usize,
        destination: Destination,
        dialect: Dialect,
        head: Option<(Vec<u8>, u64)>,
    },
    /// Reports of players.
    Reported { players: Vec<PlayerReport>, answer: Vec<u8> },
    /// An event stream.
    Listen { length: usize, request: ListenRequest },
    /// Not served here.
    Refused { answer: Vec<u8>, end: ListenerEnd },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenRequest {
    pub(super) interval: Duration,
    pub(super) fields: String,
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
            Self::Http | Self::Forwarded => answer(status, code.name()),
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
