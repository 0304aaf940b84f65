//! Policies of uplinks: which uplinks they apply to, and how these may be used.

use roadweave_proto::{Policy, Priority, Rate, Technology, glob};
use roadweave_tunnel::{BILLING_DAY_MAX, Caps, UplinkPolicy};
use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::values::{Within, validate_pattern};

/// The policy of some uplinks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyFields {
    /// A pattern of interfaces (`*`).
    pub name: Option<String>,
    /// A pattern of hardware paths (`*`), as the kernel numbers ports.
    pub device: Option<String>,
    /// The number of their SIM (ICCID), as the modem reports it.
    pub iccid: Option<String>,
    /// `primary`, `secondary` or `backup`.
    #[serde(default)]
    pub priority: Priority,
    /// The share of the traffic among uplinks of equal priority.
    #[serde(default)]
    pub weight: Within<1, { Policy::WEIGHT_MAX as i64 }, 1>,
    /// The maximum rate for each direction, kbit/s.
    pub rate_limit_kbps:
        Option<Within<{ Policy::RATE_KBPS_MIN as i64 }, { Policy::RATE_KBPS_MAX as i64 }>>,
    /// Limits of a metered uplink.
    #[serde(default, skip_serializing_if = "MeteredFields::is_empty")]
    pub metered: MeteredFields,
    /// The technology, where the kernel does not know it exactly.
    pub technology: Option<Technology>,
}

/// Megabytes.
type Cap = Within<1, { Caps::MB_MAX as i64 }>;

/// Limits of a metered uplink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeteredFields {
    /// Megabytes per month, both directions; beyond, it is a backup.
    pub monthly_cap_mb: Option<Cap>,
    /// The first day of the operator's month.
    pub billing_day: Option<Within<1, { BILLING_DAY_MAX as i64 }>>,
    /// Megabytes per UTC day, both directions; beyond, it is a backup.
    pub daily_cap_mb: Option<Cap>,
    /// The maximum of copies and repairs, percent of first transmissions.
    pub redundancy_percent: Option<Within<0, 100>>,
    /// Whether it carries the lanes' insurance nevertheless.
    pub insurance: bool,
}

impl MeteredFields {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl PolicyFields {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("*")
    }

    /// Whether it applies to an uplink; a condition on what is unknown of the uplink fails.
    pub(crate) fn fits(&self, uplink: &UplinkTraits) -> bool {
        let device = |pattern| uplink.device.is_some_and(|device| glob(pattern, device));
        let iccid = |number| uplink.iccid.is_some_and(|iccid| bare(iccid) == bare(number));
        glob(self.name(), uplink.name)
            && self.device.as_deref().is_none_or(device)
            && self.iccid.as_deref().is_none_or(iccid)
    }

    /// Whether it applies to all uplinks that `other` applies to.
    fn covers(&self, other: &Self) -> bool {
        let iccids = (self.iccid.as_deref().map(bare), other.iccid.as_deref().map(bare));
        (self.name() == "*" || self.name() == other.name())
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

    /// Converts it.
    pub fn to_policy(&self) -> UplinkPolicy {
        let MeteredFields {
            monthly_cap_mb,
            billing_day,
            daily_cap_mb,
            redundancy_percent,
            insurance,
        } = self.metered;
        let bytes = |cap: Option<Cap>| cap.map(|cap| cap.get().unsigned_abs() * 1_000_000);
        let is_metered = monthly_cap_mb.or(daily_cap_mb).is_some() || redundancy_percent.is_some();
        UplinkPolicy {
            policy: Policy {
                priority: self.priority,
                weight: self.weight.get() as u8,
                redundancy_percent: redundancy_percent.map(|percent| percent.get() as u8),
                takes_insurance: insurance || !is_metered,
                rate_max: self
                    .rate_limit_kbps
                    .map(|rate| Rate::from_kbps(rate.get().unsigned_abs())),
            },
            caps: Caps {
                daily_bytes: bytes(daily_cap_mb),
                monthly_bytes: bytes(monthly_cap_mb),
                billing_day: billing_day.map_or(1, |day| day.get() as u8),
            },
        }
    }
}

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

/// Some modems pad the last byte of the number, as stored (ETSI TS 102 221, 13.2).
fn bare(iccid: &str) -> &str {
    iccid.trim_end_matches(['F', 'f'])
}

/// Validates that each policy can match some uplink.
pub(crate) fn validate_policies(policies: &[PolicyFields]) -> Result<(), Fault> {
    for (position, policy) in policies.iter().enumerate() {
        let at = |field: &str| format!("uplinks.policies.{position}{field}");
        let PolicyFields { name, device, iccid, .. } = policy;
        if name.is_none() && device.is_none() && iccid.is_none() {
            let message = "uplinks.policies: for which uplinks? Write name, the name of an \
                           interface or a pattern as \"wwan*\"; or device; or iccid";
            return Err(Fault::new(at(""), message));
        }
        for (field, pattern, example) in
            [("name", name, "\"wwan*\""), ("device", device, "\"*/usb1/1-2/*\"")]
        {
            let Some(pattern) = pattern else { continue };
            if pattern.is_empty() {
                let message = format!(
                    "uplinks.policies.{field} is empty; write all of it, or a pattern as {example}"
                );
                return Err(Fault::new(at(&format!(".{field}")), message));
            }
            validate_pattern(&at(&format!(".{field}")), pattern)?;
        }
        if let Some(iccid) = iccid
            && !((18..=22).contains(&iccid.len()) && iccid.bytes().all(|it| it.is_ascii_hexdigit()))
        {
            let message = format!(
                "uplinks.policies.iccid: \"{iccid}\" is no number of a SIM (ICCID), which has 18 to 22 \
                 digits; `roadweave modems` and `roadweave show` tell it"
            );
            return Err(Fault::new(at(".iccid"), message));
        }
        if let Some(before) = policies[..position].iter().find(|it| it.covers(policy)) {
            let said = |it: &PolicyFields| {
                let parts = [&it.name, &it.device, &it.iccid].into_iter().flatten();
                format!("\"{}\"", parts.map(String::as_str).collect::<Vec<_>>().join("\", \""))
            };
            let message = format!(
                "uplinks.policies: {} never counts, since {} stands before it; the first that fits \
                 does",
                said(policy),
                said(before)
            );
            let field = if name.is_some() { ".name" } else { "" };
            return Err(Fault::new(at(field), message));
        }
    }
    Ok(())
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

    fn of(name: &str, device: Option<&str>, iccid: Option<&str>) -> PolicyFields {
        let [name, device, iccid] = [Some(name), device, iccid].map(|it| it.map(str::to_owned));
        PolicyFields { name, device, iccid, ..PolicyFields::default() }
    }

    #[test]
    fn all_that_is_said_has_to_be_true_and_what_is_unknown_is_not() {
        let check = |it: PolicyFields, expected| assert_eq!(it.fits(&UPLINK), expected, "{it:?}");
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
