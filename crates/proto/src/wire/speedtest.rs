//! Speed tests: messages of both ends, and the measured load.
//!
//! ```text
//! client ── ask ─────────────► server
//! client ◄─ granted, refused ─ server
//!        ═ load, from one end ═►             datagrams of kind 09, on the paths that were named
//!        ── sent, from that end ─►
//! client ◄────────── received ─ server       (of load that the client has sent)
//! client ── stop ────────────► server        (a server that sends load sends no more)
//!
//! load   09 | test:4 | number:4 | filler
//! ```

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::PathId;
use crate::wire::control::error::ControlError;
use crate::wire::control::fields::{FIELD_PATH, Fields, put_field};
use crate::wire::datagram::kind::KIND_LOAD;

/// Bytes before the filler of a datagram of load.
pub const LOAD_HEADER: usize = 9;
/// Bytes counted with each datagram of load, for headers of IP, UDP and QUIC.
pub const LOAD_OVERHEAD: u64 = 80;
/// The most paths of a test at the same time.
pub const TEST_PATHS_MAX: usize = 64;

const FIELD_TEST: u16 = 29;
const FIELD_BOUNDS: u16 = 30;
const FIELD_REFUSAL: u16 = 31;
const FIELD_COUNTS: u16 = 32;

const WORD_ASK: u8 = 0;
const WORD_GRANT: u8 = 1;
const WORD_REFUSE: u8 = 2;
const WORD_SENT: u8 = 3;
const WORD_RECEIVED: u8 = 4;
const WORD_STOP: u8 = 5;

/// The number of a test, counted by the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TestId(pub u32);

/// The end that sends the load of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadDirection {
    /// The client.
    Up = 0,
    /// The server.
    Down = 1,
}

/// The load of a test, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestBounds {
    /// The end that sends it.
    pub direction: LoadDirection,
    /// Duration; whole milliseconds.
    pub duration: Duration,
    /// Bytes, with [`LOAD_OVERHEAD`] for each datagram.
    pub bytes: u64,
}

crate::named! {
    /// Why a server refuses a test; the order is that of the numbers on the wire.
    TestRefusal {
        /// Not given, or a number unknown here.
        Other = "speedtest-other",
        /// Disabled by configuration.
        Off = "speedtest-off",
        /// Another test of this client is under way.
        UnderWay = "speedtest-under-way",
        /// This client has reached its number of tests in an hour.
        TooOften = "speedtest-too-often",
        /// Too many tests of other clients are under way.
        TooMany = "speedtest-too-many",
        /// None of the named paths is known.
        UnknownPath = "speedtest-unknown-path",
    }
}

/// Counters of the load that one end has sent, or received, in a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadCounts {
    /// Datagrams.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From the first to the last, microseconds.
    pub micros: u64,
    /// Bytes received after the first quarter of the test, which congestion control needs to start.
    pub steady_bytes: u64,
    /// From the first to the last of these, microseconds.
    pub steady_micros: u64,
    /// Mean round trip of the sent ones, microseconds; 0: unknown.
    pub rtt_micros: u64,
}

/// A message of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestWord {
    /// The client asks for a test on these paths together, 1 to [`TEST_PATHS_MAX`].
    Ask {
        /// The requested load.
        bounds: TestBounds,
        /// The paths.
        paths: Vec<PathId>,
    },
    /// The server grants this load, at most the requested.
    Grant(TestBounds),
    /// The server refuses.
    Refuse(TestRefusal),
    /// The sender of the load has sent this, and stops.
    Sent(LoadCounts),
    /// The server has received this of the client's load.
    Received(LoadCounts),
    /// The client ends the load.
    Stop,
}

/// A message with its test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speedtest {
    /// The test.
    pub test: TestId,
    /// The message.
    pub word: TestWord,
}

impl Speedtest {
    pub(crate) fn parse(fields: &Fields) -> Result<Self, ControlError> {
        let [number @ .., word] = fields.array::<5>(FIELD_TEST)?;
        let word = match word {
            WORD_ASK => TestWord::Ask { bounds: bounds(fields)?, paths: paths(fields)? },
            WORD_GRANT => TestWord::Grant(bounds(fields)?),
            WORD_REFUSE => TestWord::Refuse(refusal(fields.array(FIELD_REFUSAL)?)),
            WORD_SENT => TestWord::Sent(counts(fields)?),
            WORD_RECEIVED => TestWord::Received(counts(fields)?),
            WORD_STOP => TestWord::Stop,
            _ => return Err(ControlError::BadField(FIELD_TEST)),
        };
        Ok(Self { test: TestId(u32::from_be_bytes(number)), word })
    }

