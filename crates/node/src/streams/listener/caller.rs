//! The interface by which a TCP connection came in, which the kernel keeps if the listener asks for
//! packet information (`IP_PKTOPTIONS`, `IPV6_2292PKTOPTIONS`; see `do_ip_getsockopt` of Linux).

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;

use roadweave_linux::socket::set_option;

pub(super) fn ask_for_interfaces(listener: &TcpListener) -> io::Result<()> {
    let (level, option) = match listener.local_addr()?.is_ipv4() {
        true => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        false => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    set_option(listener, level, option, &1_i32)
}

#[allow(unsafe_code, reason = "neither std nor rustix has these options")]
pub(super) fn arrived_by(socket: &TcpStream) -> Option<u32> {
    let is_ipv4 = socket.local_addr().ok()?.is_ipv4();
    let (level, option) = match is_ipv4 {
        true => (libc::IPPROTO_IP, IP_PKTOPTIONS),
        false => (libc::IPPROTO_IPV6, libc::IPV6_2292PKTOPTIONS),
    };
    let mut value = [0_u8; 128];
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of the array, and their number.
    let result = unsafe {
        let (value, length) = (value.as_mut_ptr().cast(), &raw mut length);
        libc::getsockopt(socket.as_raw_fd(), level, option, value, length)
    };
    if result != 0 {
        return None;
    }
    // The index is the first field of `in_pktinfo`, and follows the address in `in6_pktinfo`.
    let at = size_of::<libc::cmsghdr>() + if is_ipv4 { 0 } else { 16 };
    let value = value.get(..usize::try_from(length).ok()?)?;
    let index = value.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))?;
    (index > 0).then_some(index)
}

/// From `linux/in.h`; libc lacks it for some C libraries.
const IP_PKTOPTIONS: libc::c_int = 9;
