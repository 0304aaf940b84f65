//! Five minutes of readings for the page's charts, bounded in age, number and links.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use roadweave_node::history::{History, Link};
use roadweave_node::status::RoleStatus;
use roadweave_proto::PathStatus;
use serde::Serialize;

const AGE_MAX: Duration = Duration::from_secs(300);
/// Five samples a second for [`AGE_MAX`], and a reserve.
const COUNT_MAX: usize = 1_600;
const LINKS_MAX: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Samples {
    all: VecDeque<RateSample>,
    count: u64,
}

#[derive(Debug)]
struct RateSample {
    number: u64,
    at: Duration,
    goodput_kbps: Option<[u64; 2]>,
    target_kbps: Option<u64>,
    links: Vec<(Arc<str>, LinkRow)>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Rows<'a> {
    names: Vec<&'a str>,
    rows: Vec<Row>,
}

/// Number, time in ms, goodput up and down in kbit/s, target in kbit/s, links.
#[derive(Debug, Serialize)]
struct Row(u64, u64, Option<[u64; 2]>, Option<u64>, Vec<LinkRow>);

/// Index of the name, sent and received kbit/s, round trip ms if any path, loss per mille, usable.
#[derive(Clone, Copy, Debug, Serialize)]
struct LinkRow(usize, u64, u64, Option<f32>, u16, bool);

impl Samples {
    pub(crate) fn keep(&mut self, at: Duration, history: &History) {
        self.count += 1;
        let role = history.status.as_ref().map(|status| &status.role);
        let target = match role {
            Some(RoleStatus::Client(client)) => client.encoder_target(),
            _ => None,
        };
        let is_here = history.away.is_none();
        let links = history.links.iter().filter(|_| is_here).take(LINKS_MAX);
        let links = links.map(|(name, link)| (self.name(name), LinkRow::of(link))).collect();
        self.all.push_back(RateSample {
            number: self.count,
            at,
            goodput_kbps: history.goodput.map(|both| both.map(kbps)),
            target_kbps: target.filter(|_| is_here).map(|bps| bps / 1_000),
            links,
        });
        let is_old = |sample: &RateSample| at.saturating_sub(sample.at) > AGE_MAX;
        while self.all.len() > COUNT_MAX || self.all.front().is_some_and(is_old) {
            self.all.pop_front();
        }
    }

    fn name(&self, name: &str) -> Arc<str> {
        let known = self.all.back().and_then(|sample| {
            sample.links.iter().find(|(known, _)| **known == *name).map(|(known, _)| known)
        });
        known.map_or_else(|| name.into(), Arc::clone)
    }

    pub(crate) fn after(&self, after: u64) -> Rows<'_> {
        let mut names: Vec<&str> = Vec::new();
        let mut rows = Vec::new();
        for sample in self.all.iter().filter(|sample| sample.number > after) {
            let links = sample.links.iter().map(|(name, link)| {
                let place = names.iter().position(|known| **known == **name).unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                });
                LinkRow { 0: place, ..*link }
            });
            let links = links.collect();
            let at_ms = sample.at.as_millis() as u64;
            rows.push(Row(sample.number, at_ms, sample.goodput_kbps, sample.target_kbps, links));
        }
        Rows { names, rows }
    }
}

impl LinkRow {
    fn of(link: &Link) -> Self {
        let round_trip_ms = ((link.round_trip_ms * 10.0).round() / 10.0) as f32;
        let loss_permille = (link.loss * 1e3).round().clamp(0.0, 1e3) as u16;
        let is_usable = link.status == Some(PathStatus::Usable) && !link.is_paused;
        let [sent, received] = link.rates.map(kbps);
        Self(0, sent, received, link.status.map(|_| round_trip_ms), loss_permille, is_usable)
    }
}

fn kbps(bps: f64) -> u64 {
    (bps / 1e3).round() as u64
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use roadweave_node::status::ClientStatus;

    use super::*;
    use crate::watcher::testing::{status_of, uplink};

    #[test]
    fn five_minutes_are_kept_and_no_more_whatever_links_come() {
        let mut samples = Samples::default();
        let mut history = History::new(Duration::from_millis(200));
        let begun = Instant::now();
        for reading in 0_u32..5_000 {
            let name = format!("wwan{}", reading % 100);
            let uplinks = (0..40).map(|number| uplink(&format!("{name}-{number}"))).collect();
            let client = ClientStatus { uplinks, ..ClientStatus::default() };
            let at = Duration::from_millis(u64::from(reading) * 200);
            history.take(begun + at, status_of(client));
            samples.keep(at, &history);
        }
        assert!((1_500..=1_501).contains(&samples.all.len()), "{}", samples.all.len());
        assert!(samples.all.iter().all(|sample| sample.links.len() == LINKS_MAX));
        for _ in 0..3_000 {
            samples.keep(Duration::from_secs(1_000), &history);
        }
        assert_eq!(samples.all.len(), COUNT_MAX);
    }

    #[test]
    fn the_page_gets_what_it_has_not_seen_and_gaps_while_there_is_no_answer() {
        let mut samples = Samples::default();
        let mut history = History::new(Duration::from_millis(200));
        let client = ClientStatus { uplinks: vec![uplink("a")], ..ClientStatus::default() };
        history.take(Instant::now(), status_of(client));
        samples.keep(Duration::from_millis(5), &history);
        history.miss(Instant::now(), "gone".to_owned());
        samples.keep(Duration::from_millis(205), &history);
        let rows = |after| serde_json::to_string(&samples.after(after)).expect("JSON");
        let first = r#"[1,5,null,null,[[0,0,0,null,0,false]]]"#;
        let second = "[2,205,null,null,[]]";
        assert_eq!(rows(0), format!(r#"{{"names":["a"],"rows":[{first},{second}]}}"#));
        assert_eq!(rows(1), format!(r#"{{"names":[],"rows":[{second}]}}"#));
        assert_eq!(rows(2), r#"{"names":[],"rows":[]}"#);
    }
}
