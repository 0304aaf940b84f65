//! Samples of the client's counters during a run, and the resulting time line.
//!
//! Counters are read a few times per second; between two readings they are assumed to grow evenly.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_lab::figures::Timeline;
use roadweave_lab::video::quality::{Player, StreamLog};
use roadweave_proto::Instant;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub struct StatusSample {
    pub at: Instant,
    paths: BTreeMap<u64, (String, u64)>,
    repairs: u64,
    inner_bytes: u64,
    datagram_bytes: u64,
}

impl StatusSample {
    pub fn parse(at: Instant, status: &Value) -> Option<Self> {
        let session = status["sessions"].as_array()?.first()?;
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let mut paths = BTreeMap::new();
        for path in session["paths"].as_array()? {
            let uplink = path["uplink"].as_str().unwrap_or_default().to_owned();
            let bytes = count(&path["counters"]["bytes_sent"]);
            paths.insert(path["id"].as_u64()?, (uplink, bytes));
        }
        let mut sample = Self { at, paths, repairs: 0, inner_bytes: 0, datagram_bytes: 0 };
        for lane in session["lanes"].as_array()? {
            let sent = |name: &str| count(&lane["sent"][name]);
            sample.repairs += sent("coded_datagrams") + sent("duplicate_datagrams");
            sample.inner_bytes += sent("sent_bytes");
            sample.datagram_bytes +=
                sent("source_bytes") + sent("coded_bytes") + sent("duplicate_bytes");
        }
        Some(sample)
    }
}

/// (bytes of datagrams - bytes of distinct inner packets) / bytes of distinct inner packets,
/// between the first and the last sample.
pub fn redundancy(samples: &[StatusSample]) -> f64 {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return 0.0 };
    let inner = last.inner_bytes.saturating_sub(first.inner_bytes);
    let datagrams = last.datagram_bytes.saturating_sub(first.datagram_bytes);
    if inner == 0 { 0.0 } else { datagrams as f64 / inner as f64 - 1.0 }
}

/// The rates of `uplinks` and the repairs in each step of `duration` from `start`. The client does
/// not count missing packets: [`count_missing`] adds them.
pub fn timeline<'a>(
    samples: &[StatusSample],
    uplinks: impl Iterator<Item = &'a str>,
    start: Instant,
    duration: Duration,
) -> Timeline {
    let steps = duration.as_millis().div_ceil(Timeline::STEP.as_millis());
    let steps = u32::try_from(steps).unwrap_or(u32::MAX);
    let in_steps = |curve: &[(Instant, f64)]| -> Vec<f64> {
        let at = |step: u32| value_at(curve, start + Timeline::STEP * step);
        (0..steps).map(|step| at(step + 1) - at(step)).collect()
    };
    let mbps = 8.0 / 1e6 / Timeline::STEP.as_secs_f64();
    let of_uplink = |name: &str| {
        let rates = in_steps(&curve(samples, |new, old| bytes_over(name, new, old)));
        (name.to_owned(), rates.into_iter().map(|bytes| bytes * mbps).collect())
    };
    let repairs = in_steps(&curve(samples, |new, old| new.repairs.saturating_sub(old.repairs)));
    Timeline {
        uplinks: uplinks.map(of_uplink).collect(),
        missing: vec![0; steps as usize],
        repairs: repairs.into_iter().map(|count| count.round() as u32).collect(),
        ..Timeline::default()
    }
}

pub fn count_missing(
    log: &StreamLog,
    arrivals: &[Option<Instant>],
    player: &Player,
    start: Instant,
    timeline: &mut Timeline,
) {
    for (sent, arrival) in log.packets.iter().zip(arrivals) {
        let in_time = arrival.is_some_and(|arrival| arrival - *sent <= player.deadline);
        let step = (*sent - start).as_nanos() / Timeline::STEP.as_nanos();
        let count = usize::try_from(step).ok().and_then(|step| timeline.missing.get_mut(step));
        if let Some(count) = count.filter(|_| !in_time) {
            *count += 1;
        }
    }
}

