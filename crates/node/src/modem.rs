//! Facts of modems: `roadweave modems` queries them, and the client keeps each for half a minute.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

/// A modem's report; unknown fields are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModemFacts {
    /// The operator's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// The technology: `5g-sa`, `5g-nsa`, `lte`, `3g` or `2g`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub technology: Option<String>,
    /// Reference signal received power.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rsrp_dbm: Option<f64>,
    /// Reference signal received quality.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rsrq_db: Option<f64>,
    /// Signal to interference and noise ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sinr_db: Option<f64>,
    /// Received signal strength, of WiFi too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rssi_dbm: Option<f64>,
    /// The number of its SIM (ICCID).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iccid: Option<String>,
    /// Its access point in the operator's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apn: Option<String>,
}

impl ModemFacts {
    /// The longest text, characters.
    pub const TEXT_MAX: usize = 64;
    /// The valid range of [`ModemFacts::rsrp_dbm`]: 3GPP TS 38.133 has -156 to -31.
    pub const RSRP_DBM: RangeInclusive<f64> = -160.0..=-20.0;
    /// The valid range of [`ModemFacts::rsrq_db`]: -43 to 20.
    pub const RSRQ_DB: RangeInclusive<f64> = -50.0..=30.0;
    /// The valid range of [`ModemFacts::sinr_db`]: -23 to 40.
    pub const SINR_DB: RangeInclusive<f64> = -40.0..=60.0;
    /// The valid range of [`ModemFacts::rssi_dbm`].
    pub const RSSI_DBM: RangeInclusive<f64> = -140.0..=0.0;
    /// The valid names of technologies.
    pub const TECHNOLOGIES: [&str; 5] = ["5g-sa", "5g-nsa", "lte", "3g", "2g"];

    /// Checks that all facts are plausible and safe to display; returns the first problem.
    pub fn check(&self) -> Result<(), String> {
        let texts = [("operator", &self.operator), ("apn", &self.apn), ("iccid", &self.iccid)];
        for (name, text) in texts {
            let is_plain = |text: &String| {
                (1..=Self::TEXT_MAX).contains(&text.chars().count())
                    && !text.chars().any(char::is_control)
            };
            if text.as_ref().is_some_and(|text| !is_plain(text)) {
                let most = Self::TEXT_MAX;
                return Err(format!("{name} is 1 to {most} letters without control characters"));
            }
        }
        let digits = |text: &String| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if self.iccid.as_ref().is_some_and(|iccid| !digits(iccid)) {
            return Err("iccid must be digits".to_owned());
        }
        let known = |name: &String| Self::TECHNOLOGIES.contains(&name.as_str());
        if self.technology.as_ref().is_some_and(|name| !known(name)) {
            return Err(format!("technology is one of {}", Self::TECHNOLOGIES.join(", ")));
        }
        for (name, figure, range) in [
            ("rsrp_dbm", self.rsrp_dbm, Self::RSRP_DBM),
            ("rsrq_db", self.rsrq_db, Self::RSRQ_DB),
            ("sinr_db", self.sinr_db, Self::SINR_DB),
            ("rssi_dbm", self.rssi_dbm, Self::RSSI_DBM),
        ] {
            if figure.is_some_and(|figure| !range.contains(&figure)) {
                return Err(format!("{name} is {} to {}", range.start(), range.end()));
            }
        }
        Ok(())
    }

    pub(crate) fn is_weak(&self) -> bool {
        match (self.rsrp_dbm, self.rssi_dbm) {
            (Some(rsrp), _) => rsrp <= WEAK_RSRP_DBM,
            (None, Some(rssi)) => rssi <= WEAK_RSSI_DBM,
            (None, None) => false,
        }
    }

