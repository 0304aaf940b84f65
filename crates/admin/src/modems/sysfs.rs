//! The devices of an interface as the kernel shows them, and the strength of WiFi.
//!
//! ```text
//! /sys/class/net/wwan0/device ─► 1-1:1.4 ─► 1-1, the USB device ─► 1-1:1.2/ttyUSB2
//!                                                                └► 1-1:1.4/usbmisc/cdc-wdm0
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use roadweave_node::ModemFacts;

use super::facts::is_interface;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Devices {
    pub(super) serial: Vec<PathBuf>,
    pub(super) control: Option<PathBuf>,
}

pub(super) fn devices(root: &Path) -> BTreeMap<String, Devices> {
    let interfaces = root.join("sys/class/net");
    let names = names(&interfaces).into_iter().filter(|name| is_interface(name));
    let with_devices = names.filter_map(|name| {
        let usb = usb_device(&interfaces.join(&name).join("device"))?;
        let devices = of_usb(&usb, &root.join("dev"));
        (devices != Devices::default()).then_some((name, devices))
    });
    with_devices.take(MODEMS_MAX).collect()
}

fn usb_device(part: &Path) -> Option<PathBuf> {
    let part = part.canonicalize().ok()?;
    let above = part.ancestors().take(LEVELS_MAX);
    above.into_iter().find(|level| level.join("idVendor").exists()).map(Path::to_owned)
}

fn of_usb(usb: &Path, dev: &Path) -> Devices {
    // A device's interfaces are named BUS-PORT:CONFIGURATION.INTERFACE.
    let parts = names(usb).into_iter().filter(|name| name.contains(':'));
    let parts: Vec<PathBuf> = parts.map(|name| usb.join(name)).collect();
    let within = |folder: &str, prefixes: &[&str]| {
        let all = parts.iter().flat_map(|part| names(&part.join(folder)));
        let is_one = |name: &String| {
            let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            is_plain && prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        all.filter(is_one).collect::<Vec<_>>()
    };
    // Drivers of serial converters make a folder for each port, CDC ACM does not.
    let mut serial = within("", &["ttyUSB"]);
    serial.extend(within("tty", &["ttyACM"]));
    serial.sort_by_key(|name| (name.len(), name.clone()));
    serial.truncate(PORTS_MAX);
    let control = within("usbmisc", &["cdc-wdm"]).into_iter().next();
    Devices {
        serial: serial.into_iter().map(|name| dev.join(name)).collect(),
        control: control.map(|name| dev.join(name)),
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// By interface; nothing on OpenWrt. Source: `wireless_seq_printf_stats`, net/wireless/wext-proc.c.
pub(super) fn wifi(root: &Path) -> BTreeMap<String, ModemFacts> {
    let text = fs::read_to_string(root.join("proc/net/wireless")).unwrap_or_default();
    let of_line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        // Status, link quality, level; a dot marks an updated value.
        let level = rest.split_whitespace().nth(2)?.trim_end_matches('.').parse::<f64>().ok()?;
        let name = name.trim();
        let is_legal = is_interface(name) && ModemFacts::RSSI_DBM.contains(&level);
        // -256 is unknown; a driver without decibels counts up from 0.
        let facts = ModemFacts { rssi_dbm: Some(level), ..ModemFacts::default() };
        (is_legal && level < 0.0).then(|| (name.to_owned(), facts))
    };
    text.lines().filter_map(of_line).take(MODEMS_MAX).collect()
}

const MODEMS_MAX: usize = 8;
const PORTS_MAX: usize = 8;
/// A port of the WWAN subsystem is further down than `1-1:1.4`.
const LEVELS_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn interface(root: &Path, name: &str, usb: &str, parts: &[&str]) {
        let device = root.join("sys/devices/usb1").join(usb);
        for part in parts {
            fs::create_dir_all(device.join(part)).expect("a folder");
        }
        fs::write(device.join("idVendor"), "2c7c\n").expect("a file");
        let class = root.join("sys/class/net").join(name);
        fs::create_dir_all(&class).expect("a folder");
        let part = device.join(format!("{usb}:1.4"));
        fs::create_dir_all(&part).expect("a folder");
        symlink(part, class.join("device")).expect("a link");
    }

    #[test]
    fn devices_are_those_of_the_same_usb_device() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        let dev = |name: &str| root.join("dev").join(name);
        let of_modem =
            ["1-1:1.10/ttyUSB10", "1-1:1.2/ttyUSB2", "1-1:1.3/ttyUSB9", "1-1:1.4/usbmisc/cdc-wdm0"];
        interface(root, "wwan0", "1-1", &of_modem);
        interface(root, "usb0", "1-2", &["1-2:1.1/tty/ttyACM0", "1-2:1.0/../../1-9/ttyUSB7"]);
        interface(root, "eth1", "1-3", &["1-3:1.0/net/eth1"]);
        interface(root, "odd\n", "1-4", &["1-4:1.0/ttyUSB8"]);
        fs::create_dir_all(root.join("sys/class/net/lo")).expect("a folder");
        let serial = ["ttyUSB2", "ttyUSB9", "ttyUSB10"].map(dev).into();
        let wwan0 = Devices { serial, control: Some(dev("cdc-wdm0")) };
        let usb0 = Devices { serial: vec![dev("ttyACM0")], control: None };
        let expected = [("usb0".to_owned(), usb0), ("wwan0".to_owned(), wwan0)];
        assert_eq!(devices(root), BTreeMap::from(expected));
        assert_eq!(devices(&root.join("nothing")), BTreeMap::new());
    }

    #[test]
    fn one_device_has_no_more_than_a_few_ports() {
        let root = tempfile::tempdir().expect("a folder");
        let parts: Vec<String> = (0..100).map(|n| format!("1-1:1.{n}/ttyUSB{n}")).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        interface(root.path(), "wwan0", "1-1", &parts);
        let first = (0..PORTS_MAX).map(|n| root.path().join("dev").join(format!("ttyUSB{n}")));
        assert_eq!(devices(root.path())["wwan0"].serial, first.collect::<Vec<_>>());
    }

    #[test]
    fn wifi_is_as_strong_as_the_kernel_says_in_decibels() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(wifi(root.path()), BTreeMap::new());
        fs::create_dir_all(root.path().join("proc/net")).expect("a folder");
        let text = "\
Inter-| sta-|   Quality        |   Discarded packets               | Missed | WE
 face | tus | link level noise |  nwid  crypt   frag  retry   misc | beacon | 22
wlp2s0: 0000   55.  -55.  -256        0      0      0      0    106        0
 wlan1: 0000   0    -256  -256        0      0      0      0      0        0
 wlan2: 0000   50.   77.  0           0      0      0      0      0        0
 w/an3: 0000   50.  -77.  0
wlan4: 0000
";
        fs::write(root.path().join("proc/net/wireless"), text).expect("a file");
        let facts = ModemFacts { rssi_dbm: Some(-55.0), ..ModemFacts::default() };
        assert_eq!(wifi(root.path()), BTreeMap::from([("wlp2s0".to_owned(), facts)]));
    }
}
