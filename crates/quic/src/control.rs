//! Whole messages, reliable and in order, over datagrams.
//!
//! ```text
//! fragment | flags: u8 | number: u32, big endian | data |      flags: 1 = the last of its message
//! sender    waiting ---> in flight ---acknowledged---> done
//!              ^             |
//!              '--lost, or unanswered for a probe timeout: again, on the path that is best by then
//! receiver  fragments by number ---> in order ---> messages
//! ```
//!
//! A QUIC stream would not do: its data waits on a path that dies until that path heals.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use roadweave_proto::Instant;

use crate::MESSAGE_MAX;
use crate::event::MessageError;

#[derive(Debug, Default)]
pub(crate) struct ControlSender {
    fragments: VecDeque<Fragment>,
    first: u32,
    bytes: usize,
}

#[derive(Debug)]
struct Fragment {
    encoded: Bytes,
    state: FragmentState,
    attempts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FragmentState {
    Waiting,
    InFlight(Instant),
    Acknowledged,
}

impl ControlSender {
    pub(crate) fn push(&mut self, message: &Bytes) -> Result<(), MessageError> {
        if message.len() > MESSAGE_MAX {
            return Err(MessageError::TooLarge);
        }
        if self.bytes + message.len() > QUEUE_MAX || self.fragments.len() > FRAGMENTS_MAX {
            return Err(MessageError::Full);
        }
        let mut rest = message.clone();
        loop {
            let data = rest.split_to(rest.len().min(FRAGMENT_DATA));
            let number = self.first.wrapping_add(self.fragments.len() as u32);
            let encoded = encode(number, rest.is_empty(), &data);
            self.bytes += encoded.len();
            self.fragments.push_back(Fragment {
                encoded,
                state: FragmentState::Waiting,
                attempts: 0,
            });
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    pub(crate) fn next(&self) -> Option<(u32, Bytes)> {
        let window = self.fragments.iter().take(WINDOW).zip(0..);
        let mut waiting = window.filter(|(fragment, _)| fragment.state == FragmentState::Waiting);
        waiting.next().map(|(f, index)| (self.first.wrapping_add(index), f.encoded.clone()))
    }

    /// `timeout` maps the number of attempts before to the time of the next.
    pub(crate) fn on_sent(&mut self, number: u32, timeout: impl Fn(u32) -> Instant) {
        if let Some(fragment) = self.fragment(number) {
            fragment.state = FragmentState::InFlight(timeout(fragment.attempts));
            fragment.attempts += 1;
        }
    }

    pub(crate) fn on_acknowledged(&mut self, number: u32) {
        if let Some(fragment) = self.fragment(number) {
            fragment.state = FragmentState::Acknowledged;
        }
        while self.fragments.front().is_some_and(|f| f.state == FragmentState::Acknowledged) {
            let done = self.fragments.pop_front();
            self.bytes -= done.map_or(0, |fragment| fragment.encoded.len());
            self.first = self.first.wrapping_add(1);
        }
    }

    pub(crate) fn on_lost(&mut self, number: u32) {
        if let Some(fragment) = self.fragment(number)
            && matches!(fragment.state, FragmentState::InFlight(_))
        {
            fragment.state = FragmentState::Waiting;
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for fragment in self.fragments.iter_mut().take(WINDOW) {
            if matches!(fragment.state, FragmentState::InFlight(until) if until <= now) {
                fragment.state = FragmentState::Waiting;
            }
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let in_flight = self.fragments.iter().take(WINDOW).filter_map(|f| match f.state {
            FragmentState::InFlight(until) => Some(until),
            _ => None,
        });
        in_flight.min()
    }

    fn fragment(&mut self, number: u32) -> Option<&mut Fragment> {
        self.fragments.get_mut(number.wrapping_sub(self.first) as usize)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Receiver {
    next: u32,
    ahead: BTreeMap<u32, (bool, Bytes)>,
    message: BytesMut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message on the control channel")]
pub(crate) struct Malformed;

impl Receiver {
    pub(crate) fn push(
        &mut self,
        mut bytes: Bytes,
        messages: &mut Vec<Bytes>,
    ) -> Result<(), Malformed> {
        if bytes.len() < HEADER {
            return Err(Malformed);
        }
        let last = match bytes.get_u8() {
            0 => false,
            LAST => true,
            _ => return Err(Malformed),
        };
        let number = bytes.get_u32();
        let distance = number.wrapping_sub(self.next);
        if distance >= 1 << 31 {
            return Ok(());
        }
        if distance as usize >= WINDOW || bytes.len() > FRAGMENT_DATA {
            return Err(Malformed);
        }
        let data = Bytes::copy_from_slice(&bytes);
        self.ahead.entry(number).or_insert((last, data));
        while let Some((last, data)) = self.ahead.remove(&self.next) {
            self.next = self.next.wrapping_add(1);
            if self.message.len() + data.len() > MESSAGE_MAX {
                return Err(Malformed);
            }
            self.message.extend_from_slice(&data);
            if last {
                messages.push(self.message.split().freeze());
            }
        }
        Ok(())
    }
}

fn encode(number: u32, last: bool, data: &[u8]) -> Bytes {
    let mut encoded = BytesMut::with_capacity(HEADER + data.len());
    encoded.put_u8(if last { LAST } else { 0 });
    encoded.put_u32(number);
    encoded.put_slice(data);
    encoded.freeze()
}

const LAST: u8 = 1;
const HEADER: usize = 5;
/// Data of a fragment, bytes: it fits every packet.
const FRAGMENT_DATA: usize = 1024;
const WINDOW: usize = 32;
/// Unacknowledged bytes, at most.
const QUEUE_MAX: usize = 256 * 1024;
const FRAGMENTS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_messages_are_refused_on_both_sides() {
        let mut sender = ControlSender::default();
        let long = Bytes::from(vec![0; MESSAGE_MAX + 1]);
        assert_eq!(sender.push(&long), Err(MessageError::TooLarge));
        let mut receiver = Receiver::default();
        let full = [0; FRAGMENT_DATA];
        for number in 0..(MESSAGE_MAX / FRAGMENT_DATA) as u32 {
            receiver.push(encode(number, false, &full), &mut Vec::new()).unwrap();
        }
        let one_more = encode((MESSAGE_MAX / FRAGMENT_DATA) as u32, true, &[0]);
        assert_eq!(receiver.push(one_more, &mut Vec::new()), Err(Malformed));
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut sender = ControlSender::default();
        let message = Bytes::from(vec![0; MESSAGE_MAX]);
        let taken = (0..100).take_while(|_| sender.push(&message).is_ok()).count();
        assert_eq!(taken, QUEUE_MAX / MESSAGE_MAX - 1);
        let mut sender = ControlSender::default();
        let taken = (0..9999).take_while(|_| sender.push(&Bytes::new()).is_ok()).count();
        assert_eq!(taken, FRAGMENTS_MAX + 1);
        assert_eq!(sender.push(&Bytes::new()), Err(MessageError::Full));
        sender.on_acknowledged(0);
        assert_eq!(sender.push(&Bytes::new()), Ok(()));
    }

    #[test]
    fn an_unanswered_fragment_is_sent_again_with_backoff() {
        let mut sender = ControlSender::default();
        sender.push(&Bytes::from_static(b"hello")).unwrap();
        let timeout = |attempts| Instant::from_millis(100) + Duration::from_millis(100) * attempts;
        let (number, first) = sender.next().unwrap();
        sender.on_sent(number, timeout);
        assert_eq!((sender.next(), sender.poll_timeout()), (None, Some(Instant::from_millis(100))));
        sender.handle_timeout(Instant::from_millis(99));
        assert_eq!(sender.next(), None);
        sender.handle_timeout(Instant::from_millis(100));
        assert_eq!(sender.next(), Some((number, first)));
        sender.on_sent(number, timeout);
        assert_eq!(sender.poll_timeout(), Some(Instant::from_millis(200)));
        sender.on_acknowledged(number);
        sender.on_lost(number);
        assert_eq!((sender.next(), sender.poll_timeout(), sender.bytes), (None, None, 0));
    }

    proptest! {
        #[test]
        fn messages_survive_loss_repetition_and_disorder(
            lengths in prop::collection::vec(0usize..5000, 0..20),
            mut fortunes in prop::collection::vec(0u8..4, 1..50),
        ) {
            let messages: Vec<_> =
                lengths.iter().enumerate().map(|(i, len)| Bytes::from(vec![i as u8; *len])).collect();
            let (mut sender, mut receiver) = (ControlSender::default(), Receiver::default());
            for message in &messages {
                sender.push(message).unwrap();
            }
            // A fragment must get through for the test to end.
            fortunes.push(1);
            let mut fortunes = fortunes.into_iter().cycle();
            let mut received = Vec::new();
            let mut held: Option<(u32, Bytes)> = None;
            while !sender.fragments.is_empty() {
                while let Some((number, fragment)) = sender.next() {
                    sender.on_sent(number, |_| Instant::from_millis(100));
                    match fortunes.next().unwrap() {
                        0 => sender.on_lost(number),
                        2 if held.is_none() => held = Some((number, fragment)),
                        fate => {
                            if fate == 3 {
                                receiver.push(fragment.clone(), &mut received).unwrap();
                            }
                            receiver.push(fragment, &mut received).unwrap();
                            sender.on_acknowledged(number);
                        }
                    }
                }
                if let Some((number, fragment)) = held.take() {
                    receiver.push(fragment, &mut received).unwrap();
                    sender.on_acknowledged(number);
                }
                sender.handle_timeout(Instant::from_millis(100));
            }
            prop_assert_eq!(received, messages);
        }

        #[test]
        fn hostile_fragments_never_hold_more_than_the_window(
            fragments in prop::collection::vec(
                (any::<u8>(), 0u32..100, prop::collection::vec(any::<u8>(), 0..2000)), 0..200),
        ) {
            let mut receiver = Receiver::default();
            for (flags, number, data) in fragments {
                let mut bytes = encode(number, false, &data).to_vec();
                bytes[0] = flags % 3;
                if receiver.push(bytes.into(), &mut Vec::new()).is_err() {
                    break;
                }
                prop_assert!(receiver.ahead.len() <= WINDOW);
                prop_assert!(receiver.message.len() <= MESSAGE_MAX);
            }
        }
    }
}
