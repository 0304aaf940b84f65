//! Limits the log of a repeated failure to once a minute.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::Instant;

const REMINDER: Duration = Duration::from_secs(60);
const SUBJECTS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct RepeatLimiter {
    said: BTreeMap<(u32, String), Instant>,
}

impl RepeatLimiter {
    pub(crate) fn admit(&mut self, now: Instant, subject: u32, text: &str) -> bool {
        self.said.retain(|_, at| now.since(*at) < REMINDER);
        let key = (subject, text.to_owned());
        if self.said.contains_key(&key) || self.said.len() >= SUBJECTS_MAX {
            return false;
        }
        self.said.insert(key, now);
        true
    }

    pub(crate) fn settle(&mut self, subject: u32) {
        self.said.retain(|(of, _), _| *of != subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_is_said_once_a_minute_and_memory_is_bounded() {
        let mut repeat_limiter = RepeatLimiter::default();
        let at = |seconds: u64| Instant::from_millis(seconds * 1_000);
        assert!(repeat_limiter.admit(at(0), 1, "full"));
        assert!(!repeat_limiter.admit(at(59), 1, "full"));
        assert!(repeat_limiter.admit(at(59), 2, "full"), "another subject");
        assert!(repeat_limiter.admit(at(59), 1, "gone"), "another failure");
        assert!(repeat_limiter.admit(at(60), 1, "full"));
        repeat_limiter.settle(1);
        assert!(repeat_limiter.admit(at(61), 1, "full"));
        for subject in 10..1_000 {
            repeat_limiter.admit(at(62), subject, "full");
        }
        assert!(repeat_limiter.said.len() <= SUBJECTS_MAX);
    }
}
