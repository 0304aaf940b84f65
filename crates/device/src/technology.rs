//! By which technology an uplink reaches the Internet: as its owner says, or as the kernel does.
//!
//! ```text
//! /sys/class/net/NAME/wireless, phy80211      WiFi
//! /sys/class/net/NAME/uevent: DEVTYPE=wlan    WiFi
//!                             DEVTYPE=wwan    a modem: LTE, unless the owner knows it to be more
//! ```
//!
//! Which generation a modem uses only its own programs know, and a router on a cable hides what is
//! behind it.

use std::path::Path;

use roadweave_types::{Technology, glob};

/// Which technologies uplinks have, and which are tried first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Technologies {
    /// What the owner says: patterns of names as in
    /// [`UplinkSelector`](roadweave_types::UplinkSelector), the first that fits counts.
    pub told: Vec<(String, Option<Technology>)>,
    /// The order.
    pub order: Vec<Technology>,
}

impl Default for Technologies {
    fn default() -> Self {
        Self { told: Vec::new(), order: Technology::ORDER.to_vec() }
    }
}

impl Technologies {
    /// What an uplink has, if anybody says.
    pub fn of(&self, uplink: &str) -> Option<Technology> {
        self.of_in(uplink, Path::new(INTERFACES))
    }

    /// Where an uplink stands in the order.
    pub fn rank(&self, uplink: &str) -> u8 {
        Technology::rank(self.of(uplink), &self.order)
    }

    fn of_in(&self, uplink: &str, interfaces: &Path) -> Option<Technology> {
        let told = self.told.iter().find(|(pattern, _)| glob(pattern, uplink));
        told.and_then(|(_, technology)| *technology).or_else(|| detected(uplink, interfaces))
    }
}

/// What the kernel says.
fn detected(uplink: &str, interfaces: &Path) -> Option<Technology> {
    // No interface is called so (`dev_valid_name` in the kernel's net/core/dev.c).
    if uplink.is_empty() || uplink.starts_with('.') || uplink.contains('/') {
        return None;
    }
    let interface = interfaces.join(uplink);
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_the_owner_says_counts_before_what_the_kernel_does() {
        let directory = tempfile::tempdir().expect("a directory");
        let interfaces = directory.path();
        let interface = |name: &str, uevent: &str| {
            fs::create_dir_all(interfaces.join(name)).expect("a directory");
            fs::write(interfaces.join(name).join("uevent"), uevent).expect("a file");
        };
        interface("eth0", "INTERFACE=eth0\nIFINDEX=2\n");
        interface("wwan0", "DEVTYPE=wwan\nINTERFACE=wwan0\n");
        interface("wwan1", "DEVTYPE=wwan\nINTERFACE=wwan1\n");
        interface("wlp2s0", "DEVTYPE=wlan\n");
        interface("mlan0", "INTERFACE=mlan0\n");
        fs::create_dir(interfaces.join("mlan0/phy80211")).expect("a directory");
        let told = vec![
            ("wwan1".to_owned(), Some(Technology::FiveGSa)),
            ("wwan*".to_owned(), None),
            ("eth1".to_owned(), Some(Technology::Satellite)),
        ];
        let technologies = Technologies { told, ..Technologies::default() };
        let check = |name: &str, expected| {
            assert_eq!(technologies.of_in(name, interfaces), expected, "{name}");
        };
        check("eth0", None);
        check("wwan0", Some(Technology::Lte));
        check("wwan1", Some(Technology::FiveGSa));
        check("wlp2s0", Some(Technology::Wifi));
        check("mlan0", Some(Technology::Wifi));
        check("eth1", Some(Technology::Satellite));
        for none in ["", ".", "..", "../wwan0", "usb0"] {
            check(none, None);
        }
    }
}
