//! The first message of an application. Its first byte is 5 for SOCKS5, which no method of HTTP is.

use roadweave_proto::ServerName;
use roadweave_proto::wire::{SOCKS_MESSAGE_MAX, SOCKS_VERSION, SocksConnect, SocksGreeting};

use super::asked::{Asked, Dialect};
use super::end::ListenerEnd;
use super::http::{self, HEAD_MAX, Head, destination_of, refused};
use super::reply::answer;
use super::{encoder, forward, report};

pub(super) const MESSAGE_MAX: usize = HEAD_MAX;
const _: () = assert!(SOCKS_MESSAGE_MAX <= MESSAGE_MAX);

/// What a request by HTTP may be: the first that knows the head reads it.
pub(super) const HTTP: [fn(&Head<'_>) -> Option<Asked>; 4] =
    [connect, encoder::read, report::read, forward::read];

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Handshake {
    dialect: Option<Dialect>,
    is_greeted: bool,
}

impl Handshake {
    /// `bytes`: all that is not consumed yet, at least one. `origins`: the origins that may report.
    pub(super) fn read(&mut self, bytes: &[u8], origins: &[String]) -> Asked {
        let first =
            if bytes.first() == Some(&SOCKS_VERSION) { Dialect::Socks } else { Dialect::Http };
        match *self.dialect.get_or_insert(first) {
            Dialect::Http | Dialect::Forwarded => http::read(bytes, origins, &HTTP),
            Dialect::Socks if self.is_greeted => read_request(bytes),
            Dialect::Socks => match SocksGreeting::parse(bytes) {
                Ok(None) => Asked::More,
                Ok(Some((greeting, length))) if greeting.without_authentication => {
                    self.is_greeted = true;
                    Asked::Greeted { length, answer: greeting.answer() }
                }
                Ok(Some((greeting, _))) => {
                    let answer = greeting.answer().to_vec();
                    Asked::Refused { answer, end: ListenerEnd::BadRequest }
                }
                Err(_) => Asked::Refused { answer: Vec::new(), end: ListenerEnd::BadRequest },
            },
        }
    }

    pub(super) fn too_slow(self) -> Vec<u8> {
        match self.dialect {
            Some(Dialect::Http | Dialect::Forwarded) => answer(408, ""),
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
            Asked::Refused { answer, end: ListenerEnd::BadRequest }
        }
    }
}

fn connect(head: &Head<'_>) -> Option<Asked> {
    if head.method != "CONNECT" {
        return None;
    }
    let destination = head.target.parse::<ServerName>().ok().and_then(|name| destination_of(&name));
    Some(match destination {
        Some(destination) => {
            let (length, dialect) = (head.length, Dialect::Http);
            Asked::Connect { length, destination, dialect, head: None }
        }
        None => refused(400, "CONNECT needs host:port"),
    })
}