    pub(crate) fn put(&self, out: &mut BytesMut) {
        let word = match self.word {
            TestWord::Ask { .. } => WORD_ASK,
            TestWord::Grant(_) => WORD_GRANT,
            TestWord::Refuse(_) => WORD_REFUSE,
            TestWord::Sent(_) => WORD_SENT,
            TestWord::Received(_) => WORD_RECEIVED,
            TestWord::Stop => WORD_STOP,
        };
        let [first, second, third, fourth] = self.test.0.to_be_bytes();
        put_field(out, FIELD_TEST, &[first, second, third, fourth, word]);
        match &self.word {
            TestWord::Ask { bounds, paths } => {
                put_bounds(out, bounds);
                for path in paths.iter().take(TEST_PATHS_MAX) {
                    put_field(out, FIELD_PATH, &path.0.to_be_bytes());
                }
            }
            TestWord::Grant(bounds) => put_bounds(out, bounds),
            TestWord::Refuse(why) => put_field(out, FIELD_REFUSAL, &[*why as u8]),
            TestWord::Sent(counts) | TestWord::Received(counts) => put_counts(out, counts),
            TestWord::Stop => {}
        }
    }
}

fn put_bounds(out: &mut BytesMut, bounds: &TestBounds) {
    let mut value = [0; 13];
    value[0] = bounds.direction as u8;
    let millis = u32::try_from(bounds.duration.as_millis()).unwrap_or(u32::MAX);
    value[1..5].copy_from_slice(&millis.to_be_bytes());
    value[5..].copy_from_slice(&bounds.bytes.to_be_bytes());
    put_field(out, FIELD_BOUNDS, &value);
}

fn bounds(fields: &Fields) -> Result<TestBounds, ControlError> {
    let [direction, rest @ ..] = fields.array::<13>(FIELD_BOUNDS)?;
    let direction = match direction {
        0 => LoadDirection::Up,
        1 => LoadDirection::Down,
        _ => return Err(ControlError::BadField(FIELD_BOUNDS)),
    };
    let mut rest = &rest[..];
    let duration = Duration::from_millis(rest.get_u32().into());
    Ok(TestBounds { direction, duration, bytes: rest.get_u64() })
}

fn paths(fields: &Fields) -> Result<Vec<PathId>, ControlError> {
    let path = |value: &Bytes| {
        let number = value.as_ref().try_into().map_err(|_| ControlError::BadField(FIELD_PATH))?;
        Ok(PathId(u32::from_be_bytes(number)))
    };
    match fields.all(FIELD_PATH).count() {
        0 => Err(ControlError::MissingField(FIELD_PATH)),
        1..=TEST_PATHS_MAX => fields.all(FIELD_PATH).map(path).collect(),
        _ => Err(ControlError::BadField(FIELD_PATH)),
    }
}

fn refusal([number]: [u8; 1]) -> TestRefusal {
    TestRefusal::ALL.get(usize::from(number)).copied().unwrap_or(TestRefusal::Other)
}

fn put_counts(out: &mut BytesMut, counts: &LoadCounts) {
    let LoadCounts { packets, bytes, micros, steady_bytes, steady_micros, rtt_micros } = *counts;
    let numbers = [packets, bytes, micros, steady_bytes, steady_micros, rtt_micros];
    put_field(out, FIELD_COUNTS, numbers.map(u64::to_be_bytes).as_flattened());
}

fn counts(fields: &Fields) -> Result<LoadCounts, ControlError> {
    let value: [u8; 48] = fields.array(FIELD_COUNTS)?;
    let mut value = &value[..];
    Ok(LoadCounts {
        packets: value.get_u64(),
        bytes: value.get_u64(),
        micros: value.get_u64(),
        steady_bytes: value.get_u64(),
        steady_micros: value.get_u64(),
        rtt_micros: value.get_u64(),
    })
}

/// A datagram of load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Its test.
    pub test: TestId,
    /// Counts the datagrams of the test.
    pub number: u32,
    /// Padding to its length.
    pub filler: Bytes,
}

