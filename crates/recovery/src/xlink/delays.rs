//! How long recent packets took until they were acknowledged.

use std::time::Duration;

use roadweave_proto::Instant;

/// Of the last one or two times [`HALF`].
#[derive(Debug, Default)]
pub(super) struct RecentDelays {
    began: Option<Instant>,
    now: Counts,
    before: Counts,
}

/// Packets by delay, in steps of [`STEP`]; the last step has all longer ones.
#[derive(Debug)]
struct Counts {
    packets: u64,
    by_step: Box<[u32]>,
}

impl Default for Counts {
    fn default() -> Self {
        Self { packets: 0, by_step: vec![0; STEPS].into_boxed_slice() }
    }
}

impl RecentDelays {
    /// `delay`: from the first transmission to the acknowledgement.
    pub(super) fn note(&mut self, now: Instant, delay: Duration) {
        if self.began.is_none_or(|began| now >= began + HALF) {
            self.before = std::mem::take(&mut self.now);
            self.began = Some(now);
        }
        let step = (delay.as_nanos() / STEP.as_nanos()).min(STEPS as u128 - 1) as usize;
        self.now.packets += 1;
        self.now.by_step[step] = self.now.by_step[step].saturating_add(1);
    }

    /// The shortest delay, to a step, that at most `percent` of the packets exceed.
    pub(super) fn exceeded_by(&self, percent: u8) -> Option<Duration> {
        let packets = self.now.packets + self.before.packets;
        if packets < PACKETS_MIN {
            return None;
        }
        let may_exceed = packets * u64::from(percent) / 100;
        let mut beyond = 0;
        for step in (0..STEPS).rev() {
            beyond += u64::from(self.now.by_step[step]) + u64::from(self.before.by_step[step]);
            if beyond > may_exceed {
                return Some(STEP * (step as u32 + 1));
            }
        }
        Some(Duration::ZERO)
    }
}

const HALF: Duration = Duration::from_secs(15);
const STEP: Duration = Duration::from_millis(1);
const STEPS: usize = 2048;
/// Fewer say nothing of the distribution.
const PACKETS_MIN: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_last_half_minute() {
        let mut delays = RecentDelays::default();
        let at = Instant::from_millis;
        let ms = Duration::from_millis;
        (1..100).for_each(|delay| delays.note(at(0), ms(delay)));
        assert_eq!(delays.exceeded_by(5), None, "99 are too few");
        delays.note(at(0), ms(100));
        let percentiles =
            |delays: &RecentDelays| [5, 20, 99].map(|share| delays.exceeded_by(share));
        // Those above 95 ms, 80 ms and 1 ms; each counts as the end of its step.
        assert_eq!(percentiles(&delays), [96, 81, 2].map(|delay| Some(ms(delay))));
        (0..100).for_each(|_| delays.note(at(15_000), ms(500)));
        assert_eq!(percentiles(&delays), [501, 501, 3].map(|delay| Some(ms(delay))));
        (0..100).for_each(|_| delays.note(at(30_000), Duration::MAX));
        assert_eq!(delays.exceeded_by(50), Some(ms(501)), "the first hundred are forgotten");
        assert_eq!(delays.exceeded_by(49), Some(ms(2048)));
    }
}
