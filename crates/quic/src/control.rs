//! Whole messages on the control stream.
//!
//! ```text
//! stream | length: u16, big endian | message | length | message | ...
//! ```
//!
//! Each side opens one unidirectional stream and never closes it. A length above [`MESSAGE_MAX`] ends the
//! connection, so that a peer cannot make this side hold more than that.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::MESSAGE_MAX;
use crate::event::MessageError;

/// Messages that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// Written up to a byte, in frames.
    queue: VecDeque<Bytes>,
    bytes: usize,
}

impl Sender {
    pub(crate) fn push(&mut self, message: &Bytes) -> Result<(), MessageError> {
        let length = u16::try_from(message.len()).map_err(|_| MessageError::TooLarge)?;
        if message.len() > MESSAGE_MAX {
            return Err(MessageError::TooLarge);
        }
        if self.bytes + message.len() > QUEUE_MAX {
            return Err(MessageError::Full);
        }
        let mut frame = BytesMut::with_capacity(2 + message.len());
        frame.put_u16(length);
        frame.put_slice(message);
        self.bytes += frame.len();
        self.queue.push_back(frame.freeze());
        Ok(())
    }

    /// Hands the oldest bytes to `write`, which tells how many it took, until it takes no more.
    pub(crate) fn drain(&mut self, mut write: impl FnMut(&[u8]) -> usize) {
        while let Some(front) = self.queue.front_mut() {
            let taken = write(front);
            self.bytes -= taken;
            front.advance(taken);
            if !front.is_empty() {
                return;
            }
            self.queue.pop_front();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Puts messages together again.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    buffer: BytesMut,
}

/// The peer announced a message longer than [`MESSAGE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Oversized;

impl Receiver {
    /// Adds what was read and returns the messages that are whole now.
    pub(crate) fn push(&mut self, data: &[u8], whole: &mut Vec<Bytes>) -> Result<(), Oversized> {
        self.buffer.extend_from_slice(data);
        while let Some(head) = self.buffer.first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(*head));
            if length > MESSAGE_MAX {
                return Err(Oversized);
            }
            if self.buffer.len() < 2 + length {
                break;
            }
            self.buffer.advance(2);
            whole.push(self.buffer.split_to(length).freeze());
        }
        Ok(())
    }
}

/// The most that waits to be written, bytes.
const QUEUE_MAX: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_messages_are_refused_on_both_sides() {
        let mut sender = Sender::default();
        let long = Bytes::from(vec![0; MESSAGE_MAX + 1]);
        assert_eq!(sender.push(&long), Err(MessageError::TooLarge));
        assert_eq!(sender.push(&Bytes::from(vec![0; 1 << 17])), Err(MessageError::TooLarge));
        assert_eq!(Receiver::default().push(&[0x40, 0x01], &mut Vec::new()), Err(Oversized));
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut sender = Sender::default();
        let message = Bytes::from(vec![0; MESSAGE_MAX]);
        let taken = (0..100).take_while(|_| sender.push(&message).is_ok()).count();
        assert_eq!(taken, QUEUE_MAX / MESSAGE_MAX - 1);
        assert_eq!(sender.push(&message), Err(MessageError::Full));
        sender.drain(<[u8]>::len);
        assert!(sender.is_empty());
        assert_eq!(sender.push(&message), Ok(()));
    }

    proptest! {
        #[test]
        fn messages_survive_any_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
            cuts in prop::collection::vec(1usize..100, 1..20),
        ) {
            let mut sender = Sender::default();
            for message in &messages {
                sender.push(&Bytes::copy_from_slice(message)).unwrap();
            }
            let mut receiver = Receiver::default();
            let mut whole = Vec::new();
            let mut cuts = cuts.iter().cycle();
            sender.drain(|data| {
                let taken = data.len().min(*cuts.next().unwrap());
                receiver.push(&data[..taken], &mut whole).unwrap();
                if taken < data.len() { taken } else { data.len() }
            });
            // One call of `drain` ends where the stream takes no more; the rest follows.
            while !sender.is_empty() {
                sender.drain(|data| {
                    receiver.push(data, &mut whole).unwrap();
                    data.len()
                });
            }
            prop_assert_eq!(whole, messages.into_iter().map(Bytes::from).collect::<Vec<_>>());
        }

        #[test]
        fn hostile_streams_never_hold_more_than_a_message(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 0..40),
        ) {
            let mut receiver = Receiver::default();
            for chunk in chunks {
                if receiver.push(&chunk, &mut Vec::new()).is_err() {
                    break;
                }
                prop_assert!(receiver.buffer.len() < MESSAGE_MAX + 2);
            }
        }
    }
}
