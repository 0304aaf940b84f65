//! UDP sockets of the tunnel: one per uplink, bound to its interface, or one for a server. Runs of
//! datagrams of one length are sent by one system call (GSO); many are received by one (`recvmmsg`
//! and GRO). Network errors are counted by kind; the transport's timers detect losses.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use libc::{sock_filter, sock_fprog};
pub use noq_udp::EcnCodepoint as Ecn;
use noq_udp::{Transmit, UdpSocketState};
use rustix::io::Errno;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

use self::receipt::Answered;
use self::receive::receive;
use crate::DeviceError;
use crate::clock::since_boot;
use crate::socket::set_option;

mod outcome;
mod receipt;
mod receive;

pub use outcome::{SendFailure, SendOutcome, UdpStatistics};

/// Options of a socket.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Local address; port 0 lets the kernel choose. `[::]` takes IPv4 as well.
    pub bind: SocketAddr,
    /// The interface of all packets, regardless of the routes (SO_BINDTODEVICE).
    pub interface: Option<String>,
    /// Bytes of each of the kernel's two buffers; the kernel may grant less.
    pub buffer_size: usize,
}

impl UdpOptions {
    /// A socket for the uplink `interface`, of IPv4 or IPv6.
    pub fn uplink(interface: impl Into<String>, ipv4: bool) -> Self {
        let any: IpAddr =
            if ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        Self { interface: Some(interface.into()), ..Self::server(SocketAddr::new(any, 0)) }
    }

    /// A server's socket.
    pub fn server(bind: SocketAddr) -> Self {
        Self { bind, interface: None, buffer_size: BUFFER_SIZE }
    }
}

/// One datagram or a run of datagrams to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The destination of all datagrams.
    pub destination: SocketAddr,
    /// The source address; a server answers from the address that was asked.
    pub source: Option<IpAddr>,
    /// The ECN bits.
    pub ecn: Option<Ecn>,
    /// The payloads, end to end.
    pub contents: &'a [u8],
    /// Bytes of each datagram but the last, which may be shorter. Not zero; the length of
    /// `contents` or more for a single datagram.
    pub segment_size: usize,
}

/// A received datagram.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// The sender.
    pub remote: SocketAddr,
    /// The destination address.
    pub local: Option<IpAddr>,
    /// The index of the interface.
    pub interface: Option<u32>,
    /// The ECN bits.
    pub ecn: Option<Ecn>,
    /// The kernel's time of receipt (of joined datagrams: the first), since the machine's start.
    pub received: Option<Duration>,
    /// The payload.
    pub payload: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GsoState {
    Works,
    /// The next single datagram shows whether a refused run was too large.
    Doubted,
    Refused,
}

/// A nonblocking UDP socket with batches both ways.
pub struct UplinkSocket {
    socket: Socket,
    state: UdpSocketState,
    local: SocketAddr,
    interface: Option<String>,
    /// An IPv6 socket that carries IPv4 as mapped addresses.
    dual: bool,
    gso: GsoState,
    buffers: Vec<u8>,
    emptied: Duration,
    statistics: UdpStatistics,
}

impl UplinkSocket {
    /// Opens the socket in the network namespace of the calling thread. Fails with
    /// [`DeviceError::AddressInUse`], [`AddressNotHere`](DeviceError::AddressNotHere),
    /// [`NoInterface`](DeviceError::NoInterface) or [`NoPermission`](DeviceError::NoPermission).
    pub fn open(options: &UdpOptions) -> Result<Self, DeviceError> {
        let socket = prepare(options)?;
        bind(&socket, options.bind)?;
        let interface = options.interface.clone();
        Ok(Self { interface, ..Self::of_bound(socket, options.bind)? })
    }

    /// Opens `count` sockets at one free address; `program` (BPF) chooses one per packet, by the
    /// order in which they were bound (`net/core/sock_reuseport.c`, `socket(7)`). If the kernel
    /// refuses it, packets reach any. Only this user's programs may join.
    pub fn open_group(
        options: &UdpOptions,
        count: u16,
        program: &[sock_filter],
    ) -> Result<Vec<Self>, DeviceError> {
        let failed = |error| opening(options.bind, error);
        let first = prepare(options)?;
        // Bound before it shares the address, so that it cannot join another program's group.
        bind(&first, options.bind)?;
        first.set_reuse_port(true).map_err(failed)?;
        let mut sockets = vec![Self::of_bound(first, options.bind)?];
        let bound = UdpOptions { bind: sockets[0].local_address(), ..options.clone() };
        for _ in 1..count {
            let socket = prepare(&bound)?;
            socket.set_reuse_port(true).map_err(failed)?;
            bind(&socket, bound.bind)?;
            sockets.push(Self::of_bound(socket, bound.bind)?);
        }
        if let Err(error) = attach(&sockets[0].socket, program) {
            tracing::warn!(
                %error,
                "the kernel does not distribute packets to the sockets of the shards: shards pass \
                 them on, which costs processor time"
            );
        }
        Ok(sockets)
    }

