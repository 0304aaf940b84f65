//! Events that change a trace.

use std::collections::BTreeSet;
use std::time::Duration;

use roadweave_emulate::{AtEnd, Capacity, DuplexLink, Opportunities, Timeline, Trace};
use roadweave_proto::Rate;

use super::{Action, ScriptEvent};

/// Writes the delay and capacity events of `events` into the traces of `links`.
///
/// A changed trace is written out for all of `length` and then holds its last value. The default
/// queue of a link is that of its trace without events.
pub fn apply_to_traces(links: &mut [DuplexLink], events: &[ScriptEvent], length: Duration) {
    for (index, link) in links.iter_mut().enumerate() {
        let mut own: Vec<&ScriptEvent> =
            events.iter().filter(|event| event.link == index).collect();
        own.sort_by_key(|event| event.at);
        for settings in [&mut link.up, &mut link.down] {
            settings.trace = changed(&settings.trace, &own, length);
        }
    }
}

fn changed(trace: &Trace, events: &[&ScriptEvent], length: Duration) -> Trace {
    let mut trace = trace.clone();
    let extra: Vec<(Duration, Duration)> = events
        .iter()
        .filter_map(|event| match event.action {
            Action::Delay(extra) => Some((event.at, extra)),
            _ => None,
        })
        .collect();
    if !extra.is_empty() {
        let delay = combined(trace.delay(), &extra, Duration::ZERO, length, |delay, extra| {
            delay.saturating_add(extra)
        });
        trace = trace.with_delay(delay);
    }
    let factors: Vec<(Duration, f64)> = events
        .iter()
        .filter_map(|event| match event.action {
            Action::Capacity(factor) => Some((event.at, factor)),
            _ => None,
        })
        .collect();
    if !factors.is_empty() {
        let capacity = scaled(trace.capacity(), &factors, length);
        trace = trace.with_capacity(capacity);
    }
    trace
}

fn scaled(capacity: &Capacity, factors: &[(Duration, f64)], length: Duration) -> Capacity {
    match capacity {
        Capacity::Rates(rates) => {
            Capacity::Rates(combined(rates, factors, 1.0, length, |rate, factor| {
                Rate::from_bps((rate.as_bps() as f64 * factor).round() as u64)
            }))
        }
        Capacity::Opportunities(opportunities) => {
            let scale = |(at, bytes): (Duration, u64)| {
                (at, (bytes as f64 * value_at(factors, 1.0, at)).round() as u64)
            };
            let slots = opportunities.until(length).map(scale);
            Opportunities::with_bytes(slots, length)
                .map_or_else(|| capacity.clone(), Capacity::Opportunities)
        }
    }
}

/// The timeline of `combine(value, change)`: `before`, then `changes`, which ascend by time.
fn combined<V: Copy + PartialEq, C: Copy>(
    timeline: &Timeline<V>,
    changes: &[(Duration, C)],
    before: C,
    length: Duration,
    combine: impl Fn(V, C) -> V,
) -> Timeline<V> {
    let mut times: BTreeSet<Duration> = changes.iter().map(|(at, _)| *at).collect();
    let mut at = Duration::ZERO;
    'passes: loop {
        let begin = at;
        for (lasting, _) in timeline.iter() {
            times.insert(at);
            at = at.saturating_add(lasting);
            if at >= length {
                break 'passes;
            }
        }
        debug_assert!(at > begin, "a pass takes time");
    }
    let mut steps: Vec<(Duration, V)> = Vec::new();
    for at in times.into_iter().filter(|at| *at < length) {
        let value = combine(timeline.at(at), value_at(changes, before, at));
        if steps.last().is_none_or(|(_, last)| *last != value) {
            steps.push((at, value));
        }
    }
    Timeline::new(steps, length, AtEnd::Hold).expect("steps ascend from zero, all before the end")
}

fn value_at<C: Copy>(changes: &[(Duration, C)], before: C, at: Duration) -> C {
    let known = changes.partition_point(|(from, _)| *from <= at);
    known.checked_sub(1).map_or(before, |index| changes[index].1)
}

#[cfg(test)]
mod tests {
    use roadweave_emulate::LinkSettings;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn apply(trace: Trace, events: &[(u32, Action)]) -> Trace {
        let settings = LinkSettings::new(trace, 1);
        let link = DuplexLink { name: "a".into(), up: settings.clone(), down: settings };
        let events: Vec<ScriptEvent> = events
            .iter()
            .map(|&(at, action)| ScriptEvent { at: S * at, link: 0, action })
            .collect();
        let mut links = [link];
        apply_to_traces(&mut links, &events, S * 10);
        links[0].up.trace.clone()
    }

    #[test]
    fn a_delay_jump_adds_to_a_trace_that_repeats() {
        let ms = Duration::from_millis;
        let delay =
            Timeline::new([(Duration::ZERO, ms(10)), (S, ms(20))], S * 2, AtEnd::Repeat).unwrap();
        let trace = Trace::constant(Rate::from_kbps(8), ms(1)).with_delay(delay);
        let changed = apply(trace, &[(6, Action::Delay(ms(0))), (3, Action::Delay(ms(100)))]);
        let at = |millis| changed.delay().at(ms(millis)).as_millis();
        assert_eq!(
            [at(2_999), at(3_000), at(4_000), at(5_999), at(6_000)],
            [10, 120, 110, 120, 10]
        );
        assert_eq!(changed.delay().at(S * 50), ms(20), "the last value stays");
    }

    #[test]
    fn capacity_scales_rates_and_opportunities() {
        let rates = Trace::constant(Rate::from_kbps(1_000), S);
        let changed =
            apply(rates.clone(), &[(4, Action::Capacity(0.25)), (5, Action::Capacity(2.0))]);
        let Capacity::Rates(rates) = &**changed.capacity() else { panic!("rates stay rates") };
        let at = |second: u32| rates.at(S * second).as_bps();
        assert_eq!([at(3), at(4), at(5), at(99)], [1_000_000, 250_000, 2_000_000, 2_000_000]);

        let every = (1..=100_u32).map(|at| S * at / 100);
        let mahimahi =
            changed.with_capacity(Capacity::Opportunities(Opportunities::new(every).unwrap()));
        let changed = apply(mahimahi, &[(4, Action::Capacity(0.25))]);
        let Capacity::Opportunities(kept) = &**changed.capacity() else { panic!("as before") };
        let count = |from: u32, to: u32| {
            let within = kept.iter().filter(|(at, _)| *at > S * from && *at <= S * to);
            within.map(|(_, bytes)| bytes).sum::<u64>()
        };
        assert_eq!((count(0, 4), count(4, 8)), (598_875, 150_000));
    }

    #[test]
    fn links_without_such_events_keep_their_traces() {
        let trace = Trace::constant(Rate::from_kbps(8), S);
        assert_eq!(apply(trace.clone(), &[(1, Action::Down), (2, Action::Up)]), trace);
    }
}
