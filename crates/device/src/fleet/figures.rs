//! Figures of sessions for the controller: what has passed since the last time.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_fleet::Sample;
use roadweave_identity::PublicKey;
use roadweave_tunnel::SessionFigures;
use roadweave_types::Instant;

/// Samples in one message: each has 300 bytes at most.
const AT_ONCE: usize = 180;

/// What was counted last, so that samples tell what has passed since.
#[derive(Debug, Default)]
pub(super) struct Figures {
    at: Option<Instant>,
    counted: BTreeMap<(PublicKey, Option<String>), (u64, u64)>,
    processor: Duration,
}

impl Figures {
    /// Samples of `sessions`, in portions for one message each, and of the whole program, which has
    /// used the `processor` for so long so far. The first call only begins to count.
    pub(super) fn samples(
        &mut self,
        now: Instant,
        sessions: &[SessionFigures],
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
        let (mut samples, mut all) = (Vec::new(), (0, 0));
        for session in sessions {
            for (path, (up_bytes, down_bytes)) in
                session.paths.iter().zip(self.count(&counted, session))
            {
                all = (all.0 + up_bytes, all.1 + down_bytes);
                samples.push(Sample {
                    device: Some(session.key),
                    uplink: path.uplink.clone(),
                    over_ms,
                    rtt_us: u32::try_from(path.smoothed_rtt.as_micros()).ok(),
                    loss_ppm: Some((path.loss.clamp(0.0, 1.0) * 1e6) as u32),
                    up_bytes,
                    down_bytes,
                    load: None,
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
        });
        samples.chunks(AT_ONCE).map(<[Sample]>::to_vec).collect()
    }

    /// What each path of `session` has carried since, up and down.
    fn count(
        &mut self,
        counted: &BTreeMap<(PublicKey, Option<String>), (u64, u64)>,
        session: &SessionFigures,
    ) -> Vec<(u64, u64)> {
        let mut since = Vec::new();
        for path in &session.paths {
            let key = (session.key, path.uplink.clone());
            let (up, down) = (path.bytes_received, path.bytes_sent);
            let before = counted.get(&key).copied().unwrap_or_default();
            // A path that is new counts from zero.
            let passed = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
            since.push((passed(up, before.0), passed(down, before.1)));
            self.counted.insert(key, (up, down));
        }
        since
    }
}

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;
    use roadweave_tunnel::PathFigures;

    use super::*;

    fn session(seed: u8, up: u64, down: u64) -> SessionFigures {
        let path = PathFigures {
            uplink: Some("lte".into()),
            smoothed_rtt: Duration::from_millis(40),
            loss: 0.01,
            bytes_received: up,
            bytes_sent: down,
        };
        SessionFigures { key: Identity::from_seed([seed; 32]).public_key(), paths: vec![path] }
    }

    #[test]
    fn a_sample_tells_what_has_passed_since_the_last() {
        let mut figures = Figures::default();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        assert_eq!(figures.samples(at(0), &[session(1, 1_000, 500)], Duration::ZERO), [[]; 0]);
        let samples =
            figures.samples(at(10), &[session(1, 1_700, 600)], Duration::from_secs(2)).concat();
        assert_eq!(samples.len(), 2);
        let (path, all) = (&samples[0], &samples[1]);
        assert_eq!((path.up_bytes, path.down_bytes, path.over_ms), (700, 100, 10_000));
        assert_eq!((path.rtt_us, path.loss_ppm), (Some(40_000), Some(10_000)));
        assert_eq!((all.device, all.up_bytes, all.load), (None, 700, Some(200)));
        // Another session of the same box begins anew.
        let samples =
            figures.samples(at(20), &[session(1, 30, 20)], Duration::from_secs(2)).concat();
        assert_eq!((samples[0].up_bytes, samples[0].down_bytes), (30, 20));
    }

    #[test]
    fn thousands_of_sessions_fit_messages() {
        let mut figures = Figures::default();
        let sessions: Vec<_> = (0..200).map(|seed| session(seed, u64::MAX, u64::MAX)).collect();
        figures.samples(Instant::ZERO, &sessions, Duration::ZERO);
        for samples in figures.samples(Instant::from_millis(10_000), &sessions, Duration::ZERO) {
            let frame = roadweave_fleet::Up::Samples { samples };
            assert!(roadweave_fleet::encode(&frame).is_ok());
        }
    }
}
