//! What may be asked of a running instance, and what it answers: the types that both sides share.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use roadweave_proto::Priority;
use roadweave_tunnel::{EncoderTarget, Qoe, SpeedtestReport, Strategy, StreamsConfig};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::client::{RequestError, request};
use crate::modem::ModemFacts;
use crate::status::Status;

/// The parameters of `set_strategy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetStrategy {
    /// The lane's name.
    pub lane: String,
    /// The strategy that the lane follows from its next packet on.
    pub strategy: Strategy,
}

/// The parameters of `set_uplink`; what is not told stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetUplink {
    /// The uplink's interface.
    pub uplink: String,
    /// Whether nothing is to go by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// When it is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Its share of the traffic among uplinks of equal priority, 1 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u8>,
    /// The most that it carries each way, thousands of bits per second; 0: as much as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit_kbps: Option<u64>,
    /// Megabytes of a month beyond which it is a backup; 0: no such cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monthly_cap_mb: Option<u64>,
    /// The same of a day in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily_cap_mb: Option<u64>,
    /// Whether the last uplink that is left may be paused.
    #[serde(default)]
    pub force: bool,
}

/// The parameters of `tell_modem`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TellModem {
    /// The modem's interface.
    pub uplink: String,
    /// What it tells.
    pub facts: ModemFacts,
}

/// What is answered to `tell_modem`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ModemAnswer {
    /// Whether the interface is an uplink.
    told: bool,
}

/// The parameters of `set_qoe`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetQoe {
    /// The lane's name.
    pub lane: String,
    /// What the application behind it has in its buffer.
    pub qoe: Qoe,
}

/// The parameters of `supersede`: a video has begun anew with a frame that needs none before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Supersede {
    /// The name of the lane that carries it.
    pub lane: String,
    /// The RTP source of the video.
    pub ssrc: u32,
    /// The RTP timestamp of that frame.
    pub timestamp: u32,
}

/// What is answered to `supersede`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupersedeAnswer {
    /// Packets that were given up.
    pub packets: u64,
}

/// The parameters of `tell_player`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TellPlayer {
    /// The lane of the server that brings the player's video, by its name.
    #[serde(default = "streams_lane")]
    pub lane: String,
    /// Tells the players behind this box apart.
    #[serde(default)]
    pub player: u64,
    /// What it has in its buffer.
    pub qoe: Qoe,
}

fn streams_lane() -> String {
    StreamsConfig::LANE.to_owned()
}

/// What may be subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// What encoders should do: [`EncoderWord`].
    Encoder,
}

/// The parameters of `subscribe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscribe {
    /// What is wanted.
    pub topic: Topic,
    /// The least time between two words, milliseconds; what is older by then is left out.
    #[serde(default = "shortest_interval")]
    pub interval_ms: u64,
}

impl Subscribe {
    /// How close together words may come, milliseconds.
    pub const INTERVALS_MS: RangeInclusive<u64> = 10..=1000;
}

fn shortest_interval() -> u64 {
    *Subscribe::INTERVALS_MS.start()
}

/// What whoever subscribes to [`Topic::Encoder`] is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderWord {
    /// By the lane's name. Without a session all are zero.
    pub lanes: BTreeMap<String, EncoderTarget>,
}

/// The parameters of `begin_speedtest`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginSpeedtest {
    /// The uplinks that are measured; all if there is none.
    #[serde(default)]
    pub uplinks: Vec<String>,
    /// How long each direction of each is measured, milliseconds; 10,000 at most.
    pub duration_ms: u64,
    /// The most bytes that all of it may take.
    pub bytes_max: u64,
    /// Whether uplinks are measured too that are metered and not named.
    #[serde(default)]
    pub metered: bool,
}

/// The parameters of `drain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Over how long the clients are asked to go, milliseconds; a minute at most. It counts the
    /// first time.
    pub over_ms: u64,
}

/// What is answered to `drain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainAnswer {
    /// How many sessions are left.
    pub sessions: u64,
}

