//! The source address of a connection: the client's own (IP_TRANSPARENT), as for its packets.
//! Answers reach the socket by a mark and local routes (`crates/linux/src/filter/sockets.rs`).

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ops::RangeInclusive;

use roadweave_linux::socket::begin_connect;
use roadweave_linux::{Interest, Poller, Token, random_bytes};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::super::splice;
use super::rules::is_local;

/// The source addresses of clients' connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The client's inner address, if it has one of the family.
    pub clients: bool,
    /// This machine's own, where the client's cannot be used.
    pub own: bool,
}

impl Sources {
    /// Its name in statistics.
    pub const fn name(self) -> &'static str {
        if self.clients { "client" } else { "server" }
    }

    /// The source for a connection to `to`; `None`: this machine's. `inner`: the client's of that
    /// family. This machine's addresses are reached by its own: answers would enter the tunnel.
    pub(super) fn choose(
        self,
        to: SocketAddr,
        inner: Option<IpAddr>,
    ) -> io::Result<Option<IpAddr>> {
        match inner.filter(|_| self.clients) {
            _ if is_local(to.ip()) => Ok(None),
            Some(inner) => Ok(Some(inner)),
            None if self.own => Ok(None),
            None => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }
}

pub(super) fn connect(
    to: SocketAddr,
    source: Option<IpAddr>,
    poller: &Poller,
    token: Token,
) -> io::Result<TcpStream> {
    let mut tries = 0;
    loop {
        tries += 1;
        match connect_once(to, source, poller, token) {
            Err(error)
                if source.is_some()
                    && tries < TRIES
                    && [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL]
                        .iter()
                        .any(|taken| error.raw_os_error() == Some(taken.raw_os_error())) => {}
            result => return result,
        }
    }
}

fn connect_once(
    to: SocketAddr,
    source: Option<IpAddr>,
    poller: &Poller,
    token: Token,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(source) = source {
        bind(&socket, source)?;
    }
    let socket: TcpStream = socket.into();
    splice::prepare(&socket)?;
    poller.add(&socket, token, Interest::Edges).map_err(io::Error::other)?;
    begin_connect(&SockRef::from(&socket), to)?;
    Ok(socket)
}

fn bind(socket: &Socket, source: IpAddr) -> io::Result<()> {
    socket.set_ip_transparent_v4(true)?;
    socket.set_reuse_address(true)?;
    let drawn = u16::from_ne_bytes(random_bytes().map_err(io::Error::other)?);
    let port = PORTS.start() + drawn % (PORTS.end() - PORTS.start() + 1);
    socket.bind(&SocketAddr::new(source, port).into())
}

/// Whether this process may bind to addresses that this machine lacks.
pub(crate) fn check_rights() -> io::Result<()> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?.set_ip_transparent_v4(true)
}

/// Between service ports and ephemeral ones (from 32768): seldom collides with a client's own.
const PORTS: RangeInclusive<u16> = 10_240..=32_767;
const TRIES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_the_clients_where_that_can_be() {
        let inner: IpAddr = "10.77.0.2".parse().expect("an address");
        let check = |(clients, own), to: &str, inner, expected: Option<Option<IpAddr>>| {
            let to = to.parse().expect("an address and a port");
            assert_eq!(Sources { clients, own }.choose(to, inner).ok(), expected, "{to}");
        };
        let host = "198.51.100.1:80";
        check((true, true), host, Some(inner), Some(Some(inner)));
        check((true, true), host, None, Some(None));
        check((true, false), host, None, None);
        check((false, true), host, Some(inner), Some(None));
        check((true, false), "127.0.0.1:80", Some(inner), Some(None));
    }
}
