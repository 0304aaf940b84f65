//! The technology and the rank of an uplink, by configuration, modem and kernel.

use roadweave_config::{UplinkFields, UplinkTraits};
use roadweave_linux::detected_technology;
use roadweave_proto::Technology;

use crate::modem::ModemFacts;

pub(super) fn technology_of(uplinks: &UplinkFields, uplink: &UplinkTraits) -> Option<Technology> {
    technology_with(uplinks, uplink, detected_technology)
}

fn technology_with(
    uplinks: &UplinkFields,
    uplink: &UplinkTraits,
    detected: impl FnOnce(&str) -> Option<Technology>,
) -> Option<Technology> {
    configured(uplinks, uplink).or_else(|| detected(uplink.name))
}

/// By configuration, then its modem's report, then the kernel. A weak signal comes last.
pub(super) fn rank(
    uplinks: &UplinkFields,
    uplink: &UplinkTraits,
    modem: Option<&ModemFacts>,
) -> u8 {
    rank_of(uplinks, uplink, modem, || detected_technology(uplink.name))
}

fn rank_of(
    uplinks: &UplinkFields,
    uplink: &UplinkTraits,
    modem: Option<&ModemFacts>,
    detected: impl FnOnce() -> Option<Technology>,
) -> u8 {
    let last = u8::try_from(uplinks.order.len()).unwrap_or(u8::MAX);
    let by_modem = modem.and_then(|modem| modem.technology.as_deref());
    let rank = |technology| Technology::rank(Some(technology), &uplinks.order);
    let rank = match (configured(uplinks, uplink), by_modem) {
        (Some(configured), _) => rank(configured),
        (None, Some("5g-sa")) => rank(Technology::FiveGSa),
        (None, Some("5g-nsa")) => rank(Technology::FiveGNsa),
        (None, Some("lte")) => rank(Technology::Lte),
        (None, Some("3g" | "2g")) => last,
        (None, _) => Technology::rank(detected(), &uplinks.order),
    };
    match modem.is_some_and(ModemFacts::is_weak) {
        true => rank.saturating_add(last).saturating_add(1),
        false => rank,
    }
}

fn configured(uplinks: &UplinkFields, uplink: &UplinkTraits) -> Option<Technology> {
    uplinks.policy_of(uplink)?.technology
}

#[cfg(test)]
mod tests {
    use roadweave_config::PolicyFields;

    use super::*;

    fn policy(name: &str, technology: Option<Technology>) -> PolicyFields {
        PolicyFields { name: Some(name.to_owned()), technology, ..PolicyFields::default() }
    }

    #[test]
    fn what_the_owner_says_counts_before_what_the_kernel_does() {
        let policies = vec![policy("wwan*", None), policy("eth1", Some(Technology::Satellite))];
        let uplinks = UplinkFields { policies, ..UplinkFields::default() };
        let detected = |_: &str| Some(Technology::Lte);
        let technology = |name| technology_with(&uplinks, &UplinkTraits::by_name(name), detected);
        assert_eq!(technology("eth1"), Some(Technology::Satellite));
        assert_eq!(technology("wwan0"), Some(Technology::Lte), "else the kernel's word");
    }

    #[test]
    fn a_modems_report_counts_before_the_kernel_and_a_weak_signal_is_behind_all() {
        let detected = Some(Technology::Lte);
        let policies = vec![policy("wwan1", Some(Technology::Lte))];
        let uplinks = UplinkFields { policies, ..UplinkFields::default() };
        let modem = |technology: &str, rsrp_dbm: f64| ModemFacts {
            technology: Some(technology.to_owned()),
            rsrp_dbm: Some(rsrp_dbm),
            ..ModemFacts::default()
        };
        let rank = |name: &str, modem: Option<&ModemFacts>| {
            rank_of(&uplinks, &UplinkTraits::by_name(name), modem, || detected)
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
        assert_eq!(rank_of(&long, &uplink, Some(&slow), || detected), u8::MAX);
    }
}
