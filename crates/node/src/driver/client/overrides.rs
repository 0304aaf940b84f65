//! Settings of uplinks from the local socket, which override the configuration until a restart.

use std::collections::BTreeMap;

use roadweave_tunnel::UplinkPolicy;

use crate::local::{RpcError, SetUplink};

#[derive(Debug, Default)]
pub(super) struct Overrides(BTreeMap<String, SetUplink>);

impl Overrides {
    pub(super) fn is_paused(&self, uplink: &str) -> bool {
        self.0.get(uplink).is_some_and(|it| it.paused.is_some())
    }

    pub(super) fn paused(&self) -> Vec<String> {
        self.0.keys().filter(|name| self.is_paused(name)).cloned().collect()
    }

    pub(super) fn over(&self, uplink: &str, policy: UplinkPolicy) -> UplinkPolicy {
        self.0.get(uplink).map_or(policy, |it| it.over(policy))
    }

    pub(super) fn have_caps(&self) -> bool {
        self.0.values().any(SetUplink::has_caps)
    }

    pub(super) fn set(&mut self, change: &SetUplink) -> Result<(), RpcError> {
        if !self.0.contains_key(&change.uplink) && self.0.len() >= NAMES_MAX {
            let message =
                format!("settings of {NAMES_MAX} uplinks are kept already, which is the maximum");
            return Err(RpcError::invalid_params(message));
        }
        self.0.entry(change.uplink.clone()).or_default().add(change);
        self.0.retain(|_, it| *it != SetUplink::default());
        Ok(())
    }
}

/// Bounds the map: callers may name uplinks that do not exist.
const NAMES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use roadweave_proto::{Policy, Priority, Rate};
    use roadweave_tunnel::Caps;

    use super::*;

    fn change(uplink: &str) -> SetUplink {
        SetUplink { uplink: uplink.to_owned(), ..SetUplink::default() }
    }

    fn set(overrides: &mut Overrides, change: SetUplink) {
        overrides.set(&change).expect("room");
    }

    #[test]
    fn what_is_said_comes_before_the_configuration_and_the_rest_stays() {
        let mut overrides = Overrides::default();
        let policy = Policy {
            priority: Priority::Secondary,
            weight: 7,
            redundancy_percent: Some(3),
            rate_max: Some(Rate::from_kbps(500)),
            ..Policy::default()
        };
        let caps = Caps { monthly_bytes: Some(5), ..Caps::default() };
        let policy = UplinkPolicy { policy, caps };
        set(&mut overrides, SetUplink { weight: Some(9), ..change("wwan0") });
        set(&mut overrides, SetUplink { priority: Some(Priority::Backup), ..change("wwan0") });
        let changed = Policy { priority: Priority::Backup, weight: 9, ..policy.policy };
        let expected = UplinkPolicy { policy: changed, caps };
        assert_eq!(overrides.over("wwan0", policy), expected);
        assert_eq!(overrides.over("wwan1", policy), policy);
        assert!(!overrides.have_caps());
        let (monthly_cap_mb, daily_cap_mb) = (Some(0), Some(2));
        set(&mut overrides, SetUplink { monthly_cap_mb, daily_cap_mb, ..change("wwan0") });
        let caps = Caps { daily_bytes: Some(2_000_000), monthly_bytes: None, ..caps };
        assert_eq!(overrides.over("wwan0", policy), UplinkPolicy { caps, ..expected });
        assert!(overrides.have_caps());
        for (kilobits, rate_max) in [(2_500, Some(Rate::from_kbps(2_500))), (0, None)] {
            let rate_limit_kbps = Some(kilobits);
            set(&mut overrides, SetUplink { rate_limit_kbps, ..change("wwan0") });
            assert_eq!(overrides.over("wwan0", policy).policy.rate_max, rate_max);
        }
        set(&mut overrides, SetUplink { paused: Some(true), ..change("wwan1") });
        assert_eq!(overrides.paused(), ["wwan1"]);
        set(&mut overrides, SetUplink { paused: Some(false), ..change("wwan1") });
        assert!(!overrides.is_paused("wwan1"));
    }

    #[test]
    fn names_that_are_made_up_take_no_room_without_end() {
        let mut overrides = Overrides::default();
        let paused =
            |number: usize| SetUplink { paused: Some(true), ..change(&format!("u{number}")) };
        let said = (0..1_000).filter(|number| overrides.set(&paused(*number)).is_ok());
        assert_eq!(said.count(), NAMES_MAX);
        assert!(overrides.set(&paused(1)).is_ok(), "it has room already");
        set(&mut overrides, SetUplink { paused: Some(false), ..change("u1") });
        assert!(overrides.set(&paused(1_001)).is_ok(), "of u1 nothing is said any more");
    }
}
