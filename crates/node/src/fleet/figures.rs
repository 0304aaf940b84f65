//! Figures of sessions for the controller, as differences to the last report.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_fleet::Sample;
use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use roadweave_tunnel::SessionFigures;

/// Samples of one message: each has at most 360 bytes, as names are cut and cleaned.
const AT_ONCE: usize = 180;
const NAME_MAX: usize = 24;

#[derive(Debug, Default)]
pub(super) struct FigureSampler {
    at: Option<Instant>,
    counted: BTreeMap<(PublicKey, Option<String>), (u64, u64)>,
    processor: Duration,
}

impl FigureSampler {
    /// Returns portions for one message each. The first call only sets the base.
    pub(super) fn samples(
        &mut self,
        now: Instant,
        (count, sessions): (u32, &[SessionFigures]),
        processor: Duration,
    ) -> Vec<Vec<Sample>> {
        let before = self.at.replace(now);
        let used = processor.saturating_sub(std::mem::replace(&mut self.processor, processor));
        let counted = std::mem::take(&mut self.counted);
        let Some(over) = before.map(|before| now.since(before)) else {
            sessions.iter().for_each(|session| _ = self.count(&counted, session));
            return Vec::new();
        };
        let over_ms = u32::try_from(over.as_millis()).unwrap_or(u32::MAX);
        let load = used.as_micros() * 1_000 / over.as_micros().max(1);
        let (mut samples, mut all) = (Vec::new(), (0_u64, 0_u64));
        for session in sessions {
            for (path, (up_bytes, down_bytes)) in
                session.paths.iter().zip(self.count(&counted, session))
            {
                all = (all.0.saturating_add(up_bytes), all.1.saturating_add(down_bytes));
                samples.push(Sample {
                    device: Some(session.key),
                    uplink: path.uplink.as_deref().map(sanitized),
                    over_ms,
                    rtt_us: u32::try_from((path.smoothed_rtt_ms * 1e6).round() as u64 / 1_000).ok(),
                    loss_ppm: Some((path.loss.clamp(0.0, 1.0) * 1e6) as u32),
                    up_bytes,
                    down_bytes,
                    load: None,
                    sessions: None,
                });
            }
        }
        samples.push(Sample {
            device: None,
            uplink: None,
            over_ms,
            rtt_us: None,
            loss_ppm: None,
            up_bytes: all.0,
            down_bytes: all.1,
            load: u16::try_from(load).ok().or(Some(u16::MAX)),
            sessions: Some(count),
        });
        samples.chunks(AT_ONCE).map(<[Sample]>::to_vec).collect()
    }

    fn count(
        &mut self,
        counted: &BTreeMap<(PublicKey, Option<String>), (u64, u64)>,
        session: &SessionFigures,
    ) -> Vec<(u64, u64)> {
        let mut since = Vec::new();
        for path in &session.paths {
            let key = (session.key, path.uplink.clone());
            let [down, up] = path.counters.bytes();
            let before = counted.get(&key).copied().unwrap_or_default();
            let passed = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
            since.push((passed(up, before.0), passed(down, before.1)));
            self.counted.insert(key, (up, down));
        }
        since
    }
}

/// The name of an uplink, chosen by a box, without characters that JSON escapes with six bytes.
fn sanitized(name: &str) -> String {
    let is_odd = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    name.chars().take(NAME_MAX).map(|c| if is_odd(c) { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;
    use roadweave_tunnel::PathStatusReport;

    use super::*;

    fn session(seed: u8, up: u64, down: u64) -> SessionFigures {
        let mut path = PathStatusReport {
            uplink: Some("lte".into()),
            smoothed_rtt_ms: 40.0,
            loss: 0.01,
            ..PathStatusReport::default()
        };
        (path.counters.bytes_received, path.counters.bytes_sent) = (up, down);
        SessionFigures { key: Identity::from_seed([seed; 32]).public_key(), paths: vec![path] }
    }

    #[test]
    fn a_sample_has_what_has_passed_since_the_last() {
        let mut figures = FigureSampler::default();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        assert_eq!(figures.samples(at(0), (1, &[session(1, 1_000, 500)]), Duration::ZERO), [[]; 0]);
        let processor = Duration::from_secs(2);
        let samples = figures.samples(at(10), (7, &[session(1, 1_700, 600)]), processor).concat();
        assert_eq!(samples.len(), 2);
        let (path, all) = (&samples[0], &samples[1]);
        assert_eq!((path.up_bytes, path.down_bytes, path.over_ms), (700, 100, 10_000));
        assert_eq!((path.rtt_us, path.loss_ppm), (Some(40_000), Some(10_000)));
        assert_eq!((all.device, all.up_bytes, all.load), (None, 700, Some(200)));
        assert_eq!((all.sessions, path.sessions), (Some(7), None));
        let samples = figures.samples(at(20), (7, &[session(1, 30, 20)]), processor).concat();
        assert_eq!((samples[0].up_bytes, samples[0].down_bytes), (30, 20));
    }

    #[test]
    fn a_box_cannot_make_messages_too_large_by_the_names_of_its_uplinks() {
        let of = |name: &str, bytes| {
            let named = |at: u8| {
                let mut it = session(at, bytes, bytes);
                it.paths[0].uplink = Some(name.repeat(256 / name.len()));
                it.paths[0].smoothed_rtt_ms = 4e6;
                it.paths[0].loss = 1.0;
                it
            };
            (0..180).map(named).collect::<Vec<_>>()
        };
        for name in ["\u{1}", "\"", "\\", "\u{2028}", "\u{10ffff}", "\u{7f}"] {
            assert!(fits(&of(name, 0), &of(name, u64::MAX)) > 40_000, "{name:?}");
        }
    }

    fn fits(before: &[SessionFigures], after: &[SessionFigures]) -> usize {
        let mut figures = FigureSampler::default();
        figures.samples(Instant::ZERO, (0, before), Duration::ZERO);
        let portions =
            figures.samples(Instant::from_millis(4_000_000_000), (u32::MAX, after), Duration::ZERO);
        let length = |samples: Vec<Sample>| {
            let frame = roadweave_fleet::Up::Samples { samples };
            roadweave_fleet::encode(&frame).expect("it fits").len()
        };
        portions.into_iter().map(length).max().unwrap_or_default()
    }
}
