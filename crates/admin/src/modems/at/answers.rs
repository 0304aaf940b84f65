//! Reads a modem's answers to AT commands, which firmware and operator wrote: none is trusted.

use std::ops::RangeInclusive;

use roadweave_node::ModemFacts;

use super::super::facts::legible;

/// Fails if the modem cannot be in a network.
pub(in super::super) fn of(lines: &[String]) -> Result<ModemFacts, String> {
    let said = Said(lines);
    if said.first("+CPIN:").is_some_and(|fields| fields.first() != Some(&"READY")) {
        return Err("its SIM is locked".to_owned());
    }
    let (operator, technology) = network(&said);
    let cells = said.all("+QENG:").filter_map(|fields| Cell::of(&fields));
    let cells: Vec<Cell> = cells.chain(said.first("+CESQ:").and_then(|it| measured(&it))).collect();
    // LTE runs beside non-standalone 5G; the 5G cell carries most.
    let find = |figure: fn(&Cell) -> Option<f64>, range: RangeInclusive<f64>| {
        let fits = |figure: &f64| range.contains(figure);
        let of = |is_5g: bool| {
            let mut cells = cells.iter().filter(move |cell| cell.is_5g == is_5g);
            cells.find_map(|cell| figure(cell).filter(fits))
        };
        of(true).or_else(|| of(false))
    };
    let rsrp = |cell: &&Cell| cell.rsrp.is_some_and(|rsrp| ModemFacts::RSRP_DBM.contains(&rsrp));
    let heard = cells.iter().filter(rsrp).find_map(|cell| cell.technology);
    Ok(ModemFacts {
        operator,
        technology: heard.or(technology).map(str::to_owned),
        rsrp_dbm: find(|cell| cell.rsrp, ModemFacts::RSRP_DBM),
        rsrq_db: find(|cell| cell.rsrq, ModemFacts::RSRQ_DB),
        sinr_db: find(|cell| cell.sinr, ModemFacts::SINR_DB),
        rssi_dbm: said.first("+CSQ:").and_then(|fields| strength(&fields)),
        iccid: iccid(lines),
        apn: access_point(&said),
    })
}

pub(super) fn is_answer(line: &str, command: &str) -> bool {
    let name = command.trim_start_matches("AT").split(['?', '=']).next().unwrap_or_default();
    // Some modems print the SIM number without a name.
    line.starts_with(name) || line.bytes().all(|byte| byte.is_ascii_hexdigit())
}

struct Said<'a>(&'a [String]);

impl<'a> Said<'a> {
    fn all(&self, prefix: &'static str) -> impl Iterator<Item = Vec<&'a str>> + use<'a> {
        self.0.iter().filter_map(move |line| line.strip_prefix(prefix)).map(fields)
    }

