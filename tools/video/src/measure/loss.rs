//! A link that loses packets in bursts, and the key frames requested by its receiver.
//!
//! Bursts follow a chain of two states (Gilbert 1960): in one of them all packets are lost.

use std::time::Duration;

use crate::options::Recovery;

#[derive(Debug)]
pub struct Link {
    settings: Settings,
    random: u64,
    is_losing: bool,
    waits: bool,
    /// The frame that answers a request.
    asked: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub loss: f64,
    /// Mean length of a burst.
    pub burst: f64,
    /// Time from a loss to the frame that answers it: round trip, gap wait, and a frame's duration.
    pub answer: Duration,
    pub frame: Duration,
    pub recovery: Recovery,
    /// Seed of the pattern.
    pub seed: u64,
}

impl Link {
    pub fn new(settings: Settings) -> Self {
        let random = settings.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { settings, random, is_losing: false, waits: false, asked: None }
    }

    /// Whether frame `index` answers a request.
    pub fn is_asked(&self, index: usize) -> bool {
        self.asked == Some(index)
    }

    /// Sends frame `index` with the sizes of its units (NAL); returns which units reach the
    /// decoder.
    pub fn send(&mut self, index: usize, key: bool, units: &[usize]) -> Vec<bool> {
        let mut whole: Vec<bool> = Vec::with_capacity(units.len());
        for bytes in units {
            // Each packet draws a random number, so that the pattern does not depend on the
            // content.
            let lost = (0..bytes.div_ceil(PACKET_BYTES)).filter(|_| self.loses()).count();
            whole.push(lost == 0);
        }
        let is_damaged = whole.contains(&false);
        if self.asked.is_some_and(|asked| asked <= index) {
            self.asked = None;
        }
        if self.settings.recovery == Recovery::Refresh {
            return whole;
        }
        self.waits &= !key;
        if is_damaged {
            self.waits = true;
        }
        if is_damaged && self.asked.is_none() {
            let frames = self.settings.answer.as_secs_f64() / self.settings.frame.as_secs_f64();
            self.asked = Some(index + (frames.ceil() as usize).max(1));
        }
        vec![!self.waits; units.len()]
    }

    fn loses(&mut self) -> bool {
        let Settings { loss, burst, .. } = self.settings;
        let change = match self.is_losing {
            true => 1.0 / burst.max(1.0),
            false => loss / ((1.0 - loss) * burst.max(1.0)),
        };
        self.is_losing ^= self.random() < change;
        self.is_losing
    }

    fn random(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let bits = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        bits as f64 / (1_u64 << 53) as f64
    }
}

/// The units of a frame in Annex B of H.264, start codes included.
pub fn units(frame: &[u8]) -> Vec<std::ops::Range<usize>> {
    let is_start = |at: &usize| frame[*at..].starts_with(&[0, 0, 1]);
    // A start code may have an additional zero.
    let starts = (0..frame.len().saturating_sub(2))
        .filter(is_start)
        .map(|at| if at > 0 && frame[at - 1] == 0 { at - 1 } else { at });
    let mut starts: Vec<usize> = starts.collect();
    starts.push(frame.len());
    starts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// Payload of an RTP packet of 1,200 bytes.
const PACKET_BYTES: usize = 1169;

#[cfg(test)]
mod tests {
    use super::*;

    fn link(loss: f64, recovery: Recovery) -> Link {
        let ms = Duration::from_millis;
        let (answer, frame) = (ms(150), ms(33));
        Link::new(Settings { loss, burst: 4.0, answer, frame, recovery, seed: 1 })
    }

    #[test]
    fn packets_are_lost_at_their_rate_and_in_bursts() {
        let mut link = link(0.03, Recovery::Keyframe);
        let lost: Vec<bool> = (0..400_000).map(|_| link.loses()).collect();
        let count = lost.iter().filter(|it| **it).count();
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        assert!((0.027..0.033).contains(&(count as f64 / 400e3)), "{count}");
        assert!((3.6..4.4).contains(&(count as f64 / bursts as f64)), "{count} {bursts}");
    }

    #[test]
    fn nothing_is_shown_from_a_loss_to_the_key_frame_that_answers_it() {
        let mut link = link(0.0, Recovery::Keyframe);
        let (whole, nothing) = ([true, true], [false, false]);
        assert_eq!(link.send(0, true, &[100, 5000]), whole);
        link.is_losing = true;
        link.settings.burst = f64::INFINITY;
        assert_eq!(link.send(1, false, &[100, 5000]), nothing);
        (link.is_losing, link.settings.burst) = (false, 1.0);
        for index in 2..6 {
            assert!(!link.is_asked(index));
            assert_eq!(link.send(index, false, &[100, 5000]), nothing);
        }
        assert!(link.is_asked(6));
        assert_eq!(link.send(6, true, &[100, 5000]), whole);
        assert!(!link.is_asked(6) && !link.is_asked(7));
        assert_eq!(link.send(7, false, &[100, 5000]), whole);
    }

    #[test]
    fn with_refresh_whole_units_are_shown() {
        let mut link = link(0.5, Recovery::Refresh);
        let arrived = link.send(0, false, &[1169; 1000]);
        let lost = arrived.iter().filter(|it| !**it).count();
        assert!((300..700).contains(&lost));
        assert!((0..100).all(|index| !link.is_asked(index)));
    }

    #[test]
    fn units_begin_at_start_codes() {
        let frame = [0, 0, 0, 1, 9, 0xf0, 0, 0, 1, 0x65, 7, 0, 0, 0, 1, 0x65, 8];
        assert_eq!(units(&frame), [0..6, 6..11, 11..17]);
        assert!(units(&[]).is_empty() && units(&[0, 0]).is_empty());
    }
}
