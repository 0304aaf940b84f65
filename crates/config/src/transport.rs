//! The transport.

use std::time::Duration;

use roadweave_quic::{CongestionControl, TransportConfig};
use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::values::Within;

const USUAL: TransportConfig = TransportConfig::new([0; 32]);

/// The transport.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportFields {
    /// The congestion control of every path.
    pub congestion: CongestionControl,
    /// The round-trip time assumed before the first sample.
    pub initial_rtt_ms: Within<1, 10_000, { USUAL.initial_rtt.as_millis() as i64 }>,
    /// The silence after which a session ends.
    pub idle_timeout_seconds: Within<10, 86_400, { USUAL.idle_timeout.as_secs() as i64 }>,
    /// The interval of keep-alives on an otherwise silent session.
    pub keep_alive_ms: Within<100, 60_000, { USUAL.keep_alive.as_millis() as i64 }>,
    /// How often a silent path is probed while the session is used, twice as often if none answers;
    /// in an idle session all paths together once in `keep_alive_ms`.
    pub probe_interval_ms: Within<20, 10_000, { USUAL.probe_interval.as_millis() as i64 }>,
    /// The most paths of a session.
    pub paths_max: Within<1, 32, { USUAL.max_paths as i64 }>,
    /// The largest UDP payload that path MTU discovery tries.
    pub mtu_max_bytes: Within<1200, 9000, { USUAL.mtu_max as i64 }>,
}

impl TransportFields {
    /// Validates that keep-alives come before the idle timeout.
    pub fn validate(&self) -> Result<(), Fault> {
        let idle_timeout_ms = self.idle_timeout_seconds.get() * 1000;
        if self.keep_alive_ms.get() < idle_timeout_ms {
            return Ok(());
        }
        let message = format!(
            "transport.keep_alive_ms = {} is no shorter than transport.idle_timeout_seconds = {}; \
             write less than {idle_timeout_ms}",
            self.keep_alive_ms.get(),
            self.idle_timeout_seconds.get()
        );
        Err(Fault::new("transport.keep_alive_ms", message))
    }

    /// The settings; `rng_seed` seeds all randomness except the secrets of TLS.
    pub fn to_config(&self, rng_seed: [u8; 32]) -> TransportConfig {
        TransportConfig {
            congestion: self.congestion,
            initial_rtt: self.initial_rtt_ms.millis(),
            idle_timeout: Duration::from_secs(self.idle_timeout_seconds.get().unsigned_abs()),
            keep_alive: self.keep_alive_ms.millis(),
            probe_interval: self.probe_interval_ms.millis(),
            max_paths: self.paths_max.get() as u32,
            mtu_max: self.mtu_max_bytes.get() as u16,
            ..TransportConfig::new(rng_seed)
        }
    }
}
