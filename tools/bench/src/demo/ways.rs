//! The ways of a demo: a clip over a strategy, or a live encoder over one.
//!
//! ```text
//!   xnc             the clip, as it was encoded
//!   lola-adaptive   roadweave-video, at the rate that the tunnel allows
//!   xnc@8M          roadweave-video, at a fixed rate
//! ```

use std::path::PathBuf;

use roadweave_terminal::exit::BadInput;
use roadweave_tunnel::Strategy;
use serde::Serialize;

use crate::rate::parse_video;

const DEFAULT: [&str; 4] = ["single", "minrtt", "xnc", "lola-adaptive"];
const BEST_SINGLE: &str = "single";
/// Suffix of a live encoder that follows the tunnel.
const ADAPTIVE: &str = "-adaptive";

#[derive(Clone, Debug, PartialEq)]
pub enum Way {
    Clip(String),
    Live(Live),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// As requested, with the best link's name.
    pub name: String,
    pub strategy: String,
    /// Fixed rate; absent if the encoder follows the tunnel.
    pub bitrate_bps: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeftOut {
    pub strategy: String,
    pub why: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ways {
    pub ways: Vec<Way>,
    /// The path of `roadweave-video`, if a way uses a live encoder.
    pub video: Option<PathBuf>,
    pub left_out: Vec<LeftOut>,
}

impl Ways {
    /// The requested ways, or the default ones that can run. `best` is the best link; `video` finds
    /// the live encoder's program. Fails for unknown names, and for a requested live encoder that
    /// is missing.
    pub fn choose(
        asked: Option<&[String]>,
        best: &str,
        video: impl FnOnce() -> Result<PathBuf, String>,
    ) -> Result<Self, BadInput> {
        let names = match asked {
            Some(names) => names.to_vec(),
            None => DEFAULT.map(str::to_owned).to_vec(),
        };
        let ways: Result<Vec<Way>, BadInput> =
            names.iter().map(|name| Way::parse(name, best)).collect();
        let mut chosen = Self { ways: ways?, ..Self::default() };
        let Some(first) = chosen.ways.iter().find(|way| way.is_live()) else { return Ok(chosen) };
        match video() {
            Ok(program) => chosen.video = Some(program),
            Err(why) if asked.is_some() => {
                return Err(BadInput::new(format!("--strategies: {}: {why}", first.name())));
            }
            Err(why) => {
                let (live, rest) = chosen.ways.into_iter().partition(Way::is_live);
                chosen.ways = rest;
                let left_out = |way: Way| LeftOut { strategy: way.name().into(), why: why.clone() };
                chosen.left_out = Vec::into_iter(live).map(left_out).collect();
            }
        }
        Ok(chosen)
    }
}

impl Way {
    fn parse(name: &str, best: &str) -> Result<Self, BadInput> {
        let live = match name.strip_suffix(ADAPTIVE) {
            Some(strategy) => Some((strategy, ADAPTIVE.to_owned(), None)),
            None => name.rsplit_once('@').and_then(|(strategy, rate)| {
                let bps = parse_video(rate).ok()?.as_bps();
                Some((strategy, format!("@{rate}"), Some(bps)))
            }),
        };
        let strategy = match live.as_ref().map_or(name, |(strategy, ..)| strategy) {
            BEST_SINGLE => format!("single:{best}"),
            other => other.to_owned(),
        };
        if let Err(error) = strategy.parse::<Strategy>() {
            return Err(BadInput::new(format!(
                "--strategies: {error}; {BEST_SINGLE} is the best single link; {ADAPTIVE} or @8M \
                 behind a name adds a live encoder"
            )));
        }
        Ok(match live {
            None => Self::Clip(strategy),
            Some((_, suffix, bitrate_bps)) => {
                Self::Live(Live { name: strategy.clone() + &suffix, strategy, bitrate_bps })
            }
        })
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Clip(strategy) => strategy,
            Self::Live(live) => &live.name,
        }
    }

    pub fn is_live(&self) -> bool {
        matches!(self, Self::Live(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absent() -> Result<PathBuf, String> {
        Err("it is not there; make video".to_owned())
    }

    #[test]
    fn any_strategy_can_have_a_live_encoder() {
        let check = |name: &str, strategy: &str, full: &str, bitrate_bps| {
            let live = Live { name: full.into(), strategy: strategy.into(), bitrate_bps };
            assert_eq!(Way::parse(name, "lte").unwrap(), Way::Live(live), "{name}");
        };
        check("lola-adaptive", "lola", "lola-adaptive", None);
        check("single-adaptive", "single:lte", "single:lte-adaptive", None);
        check("single:att-adaptive", "single:att", "single:att-adaptive", None);
        check("xnc@8M", "xnc", "xnc@8M", Some(8_000_000));
        check("xnc@8", "xnc", "xnc@8", Some(8_000_000));
        check("single@2.5M", "single:lte", "single:lte@2.5M", Some(2_500_000));
        let clip = |name: &str| Way::parse(name, "lte").unwrap();
        assert_eq!(clip("single"), Way::Clip("single:lte".into()));
        assert_eq!(clip("raven:50"), Way::Clip("raven:50".into()));
        for name in ["-adaptive", "xnc@", "xnc@0M", "xnc@fastM"] {
            assert!(Way::parse(name, "lte").is_err(), "{name}");
        }
    }

    #[test]
    fn ways_that_cannot_run_are_left_out_and_named() {
        let ways = Ways::choose(None, "lte", || Ok("/roadweave-video".into())).unwrap();
        assert!(ways.ways.len() == 4 && ways.video.is_some() && ways.left_out.is_empty());
        let ways = Ways::choose(None, "lte", absent).unwrap();
        assert!(ways.ways.len() == 3 && !ways.ways.iter().any(Way::is_live));
        assert_eq!(ways.video, None);
        let (strategy, why) =
            ("lola-adaptive".to_owned(), "it is not there; make video".to_owned());
        assert_eq!(ways.left_out, [LeftOut { strategy, why }]);
        assert_eq!(Ways::choose(Some(&["xnc".into()]), "lte", absent).unwrap().video, None);
    }
}
