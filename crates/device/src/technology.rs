//! By which technology an uplink reaches the Internet: as its owner says, or as the kernel does.
//!
//! ```text
//! /sys/class/net/NAME/wireless, phy80211      WiFi
//! /sys/class/net/NAME/uevent: DEVTYPE=wlan    WiFi
//!                             DEVTYPE=wwan    a modem: LTE, unless the owner knows it to be more
//! ```
//!
//! Which generation a modem uses only its own programs know, which may tell it (`roadweave
//! modems`); a router on a cable hides what is behind it.

use std::path::Path;

use roadweave_types::{Technology, glob};

use crate::modem::ModemFacts;

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

    /// Where an uplink stands in the order, with what its modem tells, which counts less than what
    /// the owner says. One that hardly hears its network stands behind all others.
    pub fn rank(&self, uplink: &str, modem: Option<&ModemFacts>) -> u8 {
        self.rank_in(uplink, modem, Path::new(INTERFACES))
    }

    fn rank_in(&self, uplink: &str, modem: Option<&ModemFacts>, interfaces: &Path) -> u8 {
        let last = u8::try_from(self.order.len()).unwrap_or(u8::MAX);
        let by_modem = modem.and_then(|modem| modem.technology.as_deref());
        let rank = |technology| Technology::rank(Some(technology), &self.order);
        let rank = match (self.told(uplink), by_modem) {
            (Some(told), _) => rank(told),
            (None, Some("5g-sa")) => rank(Technology::FiveGSa),
            (None, Some("5g-nsa")) => rank(Technology::FiveGNsa),
            (None, Some("lte")) => rank(Technology::Lte),
            // Slower than whatever has a place.
            (None, Some("3g" | "2g")) => last,
            (None, _) => Technology::rank(detected(uplink, interfaces), &self.order),
        };
        match modem.is_some_and(ModemFacts::is_weak) {
            true => rank.saturating_add(last).saturating_add(1),
            false => rank,
        }
    }

    fn of_in(&self, uplink: &str, interfaces: &Path) -> Option<Technology> {
        self.told(uplink).or_else(|| detected(uplink, interfaces))
    }

    /// What the owner says.
    fn told(&self, uplink: &str) -> Option<Technology> {
        let told = self.told.iter().find(|(pattern, _)| glob(pattern, uplink));
        told.and_then(|(_, technology)| *technology)
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

    #[test]
    fn what_a_modem_tells_counts_before_the_kernel_and_a_weak_signal_is_behind_all() {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["wwan0", "wwan1"] {
            fs::create_dir(directory.path().join(name)).expect("a directory");
            let uevent = directory.path().join(name).join("uevent");
            fs::write(uevent, "DEVTYPE=wwan\n").expect("a file");
        }
        let told = vec![("wwan1".to_owned(), Some(Technology::Lte))];
        let technologies = Technologies { told, ..Technologies::default() };
        let modem = |technology: &str, rsrp_dbm: f64| ModemFacts {
            technology: Some(technology.to_owned()),
            rsrp_dbm: Some(rsrp_dbm),
            ..ModemFacts::default()
        };
        let rank = |name: &str, modem: Option<&ModemFacts>| {
            technologies.rank_in(name, modem, directory.path())
        };
        let of = |technology| Technology::rank(Some(technology), &Technology::ORDER);
        assert_eq!(rank("wwan0", None), of(Technology::Lte));
        assert_eq!(rank("wwan0", Some(&modem("5g-sa", -90.0))), of(Technology::FiveGSa));
        assert_eq!(rank("wwan0", Some(&ModemFacts::default())), of(Technology::Lte));
        let owner = "a modem that lies is told off by its owner";
        assert_eq!(rank("wwan1", Some(&modem("5g-sa", -90.0))), of(Technology::Lte), "{owner}");
        let slow = rank("wwan0", Some(&modem("3g", -90.0)));
        assert!(slow > of(Technology::Satellite));
        assert!(rank("wwan0", Some(&modem("5g-sa", -125.0))) > slow);
        assert!(rank("wwan1", Some(&modem("lte", -125.0))) > slow);
        let order = vec![Technology::Lte; 1_000];
        let long = Technologies { order, ..Technologies::default() };
        assert_eq!(long.rank_in("wwan0", Some(&modem("3g", -125.0)), directory.path()), u8::MAX);
    }
}
