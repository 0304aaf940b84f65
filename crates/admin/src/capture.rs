//! `roadweave capture`: the packets of a running instance, each with its path, for Wireshark.
//!
//! ```text
//! instance ─ tap ─► bounded queue ─► local socket ─► frame: interface, headers, comment ─► sink
//!                     └ full: counted                 └ does it pass the filters?     file, pipe
//! ```
//!
//! The instance tells of its packets by itself, instead of a packet socket beside it: inner packets
//! have their paths only there, and nobody needs a right that the instance's user has not. No
//! packet of the tunnel waits for any of this.

mod frame;
mod headers;
mod pcapng;
mod places;
mod sink;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use roadweave_device::local::{
    self, CAPTURE_BYTES_MAX, Capture, CapturePlan, CaptureView, Heard, RequestError,
};
use roadweave_device::status::RoleStatus;
use roadweave_device::{Signal, Signals};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use roadweave_terminal::seconds::parse_seconds;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use self::frame::{Frame, Framing};
use self::headers::HEADERS_MAX;
use self::pcapng::LinkType;
use self::places::Places;
use self::sink::Sink;

/// Writes the packets of a running instance, each with its path, for Wireshark
///
/// Inner packets as they leave on paths and come by them, copies among them. Each path is an
/// interface with the uplink's name, and each packet has a comment: its direction, path and lane,
/// and what it was. The device is an interface as well, for what was restored from coded packets.
/// Without --write it prints a line for each packet.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CaptureArgs {
    /// The name of the instance: that of its TUN device
    #[arg(value_name = "NAME", default_value = "rw0", conflicts_with = "socket")]
    name: String,
    /// The socket of the running instance, in the place of its name
    #[arg(long)]
    socket: Option<PathBuf>,
    /// The UDP packets of the tunnel itself instead of inner packets
    #[arg(long)]
    outer: bool,
    /// Coded packets beside inner ones, on interfaces of their own
    #[arg(long, conflicts_with = "outer")]
    coded: bool,
    /// A file for pcapng, which is for this user alone; `-` for standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Only what takes paths over this uplink, or is told of this interface; several times for
    /// several
    #[arg(long, value_name = "INTERFACE")]
    path: Vec<String>,
    /// Only what belongs to the session with this peer: at a server the name of a client
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// Only what leaves here, or only what comes
    #[arg(long, value_name = "DIRECTION")]
    direction: Option<Direction>,
    /// Ends after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = |text: &str| parse_seconds(text, &(0.1..=1e6)))]
    seconds: Option<Duration>,
    /// Ends after so many packets
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    packets: Option<u64>,
    /// Ends once the file has so many bytes
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1000..), requires = "write")]
    bytes: Option<u64>,
    /// The most bytes of each packet that are written
    #[arg(long, value_name = "BYTES", default_value_t = CAPTURE_BYTES_MAX as u32,
          value_parser = clap::value_parser!(u32).range(1..=CAPTURE_BYTES_MAX as i64))]
    snaplen: u32,
}

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Direction {
    In,
    Out,
}

const EXAMPLES: &str = "\
Examples:
  roadweave capture rw0 -w - | wireshark -k -i -
  roadweave capture rw0 --path wwan0 --seconds 60 -w wwan0.pcapng
  roadweave capture rws --peer bus-17 --outer --snaplen 64 -w bus-17.pcapng";

/// Why a capture is over.
enum Ending {
    /// It has what was asked for, or a signal came.
    Enough,
    /// The same, and the instance had not said all when its time was over.
    Cut,
    /// The instance is gone.
    Gone,
}

impl CaptureArgs {
    /// # Errors
    /// When nothing runs there, it has no such packets, or what it tells cannot be written.
    pub fn run(&self) -> Result<()> {
        let socket = match &self.socket {
            Some(socket) => socket.clone(),
            None => {
                roadweave_device::Instance::new(&self.name).map_err(BadInput::new)?.socket_path()
            }
        };
        let signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate, Signal::Hangup])?;
        let status = local::status(&socket)?;
        let has_sessions = !matches!(status.role, RoleStatus::Proxy(_) | RoleStatus::Anchor(_));
        if !self.outer && !has_sessions {
            let role = status.role.name();
            let why = format!(
                "this is {} {role}: the sessions of clients do not end here, and so it knows no \
                 paths of inner packets; --outer shows its UDP packets",
                if role == "anchor" { "an" } else { "a" },
            );
            return Err(BadInput::new(why).into());
        }
        let view = match (self.outer, self.coded) {
            (true, _) => CaptureView::Outer,
            (false, true) => CaptureView::InnerAndCoded,
            (false, false) => CaptureView::Inner,
        };
        let plan = CapturePlan { view, bytes_max: self.snaplen as usize };
        let capture = local::begin_capture(&socket, plan).map_err(begun)?;
        let snaplen = self.snaplen as usize + if self.outer { HEADERS_MAX } else { 0 };
        let mut sink = Sink::open(self.write.as_deref(), snaplen)?;
        let framing = Framing {
            device: capture.start().device.clone(),
            names_peers: matches!(status.role, RoleStatus::Server(_)),
            places: Places::new(&socket, &status),
            locals: BTreeMap::new(),
        };
        sink.interface(&framing.device, LinkType::Raw, unix_nanos());
        let deadline = self.seconds.map(|seconds| Instant::now() + seconds);
        let stop = Stop { signals, deadline, at: None };
        let missed = None;
        Run { args: self, capture, framing, sink, stop, packets: 0, missed }.finish()
    }

    /// Whether a packet is one of those that were asked for.
    fn wants(&self, frame: &Frame) -> bool {
        let is_named =
            |name: &String| *name == frame.interface || Some(name) == frame.uplink.as_ref();
        let direction = if frame.is_out { Direction::Out } else { Direction::In };
        (self.path.is_empty() || self.path.iter().any(is_named))
            && (self.peer.is_none() || self.peer == frame.peer)
            && self.direction.is_none_or(|wanted| wanted == direction)
    }
}

