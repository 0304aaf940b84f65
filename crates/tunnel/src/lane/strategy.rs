//! A strategy: a scheduler and a recovery under one name.
//!
//! [`STRATEGIES`] is the product's table; others add theirs ([`Strategy::find`], docs/lab.md).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use roadweave_proto::{NamePattern, Pacing, Promise};
use roadweave_recovery::{
    NoRecovery, Recovery, RecoveryConfig, Reliable, Thresholds, Xlink, Xnc, XncConfig,
};
use roadweave_schedule::{
    Ecf, Lola, MinRtt, Ordered, Policed, Raven, RavenConfig, Redundant, Scheduler, SchedulerConfig,
    Single,
};
use serde::{Deserialize, Serialize};

use crate::lane::shed::Shedder;

/// A scheduler and a recovery, by name. The name is looked up when it is read.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Strategy {
    name: String,
    pub(super) entry: &'static StrategyEntry,
}

/// An unknown strategy name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown strategy \"{name}\"; known are: {known}")]
pub struct UnknownStrategy {
    name: String,
    known: String,
}

/// A strategy names an uplink where none is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("strategy \"{0}\" names an uplink, and uplinks are not known here")]
pub struct NamesUplink(String);

/// A row in a table of strategies.
#[derive(Debug)]
pub struct StrategyEntry {
    name: NamePattern,
    when: &'static str,
    scheduler: MakeScheduler,
    recovery: MakeRecovery,
    keeps: Keeps,
    codes: bool,
    pub(super) moves_repairs: bool,
    pacing: Option<Pacing>,
    pub(super) acknowledged_on_all: bool,
    pub(super) cancels: bool,
}

/// Makes a scheduler from the name's parameter, empty without one; `None` if it is invalid.
pub type MakeScheduler = fn(&str, SchedulerConfig) -> Option<Box<dyn Scheduler>>;

/// Makes a recovery from the name's parameter, empty without one; `None` if it is invalid.
pub type MakeRecovery = fn(&str, RecoveryConfig) -> Option<Box<dyn Recovery>>;

/// How long a packet may be needed after it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// While it is useful to most applications.
    UntilExpired,
    /// As `UntilExpired`; waiting video is dropped by whole frames, unless the lane is patient.
    WholeFrames,
    /// Until a reliable recovery gives it up.
    UntilGivenUp,
    /// Until the lane's deadline, of video by whole frames, since late packets delay those behind.
    ToDeadline,
}

use Keeps::{ToDeadline, UntilExpired, UntilGivenUp, WholeFrames};

impl StrategyEntry {
    /// An uncoded strategy. `name`: a `<` begins a parameter; `when`: says when to choose it.
    pub const fn new(
        name: &'static str,
        when: &'static str,
        scheduler: MakeScheduler,
        recovery: MakeRecovery,
        keeps: Keeps,
    ) -> Self {
        Self {
            name: NamePattern(name),
            when,
            scheduler,
            recovery,
            keeps,
            codes: false,
            moves_repairs: true,
            pacing: None,
            acknowledged_on_all: false,
            cancels: true,
        }
    }

    /// Sets that its recovery sends coded packets.
    pub const fn coded(self) -> Self {
        Self { codes: true, ..self }
    }

    /// Sets its pacing, which overrules the lane's.
    pub const fn paced_by(self, pacing: Pacing) -> Self {
        Self { pacing: Some(pacing), ..self }
    }

    /// Has its packets acknowledged on all paths, against a disturbed way back (LoLa section 3.1).
    pub const fn acknowledged_on_all(self) -> Self {
        Self { acknowledged_on_all: true, ..self }
    }

    /// Sends waiting copies of packets that have arrived too.
    pub const fn without_cancelling(self) -> Self {
        Self { cancels: false, ..self }
    }

    /// Keeps repairs on the path that holds them back.
    pub const fn leaving_repairs_where_they_are(self) -> Self {
        Self { moves_repairs: false, ..self }
    }

    /// The name; a parameter is between `<` and `>`.
    pub const fn name(&self) -> &'static str {
        self.name.0
    }

    /// When to choose it.
    pub const fn when(&self) -> &'static str {
        self.when
    }

    fn fits(&self, name: &str) -> bool {
        self.name.parameter(name).is_some_and(|parameter| {
            (self.scheduler)(parameter, SchedulerConfig::default()).is_some()
                && (self.recovery)(parameter, RecoveryConfig::default()).is_some()
        })
    }
}

