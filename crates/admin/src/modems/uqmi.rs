//! Asks a modem by OpenWrt's `uqmi`, which prints JSON.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use roadweave_node::ModemFacts;
use serde_json::Value;

use super::facts::{best, iccid, legible};
use super::program;

pub(super) fn facts(device: &Path) -> Result<ModemFacts, String> {
    let ask = |question: &str| {
        let mut command = Command::new("uqmi");
        command.args(["--single", "--device"]).arg(device).arg(question).env("LC_ALL", "C");
        let answer = program::output(command, TIMEOUT)?;
        let value: Result<Value, _> = serde_json::from_slice(&answer);
        value.map_err(|error| format!("cannot parse the answer of uqmi: {error}"))
    };
    let signal = ask("--get-signal-info")?;
    let network = ask("--get-serving-system").unwrap_or_default();
    let sim = ask("--get-iccid").unwrap_or_default();
    Ok(of(&signal, &network, &sim))
}

/// Source: uqmi's `commands-nas.c` and `commands-dms.c`.
fn of(signal: &Value, network: &Value, sim: &Value) -> ModemFacts {
    // With LTE beside 5G there are two cells; the 5G cell carries most.
    let cells = match signal {
        Value::Array(cells) => cells.as_slice(),
        one => std::slice::from_ref(one),
    };
    let by_type = |name: &str| cells.iter().find(|cell| cell["type"] == name);
    let (five, four) = (by_type("5gnr"), by_type("lte"));
    let has = |name: &str| by_type(name).is_some();
    let technology = best([five.is_some(), four.is_some(), has("wcdma"), has("gsm")]);
    let figure = |read: &dyn Fn(&Value) -> Option<f64>, range: std::ops::RangeInclusive<f64>| {
        let figures = [five, four].into_iter().flatten().chain(cells).filter_map(read);
        figures.into_iter().find(|figure| range.contains(figure))
    };
    // Earlier versions print integers in tenths of a decibel.
    let sinr = |cell: &Value| match &cell["snr"] {
        Value::Number(tenths) if tenths.is_i64() => tenths.as_f64().map(|tenths| tenths / 10.0),
        other => other.as_f64(),
    };
    ModemFacts {
        operator: network["plmn_description"].as_str().and_then(legible),
        technology: technology.map(str::to_owned),
        rsrp_dbm: figure(&|cell| cell["rsrp"].as_f64(), ModemFacts::RSRP_DBM),
        rsrq_db: figure(&|cell| cell["rsrq"].as_f64(), ModemFacts::RSRQ_DB),
        sinr_db: figure(&sinr, ModemFacts::SINR_DB),
        rssi_dbm: figure(
            &|cell| cell["rssi"].as_f64().or_else(|| cell["signal"].as_f64()),
            ModemFacts::RSSI_DBM,
        ),
        iccid: iccid(sim),
        apn: None,
    }
}

const TIMEOUT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_uqmi_prints_is_read_of_both_its_generations() {
        let network = json!({
            "registration": "registered", "plmn_mcc": 262, "plmn_mnc": 1,
            "plmn_description": "Some Operator", "roaming": false,
        });
        let lte = json!({ "type": "lte", "rssi": -58, "rsrq": -9, "rsrp": -87, "snr": 17.5 });
        let facts_read = of(&lte, &network, &json!("8949020000012345678"));
        let expected = json!({
            "operator": "Some Operator", "technology": "lte", "rsrp_dbm": -87.0, "rsrq_db": -9.0,
            "sinr_db": 17.5, "rssi_dbm": -58.0, "iccid": "8949020000012345678",
        });
        assert_eq!(json!(facts_read), expected);
        let old = json!({ "type": "lte", "rssi": -58, "rsrq": -9, "rsrp": -87, "snr": 175 });
        assert_eq!(of(&old, &Value::Null, &Value::Null).sinr_db, Some(17.5));
        let both = json!([lte, { "type": "5gnr", "rsrp": -80, "snr": 3.5 }]);
        let expected = json!({
            "technology": "5g-nsa", "rsrp_dbm": -80.0, "rsrq_db": -9.0, "sinr_db": 3.5,
            "rssi_dbm": -58.0,
        });
        assert_eq!(json!(of(&both, &Value::Null, &Value::Null)), expected);
    }

    #[test]
    fn what_may_not_be_shown_is_left_out() {
        let network = json!({ "plmn_description": format!("\u{1b}[2J{}", "x".repeat(1_000)) });
        let signal = json!({ "type": ["lte"], "rsrp": "x", "rsrq": 1e300, "snr": null, "rssi": 7 });
        let facts_read = of(&signal, &network, &json!("89\u{1b}; reboot"));
        assert_eq!(facts_read.check(), Ok(()));
        let operator = facts_read.operator.clone();
        assert_eq!(facts_read, ModemFacts { operator, ..ModemFacts::default() });
        for odd in [json!([]), json!(7), json!([[[]]]), json!("x"), Value::Null] {
            assert_eq!(of(&odd, &odd, &Value::Null), ModemFacts::default());
        }
    }
}