    fn first(&self, prefix: &'static str) -> Option<Vec<&'a str>> {
        self.all(prefix).next()
    }
}

fn fields(text: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let parts = text.split(move |letter| {
        is_quoted ^= letter == '"';
        letter == ',' && !is_quoted
    });
    parts.map(|part| part.trim().trim_matches('"')).take(FIELDS_MAX).collect()
}

/// Operator and technology (`<AcT>`): 3GPP TS 27.007 section 7.3.
fn network(said: &Said<'_>) -> (Option<String>, Option<&'static str>) {
    let Some(fields) = said.first("+COPS:") else { return (None, None) };
    let technology = fields.get(3).and_then(|number| match number.parse::<u8>().ok()? {
        0 | 1 | 3 | 8 => Some("2g"),
        2 | 4..=6 => Some("3g"),
        7 | 9 | 10 => Some("lte"),
        11 | 12 => Some("5g-sa"),
        13 => Some("5g-nsa"),
        _ => None,
    });
    (fields.get(2).and_then(|name| legible(name)), technology)
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cell {
    technology: Option<&'static str>,
    is_5g: bool,
    rsrp: Option<f64>,
    rsrq: Option<f64>,
    sinr: Option<f64>,
}

impl Cell {
    /// A line of Quectel's `AT+QENG="servingcell"`. The unit of its LTE SINR differs among models.
    ///
    /// Source: RG50xQ and RM5xxQ series AT commands manual, section 5.
    fn of(fields: &[&str]) -> Option<Self> {
        // With two cells the first line has no technology.
        let rest = match fields.first() {
            Some(&"servingcell") => fields.get(2..)?,
            _ => fields,
        };
        let figure = |place: usize| rest.get(place).and_then(|text| text.parse::<f64>().ok());
        let (technology, is_5g, places) = match *rest.first()? {
            "NR5G-SA" => (Some("5g-sa"), true, [10, 11, 12]),
            "NR5G-NSA" => (Some("5g-nsa"), true, [4, 6, 5]),
            "LTE" => (None, false, [11, 12, usize::MAX]),
            _ => return None,
        };
        let [rsrp, rsrq, sinr] = places.map(figure);
        Some(Self { technology, is_5g, rsrp, rsrq, sinr })
    }
}

/// `+CESQ`: 5G if reported, else LTE. Numbers are lower ends of steps (0.5 or 1 dB); 255: unknown.
///
/// Source: 3GPP TS 27.007 section 8.69; the steps of 5G: TS 38.133 section 10.1.
fn measured(fields: &[&str]) -> Option<Cell> {
    let step = |place: usize, steps: RangeInclusive<u8>, origin: f64, size: f64| {
        let step = fields.get(place).and_then(|text| text.parse::<u8>().ok());
        step.filter(|step| steps.contains(step)).map(|step| origin + f64::from(step) * size)
    };
    let of_5g = Cell {
        technology: None,
        is_5g: true,
        rsrq: step(6, 0..=127, -43.5, 0.5),
        rsrp: step(7, 0..=126, -157.0, 1.0),
        sinr: step(8, 0..=127, -23.5, 0.5),
    };
    let of_lte = Cell {
        rsrq: step(4, 0..=34, -20.0, 0.5),
        rsrp: step(5, 0..=97, -141.0, 1.0),
        ..Cell::default()
    };
    let is_known = |cell: &Cell| cell.rsrp.is_some() || cell.rsrq.is_some();
    Some(of_5g).filter(is_known).or(Some(of_lte).filter(is_known))
}

/// `+CSQ`: 31 steps of 2 dB from -113 dBm; 99 is unknown (3GPP TS 27.007 section 8.5).
fn strength(fields: &[&str]) -> Option<f64> {
    let step = fields.first().and_then(|text| text.parse::<u8>().ok());
    step.filter(|step| *step <= 31).map(|step| -113.0 + 2.0 * f64::from(step))
}

fn iccid(lines: &[String]) -> Option<String> {
    lines.iter().find_map(|line| {
        let named = ["+CCID:", "+QCCID:", "+ICCID:"].iter().find_map(|it| line.strip_prefix(it));
        let number = named.unwrap_or(line).trim().trim_matches('"');
        // ITU-T E.118: at least 19 digits that begin with 89; F is padding.
        let is_number = (18..=22).contains(&number.len())
            && number.starts_with("89")
            && number.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_number.then(|| number.to_owned())
    })
}

/// The first access point that is not for calls alone (3GPP TS 27.007 sections 10.1.23, 10.1.1).
fn access_point(said: &Said<'_>) -> Option<String> {
    let names = said.all("+CGCONTRDP:").chain(said.all("+CGDCONT:"));
    let mut names = names.filter_map(|fields| fields.get(2).and_then(|name| legible(name)));
    let is_for_calls = |name: &String| {
        let first = name.split('.').next().unwrap_or_default();
        ["ims", "sos"].iter().any(|known| first.eq_ignore_ascii_case(known))
    };
    names.find(|name| !is_for_calls(name))
}

const FIELDS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts(lines: &[&str]) -> ModemFacts {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let facts = of(&lines).expect("it is in a network");
        assert_eq!(facts.check(), Ok(()), "{lines:?}");
        facts
    }

    #[test]
    fn an_lte_modem_reports_what_the_standard_has() {
        let facts_read = facts(&[
            "+CPIN: READY",
            "+QCCID: 89490200001234567890",
            "+COPS: 0,0,\"Some, Operator\",7",
            "+CSQ: 20,99",
            "+CESQ: 99,99,255,255,20,46",
            "+CGCONTRDP: 1,5,\"ims.mnc001.mcc262.gprs\",\"\"",
            "+CGCONTRDP: 2,6,\"internet\",\"10.0.0.2\"",
        ]);
        let expected = json!({
            "operator": "Some, Operator", "technology": "lte", "rsrp_dbm": -95.0, "rsrq_db": -10.0,
            "rssi_dbm": -73.0, "iccid": "89490200001234567890", "apn": "internet",
        });
        assert_eq!(json!(facts_read), expected);
    }

    #[test]
    fn the_ends_of_each_range_are_those_of_the_standard() {
        let check = |steps: &str, expected: [Option<f64>; 3]| {
            let facts_read = facts(&[&format!("+CESQ: 99,99,255,255,{steps}")]);
            assert_eq!(
                [facts_read.rsrq_db, facts_read.rsrp_dbm, facts_read.sinr_db],
                expected,
                "{steps}"
            );
        };
        check("0,0", [Some(-20.0), Some(-141.0), None]);
        check("1,1", [Some(-19.5), Some(-140.0), None]);
        check("34,97", [Some(-3.0), Some(-44.0), None]);
        for unknown in ["35,98", "255,255", "-1,1e9"] {
            check(unknown, [None; 3]);
        }
        check("20,46,1,1,1", [Some(-43.0), Some(-156.0), Some(-23.0)]);
        check("20,46,127,126,127", [Some(20.0), Some(-31.0), Some(40.0)]);
        check("20,46,255,255,255", [Some(-10.0), Some(-95.0), None]);
        let strength = |step: &str| facts(&[&format!("+CSQ: {step},99")]).rssi_dbm;
        assert_eq!([strength("0"), strength("31")], [Some(-113.0), Some(-51.0)]);
        assert_eq!([strength("32"), strength("99"), strength("")], [None; 3]);
    }

    #[test]
    fn technologies_are_those_of_the_numbers() {
        let check = |numbers: &[u8], name: Option<&str>| {
            for number in numbers {
                let facts_read = facts(&[&format!("+COPS: 0,2,\"26201\",{number}")]);
                assert_eq!(facts_read.technology.as_deref(), name, "{number}");
            }
        };
        check(&[0, 1, 3, 8], Some("2g"));
        check(&[2, 4, 5, 6], Some("3g"));
        check(&[7, 9, 10], Some("lte"));
        check(&[11, 12], Some("5g-sa"));
        check(&[13], Some("5g-nsa"));
        check(&[14, 255], None);
        assert_eq!(facts(&["+COPS: 0"]), ModemFacts::default(), "it is in no network");
    }

    #[test]
    fn a_cell_of_5g_counts_before_that_of_lte_beside_it() {
        let check = |lines: &str, technology: &str, signal: [Option<f64>; 3]| {
            let facts_read = facts(&lines.lines().collect::<Vec<_>>());
            assert_eq!(facts_read.technology.as_deref(), Some(technology), "{lines}");
            assert_eq!(
                [facts_read.rsrp_dbm, facts_read.rsrq_db, facts_read.sinr_db],
                signal,
                "{lines}"
            );
        };
        let both = "\
+COPS: 0,0,\"Some\",7
+CESQ: 99,99,255,255,20,46
+QENG: \"servingcell\",\"NOCONN\"
+QENG: \"LTE\",\"FDD\",262,01,1A2D001,1,1300,3,5,5,1,-99,-12,-67,11,9,230,-
+QENG:\"NR5G-NSA\",262,01,747,-71,33,-11,627264,78,12,1";
        check(both, "5g-nsa", [Some(-71.0), Some(-11.0), Some(33.0)]);
        let alone = "\
+QENG: \"servingcell\",\"NOCONN\",\"NR5G-SA\",\"TDD\",262,01,A,1,B,627264,78,12,-90,-12,14,1,-";
        check(alone, "5g-sa", [Some(-90.0), Some(-12.0), Some(14.0)]);
        let not_yet = "\
+COPS: 0,0,\"Some\",7
+QENG: \"servingcell\",\"NOCONN\",\"LTE\",\"FDD\",262,01,A,135,1350,3,4,4,B,-118,-14,-85,11
+QENG: \"NR5G-NSA\",262,01,65535,-32768,-32768,-32768";
        check(not_yet, "lte", [Some(-118.0), Some(-14.0), None]);
    }

    #[test]
    fn a_modem_whose_sim_is_locked_is_in_no_network() {
        let lines = ["+CPIN: SIM PIN".to_owned(), "+COPS: 0".to_owned()];
        assert_eq!(of(&lines), Err("its SIM is locked".to_owned()));
    }

    #[test]
    fn what_a_firmware_may_not_say_is_left_out() {
        let long = format!("+COPS: 0,0,\"\u{1b}[2J{}\",7", "ü".repeat(200));
        let facts_read = facts(&[
            &long,
            "+CESQ: ,,,,,",
            "+CSQ:",
            "+QENG: \"servingcell\"",
            "+QENG:",
            "+QENG: \"NR5G-NSA\",1,1,1,NaN,inf,-1e400",
            "+CGDCONT: 1,\"IP\",\"\"",
            "+CGDCONT: 1",
            "+CCID: 89490200; reboot now",
            "8949020000123456789012345678",
        ]);
        assert!(
            facts_read.operator.as_ref().is_some_and(|it| it.starts_with("[2Jüü")),
            "{facts_read:?}"
        );
        let operator = facts_read.operator.clone();
        let technology = Some("lte".to_owned());
        assert_eq!(facts_read, ModemFacts { operator, technology, ..ModemFacts::default() });
        assert_eq!(facts(&["89490200001234567890"]).iccid.as_deref(), Some("89490200001234567890"));
        assert_eq!(fields(&",".repeat(1_000)).len(), FIELDS_MAX);
    }
}