    /// Another handle of the same socket, with counters of its own.
    pub fn try_clone(&self) -> Result<Self, DeviceError> {
        let failed = |error| DeviceError::system("share a UDP socket", error);
        let interface = self.interface.clone();
        Ok(Self {
            interface,
            ..Self::of_bound(self.socket.try_clone().map_err(failed)?, self.local)?
        })
    }

    fn of_bound(socket: Socket, address: SocketAddr) -> Result<Self, DeviceError> {
        let failed = |error| opening(address, error);
        let dual = is_dual(address);
        let state = UdpSocketState::new((&socket).into()).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?.as_socket().unwrap_or(address);
        let buffers = vec![0; SLOTS * DATAGRAM_MAX];
        // Without it, packets count as received when they are read.
        let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_i32);
        let (gso, emptied) = (GsoState::Works, Duration::ZERO);
        let statistics = UdpStatistics::default();
        let interface = None;
        Ok(Self { socket, state, local, interface, dual, gso, buffers, emptied, statistics })
    }

    /// The local address and port.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// The interface that an uplink's socket is bound to.
    pub fn interface(&self) -> Option<&str> {
        self.interface.as_deref()
    }

    /// Counters since it was opened.
    pub fn statistics(&self) -> UdpStatistics {
        self.statistics
    }

    fn batch_max(&self) -> usize {
        match self.gso {
            GsoState::Works => self.state.max_gso_segments().get(),
            GsoState::Doubted | GsoState::Refused => 1,
        }
    }

    /// Sends a datagram or a run; a run beyond the kernel's limit is split.
    pub fn send(&mut self, outgoing: &Outgoing<'_>) -> SendOutcome {
        let segment = outgoing.segment_size.max(1);
        let mut outcome = SendOutcome::Sent;
        let mut rest = outgoing.contents;
        while !rest.is_empty() {
            let segments = self.batch_max().min((RUN_MAX / segment).max(1));
            let (run, later) = rest.split_at(rest.len().min(segment.saturating_mul(segments)));
            let datagrams = run.len().div_ceil(segment) as u64;
            match self.send_run(outgoing, run, segment) {
                Ok(()) => {
                    self.statistics.datagrams_sent += datagrams;
                    self.statistics.bytes_sent += run.len() as u64;
                    if self.gso == GsoState::Doubted {
                        self.gso = GsoState::Refused;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if rest.len() == outgoing.contents.len() {
                        return SendOutcome::Blocked;
                    }
                    // A part is sent; repeating the whole would cost more than its loss.
                    let lost = rest.len().div_ceil(segment) as u64;
                    self.statistics.failed[SendFailure::QueueFull as usize] += lost;
                    return SendOutcome::Failed(SendFailure::QueueFull);
                }
                Err(error) if datagrams > 1 && is_gso_refusal(&error) => {
                    self.gso = GsoState::Doubted;
                    continue;
                }
                Err(error) => {
                    let failure = SendFailure::of(&error);
                    self.statistics.failed[failure as usize] += datagrams;
                    outcome = SendOutcome::Failed(failure);
                    if self.gso == GsoState::Doubted {
                        self.restore_gso();
                    }
                }
            }
            rest = later;
        }
        outcome
    }

    /// Enables GSO again after a refusal for the size, as when the MTU has shrunk.
    fn restore_gso(&mut self) {
        if let Ok(state) = UdpSocketState::new((&self.socket).into()) {
            self.state = state;
            self.gso = GsoState::Works;
        }
    }

    fn send_run(
        &mut self,
        outgoing: &Outgoing<'_>,
        contents: &[u8],
        segment: usize,
    ) -> io::Result<()> {
        self.statistics.sends += 1;
        let transmit = Transmit {
            destination: self.to_socket(outgoing.destination),
            ecn: outgoing.ecn,
            contents,
            segment_size: (segment < contents.len()).then_some(segment),
            src_ip: outgoing.source.map(|source| self.to_socket_ip(source)),
        };
        loop {
            match self.state.try_send((&self.socket).into(), &transmit) {
                // An ICMP error of an earlier packet, which the kernel has cleared without sending.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::CONNREFUSED) => {
                    return self.state.try_send((&self.socket).into(), &transmit);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Passes waiting datagrams, up to a bound, to `sink` and returns their number. Fails only if
    /// the socket is useless; errors about earlier packets are ignored.
    pub fn recv(&mut self, mut sink: impl FnMut(Incoming<'_>)) -> io::Result<usize> {
        let mut count = 0;
        for _ in 0..RECEIVES_MAX {
            let asked = since_boot();
            let received = receive::<SLOTS>(&self.socket, &mut self.buffers, DATAGRAM_MAX);
            let messages = match received {
                Ok(messages) => messages,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.emptied = asked;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if SendFailure::of(&error) != SendFailure::Other => continue,
                Err(error) => return Err(error),
            };
            self.statistics.receives += 1;
            let times = Answered::now(self.emptied);
            let mut filled = 0;
            for (message, buffer) in messages.zip(self.buffers.chunks_exact(DATAGRAM_MAX)) {
                filled += 1;
                let Some(remote) = message.remote else { continue };
                let contents = &buffer[..message.len.min(DATAGRAM_MAX)];
                // An empty datagram has no stride, and `chunks` of an empty slice yields nothing.
                for payload in contents.chunks(message.stride.max(1)) {
                    count += 1;
                    sink(Incoming {
                        remote: SocketAddr::new(remote.ip().to_canonical(), remote.port()),
                        local: message.local.map(|ip| ip.to_canonical()),
                        interface: message.interface,
                        ecn: Ecn::from_bits(message.ecn),
                        received: message.stamp.map(|stamp| times.of(stamp)),
                        payload,
                    });
                }
            }
            if filled < SLOTS {
                self.emptied = asked;
                break;
            }
        }
        Ok(count)
    }

    fn to_socket(&self, address: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.to_socket_ip(address.ip()), address.port())
    }

    fn to_socket_ip(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(v4) if self.dual => v4.to_ipv6_mapped().into(),
            other => other,
        }
    }
}

impl AsFd for UplinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for UplinkSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UplinkSocket")
            .field("local", &self.local)
            .field("statistics", &self.statistics)
            .finish_non_exhaustive()
    }
}

