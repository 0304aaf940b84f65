//! The technology by which an uplink reaches the Internet, from the kernel.
//!
//! ```text
//! /sys/class/net/NAME/wireless, phy80211      WiFi
//! /sys/class/net/NAME/uevent: DEVTYPE=wlan    WiFi
//!                             DEVTYPE=wwan    a modem: LTE at least
//! ```
//!
//! Only a modem's own programs know its generation (`roadweave modems`); a cabled router hides it.

use std::path::{Path, PathBuf};

use roadweave_proto::Technology;

/// The technology of an uplink as the kernel shows it, if it does.
pub fn detected_technology(uplink: &str) -> Option<Technology> {
    detected(uplink, Path::new(INTERFACES))
}

/// The port that an uplink is plugged into, as the kernel names it.
pub fn hardware(uplink: &str) -> Option<String> {
    hardware_in(uplink, Path::new(INTERFACES), Path::new(DEVICES))
}

fn hardware_in(uplink: &str, interfaces: &Path, devices: &Path) -> Option<String> {
    let device = folder(uplink, interfaces)?.join("device").canonicalize().ok()?;
    Some(device.strip_prefix(devices).ok()?.to_str()?.to_owned())
}

fn folder(uplink: &str, interfaces: &Path) -> Option<PathBuf> {
    // Invalid as a name (`dev_valid_name` in the kernel's net/core/dev.c).
    let is_none = uplink.is_empty() || uplink.starts_with('.') || uplink.contains('/');
    (!is_none).then(|| interfaces.join(uplink))
}

pub(crate) fn is_wireless(name: &str) -> bool {
    detected_technology(name) == Some(Technology::Wifi)
}

fn detected(uplink: &str, interfaces: &Path) -> Option<Technology> {
    let interface = folder(uplink, interfaces)?;
    if ["wireless", "phy80211"].iter().any(|name| interface.join(name).exists()) {
        return Some(Technology::Wifi);
    }
    let uevent = std::fs::read_to_string(interface.join("uevent")).unwrap_or_default();
    uevent.lines().find_map(|line| match line.strip_prefix("DEVTYPE=")? {
        "wlan" => Some(Technology::Wifi),
        "wwan" => Some(Technology::Lte),
        _ => None,
    })
}

const INTERFACES: &str = "/sys/class/net";
const DEVICES: &str = "/sys/devices";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn hardware_is_recognized_as_the_kernel_numbers_ports() {
        let folder = tempfile::tempdir().expect("a directory");
        let root = folder.path().canonicalize().expect("a path");
        let (interfaces, devices) = (root.join("class/net"), root.join("devices"));
        let port = "pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.4";
        for path in [interfaces.join("wwan0"), interfaces.join("lo"), devices.join(port)] {
            fs::create_dir_all(path).expect("a directory");
        }
        let device = interfaces.join("wwan0/device");
        std::os::unix::fs::symlink(devices.join(port), &device).expect("a link");
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(hardware_in(name, &interfaces, &devices).as_deref(), expected, "{name}");
        };
        check("wwan0", Some(port));
        for none in ["lo", "wwan1", "", "..", "../net/wwan0"] {
            check(none, None);
        }
    }

    #[test]
    fn the_kernel_knows_wifi_and_modems() {
        let directory = tempfile::tempdir().expect("a directory");
        let interfaces = directory.path();
        let interface = |name: &str, uevent: &str| {
            fs::create_dir_all(interfaces.join(name)).expect("a directory");
            fs::write(interfaces.join(name).join("uevent"), uevent).expect("a file");
        };
        interface("eth0", "INTERFACE=eth0\nIFINDEX=2\n");
        interface("wwan0", "DEVTYPE=wwan\nINTERFACE=wwan0\n");
        interface("wlp2s0", "DEVTYPE=wlan\n");
        interface("mlan0", "INTERFACE=mlan0\n");
        fs::create_dir(interfaces.join("mlan0/phy80211")).expect("a directory");
        let check = |name: &str, expected| {
            assert_eq!(detected(name, interfaces), expected, "{name}");
        };
        check("eth0", None);
        check("wwan0", Some(Technology::Lte));
        check("wlp2s0", Some(Technology::Wifi));
        check("mlan0", Some(Technology::Wifi));
        for none in ["", ".", "..", "../wwan0", "usb0"] {
            check(none, None);
        }
    }
}