/// What is answered to `reload`, when the configuration could be read again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadAnswer {
    /// Fields that were changed and count from the next start on.
    pub ignored: Vec<String>,
    /// Fields that were changed and are still as before, each with the reason.
    pub refused: Vec<(String, String)>,
}

/// What is answered to a change that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SetAnswer {
    /// The change is made.
    Done(bool),
    /// The change is made, and a client may have something to say of it.
    Notice {
        /// For a person to read.
        notice: Option<String>,
    },
}

/// Asks a running instance for its status.
///
/// # Errors
/// As [`request`], and [`RequestError::Malformed`] when the instance is of a version that tells
/// other things.
pub fn status(path: &Path) -> Result<Status, RequestError> {
    read(path, request(path, "status", &Value::Null)?)
}

/// Asks a running instance for its status without what it says of each session.
///
/// # Errors
/// As [`status`].
pub fn summary(path: &Path) -> Result<Status, RequestError> {
    read(path, request(path, "summary", &Value::Null)?)
}

/// Lets a lane of a running client or server follow another strategy; returns what the user should
/// know of it.
///
/// # Errors
/// As [`request`]; [`RequestError::Refused`] when it cannot be done.
pub fn set_strategy(path: &Path, change: &SetStrategy) -> Result<Option<String>, RequestError> {
    Ok(notice(read(path, request(path, "set_strategy", &json!(change))?)?))
}

/// Lets a running client use an uplink otherwise; returns what the user should know of it.
///
/// # Errors
/// As [`request`]; [`RequestError::Refused`] when it cannot be done.
pub fn set_uplink(path: &Path, change: &SetUplink) -> Result<Option<String>, RequestError> {
    Ok(notice(read(path, request(path, "set_uplink", &json!(change))?)?))
}

/// Lets a running client measure its uplinks. Ask for its report at least every few seconds: a test
/// that nobody asks for ends.
///
/// # Errors
/// As [`request`]; [`RequestError::Refused`] when it cannot begin.
pub fn begin_speedtest(path: &Path, begin: &BeginSpeedtest) -> Result<(), RequestError> {
    request(path, "begin_speedtest", &json!(begin)).map(drop)
}

/// How the last speed test of a running client goes, or has gone.
///
/// # Errors
/// As [`request`]; [`RequestError::Refused`] when there was none.
pub fn speedtest_report(path: &Path) -> Result<SpeedtestReport, RequestError> {
    read(path, request(path, "speedtest_report", &Value::Null)?)
}

/// Tells a running client what a modem knows; returns whether its interface is an uplink.
///
/// # Errors
/// As [`request`]; [`RequestError::Refused`] when that is nothing that a modem can know.
pub fn tell_modem(path: &Path, told: &TellModem) -> Result<bool, RequestError> {
    let answer: ModemAnswer = read(path, request(path, "tell_modem", &json!(told))?)?;
    Ok(answer.told)
}

/// Lets a running server or proxy take no new clients, and ask those that it has to go to another.
/// Ask again to hear how many are left.
///
/// # Errors
/// As [`request`]; [`RequestError::Refused`] when it cannot be done.
pub fn drain(path: &Path, drain: &Drain) -> Result<DrainAnswer, RequestError> {
    read(path, request(path, "drain", &json!(drain))?)
}

/// Lets a running instance read its configuration again, and waits until it has.
///
/// # Errors
/// As [`request`]; [`RequestError::Refused`] when nothing was changed, with the reason.
pub fn reload(path: &Path) -> Result<ReloadAnswer, RequestError> {
    read(path, request(path, "reload", &Value::Null)?)
}

fn notice(answer: SetAnswer) -> Option<String> {
    match answer {
        SetAnswer::Done(_) => None,
        SetAnswer::Notice { notice } => notice,
    }
}

/// What was answered, as the type that both sides share.
fn read<T: DeserializeOwned>(path: &Path, answer: Value) -> Result<T, RequestError> {
    serde_json::from_value(answer).map_err(|error| RequestError::Malformed {
        path: path.display().to_string(),
        detail: error.to_string(),
    })
}
