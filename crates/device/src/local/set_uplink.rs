//! Settings of an uplink that change while the client runs.

use roadweave_proto::{Policy, Priority, Rate};
use roadweave_tunnel::{Caps, UplinkPolicy};
use serde::{Deserialize, Serialize};

/// The parameters of `set_uplink`. Fields that are absent stay unchanged.
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
    pub(crate) fn check(&self) -> Result<(), String> {
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
    pub(crate) fn add(&mut self, change: &Self) {
        self.paused = change.paused.or(self.paused).filter(|is_paused| *is_paused);
        self.priority = change.priority.or(self.priority);
        self.weight = change.weight.or(self.weight);
        self.rate_limit_kbps = change.rate_limit_kbps.or(self.rate_limit_kbps);
        self.monthly_cap_mb = change.monthly_cap_mb.or(self.monthly_cap_mb);
        self.daily_cap_mb = change.daily_cap_mb.or(self.daily_cap_mb);
    }

    /// The configured `policy` with these settings.
    pub(crate) fn over(&self, UplinkPolicy { policy, caps }: UplinkPolicy) -> UplinkPolicy {
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

    pub(crate) fn has_caps(&self) -> bool {
        [self.monthly_cap_mb, self.daily_cap_mb].into_iter().flatten().any(|it| it > 0)
    }

    pub(crate) fn log(&self) {
        tracing::info!(
            uplink = self.uplink,
            paused = self.paused,
            priority = self.priority.map(tracing::field::debug),
            weight = self.weight,
            rate_limit_kbps = self.rate_limit_kbps,
            monthly_cap_mb = self.monthly_cap_mb,
            daily_cap_mb = self.daily_cap_mb,
            "an uplink is used otherwise"
        );
    }
}
