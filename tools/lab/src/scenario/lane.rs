//! The lanes of a scenario's file: the product's, with match conditions as fields of the lane.

use roadweave_config::{
    Fault, LaneFields, LaneNames, MatchFields, Ordering, Ports, Within, validate_lanes,
};
use roadweave_proto::Pacing;
use roadweave_tunnel::{FlowClass, LaneConfig, Strategy};
use serde::{Deserialize, Serialize};

use crate::strategies;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioLane {
    name: String,
    #[serde(deserialize_with = "strategies::deserialize")]
    pub(super) strategy: Strategy,
    classes: Option<Vec<FlowClass>>,
    ports: Option<Ports>,
    dscp: Option<Vec<Within<0, 63>>>,
    rank: Option<u8>,
    pacing: Option<Pacing>,
    ordering: Option<Ordering>,
    max_buffer_ms: Option<Within<1, 10_000>>,
    decode_ms: Option<Within<0, 10_000>>,
    deadline_ms: Option<Within<1, 60_000>>,
    expire_after_ms: Option<Within<1, 10_000>>,
    queue_bytes: Option<Within<10_000, 1_000_000_000>>,
    insurance_percent: Option<Within<0, 100>>,
}

impl ScenarioLane {
    fn to_fields(&self) -> LaneFields {
        let product = LaneFields::default();
        LaneFields {
            name: self.name.clone(),
            strategy: self.strategy.clone().into(),
            deadline_ms: self.deadline_ms.unwrap_or(product.deadline_ms),
            expire_after_ms: self.expire_after_ms,
            queue_max_bytes: self.queue_bytes.unwrap_or(product.queue_max_bytes),
            ordering: self.ordering.unwrap_or(product.ordering),
            max_buffer_ms: self.max_buffer_ms.unwrap_or(product.max_buffer_ms),
            decode_ms: self.decode_ms.unwrap_or(product.decode_ms),
            pacing: self.pacing.unwrap_or(product.pacing),
            insurance_percent: self.insurance_percent.unwrap_or(product.insurance_percent),
            rule: MatchFields { ports: self.ports, ..MatchFields::default() },
            ..product
        }
    }
}

impl ScenarioLane {
    /// The product's lane, with additions that only a scenario may have: any rank, and empty lists.
    fn to_config(&self, fields: &LaneFields) -> LaneConfig {
        let mut lane = fields.to_config();
        lane.rank = self.rank.unwrap_or(lane.rank);
        lane.rule.classes = self.classes.clone();
        let codes =
            |codes: &Vec<Within<0, 63>>| codes.iter().map(|code| code.get() as u8).collect();
        lane.rule.dscp = self.dscp.as_ref().map(codes);
        lane
    }
}

/// The lanes of a file; errors name the conflicting field.
pub(super) fn resolve(lanes: &[ScenarioLane]) -> Result<Vec<LaneConfig>, Fault> {
    if let Some(index) = lanes.iter().position(|lane| lane.name.is_empty()) {
        let message = format!("lane {}: name: \"\"; a name that no other lane has", index + 1);
        return Err(Fault::new(format!("lane.{index}.name"), message));
    }
    let fields: Vec<LaneFields> = lanes.iter().map(ScenarioLane::to_fields).collect();
    validate_lanes(LaneNames::SCENARIO, &fields)?;
    Ok(lanes.iter().zip(&fields).map(|(lane, fields)| lane.to_config(fields)).collect())
}
