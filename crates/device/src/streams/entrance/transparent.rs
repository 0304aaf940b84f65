//! Connections that ask for nothing: the kernel hands them over (TPROXY, `filter::split`), and the
//! address that they reach here is the one that they were meant for.
//!
//! ```text
//! SYN ─ TPROXY ─► listener, if its socket is transparent ─► accept ─► stream to the local address
//!                    └─ is it not: the SYN goes on as a packet
//! ```
//!
//! That bit of the listener's socket (`IP_TRANSPARENT`) is the switch. It costs a call and no
//! change of rules, it holds from one SYN to the next, it goes with the program, and connections
//! that are there do not mind.
//!
//! The listeners are bound to loopback's addresses, by which no other machine comes in, and take
//! nobody who was meant for these.

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
use super::listener::Listener;
use super::progress::{Joining, Next};
use super::{Entrance, LOOPBACK};

/// Whether connections are taken that ask for nothing.
#[derive(Debug, Default)]
pub(super) struct Taking {
    /// The owner wants it.
    is_wanted: bool,
    /// The listeners take some.
    is_on: bool,
    /// Why they do not, but for the owner.
    obstacle: Option<&'static str>,
    /// The far end has said that there are too many, and is asked for no more until then.
    rests_until: Option<Instant>,
    taken: u64,
}

impl Taking {
    /// When [`Entrance::tend_taking`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.rests_until
    }
}

impl Entrance {
    /// Where the kernel is to hand connections over, at most one address of each family.
    pub fn transparent_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let transparent = self.listeners.iter().filter(|listener| listener.is_transparent);
        transparent.map(|listener| listener.address)
    }

    /// Whether connections that ask for nothing are to be taken, as long as there is room, from the
    /// next turn on. In the beginning none is.
    pub fn set_taking(&mut self, is_wanted: bool) {
        self.taking.is_wanted = is_wanted;
    }

    /// Why none is taken although the owner wants it, if so.
    pub fn obstacle(&self) -> Option<&'static str> {
        self.taking.obstacle.filter(|_| self.taking.is_wanted)
    }

    /// Whether a destination that does not answer is at fault: the owner finds everything between
    /// here and the far end as it should be.
    pub(super) fn may_blame(&self) -> bool {
        self.taking.is_wanted
    }

    /// How many connections were taken that asked for nothing.
    pub fn taken(&self) -> u64 {
        self.taking.taken
    }

    /// Takes connections, or leaves them to the tunnel, as things are now.
    pub(super) fn tend_taking(&mut self, now: Instant, streams: &Streams) {
        if self.taking.rests_until.is_some_and(|until| until <= now) {
            self.taking.rests_until = None;
        }
        let taken = self.connections.len();
        let free = streams.free_streams();
        let most = self.settings.connections_max.min(streams.open_streams() + free);
        let left = self.settings.connections_max.saturating_sub(taken).min(free);
        self.taking.obstacle = if self.taking.rests_until.is_some() {
            Some("the server has refused one as too many")
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
                return tracing::debug!(%error, is_on, "connections cannot be taken, or left");
            }
        }
        self.taking.is_on = is_on;
    }

    /// Whether the connection came by an interface that leads to the LAN; this machine itself is
    /// none of those whose connections are handed over.
    pub(super) fn is_from_inside(&self, socket: &TcpStream) -> bool {
        arrived_by(socket).is_some_and(|it| it != LOOPBACK && self.inside.contains(&it))
    }

    /// Where a connection was meant to go that asks for nothing; nowhere if it was meant for this
    /// program.
    pub(super) fn meant_for(&self, socket: &TcpStream) -> Option<Destination> {
        let local = socket.local_addr().ok()?;
        let address = local.ip().to_canonical();
        let is_own = address.is_loopback() || self.transparent_addresses().any(|it| it == local);
        Destination::of_address(address, local.port()).filter(|_| !is_own)
    }

    /// Opens a stream for a connection that asks for nothing.
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

    /// Breaks a connection off that cannot be served here; one that asks for nothing goes by the
    /// tunnel the next time.
    pub(super) fn refuse_socket(&self, socket: &TcpStream, is_transparent: bool) {
        if is_transparent {
            blame(socket, self.settings.marks);
        }
        break_off(socket);
    }

    /// The far end has not connected: the destination goes by the tunnel for a while, unless it is
    /// not to blame.
    pub(super) fn on_unconnected(&mut self, now: Instant, socket: &TcpStream, code: ResetCode) {
        match code {
            ResetCode::TooMany => self.taking.rests_until = Some(now + REST),
            // All streams are over.
            ResetCode::Aborted => {}
            _ => blame(socket, self.settings.marks),
        }
        break_off(socket);
    }
}

/// Has the kernel note, before it sends the RST, that what the connection was meant for does not
/// answer.
fn blame(socket: &TcpStream, marks: Marks) {
    let ((failed, mask), socket) = (marks.kind(Kind::Failed), SockRef::from(socket));
    let marked = socket.mark().and_then(|mark| socket.set_mark(mark & !mask | failed));
    // Where it fails the next attempt is reset as well, until nobody has answered for a while.
    if let Err(error) = marked {
        tracing::debug!(%error, "a destination that does not answer is not noted");
    }
}

/// The listeners, one of each family that this machine has. They take nobody yet.
pub(super) fn listeners() -> Vec<Listener> {
    let addresses = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    let open = |address: IpAddr| match listen(address) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::debug!(%error, %address, "no connections of this family are taken");
            None
        }
    };
    addresses.into_iter().filter_map(open).collect()
}

fn listen(address: IpAddr) -> io::Result<Listener> {
    let address = SocketAddr::new(address, 0);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Listener::new(socket.into(), true)
}

/// How long the far end may take to connect: whoever is there has answered before, in this time.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long no more are taken after the far end has said that there are too many.
const REST: Duration = Duration::from_secs(10);
/// One part of so many is kept free, for those that the kernel has welcomed by then.
const RESERVE: usize = 8;
/// How many the kernel welcomes before they are taken.
const BACKLOG: i32 = 128;
