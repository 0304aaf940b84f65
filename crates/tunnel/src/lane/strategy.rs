//! A strategy: a scheduler and a recovery under one name.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use roadweave_recovery::{Recovery, RecoveryConfig, RecoveryFactory, Reliable};
use roadweave_schedule::{Policed, Scheduler, SchedulerFactory, UnknownScheduler};
use roadweave_types::{NamePattern, Pacing, Promise};
use roadweave_wire::{CODED_HEADER, SUM_HEADER};
use serde::{Deserialize, Serialize};

use crate::lane::shed::Shedder;

/// A named choice of scheduler and recovery. The name is looked up once, when it is read.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Strategy {
    name: String,
    entry: &'static Entry,
    scheduler: SchedulerFactory,
    recovery: RecoveryFactory,
}

/// A strategy's name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown strategy \"{0}\"; known are: {names}", names = Strategy::names())]
pub struct UnknownStrategy(String);

/// What a name stands for.
#[derive(Debug)]
struct Entry {
    name: NamePattern,
    /// The name of its scheduler.
    scheduler: NamePattern,
    /// The name of its recovery.
    recovery: NamePattern,
    keeps: Keeps,
    /// The code of its repairs.
    code: Option<Code>,
    /// Whether a repair that its path holds back for long goes to another one.
    moves_repairs: bool,
    /// How its packets are paced, if not as the lane says.
    pacing: Option<Pacing>,
    /// Whether the peer acknowledges its packets on all paths (LoLa section 3.1).
    acknowledged_on_all: bool,
    /// Coded packets that insure its packets, percent of their bytes, if the lane says nothing.
    insurance_percent: u8,
}

/// How long a packet that was sent may be needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    /// While it is of use to the applications of most lanes.
    UntilExpired,
    /// While it is of use to the applications of most lanes; and what waits of a video is kept or
    /// given up by whole frames.
    WholeFrames,
    /// Until a reliable recovery gives it up.
    UntilGivenUp,
    /// Until the lane's deadline, of a video by whole frames: what is late makes what follows late
    /// as well.
    ToDeadline,
}

/// How packets are combined into repairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    /// Random linear combinations of encode ranges.
    Linear,
    /// Sums of some packets.
    Sums,
}

use Code::{Linear, Sums};
use Keeps::{ToDeadline, UntilExpired, UntilGivenUp, WholeFrames};

const fn entry(
    name: &'static str,
    scheduler: &'static str,
    recovery: &'static str,
    keeps: Keeps,
) -> Entry {
    Entry {
        name: NamePattern(name),
        scheduler: NamePattern(scheduler),
        recovery: NamePattern(recovery),
        keeps,
        code: None,
        moves_repairs: true,
        pacing: None,
        acknowledged_on_all: false,
        insurance_percent: 0,
    }
}

impl Entry {
    const fn coded(self, code: Code) -> Self {
        Self { code: Some(code), ..self }
    }

    const fn paced_by(self, pacing: Pacing) -> Self {
        Self { pacing: Some(pacing), ..self }
    }

    const fn acknowledged_on_all(self) -> Self {
        Self { acknowledged_on_all: true, ..self }
    }

    const fn insured(self, percent: u8) -> Self {
        Self { insurance_percent: percent, ..self }
    }

    const fn leaving_repairs_where_they_are(self) -> Self {
        Self { moves_repairs: false, ..self }
    }
}

