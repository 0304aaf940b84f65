//! Random bytes of the system.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::DeviceError;

/// Random bytes of the system, for keys and seeds.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], DeviceError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(DeviceError::system("draw random bytes", error)),
        }
    }
    Ok(bytes)
}
