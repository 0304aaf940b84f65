//! Reads ModemManager's properties. Firmware or operator chose them: some must not be shown.

use std::ops::RangeInclusive;

use roadweave_node::ModemFacts;
use serde_json::Value;

pub(super) const MODEM: &str = "org.freedesktop.ModemManager1.Modem";
pub(super) const SIGNAL: &str = "org.freedesktop.ModemManager1.Modem.Signal";
pub(super) const BEARER: &str = "org.freedesktop.ModemManager1.Bearer";
pub(super) const SIM: &str = "org.freedesktop.ModemManager1.Sim";
const NETWORK: &str = "org.freedesktop.ModemManager1.Modem.Modem3gpp";

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Modem {
    pub(super) interfaces: Vec<String>,
    pub(super) facts: ModemFacts,
}

pub(super) fn of(modem: &Value, bearers: &[Value], sim: &Value) -> Modem {
    let connected = || bearers.iter().filter(|bearer| bearer["Connected"] == true);
    let mut interfaces: Vec<String> =
        connected().filter_map(|bearer| interface(&bearer["Interface"])).collect();
    if interfaces.is_empty() {
        let ports = modem[MODEM]["Ports"].as_array().into_iter().flatten();
        let ports = ports.filter(|port| port[1] == PORT_OF_NETWORK);
        interfaces.extend(ports.filter_map(|port| interface(&port[0])));
    }
    interfaces.truncate(INTERFACES_MAX);
    let technology = technology(modem[MODEM]["AccessTechnologies"].as_u64().unwrap_or_default());
    let signals = ["Nr5g", "Lte"].map(|name| &modem[SIGNAL][name]);
    let signal = |name: &str, range: RangeInclusive<f64>| {
        let mut figures = signals.iter().filter_map(|signal| signal[name].as_f64());
        figures.find(|figure| range.contains(figure))
    };
    let network = &modem[NETWORK];
    let facts = ModemFacts {
        operator: text(&network["OperatorName"]).or_else(|| text(&network["OperatorCode"])),
        technology: technology.map(str::to_owned),
        rsrp_dbm: signal("rsrp", ModemFacts::RSRP_DBM),
        rsrq_db: signal("rsrq", ModemFacts::RSRQ_DB),
        sinr_db: signal("snr", ModemFacts::SINR_DB),
        rssi_dbm: signal("rssi", ModemFacts::RSSI_DBM),
        iccid: iccid(&sim["SimIdentifier"]),
        apn: connected().find_map(|bearer| text(&bearer["Properties"]["apn"])),
    };
    Modem { interfaces, facts }
}

fn interface(value: &Value) -> Option<String> {
    let name = value.as_str()?;
    is_interface(name).then(|| name.to_owned())
}

pub(super) fn is_interface(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    let is_name = (1..=INTERFACE_MAX).contains(&name.len()) && name.bytes().all(is_letter);
    is_name && !name.starts_with('.')
}

fn text(value: &Value) -> Option<String> {
    legible(value.as_str()?)
}

/// The text without control characters and cut to the limit; `None` if nothing is left.
pub(super) fn legible(text: &str) -> Option<String> {
    let letters = text.chars().filter(|letter| !letter.is_control());
    let text: String = letters.take(ModemFacts::TEXT_MAX).collect();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn technology(bits: u64) -> Option<&'static str> {
    let has = |mut range: RangeInclusive<u32>| range.any(|bit| bits >> bit & 1 == 1);
    best([has(15..=15), has(14..=14) || has(16..=17), has(5..=9), has(1..=4)])
}

pub(super) fn best(cells: [bool; 4]) -> Option<&'static str> {
    match cells {
        [true, true, ..] => Some("5g-nsa"),
        [true, false, ..] => Some("5g-sa"),
        [false, true, ..] => Some("lte"),
        [.., true, _] => Some("3g"),
        [.., true] => Some("2g"),
        _ => None,
    }
}

