//! The table of recoveries: each name, and what makes its recovery.

use roadweave_types::NamePattern;

use crate::{
    Detection, NoRecovery, Pluribus, Recovery, RecoveryConfig, Reliable, Spread, Thresholds, Xlink,
    Xnc, XncConfig,
};

/// What a name stands for.
#[derive(Debug)]
struct Entry {
    name: NamePattern,
    make: Make,
}

/// Makes the recovery of a lane from the name's parameter, empty where it has none, and what it
/// must know of the lane; `None` where there is no recovery with such a parameter.
type Make = fn(&str, RecoveryConfig) -> Option<Box<dyn Recovery>>;

const fn entry(name: &'static str, make: Make) -> Entry {
    Entry { name: NamePattern(name), make }
}

/// Every recovery. `xnc-sigcomm23` is XNC as its paper has it; `xnc-runs` combines only lost
/// packets in a row; `xnc-no-coding`, `xnc-no-qoe` and `xnc-no-spread` are XNC without one of its
/// parts ([`Spread`], [`Detection`]).
const RECOVERIES: [Entry; 11] = [
    entry("xnc", |_, lane| xnc(usual(lane))),
    entry("xnc-sigcomm23", |_, lane| xnc(XncConfig::sigcomm23(lane))),
    entry("xnc-no-coding", |_, lane| xnc(XncConfig { codes: false, ..usual(lane) })),
    entry("xnc-no-qoe", |_, lane| xnc(XncConfig { detection: Detection::Quic, ..usual(lane) })),
    entry("xnc-no-spread", |_, lane| xnc(XncConfig { spread: Spread::Fastest, ..usual(lane) })),
    entry("xnc-runs", |_, lane| xnc(XncConfig { bridges: false, ..usual(lane) })),
    entry("reliable", |_, lane| Some(Box::new(Reliable::new(lane)))),
    entry("xlink", |_, lane| Some(Box::new(Xlink::new(lane, Thresholds::default())))),
    entry("xlink:<percent>-<percent>", |percents, lane| {
        Some(Box::new(Xlink::new(lane, Thresholds::parse(percents)?)))
    }),
    entry("pluribus", |_, lane| Some(Box::new(Pluribus::new(lane)))),
    entry("none", |_, _| Some(Box::new(NoRecovery))),
];

fn usual(lane: RecoveryConfig) -> XncConfig {
    XncConfig { lane, ..XncConfig::default() }
}

fn xnc(config: XncConfig) -> Option<Box<dyn Recovery>> {
    Some(Box::new(Xnc::new(config)))
}

/// What makes the recoveries of one name: the name is read once, and for each lane the recovery is
/// made from what was read.
#[derive(Clone, Debug)]
pub struct RecoveryFactory {
    entry: &'static Entry,
    parameter: String,
}

impl RecoveryFactory {
    /// The factory of the recovery called `name`.
    ///
    /// # Errors
    /// When there is no such recovery; the message lists what there is.
    pub fn by_name(name: &str) -> Result<Self, UnknownRecovery> {
        let read = |entry: &'static Entry| {
            let parameter = entry.name.parameter(name)?.to_owned();
            (entry.make)(&parameter, RecoveryConfig::default())?;
            Some(Self { entry, parameter })
        };
        RECOVERIES.iter().find_map(read).ok_or_else(|| UnknownRecovery(name.to_owned()))
    }

    /// The recovery of a lane.
    pub fn make(&self, lane: RecoveryConfig) -> Box<dyn Recovery> {
        (self.entry.make)(&self.parameter, lane)
            .expect("the parameter was checked when the name was read")
    }
}

/// A recovery's name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown recovery \"{0}\"; known are: {names}", names = names())]
pub struct UnknownRecovery(String);

fn names() -> String {
    RECOVERIES.map(|entry| entry.name.0).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known_and_errors_list_them() {
        let plain = RECOVERIES.iter().filter_map(|entry| entry.name.plain());
        for name in plain.chain(["xlink:95-80", "xlink:1-1"]) {
            let factory = RecoveryFactory::by_name(name).expect("known");
            assert!(factory.make(RecoveryConfig::default()).is_settled(), "{name}");
        }
        for name in ["magic", "xlink:", "xlink:80-95", "xnc:1"] {
            let error = RecoveryFactory::by_name(name).expect_err("no such recovery").to_string();
            assert!(error.contains(name), "{error}");
            assert!(error.contains("known are: xnc, xnc-sigcomm23,"), "{error}");
            assert!(error.ends_with("pluribus, none"), "{error}");
        }
    }
}
