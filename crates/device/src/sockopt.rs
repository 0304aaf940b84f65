//! Socket options that neither std, socket2 nor rustix has.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Sets an option whose value the kernel reads as a `T`.
#[allow(unsafe_code, reason = "these options have no safe wrapper")]
pub(crate) fn set_option<T>(
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
