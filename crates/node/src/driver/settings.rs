//! Helpers for requests of the local socket.

use roadweave_proto::UplinkSelector;
use roadweave_tunnel::{SetError, Strategy};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::local::{RpcError, SetAnswer};

pub(super) fn parse<T: DeserializeOwned>(params: &Value) -> Result<T, RpcError> {
    T::deserialize(params).map_err(|error| RpcError::invalid_params(error.to_string()))
}

pub(super) fn check_uplink(strategy: &Strategy, uplinks: &UplinkSelector) -> Result<(), RpcError> {
    let Some(name) = strategy.uplink() else { return Ok(()) };
    uplinks.check_name(name).map_err(|error| RpcError::invalid_params(error.to_string()))
}

pub(super) fn answer(result: Result<(), SetError>) -> Result<Value, RpcError> {
    result
        .map(|()| json!(SetAnswer::Done(true)))
        .map_err(|error| RpcError::invalid_params(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::{SetQoe, SetStrategy, TellPlayer};

    #[test]
    fn a_lane_may_name_an_uplink_that_may_come_and_no_other() {
        let uplinks = UplinkSelector {
            include: vec!["wwan*".into(), "*:*".into()],
            exclude: vec!["wwan9".into()],
            inside: Vec::new(),
        };
        let check = |name: &str| {
            check_uplink(&name.parse().expect("known"), &uplinks).map_err(|error| error.message)
        };
        assert_eq!(check("xnc"), Ok(()));
        assert_eq!(check("single:wwan1"), Ok(()), "it need not be there");
        for name in ["single:wwan9", "single:eth0"] {
            assert!(check(name).is_err_and(|error| error.contains("uplinks.include")), "{name}");
        }
        for name in ["single:wwan 1", "single:a/b", "single:a:b", "single:wwan1234567890ab"] {
            assert!(check(name).is_err_and(|error| error.contains("can be called")), "{name}");
        }
    }
    #[test]
    fn parameters_are_read_and_wrong_ones_refused() {
        let qoe = json!({ "cached_bytes": 1, "cached_frames": 2, "bps": 3, "fps": 29.97 });
        let player: TellPlayer = parse(&json!({ "qoe": qoe })).expect("well-formed");
        assert_eq!((player.lane.as_str(), player.player), ("streams", 0));
        assert!(parse::<TellPlayer>(&json!({ "qoe": {} })).is_err());
        assert!(parse::<SetQoe>(&json!({ "lane": "a", "qoe": qoe })).is_ok());
        assert!(parse::<SetStrategy>(&json!({ "lane": "a", "strategy": "ecf", "x": 1 })).is_err());
    }
}
