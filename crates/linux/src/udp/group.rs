//! A group of sockets at one address, with a BPF program that finds a packet's socket. The kernel
//! numbers sockets as they are bound (`net/core/sock_reuseport.c`, `socket(7)`).

use std::io;

use libc::{sock_filter, sock_fprog};
use socket2::Socket;

use super::{UdpOptions, UplinkSocket, bind, opening, prepare};
use crate::DeviceError;
use crate::socket::set_option;

impl UplinkSocket {
    /// Opens `count` sockets at one free address; `program` chooses one per packet, by order. If
    /// the kernel refuses it, packets reach any. Only this user's programs may join.
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
}

fn attach(socket: &Socket, program: &[sock_filter]) -> io::Result<()> {
    let program = sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}
