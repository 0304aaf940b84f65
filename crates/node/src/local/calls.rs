//! Typed requests to a running instance.

use std::path::Path;

use roadweave_config::SetUplink;
use roadweave_tunnel::SpeedtestReport;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::client::{RequestError, malformed, request};
use super::requests::{
    BeginSpeedtest, Drain, DrainAnswer, ReloadAnswer, SetAnswer, SetStrategy, TellModem,
};
use crate::status::Status;

/// The status of an instance. [`RequestError::Malformed`] if its version is incompatible.
pub fn status(path: &Path) -> Result<Status, RequestError> {
    read(path, request(path, "status", &Value::Null)?)
}

/// As [`status`], without sessions.
pub fn summary(path: &Path) -> Result<Status, RequestError> {
    read(path, request(path, "summary", &Value::Null)?)
}

/// Changes the strategy of a lane of a running client or server. Returns a remark for the user.
pub fn set_strategy(path: &Path, change: &SetStrategy) -> Result<Option<String>, RequestError> {
    Ok(notice(read(path, request(path, "set_strategy", &json!(change))?)?))
}

/// Changes settings of a running client's uplink. Returns a remark for the user.
pub fn set_uplink(path: &Path, change: &SetUplink) -> Result<Option<String>, RequestError> {
    Ok(notice(read(path, request(path, "set_uplink", &json!(change))?)?))
}

/// Starts a speed test. Poll its report every few seconds, or the test is abandoned.
pub fn begin_speedtest(path: &Path, begin: &BeginSpeedtest) -> Result<(), RequestError> {
    request(path, "begin_speedtest", &json!(begin)).map(drop)
}

/// The report of the current or last speed test. [`RequestError::Refused`] without one.
pub fn speedtest_report(path: &Path) -> Result<SpeedtestReport, RequestError> {
    read(path, request(path, "speedtest_report", &Value::Null)?)
}

/// Passes a modem's state to a client. Returns whether the interface is an uplink. Fails with
/// [`RequestError::Refused`] if a value is not plausible.
pub fn tell_modem(path: &Path, told: &TellModem) -> Result<bool, RequestError> {
    let answer: ModemAnswer = read(path, request(path, "tell_modem", &json!(told))?)?;
    Ok(answer.told)
}

/// Drains a running server or proxy: it accepts no new clients, and asks its clients to leave.
/// Repeat the request to get the number of remaining sessions.
pub fn drain(path: &Path, drain: &Drain) -> Result<DrainAnswer, RequestError> {
    read(path, request(path, "drain", &json!(drain))?)
}

/// Lets a running instance read its configuration again, and waits for it. Fails with
/// [`RequestError::Refused`] if nothing was changed, with the reason.
pub fn reload(path: &Path) -> Result<ReloadAnswer, RequestError> {
    read(path, request(path, "reload", &Value::Null)?)
}

fn notice(answer: SetAnswer) -> Option<String> {
    match answer {
        SetAnswer::Done(_) => None,
        SetAnswer::Notice { notice } => notice,
    }
}

fn read<T: DeserializeOwned>(path: &Path, answer: Value) -> Result<T, RequestError> {
    serde_json::from_value(answer).map_err(|error| malformed(path, error.to_string()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct ModemAnswer {
    /// Whether the interface is an uplink.
    told: bool,
}
