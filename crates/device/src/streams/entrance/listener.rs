//! A socket that callers come to.

use std::io;
use std::net::{SocketAddr, TcpListener};

use super::caller::ask_for_interfaces;

/// A listener, and whether somebody may wait at it.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: TcpListener,
    /// Where it listens.
    pub(super) address: SocketAddr,
    /// Whether callers ask for nothing, and are taken to where they wanted to go.
    pub(super) is_transparent: bool,
    /// Somebody may wait to be taken.
    pub(super) is_called: bool,
}

impl Listener {
    /// A listener whose callers say what they want.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn for_asking(address: SocketAddr) -> io::Result<Self> {
        let listener = Self::new(TcpListener::bind(address)?, false)?;
        tracing::info!(listen = %listener.address, "SOCKS5 and HTTP CONNECT are answered");
        Ok(listener)
    }

    /// Callers come to `socket` from now on.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn new(socket: TcpListener, is_transparent: bool) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        ask_for_interfaces(&socket)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address, is_transparent, is_called: false })
    }
}
