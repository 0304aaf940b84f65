//! The technology by which an uplink reaches the Internet, from the configuration, or from the
//! kernel's `/sys/class/net/NAME`.
//!
//! Only the modem's own programs know its generation, and may report it (`roadweave modems`); a
//! router on a cable hides its uplink.

use std::path::{Path, PathBuf};

use roadweave_config::{UplinkFields, UplinkTraits};
use roadweave_proto::Technology;

use crate::modem::ModemFacts;

/// The technology of an uplink as the kernel shows it, if it does.
pub fn detected_technology(uplink: &str) -> Option<Technology> {
    detected(uplink, Path::new(INTERFACES))
}

pub(crate) fn technology_of(uplinks: &UplinkFields, uplink: &UplinkTraits) -> Option<Technology> {
    technology_in(uplinks, uplink, Path::new(INTERFACES))
}

fn technology_in(
    uplinks: &UplinkFields,
    uplink: &UplinkTraits,
    interfaces: &Path,
) -> Option<Technology> {
    configured(uplinks, uplink).or_else(|| detected(uplink.name, interfaces))
}

/// The place of an uplink in the order, by configuration, then its modem's report, then the kernel.
/// One with a weak signal comes after all others.
pub(crate) fn rank(
    uplinks: &UplinkFields,
    uplink: &UplinkTraits,
    modem: Option<&ModemFacts>,
) -> u8 {
    rank_in(uplinks, uplink, modem, Path::new(INTERFACES))
}

fn rank_in(
    uplinks: &UplinkFields,
    uplink: &UplinkTraits,
    modem: Option<&ModemFacts>,
    interfaces: &Path,
) -> u8 {
    let last = u8::try_from(uplinks.order.len()).unwrap_or(u8::MAX);
    let by_modem = modem.and_then(|modem| modem.technology.as_deref());
    let rank = |technology| Technology::rank(Some(technology), &uplinks.order);
    let rank = match (configured(uplinks, uplink), by_modem) {
        (Some(configured), _) => rank(configured),
        (None, Some("5g-sa")) => rank(Technology::FiveGSa),
        (None, Some("5g-nsa")) => rank(Technology::FiveGNsa),
        (None, Some("lte")) => rank(Technology::Lte),
        // Slower than all in the order.
        (None, Some("3g" | "2g")) => last,
        (None, _) => Technology::rank(detected(uplink.name, interfaces), &uplinks.order),
    };
    match modem.is_some_and(ModemFacts::is_weak) {
        true => rank.saturating_add(last).saturating_add(1),
        false => rank,
    }
}

fn configured(uplinks: &UplinkFields, uplink: &UplinkTraits) -> Option<Technology> {
    uplinks.policy_of(uplink)?.technology
}

pub(crate) fn hardware(uplink: &str) -> Option<String> {
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

    use roadweave_config::PolicyFields;

    use super::*;

    fn policy(name: &str, technology: Option<Technology>) -> PolicyFields {
        PolicyFields { name: Some(name.to_owned()), technology, ..PolicyFields::default() }
    }

    #[test]
    fn hardware_is_told_as_the_kernel_numbers_ports() {
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
        let policies = vec![
            policy("wwan1", Some(Technology::FiveGSa)),
            policy("wwan*", None),
            policy("eth1", Some(Technology::Satellite)),
        ];
        let uplinks = UplinkFields { policies, ..UplinkFields::default() };
        let check = |name: &str, expected| {
            let found = technology_in(&uplinks, &UplinkTraits::by_name(name), interfaces);
            assert_eq!(found, expected, "{name}");
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
        let policies = vec![policy("wwan1", Some(Technology::Lte))];
        let uplinks = UplinkFields { policies, ..UplinkFields::default() };
        let modem = |technology: &str, rsrp_dbm: f64| ModemFacts {
            technology: Some(technology.to_owned()),
            rsrp_dbm: Some(rsrp_dbm),
            ..ModemFacts::default()
        };
        let rank = |name: &str, modem: Option<&ModemFacts>| {
            rank_in(&uplinks, &UplinkTraits::by_name(name), modem, directory.path())
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
        let long = UplinkFields { order, ..UplinkFields::default() };
        let (uplink, slow) = (UplinkTraits::by_name("wwan0"), modem("3g", -125.0));
        assert_eq!(rank_in(&long, &uplink, Some(&slow), directory.path()), u8::MAX);
    }
}