/// An instance of an older version knows no such method.
fn begun(error: RequestError) -> anyhow::Error {
    match error {
        RequestError::Refused(refused) if refused.code == local::RpcError::NO_METHOD => {
            anyhow!("the instance is of a version that tells of no packets")
        }
        error => error.into(),
    }
}

/// When it is to end.
struct Stop {
    signals: Signals,
    deadline: Option<Instant>,
    /// Since when it is.
    at: Option<Instant>,
}

impl Stop {
    /// Looks whether it is to end by now.
    fn look(&mut self) {
        let is_over = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        if self.at.is_none() && (is_over || self.signals.take().is_some()) {
            self.at = Some(Instant::now());
        }
    }

    /// Whether it should have ended: whoever else is slow, this does.
    fn is_late(&mut self) -> bool {
        self.look();
        self.at.is_some_and(|at| at.elapsed() > LAST_WORDS)
    }
}

/// A capture that runs.
struct Run<'a> {
    args: &'a CaptureArgs,
    capture: Capture,
    framing: Framing,
    sink: Sink,
    stop: Stop,
    packets: u64,
    /// What was not seen, once the instance has said.
    missed: Option<u64>,
}

impl Run<'_> {
    fn finish(mut self) -> Result<()> {
        let ending = self.run();
        let Self { mut sink, mut stop, framing, packets, missed, .. } = self;
        // Whoever reads has some more time for the end.
        stop.at = Some(Instant::now());
        sink.end(&framing.device, missed, unix_nanos(), || stop.is_late())?;
        let more = match missed {
            Some(0) => String::new(),
            Some(missed) => format!("; {missed} more came too fast to be seen"),
            None => "; how many more were not seen is not known".to_owned(),
        };
        out::note(format_args!("{packets} packets{more}"));
        match ending? {
            Ending::Enough => Ok(()),
            Ending::Cut => Err(anyhow!("the instance had more to say at the end")),
            Ending::Gone => Err(anyhow!("the instance has ended; what came before is written")),
        }
    }

    fn run(&mut self) -> Result<Ending> {
        let mut is_told = false;
        loop {
            self.stop.look();
            if self.stop.at.is_some() && !is_told {
                self.capture.stop();
                is_told = true;
            }
            // Whatever the instance does then, the file comes to its end.
            if self.stop.is_late() {
                return Ok(Ending::Cut);
            }
            if self.sink.is_full() || !self.capture.is_ready() {
                self.sink.flush(|| self.stop.is_late())?;
            }
            if !self.capture.is_ready() {
                let until = self.stop.deadline.filter(|_| !is_told);
                let patience =
                    until.map_or(TICK, |until| until.saturating_duration_since(Instant::now()));
                if !self.wait(patience.min(TICK))? {
                    continue;
                }
            }
            match self.capture.hear()? {
                Heard::Packet(packet) => {
                    let frame = self.framing.frame(packet);
                    if self.args.wants(&frame) && self.has_room() {
                        self.sink.take(&frame);
                        self.packets += 1;
                    }
                    if !self.has_room() {
                        self.stop.at.get_or_insert_with(Instant::now);
                    }
                }
                Heard::End(end) => {
                    self.missed = Some(end.missed);
                    return Ok(if is_told { Ending::Enough } else { Ending::Gone });
                }
                Heard::Gone => return Ok(Ending::Gone),
            }
        }
    }

    /// Whether more is wanted.
    fn has_room(&self) -> bool {
        self.args.packets.is_none_or(|most| self.packets < most)
            && self.args.bytes.is_none_or(|most| self.sink.bytes() < most)
    }

    /// Waits for the instance or a signal; whether the instance has something to say.
    fn wait(&self, patience: Duration) -> Result<bool> {
        let mut fds = [
            PollFd::new(&self.capture, PollFlags::IN),
            PollFd::new(&self.stop.signals, PollFlags::IN),
        ];
        match poll(&mut fds, Some(&Timespec::try_from(patience)?)) {
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(std::io::Error::from(error).into()),
        }
    }
}

fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// How long nothing comes until it is looked whether it is over.
const TICK: Duration = Duration::from_millis(250);
/// How long the instance may take for what it has seen by the end.
const LAST_WORDS: Duration = Duration::from_secs(2);