fn bytes_over(uplink: &str, new: &StatusSample, old: &StatusSample) -> u64 {
    let of_path = |(id, (_, bytes)): (&u64, &(String, u64))| {
        let before = old.paths.get(id).map_or(0, |(_, bytes)| *bytes);
        bytes.saturating_sub(before)
    };
    new.paths.iter().filter(|(_, (name, _))| name == uplink).map(of_path).sum()
}

fn curve(
    samples: &[StatusSample],
    growth: impl Fn(&StatusSample, &StatusSample) -> u64,
) -> Vec<(Instant, f64)> {
    let mut sum = 0;
    let mut points: Vec<_> = samples.first().map(|first| (first.at, 0.0)).into_iter().collect();
    for pair in samples.windows(2) {
        sum += growth(&pair[1], &pair[0]);
        points.push((pair[1].at, sum as f64));
    }
    points
}

fn value_at(curve: &[(Instant, f64)], at: Instant) -> f64 {
    let after = curve.partition_point(|(moment, _)| *moment <= at);
    match (after.checked_sub(1).map(|before| curve[before]), curve.get(after).copied()) {
        (None, None) => 0.0,
        (None, Some((_, value))) | (Some((_, value)), None) => value,
        (Some((from, low)), Some((to, high))) => {
            let share = at.since(from).as_secs_f64() / to.since(from).as_secs_f64();
            low + (high - low) * share
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(paths: &[(u64, &str, u64)], coded: u64, source_bytes: u64) -> Value {
        let path = |(id, uplink, bytes): &(u64, &str, u64)| json!({"id": id, "uplink": uplink, "status": "usable", "counters": {"bytes_sent": bytes}});
        let sent = json!({"sent_bytes": 1_000, "source_bytes": source_bytes, "coded_bytes": 0,
            "duplicate_bytes": 0, "coded_datagrams": coded, "duplicate_datagrams": 0});
        let paths: Vec<_> = paths.iter().map(path).collect();
        json!({"sessions": [{"paths": paths, "lanes": [{"sent": sent}]}]})
    }

    #[test]
    fn counters_become_rates_in_even_steps() {
        let at = |millis, status: &Value| {
            StatusSample::parse(Instant::from_millis(millis), status).unwrap()
        };
        let samples = [
            at(1_000, &status(&[(0, "att", 500)], 0, 0)),
            // 150 ms later: 1,500 bytes; then another path replaces it on the same uplink.
            at(1_150, &status(&[(0, "att", 2_000)], 3, 0)),
            at(1_200, &status(&[(7, "att", 250), (8, "lte", 100)], 3, 0)),
        ];
        let uplinks = ["att", "lte"].into_iter();
        let line =
            timeline(&samples, uplinks, Instant::from_millis(1_000), Duration::from_millis(300));
        let near = |rates: &[f64], expected: [f64; 3]| {
            rates.iter().zip(expected).for_each(|(rate, expected)| {
                assert!((rate * 1e6 / 80.0 - expected).abs() < 1e-6, "{rates:?}");
            });
        };
        near(&line.uplinks[0].1, [1_000.0, 750.0, 0.0]);
        near(&line.uplinks[1].1, [0.0, 100.0, 0.0]);
        assert_eq!((line.repairs, line.missing), (vec![2, 1, 0], vec![0; 3]));
    }

    #[test]
    fn redundancy_is_what_was_sent_beyond_the_inner_packets() {
        let mut first = StatusSample::parse(Instant::ZERO, &status(&[], 0, 500)).unwrap();
        first.inner_bytes = 0;
        let last = StatusSample::parse(Instant::ZERO, &status(&[], 0, 1_580)).unwrap();
        assert!((redundancy(&[first, last]) - 0.08).abs() < 1e-9);
        assert_eq!(redundancy(&[]), 0.0);
    }

    #[test]
    fn a_client_without_a_session_gives_no_sample() {
        for status in [json!({}), json!({"sessions": []}), json!({"sessions": [{}]})] {
            assert_eq!(StatusSample::parse(Instant::ZERO, &status), None);
        }
    }
}