/// The strategies of the product.
pub static STRATEGIES: &[StrategyEntry] = &[
    StrategyEntry::new(
        "xnc",
        "calls and live video, where a late packet is a lost one; the default",
        |_, lane| match lane.patient {
            true => Some(Box::new(Ordered)),
            false => Some(Box::new(MinRtt::expected_rtt())),
        },
        |_, lane| Some(Box::new(Xnc::new(XncConfig { lane, ..XncConfig::default() }))),
        WholeFrames,
    )
    .coded(),
    StrategyEntry::new(
        "minrtt",
        "downloads and uploads over paths that are alike",
        |_, _| Some(Box::new(MinRtt::default())),
        reliable,
        UntilGivenUp,
    ),
    StrategyEntry::new(
        "minrtt-unreliable",
        "traffic that repairs its own losses, where no byte may leave twice",
        |_, _| Some(Box::new(MinRtt::default())),
        none,
        UntilExpired,
    ),
    StrategyEntry::new(
        "ecf",
        "downloads and uploads over a fast path and a much slower one",
        |_, _| Some(Box::new(Ecf::default())),
        reliable,
        UntilGivenUp,
    ),
    StrategyEntry::new(
        "xlink",
        "video on demand, whose player has a buffer and reports it",
        |_, _| Some(Box::new(MinRtt::default())),
        |_, lane| Some(Box::new(Xlink::new(lane, Thresholds::default()))),
        UntilGivenUp,
    ),
    StrategyEntry::new(
        "redundant",
        "little traffic that must arrive in time, where bytes cost nothing",
        |_, _| Some(Box::new(Redundant)),
        none,
        UntilExpired,
    ),
    StrategyEntry::new(
        "raven",
        "small flows whose user waits for the answer",
        |_, _| Some(Box::new(Raven::new(RavenConfig::default()))),
        reliable,
        UntilGivenUp,
    ),
    StrategyEntry::new(
        "raven:<percent>",
        "the same, where copies are dearer or cheaper than usual",
        |percent, _| Some(Box::new(Raven::new(RavenConfig::with_confidence(percent)?))),
        reliable,
        UntilGivenUp,
    ),
    StrategyEntry::new(
        "lola",
        "live video from an encoder that asks for the size of its next frame",
        |_, lane| Some(Box::new(Lola::new(lane.deadline))),
        none,
        ToDeadline,
    )
    .acknowledged_on_all(),
    StrategyEntry::new(
        "single:<uplink>",
        "what belongs on one uplink, and waits while that is down; clients only",
        |uplink, _| match uplink {
            "" => None,
            uplink => Some(Box::new(Single::new(uplink))),
        },
        none,
        UntilExpired,
    ),
];

fn reliable(_: &str, lane: RecoveryConfig) -> Option<Box<dyn Recovery>> {
    Some(Box::new(Reliable::new(lane)))
}

fn none(_: &str, _: RecoveryConfig) -> Option<Box<dyn Recovery>> {
    Some(Box::new(NoRecovery))
}

impl Strategy {
    /// Min-RTT with network coding (CellFusion section 4), the default.
    pub fn xnc() -> Self {
        "xnc".parse().expect("the table has it")
    }

    /// Every packet on every path (redundant framework, Networking'24).
    pub fn redundant() -> Self {
        "redundant".parse().expect("the table has it")
    }

