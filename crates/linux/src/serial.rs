//! Serial devices: whether another program uses one exclusively.

use std::os::fd::{AsFd, AsRawFd as _};

/// Whether a terminal was opened exclusively (`TIOCEXCL`, ioctl_tty(2)); root can still open it.
#[allow(unsafe_code, reason = "rustix has no TIOCGEXCL")]
pub fn is_exclusive(device: impl AsFd) -> bool {
    let mut exclusive: libc::c_int = 0;
    // SAFETY: TIOCGEXCL writes one int, which outlives the call, for a descriptor that is open.
    let done =
        unsafe { libc::ioctl(device.as_fd().as_raw_fd(), libc::TIOCGEXCL, &raw mut exclusive) };
    done == 0 && exclusive != 0
}