impl Load {
    /// A datagram of `size` bytes, or [`LOAD_HEADER`] if that is more.
    pub fn datagram(test: TestId, number: u32, size: usize) -> Bytes {
        let mut out = BytesMut::zeroed(size.max(LOAD_HEADER));
        let mut header = &mut out[..];
        header.put_u8(KIND_LOAD);
        header.put_u32(test.0);
        header.put_u32(number);
        out.freeze()
    }

    /// Whether a datagram is of this kind.
    pub fn is_load(datagram: &[u8]) -> bool {
        datagram.first() == Some(&KIND_LOAD)
    }

    /// The length of the datagram, bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        LOAD_HEADER + self.filler.len()
    }

    pub(crate) fn parse(mut bytes: Bytes) -> Self {
        let test = TestId(bytes.get_u32());
        let number = bytes.get_u32();
        Self { test, number, filler: bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Control, Datagram};

    fn reads_back(word: TestWord) {
        let message = Control::Speedtest(Speedtest { test: TestId(0xfeed_0007), word });
        assert_eq!(Control::parse(message.to_bytes()), Ok(message));
    }

    #[test]
    fn every_word_reads_back() {
        let bounds = TestBounds {
            direction: LoadDirection::Down,
            duration: Duration::from_millis(10_000),
            bytes: u64::MAX,
        };
        let counts = LoadCounts {
            packets: 1,
            bytes: 2,
            micros: 3,
            steady_bytes: 4,
            steady_micros: 5,
            rtt_micros: u64::MAX,
        };
        let paths = (0..TEST_PATHS_MAX as u32).map(PathId).collect();
        reads_back(TestWord::Ask { bounds, paths });
        reads_back(TestWord::Grant(TestBounds { direction: LoadDirection::Up, ..bounds }));
        TestRefusal::ALL.into_iter().for_each(|why| reads_back(TestWord::Refuse(why)));
        reads_back(TestWord::Sent(counts));
        reads_back(TestWord::Received(counts));
        reads_back(TestWord::Stop);
    }

    #[test]
    fn words_that_break_the_format_are_refused() {
        let ask = |paths: usize, direction: u8| {
            let mut bytes = BytesMut::from(&[11_u8][..]);
            put_field(&mut bytes, FIELD_TEST, &[0, 0, 0, 1, WORD_ASK]);
            put_field(&mut bytes, FIELD_BOUNDS, &[direction, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
            (0..paths).for_each(|_| put_field(&mut bytes, FIELD_PATH, &[0, 0, 0, 1]));
            Control::parse(bytes.freeze())
        };
        assert!(ask(1, 1).is_ok() && ask(TEST_PATHS_MAX, 0).is_ok());
        assert_eq!(ask(0, 0), Err(ControlError::MissingField(FIELD_PATH)));
        assert_eq!(ask(TEST_PATHS_MAX + 1, 0), Err(ControlError::BadField(FIELD_PATH)));
        assert_eq!(ask(1, 2), Err(ControlError::BadField(FIELD_BOUNDS)));
        let word = |fields: &[(u16, &[u8])]| {
            let mut bytes = BytesMut::from(&[11_u8][..]);
            fields.iter().for_each(|(kind, value)| put_field(&mut bytes, *kind, value));
            Control::parse(bytes.freeze())
        };
        assert_eq!(word(&[]), Err(ControlError::MissingField(FIELD_TEST)));
        let unknown = word(&[(FIELD_TEST, &[0, 0, 0, 1, 9])]);
        assert_eq!(unknown, Err(ControlError::BadField(FIELD_TEST)));
        let later = word(&[(FIELD_TEST, &[0, 0, 0, 1, WORD_REFUSE]), (FIELD_REFUSAL, &[200])]);
        let expected = Speedtest { test: TestId(1), word: TestWord::Refuse(TestRefusal::Other) };
        assert_eq!(later, Ok(Control::Speedtest(expected)));
    }

    #[test]
    fn load_reads_back_and_is_as_long_as_it_is_to_be() {
        let bytes = Load::datagram(TestId(7), 0x0102_0304, 20);
        assert_eq!(&bytes[..], [9, 0, 0, 0, 7, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(Load::is_load(&bytes) && !Load::is_load(&[]));
        let Ok(Datagram::Load(load)) = Datagram::parse(bytes) else { panic!("load") };
        assert_eq!((load.test, load.number, load.len()), (TestId(7), 0x0102_0304, 20));
        assert_eq!(Load::datagram(TestId(7), 1, 0).len(), LOAD_HEADER);
    }
}