/// Every strategy. Where the name of the scheduler or the recovery has a parameter, it is the
/// strategy's own.
const STRATEGIES: [Entry; 20] = [
    entry("xnc", "expected-rtt", "xnc", WholeFrames).coded(Linear),
    // Its insurance counts where the lane names none.
    entry("xnc-insured", "expected-rtt", "xnc", WholeFrames).coded(Linear).insured(25),
    entry("xnc-patient", "ordered", "xnc", UntilExpired).coded(Linear),
    // As CellFusion's paper has it: held to the congestion control, and each path keeps its share
    // of a repair.
    entry("xnc-sigcomm23", "minrtt-sigcomm23", "xnc-sigcomm23", UntilExpired)
        .coded(Linear)
        .paced_by(Pacing::Controller)
        .leaving_repairs_where_they_are(),
    entry("xnc-no-coding", "expected-rtt", "xnc-no-coding", WholeFrames).coded(Linear),
    entry("xnc-no-qoe", "expected-rtt", "xnc-no-qoe", WholeFrames).coded(Linear),
    entry("xnc-no-spread", "expected-rtt", "xnc-no-spread", WholeFrames).coded(Linear),
    entry("xnc-runs", "expected-rtt", "xnc-runs", WholeFrames).coded(Linear),
    entry("minrtt", "minrtt", "reliable", UntilGivenUp),
    entry("minrtt-unreliable", "minrtt", "none", UntilExpired),
    entry("ecf", "ecf", "reliable", UntilGivenUp),
    entry("xlink", "minrtt", "xlink", UntilGivenUp),
    entry("xlink:<percent>-<percent>", "minrtt", "xlink:<percent>-<percent>", UntilGivenUp),
    entry("pluribus", "earliest", "pluribus", UntilExpired).coded(Sums),
    entry("redundant", "redundant", "none", UntilExpired),
    entry("bonding", "bonding", "none", UntilExpired),
    entry("raven", "raven", "reliable", UntilGivenUp),
    entry("raven:<percent>", "raven:<percent>", "reliable", UntilGivenUp),
    entry("lola", "lola", "none", ToDeadline).acknowledged_on_all(),
    entry("single:<uplink>", "single:<uplink>", "none", UntilExpired),
];

/// Other names of strategies, with those that the table knows.
const ALIASES: [(&str, &str); 1] = [("xnc-ordered", "xnc-patient")];

impl Strategy {
    /// Min-RTT with network coding (CellFusion section 4), the default.
    pub fn xnc() -> Self {
        "xnc".parse().expect("the table has it")
    }

    /// Every packet on every path (redundant framework, Networking'24).
    pub fn redundant() -> Self {
        "redundant".parse().expect("the table has it")
    }

    /// The uplink that it needs, by its name: that of `single:<uplink>`.
    pub fn uplink(&self) -> Option<&str> {
        self.scheduler.uplink()
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// All names, for messages; `single:<uplink>` stands for one of each uplink.
    pub fn names() -> String {
        STRATEGIES.map(|entry| entry.name.0).join(", ")
    }

    /// All names but those that stand for many: what needs no uplink to be named.
    pub fn for_any_uplinks() -> impl Iterator<Item = &'static str> {
        STRATEGIES.iter().filter_map(|entry| entry.name.plain())
    }

