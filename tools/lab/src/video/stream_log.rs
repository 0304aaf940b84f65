//! Logs of the source and the sink of a run, and their conversion to a [`StreamLog`] and arrivals.
//!
//! ```text
//!   source: a line per packet      frame,idr,captured_ns,sent_ns,rtp_sequence,rtp_timestamp,bytes
//!   sink:   a record per packet    arrival_ns: u64 | length: u16 | the datagram as it came
//! ```
//!
//! Times are from the system's monotonic clock, which all network namespaces share. Numbers in the
//! sink's records are big-endian. The 16-bit sequence number wraps about every 20 s; together with
//! the timestamp it identifies a packet.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};

use bytes::Bytes;
use roadweave_proto::Instant;

use super::quality::{SentFrame, StreamLog};
use super::rtp::RtpPacket;

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    #[error("cannot read the log: {0}")]
    Io(#[from] io::Error),
    #[error("line {line} of the source's log is malformed: {text:?}")]
    Line {
        /// Line number, from 1.
        line: usize,
        text: String,
    },
}

/// A line of the source's log: a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentLine {
    /// Frame ID, from 0.
    pub frame: usize,
    /// Whether the frame is an IDR frame.
    pub idr: bool,
    pub captured: Instant,
    pub sent: Instant,
    pub sequence: u16,
    pub timestamp: u32,
    /// UDP payload, bytes.
    pub bytes: usize,
}

impl SentLine {
    /// Appends the packet to a log; fails if `out` does.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{},{},{},{},{},{},{}",
            self.frame,
            u8::from(self.idr),
            self.captured.as_nanos(),
            self.sent.as_nanos(),
            self.sequence,
            self.timestamp,
            self.bytes
        )
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(',').map(|field| field.parse::<u64>().ok());
        let mut next = || fields.next().flatten();
        let packet = Self {
            frame: usize::try_from(next()?).ok()?,
            idr: match next()? {
                0 => false,
                1 => true,
                _ => return None,
            },
            captured: Instant::from_nanos(next()?),
            sent: Instant::from_nanos(next()?),
            sequence: u16::try_from(next()?).ok()?,
            timestamp: u32::try_from(next()?).ok()?,
            bytes: usize::try_from(next()?).ok()?,
        };
        fields.next().is_none().then_some(packet)
    }
}

/// A sent stream, with an index of its packets.
#[derive(Debug, Default)]
pub struct SentStream {
    /// Frames and send times.
    pub log: StreamLog,
    /// Sent UDP payload, bytes.
    pub bytes: u64,
    pub timestamps: Vec<u32>,
    index: HashMap<(u32, u16), usize>,
}

impl SentStream {
    /// Reads the source's log; fails if a line is malformed or out of order.
    pub fn read(source: impl BufRead) -> Result<Self, LogError> {
        let mut stream = Self::default();
        for (number, line) in source.lines().enumerate() {
            let line = line?;
            let accepted = SentLine::parse(&line).is_some_and(|packet| stream.push(&packet));
            if !accepted {
                return Err(LogError::Line { line: number + 1, text: line });
            }
        }
        Ok(stream)
    }

    /// The index of a packet in [`StreamLog::packets`], if it belongs to this stream.
    pub fn index_of(&self, packet: &RtpPacket) -> Option<usize> {
        self.index.get(&(packet.timestamp, packet.sequence)).copied()
    }

    /// Adds a packet; `false` if it is a duplicate, its frame is neither the newest nor the next,
    /// or its capture time decreases.
    fn push(&mut self, packet: &SentLine) -> bool {
        let index = self.log.packets.len();
        let Some(bytes) = self.bytes.checked_add(packet.bytes as u64) else { return false };
        if self.log.frames.last().is_some_and(|newest| packet.captured < newest.captured)
            || self.index.insert((packet.timestamp, packet.sequence), index).is_some()
        {
            return false;
        }
        self.bytes = bytes;
        if packet.frame == self.log.frames.len() {
            self.timestamps.push(packet.timestamp);
            self.log.frames.push(SentFrame {
                captured: packet.captured,
                idr: packet.idr,
                packets: index..index,
            });
        }
        if self.log.frames.len().checked_sub(1) != Some(packet.frame) {
            return false;
        }
        let Some(frame) = self.log.frames.last_mut() else { return false };
        frame.packets.end = index + 1;
        self.log.packets.push(packet.sent);
        true
    }
}

/// A record of the sink's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrivedPacket {
    pub at: Instant,
    pub datagram: Bytes,
}

impl ArrivedPacket {
    /// Appends a record; fails if `out` does.
    pub fn write(at: Instant, datagram: &[u8], out: &mut impl Write) -> io::Result<()> {
        let length = u16::try_from(datagram.len()).map_err(io::Error::other)?;
        out.write_all(&at.as_nanos().to_be_bytes())?;
        out.write_all(&length.to_be_bytes())?;
        out.write_all(datagram)
    }

