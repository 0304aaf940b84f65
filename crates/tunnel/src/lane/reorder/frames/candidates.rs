//! Detects videos: an RTP source is accepted when its numbers ascend, as in `lane/flow/rtp.rs`.

use std::collections::VecDeque;

use super::Source;

const PROOF: u8 = 4;
const STEP_MAX: u16 = 16;
const WATCHED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Candidates {
    watched: VecDeque<CandidateSource>,
}

#[derive(Debug)]
struct CandidateSource {
    source: Source,
    sequence: u16,
    in_sequence: u8,
}

impl Candidates {
    pub(super) fn is_proven(&mut self, source: Source, sequence: u16) -> bool {
        let known = self.watched.iter().position(|candidate| candidate.source == source);
        let known = known.and_then(|at| self.watched.remove(at));
        let mut candidate = known.unwrap_or(CandidateSource { source, sequence, in_sequence: 0 });
        let step = sequence.wrapping_sub(candidate.sequence);
        match step {
            0 if candidate.in_sequence == 0 => candidate.in_sequence = 1,
            1..=STEP_MAX => {
                candidate.sequence = sequence;
                candidate.in_sequence += 1;
            }
            // It was overtaken.
            _ if step.wrapping_neg() <= STEP_MAX && step != 0 => {}
            _ => candidate = CandidateSource { source, sequence, in_sequence: 1 },
        }
        if candidate.in_sequence >= PROOF {
            return true;
        }
        self.watched.push_front(candidate);
        self.watched.truncate(WATCHED_MAX);
        false
    }

    pub(super) fn memory(&self) -> usize {
        self.watched.len() * size_of::<CandidateSource>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sequences: &[u16], expected: Option<usize>) {
        let mut candidates = Candidates::default();
        let source = (1, 2);
        let proven = sequences.iter().position(|number| candidates.is_proven(source, *number));
        assert_eq!(proven, expected, "{sequences:?}");
    }

    #[test]
    fn numbers_that_ascend_make_a_source() {
        check(&[65_534, 65_535, 0, 1], Some(3));
        check(&[1, 3, 2, 5, 4, 6], Some(5));
        check(&[1, 17, 33, 34], Some(3));
        check(&[7, 7, 7, 7, 7, 7], None);
        check(&[1, 2, 3, 20, 21, 22], None);
        check(&[1, 900, 17, 40_000, 3, 80], None);
    }

    #[test]
    fn those_that_were_heard_last_are_watched() {
        let mut candidates = Candidates::default();
        for number in 0..10_000_u32 {
            assert!(!candidates.is_proven((1, number), number as u16));
            assert!(candidates.watched.len() <= WATCHED_MAX);
        }
        assert!((0..2).all(|number| !candidates.is_proven((1, 9_999), 10_000 + number)));
        assert!(candidates.is_proven((1, 9_999), 10_002), "what is there is at the front");
    }
}
