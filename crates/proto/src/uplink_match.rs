//! Patterns for uplinks: by name, port of the hardware, and SIM.

use crate::glob;

/// What is known of an uplink. The name may change at each plug; the rest does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UplinkTraits<'a> {
    /// The interface's name.
    pub name: &'a str,
    /// The hardware's port, as the kernel numbers it, such as
    /// `pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.4`; `None` for virtual interfaces.
    pub device: Option<&'a str>,
    /// The number of its SIM, once its modem reports it.
    pub iccid: Option<&'a str>,
}

impl<'a> UplinkTraits<'a> {
    /// An uplink known only by name.
    pub fn by_name(name: &'a str) -> Self {
        Self { name, device: None, iccid: None }
    }
}

/// Matches uplinks for which all of its fields hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkMatch {
    /// A pattern of names, as in [`UplinkSelector`](crate::UplinkSelector).
    pub name: String,
    /// A pattern of the hardware's port, if it matters.
    pub device: Option<String>,
    /// The number of the SIM, if it matters.
    pub iccid: Option<String>,
}

impl UplinkMatch {
    /// Matches by name only.
    pub fn by_name(pattern: impl Into<String>) -> Self {
        Self { name: pattern.into(), device: None, iccid: None }
    }

    /// Whether it matches; a field that is unknown for the uplink does not.
    pub fn fits(&self, uplink: &UplinkTraits) -> bool {
        let device = |pattern| uplink.device.is_some_and(|device| glob(pattern, device));
        let iccid = |number| uplink.iccid.is_some_and(|iccid| bare(iccid) == bare(number));
        glob(&self.name, uplink.name)
            && self.device.as_deref().is_none_or(device)
            && self.iccid.as_deref().is_none_or(iccid)
    }

    /// Whether it matches all that `other` matches, judged by the patterns' text.
    pub fn covers(&self, other: &Self) -> bool {
        let iccids = (self.iccid.as_deref().map(bare), other.iccid.as_deref().map(bare));
        (self.name == "*" || self.name == other.name)
            && (self.device.is_none() || self.device == other.device)
            && (iccids.0.is_none() || iccids.0 == iccids.1)
    }

    /// The name of the traffic account of an uplink that it matches: by SIM or hardware if it has
    /// these, so that a rename does not start a new month.
    pub fn account(&self, uplink: &UplinkTraits) -> String {
        match (&self.iccid, &self.device, uplink.device) {
            (Some(iccid), ..) => format!("iccid {}", bare(iccid)),
            (None, Some(_), Some(device)) => format!("device {device}"),
            _ => uplink.name.to_owned(),
        }
    }
}

/// Some modems pad the last byte of the number, as stored (ETSI TS 102 221, 13.2).
fn bare(iccid: &str) -> &str {
    iccid.trim_end_matches(['F', 'f'])
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPLINK: UplinkTraits = UplinkTraits {
        name: "wwan1",
        device: Some("pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.4"),
        iccid: Some("8949020000012345678F"),
    };

    const ICCID: Option<&str> = Some("8949020000012345678");

    fn of(name: &str, device: Option<&str>, iccid: Option<&str>) -> UplinkMatch {
        let [device, iccid] = [device, iccid].map(|text| text.map(str::to_owned));
        UplinkMatch { name: name.to_owned(), device, iccid }
    }

    #[test]
    fn all_that_is_said_has_to_be_true_and_what_is_unknown_is_not() {
        let check = |it: UplinkMatch, expected| assert_eq!(it.fits(&UPLINK), expected, "{it:?}");
        check(of("*", None, None), true);
        check(of("*", Some("*/usb1/1-2/*"), None), true);
        check(of("*", Some("*/usb1/1-3/*"), None), false);
        check(of("*", None, ICCID), true);
        check(of("*", None, Some("894902000001234567")), false);
        check(of("eth*", None, ICCID), false);
        check(of("*", Some("*1-3*"), ICCID), false);
        let nothing_known = UplinkTraits::by_name("wwan1");
        assert!(of("wwan*", None, None).fits(&nothing_known));
        assert!(!of("*", Some("*"), None).fits(&nothing_known));
        assert!(!of("*", None, ICCID).fits(&nothing_known));
    }

    #[test]
    fn another_name_is_no_other_account() {
        let renamed = UplinkTraits { name: "wwan7", ..UPLINK };
        for it in [of("*", None, ICCID), of("*", Some("*1-2*"), None)] {
            assert_eq!(it.account(&UPLINK), it.account(&renamed), "{it:?}");
        }
        assert_eq!(of("*", None, ICCID).account(&UPLINK), "iccid 8949020000012345678");
        assert_eq!(of("wwan*", None, None).account(&renamed), "wwan7");
    }

    #[test]
    fn what_stands_behind_one_that_covers_it_never_counts() {
        let by_sim = of("*", None, Some("894902F"));
        assert!(of("*", None, None).covers(&by_sim) && !by_sim.covers(&of("*", None, None)));
        assert!(by_sim.covers(&of("wwan0", None, Some("894902"))));
        assert!(!of("wwan*", None, None).covers(&by_sim));
        assert!(!of("*", Some("a"), None).covers(&of("*", Some("b"), None)));
    }
}
