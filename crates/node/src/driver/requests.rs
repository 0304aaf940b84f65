//! Requests of the local socket to a server, a proxy or all shards of a server.

use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_tunnel::{DRAIN_MAX, DrainReason};
use serde_json::{Value, json};

use super::serving::node::Governed;
use super::settings::{answer, parse};
use crate::local::{Drain, DrainAnswer, RpcError, SetStrategy};

pub(super) fn handle(
    server: &mut dyn Governed,
    now: Instant,
    method: &str,
    params: &Value,
) -> Result<Value, RpcError> {
    match method {
        "set_strategy" => {
            let SetStrategy { lane, strategy } = parse(params)?;
            let name = strategy.to_string();
            let answer = answer(server.set_strategy(&lane, strategy))?;
            tracing::info!(lane, strategy = name, "the strategy of a lane changed");
            Ok(answer)
        }
        "encoder_targets" => Ok(json!(server.encoder_targets(now))),
        "drain" => drain(server, now, parse(params)?),
        other => Err(RpcError::method_not_found(other)),
    }
}

fn drain(server: &mut dyn Governed, now: Instant, drain: Drain) -> Result<Value, RpcError> {
    let over = Duration::from_millis(drain.over_ms);
    if over > DRAIN_MAX {
        let message =
            format!("over_ms is {}; at most {} is allowed", drain.over_ms, DRAIN_MAX.as_millis());
        return Err(RpcError::invalid_params(message));
    }
    let sessions = server.sessions() as u64;
    if !server.is_draining() {
        tracing::info!(
            sessions,
            ?over,
            "draining: no new clients are accepted, and the current ones are asked to leave"
        );
    }
    server.drain(now, DrainReason::Command, over);
    Ok(json!(DrainAnswer { sessions }))
}
