//! Metrics over HTTP.

use std::net::SocketAddr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::values::listen;

/// Where metrics are served over HTTP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsFields {
    /// The TCP address that serves metrics over HTTP to anyone who reaches it, see
    /// fleet.md#metrics-over-http. Default: none.
    #[serde(deserialize_with = "listen")]
    pub listen: SocketAddr,
}

/// Where a client or a router serves metrics: locally only, hidden from networks under its uplinks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalMetricsFields {
    /// The TCP address that serves metrics over HTTP, loopback only, such as `"127.0.0.1:9474"`,
    /// see operate.md#prometheus. Default: none.
    #[serde(deserialize_with = "loopback")]
    pub listen: SocketAddr,
}

fn loopback<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let address = listen(deserializer)?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(D::Error::custom(format!(
        "{address} can be reached from networks under the uplinks; write a loopback address, such as \
         \"127.0.0.1:{}\"",
        address.port()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_box_are_for_the_box_alone() {
        let read =
            |listen: &str| toml::from_str::<LocalMetricsFields>(&format!("listen = {listen:?}"));
        for good in ["127.0.0.1:9474", "[::1]:9474", "127.3.2.1:1"] {
            assert!(read(good).is_ok(), "{good}");
        }
        for bad in ["0.0.0.0:9474", "[::]:9474", "192.168.8.100:9474", "[::ffff:10.0.0.1]:9474"] {
            let error = read(bad).expect_err("refused").to_string();
            assert!(error.contains("write a loopback address"), "{error}");
        }
    }
}
