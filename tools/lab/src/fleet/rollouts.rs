//! Rollouts of configurations, and what a box does with their texts.

use roadweave_fleet::records::{Config, Rollout};
use roadweave_proto::SplitMix64;
use serde_json::json;

const WAVE_REST_S: u32 = 1_800;
const UNREADABLE: &str = "unreadable";

/// Configuration `number`, which cuts off `cuts` percent of the boxes, or which no box can read if
/// `is_refused`; and its rollout.
pub(super) fn rollout(number: u32, cuts: u8, is_refused: bool) -> (Config, Rollout) {
    let id = number.to_string();
    let body = match is_refused {
        true => json!({ UNREADABLE: true }),
        false => json!({ "number": number, "cuts": cuts }),
    };
    let settings = json!({ "body": body });
    let config = json!({ "id": id, "number": number, "author": "", "settings": settings });
    let (waves, rest_s) = ([1, 5, 25, 100], WAVE_REST_S);
    let settings = json!({ "config": id, "waves": waves, "rest_s": rest_s, "refusals_max": 2 });
    let rollout = json!({ "id": id, "wave": 0, "wave_since_ms": 0, "settings": settings });
    let config = serde_json::from_value(config).expect("a configuration");
    (config, serde_json::from_value(rollout).expect("a rollout"))
}

pub(super) fn is_unreadable(text: &str) -> bool {
    text.starts_with(UNREADABLE)
}

pub(super) fn cuts_off(who: usize, text: &str) -> bool {
    let field = |name: &str| {
        let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
        values.next()?.strip_prefix(" = ")?.parse::<u64>().ok()
    };
    match (field("number"), field("cuts")) {
        (Some(number), Some(share)) => SplitMix64::word(number, who as u64) % 100 < share,
        _ => false,
    }
}
