//! A run of bytes that grows at its end and is taken from its front.
//!
//! Bytes are copied: slices of datagrams would fill memory far beyond the credit.

use std::collections::VecDeque;

/// Memory is at most four times the length, or [`SLACK`].
#[derive(Debug, Default)]
pub(crate) struct Ring(VecDeque<u8>);

pub(crate) const SLACK: usize = 512;

impl Ring {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    /// Writes bytes from `at` on; a gap before them is filled with zeros.
    pub(crate) fn write_at(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if at == self.0.len() {
            return self.push(bytes);
        }
        if end > self.0.len() {
            self.0.resize(end, 0);
        }
        let (front, back) = self.0.as_mut_slices();
        let in_front = front.len().saturating_sub(at).min(bytes.len());
        if in_front > 0 {
            front[at..at + in_front].copy_from_slice(&bytes[..in_front]);
        }
        if in_front < bytes.len() {
            let start = at + in_front - front.len();
            back[start..start + bytes.len() - in_front].copy_from_slice(&bytes[in_front..]);
        }
    }

    pub(crate) fn copy_to(&self, at: usize, length: usize, out: &mut Vec<u8>) {
        let (front, back) = self.0.as_slices();
        let in_front = front.len().saturating_sub(at).min(length);
        if in_front > 0 {
            out.extend_from_slice(&front[at..at + in_front]);
        }
        if in_front < length {
            let start = at + in_front - front.len();
            out.extend_from_slice(&back[start..start + length - in_front]);
        }
    }

    pub(crate) fn advance(&mut self, length: usize) {
        self.0.drain(..length.min(self.0.len()));
        if self.0.is_empty() {
            self.0 = VecDeque::new();
        } else if self.0.capacity() > SLACK.max(4 * self.0.len()) {
            self.0.shrink_to(2 * self.0.len());
        }
    }

    pub(crate) fn front(&self, length: usize) -> [&[u8]; 2] {
        let (front, back) = self.0.as_slices();
        let in_front = front.len().min(length);
        [&front[..in_front], &back[..back.len().min(length - in_front)]]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_ring_is_a_run_of_bytes(
            steps in prop::collection::vec((0..3_u8, 0..3000_usize, 0..2000_usize), 0..40),
        ) {
            let (mut ring, mut model) = (Ring::default(), Vec::<u8>::new());
            for (number, (what, at, length)) in steps.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..length).map(|place| (place * 7 + number) as u8).collect();
                match what {
                    0 if length > 0 => {
                        ring.write_at(at, &bytes);
                        model.resize(model.len().max(at + length), 0);
                        model[at..at + length].copy_from_slice(&bytes);
                    }
                    1 => {
                        let length = length.min(model.len());
                        prop_assert_eq!(ring.front(length).concat(), &model[..length]);
                        ring.advance(length);
                        model.drain(..length);
                    }
                    _ => {
                        ring.push(&bytes);
                        model.extend(&bytes);
                    }
                }
                prop_assert_eq!(ring.len(), model.len());
                prop_assert!(ring.capacity() <= SLACK.max(4 * model.len()), "{}", ring.capacity());
                let at = at.min(model.len());
                let mut out = Vec::new();
                ring.copy_to(at, length.min(model.len() - at), &mut out);
                prop_assert_eq!(&out[..], &model[at..at + out.len()]);
            }
        }
    }
}