    /// The strategy called `name` in the first of `tables` that has it.
    ///
    /// # Errors
    /// If none has it; the message lists the known names.
    pub fn find(name: &str, tables: &[&'static [StrategyEntry]]) -> Result<Self, UnknownStrategy> {
        let entries = || tables.iter().copied().flatten();
        match entries().find(|entry| entry.fits(name)) {
            Some(entry) => Ok(Self { name: name.to_owned(), entry }),
            None => {
                let known = entries().map(StrategyEntry::name).collect::<Vec<_>>().join(", ");
                Err(UnknownStrategy { name: name.to_owned(), known })
            }
        }
    }

    /// The names in `table` without a parameter.
    pub fn plain_names(table: &'static [StrategyEntry]) -> impl Iterator<Item = &'static str> {
        table.iter().filter_map(|entry| entry.name.plain())
    }

    fn parameter(&self) -> &str {
        self.entry.name.parameter(&self.name).expect("the name was found by it")
    }

    /// The uplink of `single:<uplink>`.
    pub fn uplink(&self) -> Option<&str> {
        self.entry.name().ends_with("<uplink>").then(|| self.parameter())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    pub(crate) fn check(&self, names_uplinks: bool) -> Result<(), NamesUplink> {
        match self.uplink() {
            Some(_) if !names_uplinks => Err(NamesUplink(self.name.clone())),
            _ => Ok(()),
        }
    }

    pub(crate) fn scheduler(&self, lane: SchedulerConfig) -> Box<dyn Scheduler> {
        let scheduler = (self.entry.scheduler)(self.parameter(), lane)
            .expect("the parameter was checked when the name was read");
        // A strategy that names an uplink ignores its policy.
        if self.uplink().is_some() { scheduler } else { Box::new(Policed::new(scheduler)) }
    }

    pub(crate) fn recovery(&self, lane: RecoveryConfig) -> Box<dyn Recovery> {
        (self.entry.recovery)(self.parameter(), lane)
            .expect("the parameter was checked when the name was read")
    }

    /// How long a packet may wait, and be needed for repair. The lane's settings take precedence.
    pub(crate) fn keeps_for(&self, deadline: Duration, expire_after: Option<Duration>) -> Duration {
        let own = match self.entry.keeps {
            ToDeadline => return expire_after.map_or(deadline, |age| age.min(deadline)),
            UntilExpired | WholeFrames => Promise::DEFAULT_AGE,
            UntilGivenUp => Reliable::GIVE_UP,
        };
        expire_after.unwrap_or(own).min(Promise::AGE_MAX)
    }

    /// Whether it sends coded packets; its lane may then have insurance, and be patient.
    pub fn codes(&self) -> bool {
        self.entry.codes
    }

    pub(crate) fn pacing(&self, pacing: Pacing) -> Pacing {
        self.entry.pacing.unwrap_or(pacing)
    }

    pub(crate) fn shedder(&self, lane: SchedulerConfig) -> Option<Shedder> {
        match self.entry.keeps {
            WholeFrames if !lane.patient => Some(Shedder::new(lane.deadline)),
            ToDeadline => Some(Shedder::default()),
            WholeFrames | UntilExpired | UntilGivenUp => None,
        }
    }
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::find(name, &[STRATEGIES])
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

    fn strategy(name: &str) -> Strategy {
        name.parse().expect("known")
    }

    #[test]
    fn a_user_chooses_among_ten_strategies() {
        let with = ["single:wwan0", "raven:0", "raven:100"];
        for name in Strategy::plain_names(STRATEGIES).chain(with) {
            let found = strategy(name);
            assert_eq!(found.as_str(), name);
            assert_eq!(found.check(false).is_err(), name == "single:wwan0");
            found.scheduler(SchedulerConfig::default());
            found.recovery(RecoveryConfig::default());
            assert_eq!(found.codes(), name == "xnc");
        }
        assert_eq!(STRATEGIES.len(), 10);
    }

    #[test]
    fn names_are_checked_and_the_error_lists_them() {
        let ravens = ["raven:", "raven:101", "raven:+5", "raven:9x", "raven:<percent>"];
        for name in ["", "single:", "XNC", "fastest", "lola:3"].iter().chain(&ravens) {
            let error = name.parse::<Strategy>().expect_err("unknown").to_string();
            assert!(error.contains(name) && error.contains("known are: xnc, minrtt,"), "{error}");
            assert!(error.ends_with("lola, single:<uplink>"), "{error}");
        }
    }

    #[test]
    fn another_program_adds_strategies_of_its_own() {
        static OTHERS: &[StrategyEntry] = &[StrategyEntry::new(
            "mine",
            "a test",
            |_, _| Some(Box::new(Redundant)),
            none,
            ToDeadline,
        )
        .paced_by(Pacing::Controller)
        .leaving_repairs_where_they_are()];
        let find = |name: &str| Strategy::find(name, &[STRATEGIES, OTHERS]);
        let (mine, xnc) = (find("mine").expect("known"), find("xnc").expect("known"));
        assert_eq!((mine.as_str(), xnc), ("mine", Strategy::xnc()));
        assert_eq!(mine.pacing(Pacing::Window), Pacing::Controller);
        assert_eq!(Strategy::xnc().pacing(Pacing::Window), Pacing::Window);
        assert!(!mine.entry.moves_repairs && Strategy::xnc().entry.moves_repairs);
        let error = find("yours").expect_err("unknown").to_string();
        assert!(error.ends_with("single:<uplink>, mine"), "{error}");
    }

    #[test]
    fn a_patient_lane_keeps_all_frames() {
        let lane = |patient| SchedulerConfig { patient, ..SchedulerConfig::default() };
        let sheds = |name, patient| strategy(name).shedder(lane(patient)).is_some();
        assert_eq!([sheds("xnc", false), sheds("xnc", true)], [true, false]);
        assert_eq!([sheds("lola", false), sheds("lola", true)], [true, true]);
    }

    #[test]
    fn reliable_strategies_keep_their_packets() {
        let keeps = |name| strategy(name).keeps_for(Duration::from_millis(100), None);
        assert_eq!(keeps("xnc"), Duration::from_millis(700));
        assert_eq!(keeps("lola"), Duration::from_millis(100));
        assert_eq!((keeps("raven"), keeps("raven:5")), (Reliable::GIVE_UP, Reliable::GIVE_UP));
        assert_eq!((keeps("ecf"), keeps("xlink")), (Reliable::GIVE_UP, Reliable::GIVE_UP));
    }

    #[test]
    fn an_expiry_holds_for_every_strategy() {
        let keeps = |name, ms| {
            let expire_after = Some(Duration::from_millis(ms));
            strategy(name).keeps_for(Duration::from_millis(100), expire_after).as_millis()
        };
        for name in Strategy::plain_names(STRATEGIES).filter(|name| *name != "lola") {
            assert_eq!((keeps(name, 300), keeps(name, 60_000)), (300, 10_000), "{name}");
        }
        assert_eq!((keeps("lola", 300), keeps("lola", 50)), (100, 50));
    }
}
