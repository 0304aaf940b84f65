//! UDP sockets with buffers for the burst of a whole IDR frame.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use anyhow::Context as _;
use socket2::{Domain, Protocol, Socket, Type};

/// About a second of video at 60 Mbit/s. Without root the kernel may grant less.
const BUFFER: usize = 8 << 20;

pub fn sending_to(to: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = open(to)?;
    socket.connect(&to.into()).with_context(|| format!("cannot send to {to}"))?;
    Ok(socket.into())
}

pub fn listening_on(address: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = open(address)?;
    socket.bind(&address.into()).with_context(|| format!("cannot listen on {address}"))?;
    Ok(socket.into())
}

fn open(address: SocketAddr) -> anyhow::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))
        .context("cannot open a udp socket")?;
    // SO_*BUFFORCE exceeds the system's limit, with the permission.
    let fd = &socket;
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(fd, BUFFER).is_err() {
        socket.set_recv_buffer_size(BUFFER).context("cannot set the receive buffer")?;
    }
    socket.set_send_buffer_size(BUFFER).context("cannot set the send buffer")?;
    Ok(socket)
}

/// Time-outs, signals, and ICMP errors about earlier packets.
pub fn is_transient(kind: ErrorKind) -> bool {
    use ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    matches!(kind, WouldBlock | TimedOut | Interrupted | ConnectionRefused)
}
