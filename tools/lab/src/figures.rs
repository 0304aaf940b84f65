//! Figures of a demo, as the table, the report and `--json` show them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::video::quality::Percentiles;

/// The result of a whole demo; all measuring commands use these names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The links: `synthetic`, or the name of the recorded drive.
    pub scenario: String,
    pub seed: u64,
    pub seconds: u32,
    /// One entry per strategy, in the order of the runs.
    pub strategies: Vec<Figures>,
}

/// The figures of one strategy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Its name, as the configuration spells it.
    pub strategy: String,
    /// Undamaged frames shown per second.
    pub fps: f64,
    /// Sum of the gaps between shown frames above 200 ms, by the stream time, 0..1.
    pub stall_ratio: f64,
    /// Mean structural similarity of the pictures seen to the pictures sent, 0..1; absent unless
    /// pictures were decoded and compared.
    pub ssim: Option<f64>,
    /// Delay of all packets sent, ms; lost and later packets count as the deadline.
    pub delay_ms: Percentiles,
    /// Delay of the packets that arrived, ms; absent where several runs are pooled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_arrived_ms: Option<Percentiles>,
    /// Share of packets lost or later than the deadline, 0..1.
    pub residual_loss: f64,
    /// The part of `residual_loss` that arrived after the deadline, 0..1.
    pub late: f64,
    /// Bytes sent beyond the distinct inner packets, as a share of these; may exceed 1.
    pub redundancy: f64,
    /// CPU time of the client by the stream's duration, percent of a core; absent in virtual time.
    pub cpu_percent: Option<f64>,
}

/// One run in detail, for the report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    pub figures: Figures,
    /// Delays of the packets that arrived, ascending.
    pub delays: Vec<Duration>,
    /// Begin and end of every stall, since the start of the stream.
    pub stalls: Vec<(Duration, Duration)>,
    pub timeline: Timeline,
}

/// Values for each [`Timeline::STEP`] of a run; empty if not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Rate at which the client sent over each uplink, Mbit/s, by the uplink's name.
    pub uplinks: Vec<(String, Vec<f64>)>,
    /// Packets of the stream sent in this step that were lost or late.
    pub missing: Vec<u32>,
    /// The late ones among them.
    pub late: Vec<u32>,
    /// Coded and repeated datagrams sent by the client.
    pub repairs: Vec<u32>,
    /// Packets that arrived in this step thanks to a repair.
    pub recovered: Vec<u32>,
    /// Capacity of each link, vehicle to cloud, Mbit/s, by the link's name.
    pub capacities: Vec<(String, Vec<f64>)>,
    /// Bytes queued in each link at the end of the step, vehicle to cloud, by the link's name.
    pub link_queues: Vec<(String, Vec<u64>)>,
    /// Bytes queued in the client's lanes at the end of the step.
    pub lane_queue: Vec<u64>,
}

impl Timeline {
    /// The resolution of the time line.
    pub const STEP: Duration = Duration::from_millis(100);
}

/// The emulated links and other facts for the report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// Name and capacity (Mbit/s per [`Timeline::STEP`]) of each link, vehicle to cloud.
    pub links: Vec<(String, Vec<f64>)>,
    /// Other facts, as pairs of name and value.
    pub facts: Vec<(String, String)>,
}
