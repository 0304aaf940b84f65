//! How late this side reads packets.

use std::time::Duration;

use roadweave_proto::Instant;

/// How long packets wait until they are handed over: an answer may wait as long. The effect of a
/// packet fades with the next ones, and on a used connection ends after [`FRESH`]: otherwise one
/// late packet would delay the suspicion of dead paths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadDelay {
    time: Duration,
    over: Instant,
}

impl ReadDelay {
    pub(crate) fn note(&mut self, now: Instant, time: Duration) {
        let time = time.min(READ_DELAY_MAX).max(self.time(now) / 2);
        // The threshold of suspicion allows for a usual delay.
        self.time = if time > SUSPICION_MIN { time } else { Duration::ZERO };
        self.over = Instant::FAR_FUTURE;
    }

    pub(crate) fn on_used(&mut self, now: Instant) {
        self.over = self.over.min(now + FRESH);
    }

    pub(crate) fn time(&self, now: Instant) -> Duration {
        if now < self.over { self.time } else { Duration::ZERO }
    }

    pub(crate) fn put_off(&self, at: Instant) -> Instant {
        (at + self.time).min(self.over.max(at))
    }
}

/// No path is suspect sooner: a system under load is late by as much.
pub(crate) const SUSPICION_MIN: Duration = Duration::from_millis(30);
const READ_DELAY_MAX: Duration = Duration::from_secs(3);
/// Longer than packets that measure the paths of a used connection are apart.
const FRESH: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn what_is_put_off_is_due_then_and_not_before() {
        let (mut read_delay, noted) = (ReadDelay::default(), Instant::from_millis(10_000));
        assert_eq!(read_delay.put_off(noted), noted);
        for time in [ms(200), ms(900)] {
            read_delay.note(noted, time);
            for used in [false, true] {
                if used {
                    read_delay.on_used(noted);
                }
                for at in [0, 1, 200, 299, 300, 499, 500, 501, 900, 2_000].map(ms) {
                    let at = noted + at;
                    let due = read_delay.put_off(at);
                    let is_due = |now: Instant| now - read_delay.time(now) >= at;
                    let before = Instant::from_nanos(due.as_nanos() - 1);
                    assert!(is_due(due) && !is_due(before), "{time:?} {used} {at}: {due}");
                }
            }
        }
    }

    #[test]
    fn it_decays_with_packets_and_soon_ends_on_a_used_path() {
        let (mut read_delay, now) = (ReadDelay::default(), Instant::from_millis(10_000));
        read_delay.note(now, ms(30));
        assert_eq!(read_delay.time(now), ms(0), "what is usual");
        read_delay.note(now, ms(9_000));
        assert_eq!(read_delay.time(now + ms(60_000)), ms(3_000));
        read_delay.note(now + ms(1_000), ms(0));
        read_delay.on_used(now + ms(2_000));
        read_delay.on_used(now + ms(2_400));
        let later = [2_000, 2_499, 2_500, 60_000].map(|it| read_delay.time(now + ms(it)));
        assert_eq!(later, [1_500, 1_500, 0, 0].map(ms));
        read_delay.note(now + ms(2_500), ms(40));
        assert_eq!(read_delay.time(now + ms(2_500)), ms(40), "nothing is left of what is over");
    }
}
