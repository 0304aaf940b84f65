//! The table of schedulers: each name, and what makes its scheduler.

use std::time::Duration;

use roadweave_types::NamePattern;

use crate::{
    Bonding, Earliest, Ecf, Lola, MinRtt, Ordered, Raven, RavenConfig, Redundant, Scheduler, Single,
};

/// What a name stands for.
#[derive(Debug)]
struct Entry {
    name: NamePattern,
    /// Whether the parameter is an uplink, which must be known where the scheduler works.
    needs_uplink: bool,
    make: Make,
}

/// Makes the scheduler of a lane from the name's parameter, empty where it has none, and the lane's
/// deadline; `None` where there is no scheduler with such a parameter.
type Make = fn(&str, Duration) -> Option<Box<dyn Scheduler>>;

const fn entry(name: &'static str, make: Make) -> Entry {
    Entry { name: NamePattern(name), needs_uplink: false, make }
}

/// Every scheduler.
const SCHEDULERS: [Entry; 12] = [
    entry("minrtt", |_, _| Some(Box::new(MinRtt::default()))),
    entry("minrtt-sigcomm23", |_, _| Some(Box::new(MinRtt::sigcomm23()))),
    entry("expected-rtt", |_, _| Some(Box::new(MinRtt::expected_rtt()))),
    entry("ordered", |_, _| Some(Box::new(Ordered))),
    entry("ecf", |_, _| Some(Box::new(Ecf::default()))),
    entry("earliest", |_, _| Some(Box::new(Earliest))),
    entry("bonding", |_, _| Some(Box::new(Bonding))),
    entry("redundant", |_, _| Some(Box::new(Redundant))),
    entry("raven", |_, _| Some(Box::new(Raven::new(RavenConfig::default())))),
    entry("raven:<percent>", |percent, _| {
        Some(Box::new(Raven::new(RavenConfig::with_confidence(percent)?)))
    }),
    entry("lola", |_, deadline| Some(Box::new(Lola::new(deadline)))),
    Entry { needs_uplink: true, ..entry("single:<uplink>", single) },
];

fn single(uplink: &str, _deadline: Duration) -> Option<Box<dyn Scheduler>> {
    (!uplink.is_empty()).then(|| Box::new(Single::new(uplink)) as Box<dyn Scheduler>)
}

/// What makes the schedulers of one name: the name is read once, and for each lane the scheduler is
/// made from what was read.
#[derive(Clone, Debug)]
pub struct SchedulerFactory {
    entry: &'static Entry,
    parameter: String,
}

impl SchedulerFactory {
    /// The factory of the scheduler called `name`.
    ///
    /// # Errors
    /// When there is no such scheduler; the message lists what there is.
    pub fn by_name(name: &str) -> Result<Self, UnknownScheduler> {
        let read = |entry: &'static Entry| {
            let parameter = entry.name.parameter(name)?.to_owned();
            (entry.make)(&parameter, Duration::ZERO)?;
            Some(Self { entry, parameter })
        };
        SCHEDULERS.iter().find_map(read).ok_or_else(|| UnknownScheduler::Name(name.to_owned()))
    }

    /// The uplink that its schedulers need, by its name.
    pub fn uplink(&self) -> Option<&str> {
        self.entry.needs_uplink.then_some(&*self.parameter)
    }

    /// The scheduler of a lane whose packets should take no longer than `deadline`.
    ///
    /// `names_uplinks`: whether uplinks are known here, of which [`Scheduler::name_path`] tells.
    ///
    /// # Errors
    /// When it needs an uplink where none is known.
    pub fn make(
        &self,
        deadline: Duration,
        names_uplinks: bool,
    ) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
        match self.uplink() {
            Some(uplink) if !names_uplinks => Err(UnknownScheduler::Uplink(uplink.to_owned())),
            _ => Ok((self.entry.make)(&self.parameter, deadline)
                .expect("the parameter was checked when the name was read")),
        }
    }
}

/// A scheduler's name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownScheduler {
    /// No algorithm has this name.
    #[error("unknown scheduler \"{0}\"; known are: {names}", names = names())]
    Name(String),
    /// `single:` names an uplink where none is known.
    #[error("scheduler \"single:{0}\" names an uplink, and uplinks are not known here")]
    Uplink(String),
}

fn names() -> String {
    SCHEDULERS.map(|entry| entry.name.0).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_schedulers_and_errors_name_the_choices() {
        let deadline = Duration::from_millis(100);
        let make = |name: &str| {
            SchedulerFactory::by_name(name).and_then(|factory| factory.make(deadline, true))
        };
        let plain = SCHEDULERS.iter().filter_map(|entry| entry.name.plain());
        for name in plain.chain(["raven:0", "raven:100", "single:wwan0"]) {
            let scheduler = make(name).expect(name);
            // Only RAVEN keeps for the next session what it has seen, and it has seen nothing.
            assert_eq!(scheduler.learned().is_some(), name.starts_with("raven"), "{name}");
        }
        for name in ["fastest", "raven:", "raven:101", "raven:+5", "raven:9x", "single:"] {
            let error = make(name).expect_err("no such scheduler").to_string();
            assert!(
                error.contains(name) && error.contains("known are: minrtt, minrtt-"),
                "{error}"
            );
            assert!(error.ends_with("lola, single:<uplink>"), "{error}");
        }
    }

    #[test]
    fn an_uplink_must_be_known_where_the_scheduler_works() {
        let factory = SchedulerFactory::by_name("single:eth9").expect("known");
        assert_eq!(factory.uplink(), Some("eth9"));
        let error = factory.make(Duration::ZERO, false).expect_err("no uplinks are known");
        assert_eq!(error, UnknownScheduler::Uplink("eth9".into()));
        assert_eq!(SchedulerFactory::by_name("raven:5").expect("known").uplink(), None);
    }
}
