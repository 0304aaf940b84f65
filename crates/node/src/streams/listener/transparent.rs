//! Transparent connections: the kernel redirects them (TPROXY, `roadweave_linux::split`); their
//! local address is the original destination. `IP_TRANSPARENT` switches by one system call from the
//! next SYN, ends with the program, and spares accepted ones. Listeners are bound to loopback.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use roadweave_proto::wire::ResetCode;
use roadweave_proto::{Instant, Kind, Marks};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::listening_socket::ListeningSocket;

#[derive(Debug, Default)]
pub(super) struct Taking {
    pub(super) is_wanted: bool,
    is_on: bool,
    obstacle: Option<&'static str>,
    /// Until then none is taken, because the far end had too many.
    pub(super) rests_until: Option<Instant>,
    pub(super) taken: u64,
}

impl Taking {
    pub(super) fn obstacle(&self) -> Option<&'static str> {
        self.obstacle.filter(|_| self.is_wanted)
    }

    pub(super) fn turn(&mut self, now: Instant, is_crowded: bool, listeners: &[ListeningSocket]) {
        if self.rests_until.is_some_and(|until| until <= now) {
            self.rests_until = None;
        }
        self.obstacle = if self.rests_until.is_some() {
            Some("the server refused a connection because there are too many")
        } else if is_crowded {
            Some("too many connections are open")
        } else {
            None
        };
        let is_on = self.is_wanted && self.obstacle.is_none();
        if is_on == self.is_on {
            return;
        }
        for listener in listeners.iter().filter(|listener| listener.is_transparent) {
            if let Err(error) = SockRef::from(&listener.socket).set_ip_transparent_v4(is_on) {
                return tracing::debug!(
                    %error,
                    is_on,
                    "cannot switch the interception of connections on or off"
                );
            }
        }
        self.is_on = is_on;
    }

    /// Returns whether the destination is at fault.
    pub(super) fn on_unconnected(&mut self, now: Instant, code: ResetCode) -> bool {
        if code == ResetCode::TooMany {
            self.rests_until = Some(now + REST);
        }
        !matches!(code, ResetCode::TooMany | ResetCode::Aborted)
    }
}

/// The mark of the RST makes the kernel note that the destination does not answer.
pub(super) fn blame(socket: &TcpStream, marks: Marks) {
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
const BACKLOG: i32 = 128;
