//! A strategy: a scheduler and a recovery under one name.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use roadweave_recovery::{Recovery, RecoveryConfig, Reliable, Thresholds};
use roadweave_schedule::{Policed, RavenConfig, Scheduler, UnknownScheduler};
use roadweave_types::{Pacing, Promise};
use roadweave_wire::{CODED_HEADER, SUM_HEADER};
use serde::{Deserialize, Serialize};

/// A named choice of scheduler and recovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Strategy(String);

/// A strategy's name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown strategy \"{0}\"; known are: {names}", names = Strategy::names())]
pub struct UnknownStrategy(String);

/// What a name stands for.
#[derive(Debug)]
struct Entry {
    name: &'static str,
    /// The name of its scheduler.
    scheduler: &'static str,
    /// The name of its recovery.
    recovery: &'static str,
    keeps: Keeps,
    /// How its packets are paced, if not as the lane says.
    pacing: Option<Pacing>,
}

/// How long a packet that was sent may be needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    /// While it is of use to the applications of most lanes.
    UntilExpired,
    /// The same, and what waits of a video is kept or given up by whole frames.
    WholeFrames,
    /// Until a reliable recovery gives it up.
    UntilGivenUp,
    /// Until the lane's deadline: what is late makes what follows late as well.
    ToDeadline,
}

use Keeps::{ToDeadline, UntilExpired, UntilGivenUp, WholeFrames};

const fn entry(
    name: &'static str,
    scheduler: &'static str,
    recovery: &'static str,
    keeps: Keeps,
) -> Entry {
    Entry { name, scheduler, recovery, keeps, pacing: None }
}

impl Entry {
    const fn paced_by(self, pacing: Pacing) -> Self {
        Self { pacing: Some(pacing), ..self }
    }
}

/// Every strategy. Names with a `<` stand for many, and so do those of the scheduler or the
/// recovery that take up the parameter.
const STRATEGIES: [Entry; 19] = [
    entry("xnc", "prompt", "xnc", WholeFrames),
    entry("xnc-patient", "patient", "xnc", UntilExpired),
    entry("xnc-sigcomm23", "minrtt-sigcomm23", "xnc-sigcomm23", UntilExpired)
        .paced_by(Pacing::Controller),
    entry("xnc-no-coding", "prompt", "xnc-no-coding", WholeFrames),
    entry("xnc-no-qoe", "prompt", "xnc-no-qoe", WholeFrames),
    entry("xnc-no-spread", "prompt", "xnc-no-spread", WholeFrames),
    entry("xnc-runs", "prompt", "xnc-runs", WholeFrames),
    entry("minrtt", "minrtt", "reliable", UntilGivenUp),
    entry("minrtt-unreliable", "minrtt", "none", UntilExpired),
    entry("ecf", "ecf", "reliable", UntilGivenUp),
    entry("xlink", "minrtt", "xlink", UntilGivenUp),
    XLINK_AT,
    entry("pluribus", "earliest", "pluribus", UntilExpired),
    entry("redundant", "redundant", "none", UntilExpired),
    entry("bonding", "bonding", "none", UntilExpired),
    entry("raven", "raven", "reliable", UntilGivenUp),
    RAVEN_AT,
    entry("lola", "lola", "none", ToDeadline),
    SINGLE,
];

const XLINK_AT: Entry =
    entry("xlink:<percent>-<percent>", "minrtt", "xlink:<percent>-<percent>", UntilGivenUp);
const RAVEN_AT: Entry = entry("raven:<percent>", "raven:<percent>", "reliable", UntilGivenUp);
const SINGLE: Entry = entry("single:<uplink>", "single:<uplink>", "none", UntilExpired);

impl Strategy {
    /// Min-RTT with network coding (CellFusion section 4), the default.
    pub fn xnc() -> Self {
        Self("xnc".into())
    }

    /// Every packet on every path (redundant framework, Networking'24).
    pub fn redundant() -> Self {
        Self("redundant".into())
    }

    /// The uplink that it needs, by its name: that of `single:<uplink>`.
    pub fn uplink(&self) -> Option<&str> {
        self.0.strip_prefix("single:")
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// All names, for messages; `single:<uplink>` stands for one of each uplink.
    pub fn names() -> String {
        STRATEGIES.map(|entry| entry.name).join(", ")
    }

    /// All names but those that stand for many: what needs no uplink to be named.
    pub fn for_any_uplinks() -> impl Iterator<Item = &'static str> {
        STRATEGIES.iter().map(|entry| entry.name).filter(|name| !name.contains('<'))
    }