    /// The scheduler, which needs to know the lane's deadline, and whether uplinks have names here.
    pub(crate) fn scheduler(
        &self,
        deadline: Duration,
        names_uplinks: bool,
    ) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
        let scheduler = self.scheduler.make(deadline, names_uplinks)?;
        // Whoever names an uplink means it.
        Ok(if self.uplink().is_some() { scheduler } else { Box::new(Policed::new(scheduler)) })
    }

    /// The recovery of a lane.
    pub(crate) fn recovery(&self, config: RecoveryConfig) -> Box<dyn Recovery> {
        self.recovery.make(config)
    }

    /// How long a packet may wait, and be needed for a repair once it was sent; `deadline` and
    /// `expire_after` are the lane's, which overrules what the strategy would do by itself.
    pub(crate) fn keeps_for(&self, deadline: Duration, expire_after: Option<Duration>) -> Duration {
        let own = match self.entry.keeps {
            ToDeadline => return expire_after.map_or(deadline, |age| age.min(deadline)),
            UntilExpired | WholeFrames => Promise::DEFAULT_AGE,
            UntilGivenUp => Reliable::GIVE_UP,
        };
        expire_after.unwrap_or(own).min(Promise::AGE_MAX)
    }

    /// Whether it sends coded packets.
    pub(crate) fn codes(&self) -> bool {
        self.entry.code.is_some()
    }

    /// Whether a repair that its path holds back for long goes to another one.
    pub(crate) fn moves_repairs(&self) -> bool {
        self.entry.moves_repairs
    }

    /// Whether what comes is acknowledged on all paths: a disturbed way back then delays nothing.
    pub(crate) fn wants_acknowledgements_on_all(&self) -> bool {
        self.entry.acknowledged_on_all
    }

    /// Coded packets that insure its packets, percent of their bytes, where a lane says nothing.
    pub(crate) fn insurance_percent(&self) -> u8 {
        self.entry.insurance_percent
    }

    /// Whether its packets can be insured: the combinations are random and linear.
    pub fn insures(&self) -> bool {
        self.entry.code == Some(Linear)
    }

    /// How its packets are paced in a lane for which `pacing` is set.
    pub(crate) fn pacing(&self, pacing: Pacing) -> Pacing {
        self.entry.pacing.unwrap_or(pacing)
    }

    /// What decides which frames of a video are sent, if it is by whole frames that some are not.
    pub(crate) fn shedder(&self, deadline: Duration) -> Option<Shedder> {
        match self.entry.keeps {
            WholeFrames => Some(Shedder::new(deadline)),
            ToDeadline => Some(Shedder::of_deadlines()),
            UntilExpired | UntilGivenUp => None,
        }
    }

    /// The longest header of a repair: a packet that is cut for a path must fit behind it as well.
    pub(crate) fn repair_header(&self) -> usize {
        match self.entry.code {
            Some(Sums) => SUM_HEADER,
            Some(Linear) | None => CODED_HEADER,
        }
    }
}

/// The strategy called `name`, if there is one; one with an alias goes by its name in the table.
fn find(name: &str) -> Option<Strategy> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    let name = alias.map_or(name, |(_, of_table)| of_table);
    let entry = STRATEGIES.iter().find(|entry| entry.name.parameter(name).is_some())?;
    let part = |part: NamePattern| part.plain().unwrap_or(name);
    Some(Strategy {
        name: name.to_owned(),
        entry,
        // A parameter is checked by the part that takes it up.
        scheduler: SchedulerFactory::by_name(part(entry.scheduler)).ok()?,
        recovery: RecoveryFactory::by_name(part(entry.recovery)).ok()?,
    })
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        find(name).ok_or_else(|| UnknownStrategy(name.to_owned()))
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
        strategy.name
    }
}

impl PartialEq for Strategy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Strategy {}

impl fmt::Debug for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Strategy").field(&self.name).finish()
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
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
    fn what_a_strategy_needs_of_the_lane_stands_in_the_table() {
        let of = |name: &str| {
            let strategy = name.parse::<Strategy>().expect("known");
            (strategy.codes(), strategy.repair_header(), strategy.moves_repairs())
        };
        for name in Strategy::for_any_uplinks() {
            let is_xnc = name.starts_with("xnc");
            let header = if name == "pluribus" { SUM_HEADER } else { CODED_HEADER };
            let expected = (is_xnc || name == "pluribus", header, name != "xnc-sigcomm23");
            assert_eq!(of(name), expected, "{name}");
        }
    }

    #[test]
    fn names_are_checked_and_the_error_lists_them() {
        let ravens = ["raven:101", "raven:<percent>"];
        let xlinks = ["xlink:", "xlink:95", "xlink:80-95", "xlink:100-50", "xlink:50-0"];
        for name in ["", "single:", "XNC", "fastest", "lola:3"].iter().chain(&ravens).chain(&xlinks)
        {
            let error = name.parse::<Strategy>().expect_err("unknown").to_string();
            assert!(error.contains("known are: xnc, xnc-insured, xnc-patient,"), "{error}");
            assert!(error.ends_with("lola, single:<uplink>"), "{error}");
        }
    }

    #[test]
    fn an_alias_is_read_and_never_told() {
        for (alias, name) in ALIASES {
            let strategy: Strategy = alias.parse().expect("known");
            assert_eq!(strategy.to_string(), name);
            assert_eq!(strategy, name.parse().expect("known"));
            assert!(!Strategy::names().contains(alias));
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