fn prepare(options: &UdpOptions) -> Result<Socket, DeviceError> {
    let address = options.bind;
    let failed = |error| opening(address, error);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))
        .map_err(failed)?;
    if address.is_ipv6() {
        socket.set_only_v6(!is_dual(address)).map_err(failed)?;
    }
    if let Some(interface) = &options.interface {
        bind_to_interface(&socket, interface)?;
    }
    set_buffers(&socket, options.buffer_size);
    Ok(socket)
}

fn bind(socket: &Socket, address: SocketAddr) -> Result<(), DeviceError> {
    socket.bind(&address.into()).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => DeviceError::AddressInUse { address },
        io::ErrorKind::AddrNotAvailable => DeviceError::AddressNotHere { address },
        _ => opening(address, error),
    })
}

fn attach(socket: &Socket, program: &[sock_filter]) -> io::Result<()> {
    let program = sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

fn opening(address: SocketAddr, error: io::Error) -> DeviceError {
    DeviceError::of_family(address.is_ipv4(), format!("open a UDP socket at {address}"), error)
}

fn is_dual(address: SocketAddr) -> bool {
    address.is_ipv6() && address.ip().is_unspecified()
}

/// Binds a socket to an interface by its name.
pub fn bind_to_interface(socket: &Socket, interface: &str) -> Result<(), DeviceError> {
    socket.bind_device(Some(interface.as_bytes())).map_err(|error| {
        match Errno::from_io_error(&error) {
            Some(Errno::NODEV | Errno::NXIO) => {
                DeviceError::NoInterface { name: interface.to_owned() }
            }
            _ => DeviceError::system(format!("bind a socket to the interface {interface}"), error),
        }
    })
}

/// Without CAP_NET_ADMIN the kernel grants only net.core.rmem_max and wmem_max.
fn set_buffers(socket: &Socket, size: usize) {
    if sockopt::set_socket_recv_buffer_size_force(socket, size).is_err() {
        let _ = socket.set_recv_buffer_size(size);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, size).is_err() {
        let _ = socket.set_send_buffer_size(size);
    }
}

fn is_gso_refusal(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::IO | Errno::INVAL | Errno::OPNOTSUPP))
}

/// The requested buffer: 100 ms at 300 Mbit/s.
const BUFFER_SIZE: usize = 4 * 1024 * 1024;
const DATAGRAM_MAX: usize = 65_536;
/// The longest run of one system call: 64 KiB less the headers of IP and UDP.
const RUN_MAX: usize = 65_535 - 48;
const RECEIVES_MAX: usize = 4;
const SLOTS: usize = 16;

#[cfg(test)]
mod tests;
