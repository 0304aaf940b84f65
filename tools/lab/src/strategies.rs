//! Strategies for comparison, beside the product's: competitors from papers, and the product's
//! algorithms with other parameters or without a part.

mod bonding;
mod earliest;
mod passive;
mod plain;
mod pluribus;
mod window;

use std::time::Duration;

use roadweave_proto::Pacing;
use roadweave_recovery::{
    Detection, NoRecovery, Recovery, RecoveryConfig, Reliable, Thresholds, Xlink, Xnc, XncConfig,
};
use roadweave_schedule::{MinRtt, Ordered, Raven, RavenConfig, Scheduler, SchedulerConfig};
use roadweave_tunnel::{Keeps, STRATEGIES, Strategy, StrategyEntry, UnknownStrategy};
use serde::{Deserialize, Deserializer, de};

use self::bonding::Bonding;
use self::earliest::Earliest;
use self::passive::Passive;
use self::plain::Plain;
use self::pluribus::Pluribus;
use self::window::Window;

pub static BASELINES: &[StrategyEntry] = &[
    StrategyEntry::new(
        "xnc-patient",
        "`xnc` in a patient lane",
        |_, _| Some(Box::new(Ordered)),
        |_, lane| xnc(usual(lane)),
        Keeps::UntilExpired,
    )
    .coded(),
    StrategyEntry::new(
        "xnc-sigcomm23",
        "`xnc` as CellFusion's paper has it: lowest smoothed round trip, one repair, as large as the \
         windows hold; paced by `controller`",
        |_, _| Some(Box::new(Window)),
        |_, lane| xnc(XncConfig::sigcomm23(lane)),
        Keeps::UntilExpired,
    )
    .coded()
    .paced_by(Pacing::Controller)
    .leaving_repairs_where_they_are(),
    StrategyEntry::new(
        "xnc-sigcomm23-no-coding",
        "`xnc-sigcomm23`, repairing with the lost packets themselves (CellFusion section 8.3.5)",
        |_, _| Some(Box::new(Window)),
        |_, lane| xnc(XncConfig { codes: false, ..XncConfig::sigcomm23(lane) }),
        Keeps::UntilExpired,
    )
    .coded()
    .paced_by(Pacing::Controller)
    .leaving_repairs_where_they_are(),
    StrategyEntry::new(
        "xnc-no-coding",
        "`xnc`, repairing with the lost packets themselves (CellFusion section 8.3.5)",
        expected_rtt,
        |_, lane| xnc(XncConfig { codes: false, ..usual(lane) }),
        Keeps::WholeFrames,
    )
    .coded(),
    StrategyEntry::new(
        "xnc-combinations",
        "`xnc`, repairing with combinations alone (CellFusion section 4.5)",
        expected_rtt,
        |_, lane| xnc(XncConfig { systematic: false, ..usual(lane) }),
        Keeps::WholeFrames,
    )
    .coded(),
    StrategyEntry::new(
        "xnc-no-qoe",
        "`xnc`, with QUIC's own loss detection (CellFusion section 8.3.5)",
        expected_rtt,
        |_, lane| xnc(XncConfig { detection: Detection::Quic, ..usual(lane) }),
        Keeps::WholeFrames,
    )
    .coded(),
    StrategyEntry::new(
        "xnc-runs",
        "`xnc`, combining only lost packets in a row",
        expected_rtt,
        |_, lane| xnc(XncConfig { bridges: false, ..usual(lane) }),
        Keeps::WholeFrames,
    )
    .coded(),
    StrategyEntry::new(
        "minrtt-silent",
        "`minrtt`, but a path that does not answer is used as any other",
        |_, _| Some(Box::new(Plain)),
        |_, lane| Some(Box::new(Reliable::new(lane))),
        Keeps::UntilGivenUp,
    ),
    StrategyEntry::new(
        "minrtt-passive",
        "`minrtt` by the round trips of its own packets, as multipath TCP",
        |_, _| Some(Box::new(Passive::default())),
        |_, lane| Some(Box::new(Reliable::new(lane))),
        Keeps::UntilGivenUp,
    ),
    StrategyEntry::new(
        "minrtt-rfc9002",
        "`minrtt` with the timers of RFC 9002, which wait 25 ms for a delayed acknowledgement",
        |_, _| Some(Box::new(MinRtt::default())),
        rfc9002,
        Keeps::UntilGivenUp,
    ),
    StrategyEntry::new(
        "minrtt-quic",
        "`minrtt-silent` with the timers of `minrtt-rfc9002`, as the papers' MPQUIC",
        |_, _| Some(Box::new(Plain)),
        rfc9002,
        Keeps::UntilGivenUp,
    ),
    StrategyEntry::new(
        "raven-no-ageing",
        "`raven`, whose confidence does not fall with the age of samples (RAVEN section 5.8)",
        |_, _| Some(Box::new(Raven::new(RavenConfig { ages: false, ..RavenConfig::default() }))),
        |_, lane| Some(Box::new(Reliable::new(lane))),
        Keeps::UntilGivenUp,
    ),
    StrategyEntry::new(
        "raven-no-cancelling",
        "`raven`, which sends waiting copies of packets that have arrived too (RAVEN section 5.7)",
        |_, _| Some(Box::new(Raven::new(RavenConfig::default()))),
        |_, lane| Some(Box::new(Reliable::new(lane))),
        Keeps::UntilGivenUp,
    )
    .without_cancelling(),
    StrategyEntry::new(
        "xlink:<percent>-<percent>",
        "`xlink` with other thresholds: copies leave while the play-time left is below what it exceeds \
         in the first share of the time, none above what it exceeds in the second; `xlink` is \
         `xlink:95-80`",
        |_, _| Some(Box::new(MinRtt::default())),
        |percents, lane| Some(Box::new(Xlink::new(lane, Thresholds::parse(percents)?))),
        Keeps::UntilGivenUp,
    ),
    StrategyEntry::new(
        "pluribus",
        "spare room carries combinations of recent packets, before any loss is known (ATC'12)",
        |_, _| Some(Box::new(Earliest)),
        |_, lane| Some(Box::new(Pluribus::new(lane))),
        Keeps::UntilExpired,
    )
    .coded(),
    StrategyEntry::new(
        "bonding",
        "each flow on one uplink, chosen by its addresses and ports, as routers do",
        |_, _| Some(Box::new(Bonding)),
        |_, _| Some(Box::new(NoRecovery)),
        Keeps::UntilExpired,
    ),
];

