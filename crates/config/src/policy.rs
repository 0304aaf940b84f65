//! Policies of uplinks, by the file and by the local socket: which uplinks, and their use.

use roadweave_proto::{Policy, Priority, Rate, Technology, glob};
use roadweave_tunnel::{BILLING_DAY_MAX, Caps, UplinkPolicy};
use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::values::{Within, validate_pattern};

/// The policy of some uplinks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyFields {
    /// The interfaces, `*` matches anything; the first `[[uplinks.policies]]` whose conditions all
    /// match applies. Default: any, if `device` or `iccid` is set.
    pub name: Option<String>,
    /// The port that the hardware is plugged into, `*` matches anything, see
    /// configuration.md#modems-that-change-their-names. Default: any.
    pub device: Option<String>,
    /// The number of the SIM, see configuration.md#modems-that-change-their-names. Default: any.
    pub iccid: Option<String>,
    /// When it carries traffic, see configuration.md#which-uplink-carries-what.
    #[serde(default)]
    pub priority: Priority,
    /// The share of the traffic among uplinks of equal priority.
    #[serde(default)]
    pub weight: Within<1, { Policy::WEIGHT_MAX as i64 }, 1>,
    /// The maximum rate in each direction, kbit/s. Default: unlimited.
    pub rate_limit_kbps:
        Option<Within<{ Policy::RATE_KBPS_MIN as i64 }, { Policy::RATE_KBPS_MAX as i64 }>>,
    /// Limits of a metered uplink.
    #[serde(default, skip_serializing_if = "MeteredFields::is_empty")]
    pub metered: MeteredFields,
    /// The access technology, see configuration.md#which-uplink-is-tried-first. Default: detected.
    pub technology: Option<Technology>,
}

type Cap = Within<1, { Caps::MB_MAX as i64 }>;

/// Limits of a metered uplink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeteredFields {
    /// Megabytes (10^6) a month, both directions, above which it is a backup. Default: no cap.
    pub monthly_cap_mb: Option<Cap>,
    /// The first day of that month. Default: `1`.
    pub billing_day: Option<Within<1, { BILLING_DAY_MAX as i64 }>>,
    /// Megabytes a day, both directions, above which it is a backup. Default: no cap.
    pub daily_cap_mb: Option<Cap>,
    /// The maximum of copies and repairs, percent of first transmissions. Default: unlimited.
    pub redundancy_percent: Option<Within<0, 100>>,
    /// Whether this metered uplink carries [insurance](configuration.md#insurance).
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

    pub(crate) fn fits(&self, uplink: &UplinkTraits) -> bool {
        let device = |pattern| uplink.device.is_some_and(|device| glob(pattern, device));
        let iccid = |number| uplink.iccid.is_some_and(|iccid| bare(iccid) == bare(number));
        glob(self.name(), uplink.name)
            && self.device.as_deref().is_none_or(device)
            && self.iccid.as_deref().is_none_or(iccid)
    }

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

/// A change of an uplink by the local socket, until the client restarts. Absent fields stay as they
/// are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetUplink {
    /// The uplink's interface.
    pub uplink: String,
    /// Whether the uplink is taken out of use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Its priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Its share of the traffic among uplinks of equal priority, 1 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u8>,
    /// Rate limit in each direction, kbit/s; 0: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit_kbps: Option<u64>,
    /// Monthly cap in megabytes, beyond which it is a backup; 0: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monthly_cap_mb: Option<u64>,
    /// Daily cap (UTC) in megabytes; 0: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily_cap_mb: Option<u64>,
    /// Allows pausing the only uplink that is left.
    #[serde(default)]
    pub force: bool,
}

impl SetUplink {
    /// Checks the bounds of all fields.
    pub fn check(&self) -> Result<(), String> {
        if self.weight.is_some_and(|weight| !(1..=Policy::WEIGHT_MAX).contains(&weight)) {
            return Err(format!("a weight is 1 to {}", Policy::WEIGHT_MAX));
        }
        let (least, most) = (Policy::RATE_KBPS_MIN, Policy::RATE_KBPS_MAX);
        if self.rate_limit_kbps.is_some_and(|rate| rate != 0 && !(least..=most).contains(&rate)) {
            return Err(format!("a rate limit is {least} to {most} kbit/s, or 0 for none"));
        }
        let mut caps = [self.monthly_cap_mb, self.daily_cap_mb].into_iter().flatten();
        match caps.any(|megabytes| megabytes > Caps::MB_MAX) {
            true => Err(format!("a cap is {} MB at most", Caps::MB_MAX)),
            false => Ok(()),
        }
    }

    /// Applies `change` to what was set before.
    pub fn add(&mut self, change: &Self) {
        self.paused = change.paused.or(self.paused).filter(|is_paused| *is_paused);
        self.priority = change.priority.or(self.priority);
        self.weight = change.weight.or(self.weight);
        self.rate_limit_kbps = change.rate_limit_kbps.or(self.rate_limit_kbps);
        self.monthly_cap_mb = change.monthly_cap_mb.or(self.monthly_cap_mb);
        self.daily_cap_mb = change.daily_cap_mb.or(self.daily_cap_mb);
    }

    /// The configured `policy` with these settings.
    pub fn over(&self, UplinkPolicy { policy, caps }: UplinkPolicy) -> UplinkPolicy {
        let rate_max = match self.rate_limit_kbps {
            None => policy.rate_max,
            Some(0) => None,
            Some(kilobits) => Some(Rate::from_kbps(kilobits)),
        };
        let cap = |set: Option<u64>, before| match set {
            None => before,
            Some(0) => None,
            Some(megabytes) => Some(megabytes.saturating_mul(1_000_000)),
        };
        UplinkPolicy {
            policy: Policy {
                priority: self.priority.unwrap_or(policy.priority),
                weight: self.weight.unwrap_or(policy.weight),
                rate_max,
                ..policy
            },
            caps: Caps {
                daily_bytes: cap(self.daily_cap_mb, caps.daily_bytes),
                monthly_bytes: cap(self.monthly_cap_mb, caps.monthly_bytes),
                ..caps
            },
        }
    }

    /// Whether it sets a cap.
    pub fn has_caps(&self) -> bool {
        [self.monthly_cap_mb, self.daily_cap_mb].into_iter().flatten().any(|it| it > 0)
    }

    /// Logs what changes.
    pub fn log(&self) {
        tracing::info!(
            uplink = self.uplink,
            paused = self.paused,
            priority = self.priority.map(tracing::field::debug),
            weight = self.weight,
            rate_limit_kbps = self.rate_limit_kbps,
            monthly_cap_mb = self.monthly_cap_mb,
            daily_cap_mb = self.daily_cap_mb,
            "the settings of an uplink changed"
        );
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
                "uplinks.policies.iccid: \"{iccid}\" is not the number of a SIM (ICCID), which has \
                 18 to 22 digits; `roadweave modems` and `roadweave show` print it"
            );
            return Err(Fault::new(at(".iccid"), message));
        }
        if let Some(before) = policies[..position].iter().find(|it| it.covers(policy)) {
            let said = |it: &PolicyFields| {
                let parts = [&it.name, &it.device, &it.iccid].into_iter().flatten();
                format!("\"{}\"", parts.map(String::as_str).collect::<Vec<_>>().join("\", \""))
            };
            let message = format!(
                "uplinks.policies: {} never applies, since {} stands before it; the first match \
                 applies",
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
