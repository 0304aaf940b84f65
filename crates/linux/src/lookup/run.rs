//! The sockets of a search: each try has its own, bound to the uplink's interface and connected, so
//! that the kernel chooses a random port and takes answers only from the server's address.

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::Path;
use std::sync::Weak;
use std::time::Duration;

use roadweave_proto::Instant;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use super::exchange::{Transport, Try};
use super::message::ENTROPY;
use super::servers::name_servers;
use super::{Found, LookupRequest, Network, Search};
use crate::poll::wait_any;
use crate::socket::{begin_connect, with_scope};
use crate::udp::bind_to_interface;
use crate::{Clock, random_bytes};

/// Blocks for up to 15 s, and stops soon after `interest` is dropped.
pub fn run(request: LookupRequest, interest: &Weak<()>) -> Found {
    let root = Path::new("/");
    let clock = Clock::start();
    let network = request.network.clone();
    if request.needs_nat64() {
        // The routers may advertise the NAT64 prefix; otherwise the DNS is asked for it.
        let _ = solicit_routers(&network);
    }
    let servers = name_servers(root, &network);
    tracing::debug!(uplink = network.interface, ?servers, "looking up the server");
    let mut search = Search::new(clock.now(), request, servers, root);
    let mut open: Vec<OpenSocket> = Vec::new();
    loop {
        let now = clock.now();
        while let Some((place, next)) = search.poll_try(now, &entropy()) {
            match OpenSocket::begin(&network, place, &next) {
                Ok(socket) => open.push(socket),
                Err(error) => search.handle_failure(now, place, next.id, &error.to_string()),
            }
        }
        if let Some(found) = search.poll_found(now) {
            return found;
        }
        if interest.strong_count() == 0 {
            return Found::default();
        }
        let timeout = search.poll_timeout(now).since(now).min(ATTENTION);
        if let Err(error) = wait(&open, timeout) {
            tracing::warn!(%error, "cannot wait for name servers");
            return search.found();
        }
        open.retain_mut(|socket| take(&mut search, clock.now(), socket));
    }
}

fn take(search: &mut Search, now: Instant, socket: &mut OpenSocket) -> bool {
    for _ in 0..MESSAGES_MAX {
        match socket.receive() {
            Ok(Some(message)) if search.handle_message(now, socket.place, socket.id, &message) => {
                return false;
            }
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(error) => {
                search.handle_failure(now, socket.place, socket.id, &error.to_string());
                return false;
            }
        }
    }
    true
}

struct OpenSocket {
    place: usize,
    id: usize,
    socket: Socket,
    unsent: Vec<u8>,
    received: Option<Vec<u8>>,
}

impl OpenSocket {
    fn begin(network: &Network, place: usize, next: &Try) -> io::Result<Self> {
        let server = with_scope(next.server, network.index);
        let is_tcp = next.transport == Transport::Tcp;
        let (kind, protocol) =
            if is_tcp { (Type::STREAM, Protocol::TCP) } else { (Type::DGRAM, Protocol::UDP) };
        let socket = Socket::new(Domain::for_address(server), kind, Some(protocol))?;
        socket.set_nonblocking(true)?;
        if !network.is_system() {
            bind_to_interface(&socket, &network.interface).map_err(io::Error::other)?;
        }
        begin_connect(&socket, server)?;
        let mut unsent = Vec::new();
        if is_tcp {
            // RFC 1035 section 4.2.2: a length of two bytes precedes each message.
            let length = u16::try_from(next.message.len()).unwrap_or(u16::MAX);
            unsent.extend(length.to_be_bytes());
            unsent.extend(&next.message);
        } else {
            socket.send(&next.message)?;
        }
        let received = is_tcp.then(Vec::new);
        Ok(Self { place, id: next.id, socket, unsent, received })
    }

    fn interest(&self) -> PollFlags {
        if self.unsent.is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        while !self.unsent.is_empty() {
            match (&self.socket).write(&self.unsent) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => drop(self.unsent.drain(..length)),
                Err(error) if is_pending(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let mut buffer = [0; 4096];
        loop {
            let length = match (&self.socket).read(&mut buffer) {
                Ok(length) => length,
                Err(error) if is_pending(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            let Some(received) = &mut self.received else {
                return Ok(Some(buffer[..length].to_vec()));
            };
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            received.extend(&buffer[..length]);
            if let Some(([high, low], rest)) = received.split_first_chunk() {
                let wanted = usize::from(u16::from_be_bytes([*high, *low]));
                if rest.len() >= wanted {
                    return Ok(Some(rest[..wanted].to_vec()));
                }
            }
        }
    }
}

fn is_pending(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
}

fn wait(open: &[OpenSocket], timeout: Duration) -> io::Result<bool> {
    let mut fds: Vec<PollFd<'_>> =
        open.iter().map(|socket| PollFd::new(&socket.socket, socket.interest())).collect();
    wait_any(&mut fds, timeout)
}

/// Unpredictable bytes; if the kernel has none, the random port is the only protection.
fn entropy() -> [u8; ENTROPY] {
    random_bytes().unwrap_or([0; ENTROPY])
}

fn solicit_routers(network: &Network) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
    bind_to_interface(&socket, &network.interface).map_err(io::Error::other)?;
    // Routers drop solicitations with a lower hop limit.
    socket.set_multicast_hops_v6(255)?;
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    let routers = SocketAddr::from(SocketAddrV6::new(routers, 0, 0, network.index));
    let solicitation = [ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    socket.send_to(&solicitation, &routers.into()).map(drop)
}

const ATTENTION: Duration = Duration::from_millis(250);
const ROUTER_SOLICITATION: u8 = 133;
const MESSAGES_MAX: usize = 32;