fn expected_rtt(_: &str, _: SchedulerConfig) -> Option<Box<dyn Scheduler>> {
    Some(Box::new(MinRtt::expected_rtt()))
}

fn rfc9002(_: &str, lane: RecoveryConfig) -> Option<Box<dyn Recovery>> {
    Some(Box::new(Reliable::new(lane).with_ack_delay(ACK_DELAY)))
}

fn usual(lane: RecoveryConfig) -> XncConfig {
    XncConfig { lane, ..XncConfig::default() }
}

fn xnc(config: XncConfig) -> Option<Box<dyn Recovery>> {
    Some(Box::new(Xnc::new(config)))
}

/// `max_ack_delay` of RFC 9000 section 18.2, less the tunnel's own 2 ms.
const ACK_DELAY: Duration = Duration::from_millis(23);

/// The product's or the lab's strategy called `name`; the error lists all names.
pub fn strategy(name: &str) -> Result<Strategy, UnknownStrategy> {
    Strategy::find(name, &[STRATEGIES, BASELINES])
}

/// All names that take no parameter.
pub fn plain_names() -> impl Iterator<Item = &'static str> {
    [STRATEGIES, BASELINES].into_iter().flat_map(Strategy::plain_names)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Strategy, D::Error> {
    strategy(&String::deserialize(from)?).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests;
