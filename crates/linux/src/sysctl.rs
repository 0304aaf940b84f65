//! Reads and writes sysctls of the network namespace of the calling thread.

use std::fs;
use std::path::PathBuf;

use crate::DeviceError;

pub(crate) fn read(key: &str) -> Result<String, DeviceError> {
    fs::read_to_string(path(key))
        .map(|value| value.trim().to_owned())
        .map_err(|error| DeviceError::system(format!("read the sysctl {key}"), error))
}

pub(crate) fn write(key: &str, value: &str) -> Result<(), DeviceError> {
    fs::write(path(key), value)
        .map_err(|error| DeviceError::system(format!("set the sysctl {key} to {value}"), error))
}

/// As with `sysctl`, a slash stands for a dot within a name (`net.ipv4.conf.eth0/1.rp_filter`).
fn path(key: &str) -> PathBuf {
    let swapped: String = key
        .chars()
        .map(|letter| match letter {
            '.' => '/',
            '/' => '.',
            other => other,
        })
        .collect();
    PathBuf::from("/proc/sys").join(swapped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_with_a_dot_in_its_name_is_found() {
        let path = path("net.ipv4.conf.eth0/1.rp_filter");
        assert_eq!(path.to_str(), Some("/proc/sys/net/ipv4/conf/eth0.1/rp_filter"));
    }
}