    /// Operator, technology, signal and access point on one line.
    pub fn summary(&self) -> String {
        let figure = |name: &str, figure: Option<f64>, unit: &str| {
            figure.map(|figure| format!("{name} {figure:.0} {unit}"))
        };
        let parts = [
            self.operator.clone(),
            self.technology.clone(),
            figure("RSRP", self.rsrp_dbm, "dBm"),
            figure("RSRQ", self.rsrq_db, "dB"),
            figure("SINR", self.sinr_db, "dB"),
            // RSRP is more precise.
            figure("RSSI", self.rssi_dbm.filter(|_| self.rsrp_dbm.is_none()), "dBm"),
            self.apn.clone(),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

#[derive(Debug, Default)]
pub(crate) struct Modems {
    reports: BTreeMap<String, (Instant, ModemFacts)>,
    /// The last reported SIM of each interface: it stays without reports, and so do its caps.
    iccids: BTreeMap<String, String>,
}

impl Modems {
    pub(crate) fn record(&mut self, now: Instant, uplink: String, facts: ModemFacts) {
        let has_room = |known: usize, is_known| known < MODEMS_MAX || is_known;
        if let Some(iccid) = &facts.iccid
            && has_room(self.iccids.len(), self.iccids.contains_key(&uplink))
        {
            self.iccids.insert(uplink.clone(), iccid.clone());
        }
        if has_room(self.reports.len(), self.reports.contains_key(&uplink)) {
            self.reports.insert(uplink, (now, facts));
        }
    }

    pub(crate) fn remove(&mut self, uplink: &str) {
        self.reports.remove(uplink);
        self.iccids.remove(uplink);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.reports.values().map(|(at, _)| *at + FRESH).min()
    }

    pub(crate) fn forget(&mut self, now: Instant) -> Vec<String> {
        let old = self.reports.extract_if(.., |_, (at, _)| now.since(*at) >= FRESH);
        old.map(|(name, _)| name).collect()
    }

    pub(crate) fn of(&self, uplink: &str) -> Option<&ModemFacts> {
        self.reports.get(uplink).map(|(_, facts)| facts)
    }

    pub(crate) fn iccid(&self, uplink: &str) -> Option<&str> {
        self.iccids.get(uplink).map(String::as_str)
    }

    pub(crate) fn facts(&self, now: Instant) -> BTreeMap<String, ModemFacts> {
        let fresh = self.reports.iter().filter(|(_, (at, _))| now.since(*at) < FRESH);
        fresh.map(|(name, (_, facts))| (name.clone(), facts.clone())).collect()
    }
}

/// Below this the signal is lost at the next bend: cells are planned for -110 dBm and more.
const WEAK_RSRP_DBM: f64 = -120.0;
/// WiFi's lowest rate needs -82 dBm (IEEE 802.11, 17.3.10.2).
const WEAK_RSSI_DBM: f64 = -90.0;
const FRESH: Duration = Duration::from_secs(30);
const MODEMS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> ModemFacts {
        let some = |text: &str| Some(text.to_owned());
        ModemFacts {
            operator: some("Some Operator"),
            technology: some("5g-nsa"),
            rsrp_dbm: Some(-95.4),
            rsrq_db: Some(-10.5),
            sinr_db: Some(12.0),
            rssi_dbm: Some(-61.0),
            iccid: some("8949020000012345678F"),
            apn: some("internet"),
        }
    }

    #[test]
    fn only_what_a_modem_can_measure_and_a_terminal_can_show_is_taken() {
        assert_eq!((facts().check(), ModemFacts::default().check()), (Ok(()), Ok(())));
        let some = |text: &str| Some(text.to_owned());
        for (wrong, name) in [
            (ModemFacts { operator: some("\u{1b}[2J"), ..facts() }, "operator"),
            (ModemFacts { operator: some(""), ..facts() }, "operator"),
            (ModemFacts { apn: Some("x".repeat(65)), ..facts() }, "apn"),
            (ModemFacts { iccid: some("89 49"), ..facts() }, "iccid"),
            (ModemFacts { technology: some("6g"), ..facts() }, "technology"),
            (ModemFacts { rsrp_dbm: Some(f64::NAN), ..facts() }, "rsrp_dbm"),
            (ModemFacts { rsrp_dbm: Some(0.0), ..facts() }, "rsrp_dbm"),
            (ModemFacts { rsrq_db: Some(f64::NEG_INFINITY), ..facts() }, "rsrq_db"),
            (ModemFacts { sinr_db: Some(1e300), ..facts() }, "sinr_db"),
            (ModemFacts { rssi_dbm: Some(1.0), ..facts() }, "rssi_dbm"),
        ] {
            assert!(wrong.check().is_err_and(|why| why.starts_with(name)), "{wrong:?}");
        }
    }

    #[test]
    fn reports_that_are_not_repeated_expire_and_names_are_bounded() {
        let at = |seconds: u64| Instant::from_millis(seconds * 1_000);
        let mut modems = Modems::default();
        modems.record(at(0), "wwan0".to_owned(), facts());
        modems.record(at(20), "wwan1".to_owned(), ModemFacts::default());
        let names = |modems: &Modems, now| modems.facts(now).into_keys().collect::<Vec<_>>();
        assert_eq!(names(&modems, at(29)), ["wwan0", "wwan1"]);
        assert_eq!(names(&modems, at(30)), ["wwan1"]);
        assert_eq!(modems.facts(at(60)), BTreeMap::new());
        assert_eq!(modems.poll_timeout(), Some(at(30)));
        assert_eq!(modems.forget(at(29)), [""; 0]);
        assert_eq!(modems.forget(at(30)), ["wwan0"]);
        assert_eq!((modems.of("wwan0"), modems.poll_timeout()), (None, Some(at(50))));
        assert!(modems.of("wwan1").is_some());
        assert_eq!(modems.iccid("wwan0"), Some("8949020000012345678F"), "its cap holds on");
        modems.remove("wwan0");
        assert_eq!(modems.iccid("wwan0"), None, "another one may be plugged in there");
        (0..1_000).for_each(|number| modems.record(at(40), format!("u{number}"), facts()));
        assert_eq!(modems.facts(at(41)).len(), MODEMS_MAX);
    }
}
