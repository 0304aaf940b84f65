//! `[fleet]`: how a server, a proxy or an anchor takes part in its fleet.

use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::values::{Within, networks, validate_networks};

type OfflineMax = Within<10, 31_536_000>;

/// How a proxy takes part in its fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProxyFleetFields {
    /// As [`FleetFields::offline_max_seconds`].
    pub offline_max_seconds: Option<OfflineMax>,
}

/// How a server or an anchor takes part in its fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FleetFields {
    /// After so long without a controller, boxes of the [fleet](fleet.md) are no longer admitted;
    /// peers of this file are. Default: never.
    pub offline_max_seconds: Option<OfflineMax>,
    /// Networks behind boxes, such as `["10.80.0.0/16"]`, /8 or longer: addresses of
    /// [fleet](fleet.md) members are valid only in these and in those of `addresses`.
    #[serde(deserialize_with = "networks")]
    pub accept: Vec<IpNet>,
}

/// A wider network is never behind boxes only.
const ACCEPT_LENGTH_MIN: u8 = 8;

impl ProxyFleetFields {
    /// How long boxes are admitted without contact to a controller.
    pub fn offline_max(&self) -> Option<Duration> {
        self.offline_max_seconds.map(seconds)
    }
}

impl FleetFields {
    /// How long boxes are admitted without contact to a controller.
    pub fn offline_max(&self) -> Option<Duration> {
        self.offline_max_seconds.map(seconds)
    }

    pub(crate) fn validate(&self) -> Result<(), Fault> {
        const FIELD: &str = "fleet.accept";
        validate_networks(FIELD, &self.accept)?;
        let is_wide = |(_, network): &(usize, &IpNet)| network.prefix_len() < ACCEPT_LENGTH_MIN;
        let Some((position, network)) = self.accept.iter().enumerate().find(is_wide) else {
            return Ok(());
        };
        let message = format!(
            "{network} would let a controller draw most of the Internet into the tunnel; write the \
             networks behind boxes, /{ACCEPT_LENGTH_MIN} or longer, as \"10.80.0.0/16\""
        );
        Err(Fault::new(format!("{FIELD}.{position}"), message))
    }
}

fn seconds(most: OfflineMax) -> Duration {
    Duration::from_secs(most.get().unsigned_abs())
}
