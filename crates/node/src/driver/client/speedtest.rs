//! Speed tests that a caller of the local socket requests.

use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_tunnel::{Client, SpeedtestPlan};
use serde_json::{Value, json};

use crate::driver::settings;
use crate::local::{BeginSpeedtest, RpcError};

pub(super) fn begin(client: &mut Client, now: Instant, params: &Value) -> Result<Value, RpcError> {
    let BeginSpeedtest { uplinks, duration_ms, bytes_max, metered } = settings::parse(params)?;
    let duration = Duration::from_millis(duration_ms);
    let plan = SpeedtestPlan { uplinks, duration, bytes_max, metered };
    let begun = client.begin_speedtest(now, &plan);
    begun.map_err(|error| RpcError::invalid_params(error.to_string()))?;
    tracing::info!(?duration, bytes_max, "a speed test started");
    Ok(json!(true))
}

pub(super) fn report(client: &mut Client, now: Instant) -> Result<Value, RpcError> {
    let report = client.speedtest(now);
    report
        .map(|report| json!(report))
        .ok_or_else(|| RpcError::invalid_params("no speed test has run"))
}
