//! Transparent connections: the kernel redirects them (TPROXY, `roadweave_linux::split`); their
//! local address is the original destination. `IP_TRANSPARENT` switches by one system call from the
//! next SYN, ends with the program, and spares accepted ones. Listeners are bound to loopback.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use roadweave_proto::wire::{Destination, ResetCode};
use roadweave_proto::{Instant, Kind, Marks};
use roadweave_stream::Streams;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::super::splice::break_off;
use super::super::table::Number;
use super::caller::arrived_by;
use super::listening_socket::ListeningSocket;
use super::progress::{ANSWER_MAX, Joining, Next};
use super::{LOOPBACK, StreamListener};

#[derive(Debug, Default)]
pub(super) struct Taking {
    pub(super) is_wanted: bool,
    is_on: bool,
    obstacle: Option<&'static str>,
    /// Until then none is taken, because the far end had too many.
    pub(super) rests_until: Option<Instant>,
    taken: u64,
}

impl StreamListener {
    /// The addresses to redirect connections to, at most one of each family.
    pub fn transparent_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let transparent = self.listeners.iter().filter(|listener| listener.is_transparent);
        transparent.map(|listener| listener.address)
    }

    /// Sets whether transparent connections are taken from the next turn on (initially not).
    pub fn set_taking(&mut self, is_wanted: bool) {
        self.taking.is_wanted = is_wanted;
    }

    /// Why no connections are taken although the owner wants it, if so.
    pub fn obstacle(&self) -> Option<&'static str> {
        self.taking.obstacle.filter(|_| self.taking.is_wanted)
    }

    /// The number of transparent connections taken.
    pub fn taken(&self) -> u64 {
        self.taking.taken
    }

    pub(super) fn tend_taking(&mut self, now: Instant, streams: &Streams) {
        if self.taking.rests_until.is_some_and(|until| until <= now) {
            self.taking.rests_until = None;
        }
        let taken = self.connections.len();
        let free = streams.free_streams();
        let most = self.settings.connections_max.min(streams.open_streams() + free);
        let left = self.settings.connections_max.saturating_sub(taken).min(free);
        self.taking.obstacle = if self.taking.rests_until.is_some() {
            Some("the server refused a connection because there are too many")
        } else if left <= most / RESERVE {
            Some("too many connections are open")
        } else {
            None
        };
        let is_on = self.taking.is_wanted && self.taking.obstacle.is_none();
        if is_on == self.taking.is_on {
            return;
        }
        for listener in self.listeners.iter().filter(|listener| listener.is_transparent) {
            if let Err(error) = SockRef::from(&listener.socket).set_ip_transparent_v4(is_on) {
                return tracing::debug!(
                    %error,
                    is_on,
                    "cannot switch the interception of connections on or off"
                );
            }
        }
        self.taking.is_on = is_on;
    }

    pub(super) fn is_from_inside(&self, socket: &TcpStream) -> bool {
        arrived_by(socket).is_some_and(|it| it != LOOPBACK && self.inside.contains(&it))
    }

    pub(super) fn meant_for(&self, socket: &TcpStream) -> Option<Destination> {
        let local = socket.local_addr().ok()?;
        let address = local.ip().to_canonical();
        let is_own = address.is_loopback() || self.transparent_addresses().any(|it| it == local);
        Destination::of_address(address, local.port()).filter(|_| !is_own)
    }

    pub(super) fn take(
        &mut self,
        now: Instant,
        number: Number,
        streams: &mut Streams,
        socket: TcpStream,
        destination: Destination,
    ) -> Next {
        self.taking.taken += 1;
        let (dialect, head, until) = (None, None, now + ANSWER_MAX);
        let joining = Joining { socket, closing: false, dialect, head, until };
        self.open_stream(now, number, streams, joining, destination)
    }

    pub(super) fn refuse_socket(&self, socket: &TcpStream, is_transparent: bool) {
        if is_transparent {
            blame(socket, self.settings.marks);
        }
        break_off(socket);
    }

    /// The destination uses the tunnel for a while, unless it is not at fault.
    pub(super) fn on_unconnected(&mut self, now: Instant, socket: &TcpStream, code: ResetCode) {
        match code {
            ResetCode::TooMany => self.taking.rests_until = Some(now + REST),
            ResetCode::Aborted => {}
            _ => blame(socket, self.settings.marks),
        }
        break_off(socket);
    }
}

/// The mark of the RST makes the kernel note that the destination does not answer.
fn blame(socket: &TcpStream, marks: Marks) {
    let ((failed, mask), socket) = (marks.kind(Kind::Failed), SockRef::from(socket));
    let marked = socket.mark().and_then(|mark| socket.set_mark(mark & !mask | failed));
    // On failure, further attempts are reset as well, until the destination's note expires.
    if let Err(error) = marked {
        tracing::debug!(%error, "a destination that does not answer could not be recorded");
    }
}

pub(super) fn listeners() -> Vec<ListeningSocket> {
    let addresses = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    let open = |address: IpAddr| match listen(address) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::debug!(
                %error,
                %address,
                "connections of this address family are not intercepted"
            );
            None
        }
    };
    addresses.into_iter().filter_map(open).collect()
}

fn listen(address: IpAddr) -> io::Result<ListeningSocket> {
    let address = SocketAddr::new(address, 0);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    ListeningSocket::new(socket.into(), true)
}

const REST: Duration = Duration::from_secs(10);
const RESERVE: usize = 8;
const BACKLOG: i32 = 128;