pub(super) fn iccid(number: &Value) -> Option<String> {
    text(number).filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// `MM_MODEM_PORT_TYPE_NET`.
const PORT_OF_NETWORK: i64 = 2;
const INTERFACE_MAX: usize = 15;
const INTERFACES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn modem() -> Value {
        json!({
            MODEM: {
                "AccessTechnologies": 1 << 14,
                "Ports": [["cdc-wdm0", 6], ["wwan0", 2], ["ttyUSB0", 3]],
            },
            NETWORK: { "OperatorName": "Some Operator", "OperatorCode": "26201" },
            SIGNAL: {
                "Rate": 5, "Nr5g": { "rsrp": -1.7e308 },
                "Lte": { "rsrp": -95.5, "rsrq": -11.0, "snr": 7.5, "rssi": -60.0 },
            },
        })
    }

    fn bearer(interface: &str, is_connected: bool) -> Value {
        json!({
            "Connected": is_connected, "Interface": interface, "Properties": { "apn": "internet" },
        })
    }

    #[test]
    fn a_modem_reports_operator_technology_signal_sim_and_access_point() {
        let sim = json!({ "SimIdentifier": "8949020000012345678" });
        let modem_facts = of(&modem(), &[bearer("", false), bearer("qmapmux0.0", true)], &sim);
        let facts = json!({
            "operator": "Some Operator", "technology": "lte", "rsrp_dbm": -95.5, "rsrq_db": -11.0,
            "sinr_db": 7.5, "rssi_dbm": -60.0, "iccid": "8949020000012345678", "apn": "internet",
        });
        assert_eq!(
            (modem_facts.interfaces, json!(modem_facts.facts)),
            (vec!["qmapmux0.0".to_owned()], facts)
        );
        let idle = of(&modem(), &[], &Value::Null);
        assert_eq!(idle.interfaces, ["wwan0"], "without a connection by its ports");
        assert_eq!((idle.facts.apn, idle.facts.iccid), (None, None));
    }

    #[test]
    fn what_a_firmware_may_not_say_is_left_out_and_the_rest_may_be_shown() {
        let mut hostile = modem();
        let name = "\u{1b}[2J Free\n".to_owned() + &"x".repeat(1_000);
        hostile[NETWORK]["OperatorName"] = json!(name);
        hostile[MODEM]["AccessTechnologies"] = json!("none");
        hostile[SIGNAL] = json!({ "Lte": { "rsrp": null, "rsrq": 1e300, "snr": "7" }, "Nr5g": 3 });
        let names = ["../../etc", "a b", "a\u{1b}", "interface-of-more-than-15"];
        let bearers: Vec<Value> = names.iter().map(|name| bearer(name, true)).collect();
        let sim = json!({ "SimIdentifier": "89\u{1b}49; reboot" });
        let modem_facts = of(&hostile, &bearers, &sim);
        assert_eq!(modem_facts.interfaces, ["wwan0"]);
        assert_eq!(modem_facts.facts.check(), Ok(()));
        assert!(modem_facts.facts.operator.is_some_and(|it| it.starts_with("[2J Freexx")));
        let signal =
            (modem_facts.facts.rsrp_dbm, modem_facts.facts.rsrq_db, modem_facts.facts.sinr_db);
        assert_eq!((signal, modem_facts.facts.iccid), ((None, None, None), None));
        let odd = [Value::Null, json!([]), json!("x"), json!({ MODEM: 7, NETWORK: [], SIGNAL: 1 })];
        for odd in odd {
            assert_eq!(of(&odd, std::slice::from_ref(&odd), &odd), Modem::default());
        }
        let ports: Vec<Value> = (0..100).map(|port| json!([format!("w{port}"), 2])).collect();
        let many = of(&json!({ MODEM: { "Ports": ports } }), &[], &Value::Null);
        assert_eq!(many.interfaces.len(), INTERFACES_MAX);
    }

    #[test]
    fn technologies_are_those_of_the_bits() {
        let check = |bits: &[u32], expected| {
            assert_eq!(technology(bits.iter().map(|bit| 1 << bit).sum()), expected, "{bits:?}");
        };
        check(&[14, 15], Some("5g-nsa"));
        check(&[15], Some("5g-sa"));
        check(&[17], Some("lte"));
        check(&[5, 9], Some("3g"));
        check(&[1], Some("2g"));
        check(&[0, 10], None);
        check(&[], None);
    }
}
