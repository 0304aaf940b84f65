//! What a user may set about the transport.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::shard::Shard;

roadweave_proto::named! {
    /// A congestion control algorithm, by name.
    #[derive(Default)]
    CongestionControl {
        /// BBR version 3 for the links of vehicles: paces at the bandwidth it measures, keeps the
        /// queue short, and takes neither random loss nor jitter for congestion.
        #[default]
        Bbr = "bbr",
        /// CUBIC (RFC 9438): halts at loss, fills the bottleneck's queue.
        Cubic = "cubic",
    }
}

impl FromStr for CongestionControl {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|known| known.name() == name);
        known.ok_or_else(|| {
            let known = Self::ALL.map(|it| format!("`{}`", it.name())).join(" and ");
            format!("unknown congestion control `{name}`, known are {known}")
        })
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The settings of an endpoint and its connections.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// The congestion control of every path.
    pub congestion: CongestionControl,
    /// Assumed before the first sample. It decides how soon a lost handshake packet or path
    /// challenge is repeated; RFC 9002 proposes 333 ms, which costs about a second.
    pub initial_rtt: Duration,
    /// A connection that receives nothing for this long ends. Longer than any tunnel under a
    /// mountain: paths that die and heal resume the same connection.
    pub idle_timeout: Duration,
    /// The longest handshake.
    pub handshake_timeout: Duration,
    /// A path that is silent for this long while others answer is closed: bounds memory of probes.
    pub unresponsive_timeout: Duration,
    /// How often a silent client sends on its best path.
    pub keep_alive: Duration,
    /// How often a suspect path is probed while another one answers; else twice as often.
    pub probe_interval: Duration,
    /// The most paths at one time, 1..=64.
    pub max_paths: u32,
    /// Largest UDP payload of path MTU discovery, bytes, 1200..=65527; none at 1200, which every
    /// path carries (RFC 9000 section 14).
    pub mtu_max: u16,
    /// The most handshakes under way on a server; at half of it all clients must prove their
    /// address first, and unproved ones give way to proved ones.
    pub half_open_max: usize,
    /// With this many handshakes of one IPv4 address or IPv6 /64 under way, a server lets further
    /// clients from there prove their address first (RFC 9000 section 8.1.2).
    pub retry_threshold: usize,
    /// The most handshakes under way from one proved IPv4 address or IPv6 /64, behind which a
    /// carrier may have many clients; more are ignored.
    pub half_open_per_source_max: usize,
    /// Salt, beside the server's key, of the tokens of its resets. Machines that share a key need
    /// different salts, or one ends connections of another (RFC 9000 section 21.11). It must
    /// survive restarts, so that resets work.
    pub reset_salt: [u8; 32],
    /// Which of several server endpoints behind one address this is; its connection IDs lead to it.
    /// `None` for one alone. Each has its own `rng_seed`.
    pub shard: Option<Shard>,
    /// The seed of everything random that is not a secret of TLS. It must be unpredictable in
    /// production; equal seeds give equal runs.
    pub rng_seed: [u8; 32],
}

impl TransportConfig {
    /// The settings for vehicles.
    pub const fn new(rng_seed: [u8; 32]) -> Self {
        Self {
            congestion: CongestionControl::Bbr,
            initial_rtt: Duration::from_millis(100),
            idle_timeout: Duration::from_secs(300),
            handshake_timeout: Duration::from_secs(10),
            unresponsive_timeout: Duration::from_secs(1800),
            keep_alive: Duration::from_secs(1),
            probe_interval: Duration::from_millis(200),
            max_paths: 16,
            mtu_max: 1472,
            half_open_max: 1024,
            retry_threshold: 16,
            half_open_per_source_max: 256,
            reset_salt: [0; 32],
            shard: None,
            rng_seed,
        }
    }

    /// Checks the bounds that the fields state.
    ///
    /// # Errors
    /// Names the first field that is out of its bounds.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let checks = [
            ("initial_rtt", !self.initial_rtt.is_zero()),
            ("idle_timeout", self.idle_timeout >= Duration::from_secs(1)),
            ("idle_timeout", self.idle_timeout <= Duration::from_secs(86_400)),
            ("handshake_timeout", !self.handshake_timeout.is_zero()),
            ("keep_alive", !self.keep_alive.is_zero()),
            ("probe_interval", self.probe_interval >= Duration::from_millis(10)),
            ("max_paths", (1..=64).contains(&self.max_paths)),
            ("mtu_max", (INITIAL_MTU..=65_527).contains(&self.mtu_max)),
            ("half_open_max", self.half_open_max > 0),
        ];
        match checks.into_iter().find(|(_, holds)| !holds) {
            Some((field, _)) => Err(ConfigError::OutOfBounds { field }),
            None => Ok(()),
        }
    }
}

pub(crate) const INITIAL_MTU: u16 = 1200;

/// Why no endpoint could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A field of [`TransportConfig`] breaks the bounds that its documentation states.
    #[error("transport setting `{field}` is out of bounds")]
    OutOfBounds {
        /// The field.
        field: &'static str,
    },
    /// TLS would not take the key.
    #[error("the TLS library refuses the key or its own defaults: {0}")]
    Tls(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_out_of_bounds_are_named() {
        assert_eq!(TransportConfig::new([0; 32]).validate(), Ok(()));
        let config = TransportConfig { mtu_max: 1000, ..TransportConfig::new([0; 32]) };
        assert_eq!(config.validate(), Err(ConfigError::OutOfBounds { field: "mtu_max" }));
    }
}
