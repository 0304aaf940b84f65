//! What sockets of several modules have in common.

use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::io::Errno;
use socket2::Socket;

/// Begins to connect a socket that does not block.
pub fn begin_connect(socket: &Socket, to: SocketAddr) -> io::Result<()> {
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => Ok(()),
        result => result,
    }
}

/// A link-local address needs the index of its interface.
pub fn with_scope(address: SocketAddr, index: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, index).into()
        }
        other => other,
    }
}

/// Sets an option that neither std, socket2 nor rustix has, and that the kernel reads as a `T`.
#[allow(unsafe_code, reason = "these options have no safe wrapper")]
pub fn set_option<T>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    let (value, length) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads `length` bytes from `value`, which outlives the call.
    let result = unsafe { libc::setsockopt(socket, level, option, value, length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