    /// The scheduler, which needs to know the lane's deadline, and whether uplinks have names here.
    pub(crate) fn scheduler(
        &self,
        deadline: Duration,
        names_uplinks: bool,
    ) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
        let name = self.part(self.entry().scheduler);
        let scheduler = roadweave_schedule::by_name(name, deadline, names_uplinks)?;
        // Whoever names an uplink means it.
        Ok(if self.uplink().is_some() { scheduler } else { Box::new(Policed::new(scheduler)) })
    }

    /// How long a packet may wait, and be needed for a repair once it was sent; `deadline` and
    /// `expire_after` are the lane's, which overrules what the strategy would do by itself.
    pub(crate) fn keeps_for(&self, deadline: Duration, expire_after: Option<Duration>) -> Duration {
        let own = match self.entry().keeps {
            ToDeadline => return expire_after.map_or(deadline, |age| age.min(deadline)),
            UntilExpired | WholeFrames => Promise::DEFAULT_AGE,
            UntilGivenUp => Reliable::GIVE_UP,
        };
        expire_after.unwrap_or(own).min(Promise::AGE_MAX)
    }

    /// Whether it sends coded packets.
    pub(crate) fn codes(&self) -> bool {
        let recovery = self.entry().recovery;
        recovery.starts_with("xnc") || recovery == "pluribus"
    }

    /// Whether a repair that its path holds back for long goes to another one: not as CellFusion's
    /// paper has it, where each path keeps its share of a repair.
    pub(crate) fn moves_repairs(&self) -> bool {
        self.entry().recovery != "xnc-sigcomm23"
    }

    /// How its packets are paced in a lane for which `pacing` is set.
    pub(crate) fn pacing(&self, pacing: Pacing) -> Pacing {
        self.entry().pacing.unwrap_or(pacing)
    }

    /// Whether it gives up whole frames of a video where there is more than the paths carry.
    pub(crate) fn keeps_whole_frames(&self) -> bool {
        self.entry().keeps == WholeFrames
    }

    pub(crate) fn recovery(&self, config: RecoveryConfig) -> Box<dyn Recovery> {
        let name = self.part(self.entry().recovery);
        roadweave_recovery::by_name(name, config).expect("the table names recoveries that exist")
    }

    /// Whether its scheduler says what an encoder should make of its next frame.
    pub(crate) fn sizes_frames(&self) -> bool {
        self.0 == "lola"
    }

    /// The longest header of a repair: a packet that is cut for a path must fit behind it as well.
    pub(crate) fn repair_header(&self) -> usize {
        if self.entry().recovery == "pluribus" { SUM_HEADER } else { CODED_HEADER }
    }

    /// The name of a part: its own, or that of the strategy, whose parameter it takes up.
    fn part<'a>(&'a self, name: &'a str) -> &'a str {
        if name.contains('<') { &self.0 } else { name }
    }

    fn entry(&self) -> &'static Entry {
        find(&self.0).expect("names are checked when they are read")
    }
}

fn find(name: &str) -> Option<&'static Entry> {
    if name.strip_prefix("single:").is_some_and(|uplink| !uplink.is_empty()) {
        return Some(&SINGLE);
    }
    if name != "raven" && RavenConfig::by_name(name).is_some() {
        return Some(&RAVEN_AT);
    }
    if name != "xlink" && Thresholds::by_name(name).is_some() {
        return Some(&XLINK_AT);
    }
    STRATEGIES.iter().find(|entry| entry.name == name && !name.contains('<'))
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        find(name).map(|_| Self(name.to_owned())).ok_or_else(|| UnknownStrategy(name.to_owned()))
    }
}

impl TryFrom<String> for Strategy {
    type Error = UnknownStrategy;
    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

impl From<Strategy> for String {
    fn from(strategy: Strategy) -> Self {
        strategy.0
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_has_a_scheduler_and_a_recovery() {
        let with = ["single:wwan0", "raven:0", "raven:100", "xlink:95-80", "xlink:1-1"];
        for name in Strategy::for_any_uplinks().chain(with) {
            let strategy: Strategy = name.parse().expect("known");
            assert_eq!(strategy.as_str(), name);
            let deadline = Duration::from_millis(100);
            assert!(strategy.scheduler(deadline, true).is_ok(), "{name}");
            strategy.recovery(RecoveryConfig::default());
        }
        assert_eq!(Strategy::for_any_uplinks().count(), STRATEGIES.len() - 3);
    }

    #[test]
    fn names_are_checked_and_the_error_lists_them() {
        let ravens = ["raven:101", "raven:<percent>"];
        let xlinks = ["xlink:", "xlink:95", "xlink:80-95", "xlink:100-50", "xlink:50-0"];
        for name in ["", "single:", "XNC", "fastest", "lola:3"].iter().chain(&ravens).chain(&xlinks)
        {
            let error = name.parse::<Strategy>().expect_err("unknown").to_string();
            assert!(error.contains("known are: xnc, xnc-patient, xnc-sigcomm23,"), "{error}");
            assert!(error.ends_with("lola, single:<uplink>"), "{error}");
        }
    }

    #[test]
    fn the_papers_strategy_is_held_to_the_congestion_control_whatever_the_lane_says() {
        let pacing = |name: &str| name.parse::<Strategy>().expect("known").pacing(Pacing::Window);
        assert_eq!((pacing("xnc"), pacing("minrtt")), (Pacing::Window, Pacing::Window));
        assert_eq!(pacing("xnc-sigcomm23"), Pacing::Controller);
    }

    #[test]
    fn reliable_strategies_keep_their_packets() {
        let keeps = |name: &str| {
            let strategy = name.parse::<Strategy>().expect("known");
            strategy.keeps_for(Duration::from_millis(100), None)
        };
        assert_eq!(keeps("xnc"), Duration::from_millis(700));
        assert_eq!(keeps("lola"), Duration::from_millis(100));
        assert_eq!((keeps("raven"), keeps("raven:5")), (Reliable::GIVE_UP, Reliable::GIVE_UP));
        assert_eq!((keeps("ecf"), keeps("xlink")), (Reliable::GIVE_UP, Reliable::GIVE_UP));
    }

    #[test]
    fn an_expiry_holds_for_every_strategy() {
        let keeps = |name: &str, ms| {
            let strategy = name.parse::<Strategy>().expect("known");
            let expire_after = Some(Duration::from_millis(ms));
            strategy.keeps_for(Duration::from_millis(100), expire_after).as_millis()
        };
        for name in Strategy::for_any_uplinks().filter(|name| *name != "lola") {
            assert_eq!((keeps(name, 300), keeps(name, 60_000)), (300, 10_000), "{name}");
        }
        assert_eq!((keeps("lola", 300), keeps("lola", 50)), (100, 50));
    }
}
