//! A queue that is bounded in bytes.

use std::collections::VecDeque;

use bytes::Bytes;

/// What waits in a [`BoundedQueue`].
pub trait Waits {
    /// Its bytes, without the queue's overhead for each.
    fn bytes(&self) -> usize;
}

impl Waits for Bytes {
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// Oldest first; `OVERHEAD` bytes are added to those of each.
#[derive(Debug)]
pub struct BoundedQueue<T, const BYTES_MAX: usize, const OVERHEAD: usize> {
    waiting: VecDeque<T>,
    bytes: usize,
}

impl<T, const MAX: usize, const OVERHEAD: usize> Default for BoundedQueue<T, MAX, OVERHEAD> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), bytes: 0 }
    }
}

impl<T: Waits, const MAX: usize, const OVERHEAD: usize> BoundedQueue<T, MAX, OVERHEAD> {
    /// The most bytes that may wait.
    pub const BYTES_MAX: usize = MAX;
    /// The bytes that each costs beside its own.
    pub const OVERHEAD_BYTES: usize = OVERHEAD;

    /// Adds one; returns whether there was room.
    pub fn push(&mut self, one: T) -> bool {
        let bytes = one.bytes() + OVERHEAD;
        let has_room = self.bytes + bytes <= MAX;
        if has_room {
            self.bytes += bytes;
            self.waiting.push_back(one);
        }
        has_room
    }

    /// The oldest.
    pub fn pop(&mut self) -> Option<T> {
        let one = self.waiting.pop_front()?;
        self.bytes -= one.bytes() + OVERHEAD;
        Some(one)
    }

    pub(crate) fn shed(&mut self, bytes: usize) -> usize {
        let before = self.waiting.len();
        while self.bytes > bytes
            && let Some(one) = self.waiting.pop_back()
        {
            self.bytes -= one.bytes() + OVERHEAD;
        }
        before - self.waiting.len()
    }

    pub(crate) fn next_bytes(&self) -> Option<usize> {
        self.waiting.front().map(T::bytes)
    }

    pub(crate) fn memory(&self) -> usize {
        self.bytes
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leaves_first_and_makes_room_and_small_ones_are_bounded_too() {
        let mut queue = BoundedQueue::<Bytes, 3_200, 64>::default();
        let packet = |number: u8| Bytes::from(vec![number; 1_000]);
        let taken = (0..5).filter(|number| queue.push(packet(*number)));
        assert_eq!(taken.count(), 3);
        assert_eq!((queue.pop(), queue.push(packet(5))), (Some(packet(0)), true));
        assert_eq!(
            (queue.next_bytes(), queue.memory(), queue.shed(2_128)),
            (Some(1_000), 3_192, 1)
        );
        let rest: Vec<Bytes> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!((rest, queue.memory()), (vec![packet(1), packet(2)], 0));
        while queue.push(Bytes::new()) {}
        assert_eq!((queue.len(), queue.memory()), (50, 3_200));
    }
}