    /// Reads the next record; `None` at the end or at a truncated record. Fails if `source` does.
    pub fn read(source: &mut impl Read) -> io::Result<Option<Self>> {
        let mut header = [0; 10];
        if !fill(source, &mut header)? {
            return Ok(None);
        }
        let (at, length) = header.split_at(8);
        let at = u64::from_be_bytes(at.try_into().expect("eight bytes"));
        let length = u16::from_be_bytes(length.try_into().expect("two bytes"));
        let mut datagram = vec![0; usize::from(length)];
        let whole = fill(source, &mut datagram)?;
        Ok(whole.then(|| Self { at: Instant::from_nanos(at), datagram: datagram.into() }))
    }
}

/// Arrivals of a sent stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// First arrival of each packet.
    pub first: Vec<Option<Instant>>,
    pub duplicates: u64,
    /// Datagrams that are not of the stream.
    pub foreign: u64,
}

impl Arrivals {
    /// Reads the sink's log; fails if `source` does.
    pub fn read(stream: &SentStream, mut source: impl Read) -> io::Result<Self> {
        let mut arrivals = Self { first: vec![None; stream.log.packets.len()], ..Self::default() };
        while let Some(arrived) = ArrivedPacket::read(&mut source)? {
            let packet = RtpPacket::parse(&arrived.datagram).ok();
            match packet.and_then(|packet| stream.index_of(&packet)) {
                None => arrivals.foreign += 1,
                Some(index) if arrivals.first[index].is_some() => arrivals.duplicates += 1,
                Some(index) => arrivals.first[index] = Some(arrived.at),
            }
        }
        Ok(arrivals)
    }
}

fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match source.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::h264::AccessUnit;
    use super::super::rtp::Packetizer;
    use super::*;

    fn sent(frame: usize, sequence: u16) -> SentLine {
        SentLine {
            frame,
            idr: frame == 0,
            captured: Instant::from_millis(33 * frame as u64),
            sent: Instant::from_millis(33 * frame as u64 + 1),
            sequence,
            timestamp: 3_000 * frame as u32,
            bytes: 100,
        }
    }

    #[test]
    fn logs_are_read_back_and_packets_are_recognised() {
        let unit = AccessUnit { nals: vec![vec![0x41; 3_000].into()] };
        let mut packetizer = Packetizer::new(7, u16::MAX);
        let packets: Vec<_> =
            [0, 3_000].iter().flat_map(|time| packetizer.packetize(&unit, *time)).collect();
        let (mut source, mut sink) = (Vec::new(), Vec::new());
        for (index, packet) in packets.iter().enumerate() {
            let sequence = u16::MAX.wrapping_add(index as u16);
            sent(index / 3, sequence).write(&mut source).unwrap();
            if index != 4 {
                ArrivedPacket::write(Instant::from_millis(50), packet, &mut sink).unwrap();
            }
        }
        ArrivedPacket::write(Instant::from_millis(60), &packets[0], &mut sink).unwrap();
        ArrivedPacket::write(Instant::from_millis(61), b"something else", &mut sink).unwrap();
        sink.extend([0; 5]);

        let stream = SentStream::read(source.as_slice()).unwrap();
        assert_eq!((stream.log.frames.len(), stream.bytes), (2, 600));
        assert_eq!(stream.log.frames[1].packets, 3..6);
        let arrivals = Arrivals::read(&stream, sink.as_slice()).unwrap();
        let mut expected = vec![Some(Instant::from_millis(50)); 6];
        expected[4] = None;
        assert_eq!(arrivals, Arrivals { first: expected, duplicates: 1, foreign: 1 });
    }

    #[test]
    fn bad_lines_are_named() {
        let check = |log: &str, line: &str| {
            let error = SentStream::read(log.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(line), "{log}: {error}");
        };
        for text in [
            "",
            "1,2,3",
            "0,1,x,0,0,0,0",
            "5,1,0,0,0,0,0",
            "18446744073709551615,1,0,0,0,0,0",
            "0,1,0,0,70000,0,0",
            "0,7,0,0,0,0,0",
            "0,1,0,0,0,0,0,0",
        ] {
            check(&format!("{text}\n"), "line 1");
        }
        let overflow = "0,1,9,9,1,0,18446744073709551615";
        let (earlier, duplicate) = ("1,0,8,9,1,3000,100", "0,1,9,9,0,0,100");
        let frame_missing = "2,0,9,9,1,3000,100";
        for text in [overflow, earlier, duplicate, frame_missing] {
            check(&format!("0,1,9,9,0,0,1\n{text}\n"), "line 2");
        }
    }
}
