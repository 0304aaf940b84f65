//! A listening socket.

use std::io;
use std::net::{SocketAddr, TcpListener};

use super::caller::ask_for_interfaces;

#[derive(Debug)]
pub(super) struct ListeningSocket {
    pub(super) socket: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) is_transparent: bool,
    pub(super) is_called: bool,
}

impl ListeningSocket {
    pub(super) fn for_asking(address: SocketAddr) -> io::Result<Self> {
        let listener = Self::new(TcpListener::bind(address)?, false)?;
        tracing::info!(listen = %listener.address, "listening for SOCKS5 and HTTP CONNECT");
        Ok(listener)
    }

    pub(super) fn new(socket: TcpListener, is_transparent: bool) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        ask_for_interfaces(&socket)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address, is_transparent, is_called: false })
    }
}
