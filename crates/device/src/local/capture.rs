//! Packets as they pass: what both sides of the local socket say of them, and the side that reads.
//!
//! ```text
//! {"jsonrpc":"2.0","id":1,"method":"capture","params":{"view":"inner","bytes_max":65535}}   ─►
//! {"jsonrpc":"2.0","id":1,"result":{"device":"rw0"}}                                        ◄─
//! {"packet":{"unix_nanos":...,"captured":84,...}}                                           ◄─
//! 84 bytes, the next line, ...                                                              ◄─
//! (the end of what the reader writes)                                                       ─►
//! {"end":{"missed":0}}                                                                      ◄─
//! ```
//!
//! An instance that ends says no more than that it is over, by the end of the stream.

mod serve;

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use roadweave_tunnel::SeenKind;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub(crate) use self::serve::Watched;
use super::LINE_MAX;
use super::client::{RequestError, answer, failed, malformed, send};

/// The most bytes of a packet that can be asked for: all of it.
pub const CAPTURE_BYTES_MAX: usize = 65_535;

/// The parameters of `capture`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapturePlan {
    /// What is to be seen.
    pub view: CaptureView,
    /// Bytes of each packet, 1 to [`CAPTURE_BYTES_MAX`].
    pub bytes_max: usize,
}

/// What is to be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureView {
    /// Inner packets.
    Inner,
    /// Inner packets, and coded ones beside them.
    InnerAndCoded,
    /// The carrier's UDP packets.
    Outer,
}

/// The answer to `capture`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureStart {
    /// The device of the instance, or its name where it has none.
    pub device: String,
}

/// A packet that passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// When it passed, nanoseconds since 1970 (UTC).
    pub unix_nanos: u64,
    /// Whether it left here; else it came.
    pub is_out: bool,
    /// Its length, bytes.
    pub length: usize,
    /// How many of its bytes follow.
    captured: usize,
    /// What it was.
    pub what: SeenKind,
    /// These bytes.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

/// How a capture went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureEnd {
    /// Packets for which there was no room, since they were not read fast enough.
    pub missed: u64,
}

/// A line of the instance.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Packet(Captured),
    End(CaptureEnd),
}

/// What a reader hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A packet.
    Packet(Captured),
    /// There are no more.
    End(CaptureEnd),
    /// The instance is gone.
    Gone,
}

/// The packets of a running instance, as they pass. Dropping it ends that.
#[derive(Debug)]
pub struct Capture {
    path: PathBuf,
    reader: BufReader<UnixStream>,
    line: String,
    start: CaptureStart,
}

/// Asks a running instance for its packets from now on.
///
/// # Errors
/// As [`request`](super::request); [`RequestError::Refused`] when somebody else captures already,
/// or the instance has no such packets.
pub fn begin_capture(path: &Path, plan: CapturePlan) -> Result<Capture, RequestError> {
    let stream = send(path, "capture", &json!(plan)).map_err(|error| failed(path, error))?;
    let mut reader = BufReader::with_capacity(BUFFER, stream);
    let mut line = String::new();
    read_line(&mut reader, &mut line).map_err(|error| failed(path, error))?;
    let start = serde_json::from_value(answer(path, &line)?)
        .map_err(|error| malformed(path, error.to_string()))?;
    Ok(Capture { path: path.to_owned(), reader, line, start })
}

impl Capture {
    /// What the instance said at the beginning.
    pub fn start(&self) -> &CaptureStart {
        &self.start
    }

    /// Whether [`Capture::hear`] need not wait for the instance.
    pub fn is_ready(&self) -> bool {
        !self.reader.buffer().is_empty()
    }

    /// The instance is to send no more than what it has seen by now, and then
    /// [`Heard::End`].
    pub fn stop(&self) {
        // Of one that is gone, reading tells.
        let _ = self.reader.get_ref().shutdown(Shutdown::Write);
    }

    /// What the instance says next; waits for some seconds at most, so call it when there is
    /// something to read.
    ///
    /// # Errors
    /// When what it says is not understood, or it stops within a packet.
    pub fn hear(&mut self) -> Result<Heard, RequestError> {
        let io = |error: io::Error| match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => Ok(Heard::Gone),
            _ => Err(failed(&self.path, error)),
        };
        match read_line(&mut self.reader, &mut self.line) {
            Ok(0) => return Ok(Heard::Gone),
            Ok(_) => {}
            Err(error) => return io(error),
        }
        if !self.line.ends_with('\n') {
            return Ok(Heard::Gone);
        }
        let line = serde_json::from_str(&self.line);
        match line.map_err(|error| malformed(&self.path, error.to_string()))? {
            Line::End(end) => Ok(Heard::End(end)),
            Line::Packet(packet) if packet.captured > CAPTURE_BYTES_MAX => {
                Err(malformed(&self.path, format!("a packet of {} bytes", packet.captured)))
            }
            Line::Packet(mut packet) => {
                packet.bytes.resize(packet.captured, 0);
                match self.reader.read_exact(&mut packet.bytes) {
                    Ok(()) => Ok(Heard::Packet(packet)),
                    Err(error) => io(error),
                }
            }
        }
    }
}

impl AsFd for Capture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.get_ref().as_fd()
    }
}

fn read_line(reader: &mut BufReader<UnixStream>, line: &mut String) -> io::Result<usize> {
    line.clear();
    reader.take(LINE_MAX as u64).read_line(line)
}

/// Bytes that are read at once.
const BUFFER: usize = 1 << 17;
