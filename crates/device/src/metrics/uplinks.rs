//! The uplinks of a client as OpenMetrics: portals, and the reports of their modems.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use roadweave_tunnel::UplinkReport;

use super::text::gauges;
use crate::modem::ModemFacts;
use crate::status::ClientStatus;

pub(super) fn uplinks(out: &mut DescriptorEncoder<'_>, role: &ClientStatus) -> fmt::Result {
    let portal = |uplink: &UplinkReport| f64::from(u8::from(uplink.portal.is_some()));
    let uplinks = role.uplinks.iter();
    let portals = uplinks.map(|uplink| ([("uplink", uplink.name.as_str())], portal(uplink)));
    let help = "1 while the network of an uplink wants somebody to log in";
    gauges(out, ("uplink_portal", help, None), portals)?;
    let known = role.modems.iter().map(|(name, facts)| {
        let text = |text: &'_ Option<String>| text.clone().unwrap_or_default();
        (name, [text(&facts.operator), text(&facts.technology), text(&facts.apn)])
    });
    let known: Vec<_> = known.collect();
    let info = known.iter().map(|(name, [operator, technology, apn])| {
        let labels = [
            ("uplink", name.as_str()),
            ("operator", operator),
            ("technology", technology),
            ("apn", apn),
        ];
        (labels, 1.0)
    });
    gauges(out, ("uplink_modem_info", "1, with what a modem is connected to", None), info)?;
    let mut signal = |name: &str, help: &str, figure: fn(&ModemFacts) -> Option<f64>| {
        let told = role.modems.iter();
        let told =
            told.filter_map(|(name, facts)| Some(([("uplink", name.as_str())], figure(facts)?)));
        gauges(out, (name, help, None), told)
    };
    signal("uplink_rsrp_dbm", "The power of a modem's reference signal", |it| it.rsrp_dbm)?;
    signal("uplink_rsrq_db", "The quality of a modem's reference signal", |it| it.rsrq_db)?;
    signal("uplink_sinr_db", "A modem's signal above noise and interference", |it| it.sinr_db)?;
    signal("uplink_rssi_dbm", "The power of all that an uplink receives", |it| it.rssi_dbm)
}
