//! `roadweave demo-source`: the camera. Streams the clip in real time as RTP, the packets of a
//! frame at once as from an encoder, and logs their send times.
//!
//! ```text
//!   clip.h264 --Splitter--> AccessUnit --Packetizer--> packets --burst at start + k/fps--> UDP
//!                                                         +--> log
//! ```
//!
//! The schedule is absolute, so that a late frame does not delay the next. Memory holds one frame.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use roadweave_lab::video::h264::AccessUnit;
use roadweave_lab::video::rtp::{CLOCK_HZ, Packetizer};
use roadweave_lab::video::stream_log::SentLine;
use roadweave_proto::Instant;

use super::clip::{FPS, Units};
use crate::sandbox::{clock, sockets};

/// Arbitrary, since there is one stream.
const SSRC: u32 = 0x526f_6164;

/// Streams a clip in real time, as a camera does
#[derive(Debug, clap::Args)]
pub struct SourceArgs {
    /// H.264 byte stream (Annex B).
    pub clip: PathBuf,
    /// Where to send.
    #[arg(long)]
    pub to: SocketAddr,
    /// The file for the log of sent packets.
    #[arg(long)]
    pub out: PathBuf,
    /// When to send the first frame, nanoseconds of the monotonic clock; default: now.
    #[arg(long)]
    pub start_ns: Option<u64>,
    /// Stop after this many frames.
    #[arg(long)]
    pub frames: Option<usize>,
}

impl SourceArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let mut units = Units::open(&self.clip)
            .with_context(|| format!("cannot open the clip {}", self.clip.display()))?;
        let log = File::create(&self.out)
            .with_context(|| format!("cannot write the log {}", self.out.display()))?;
        let mut camera = Camera {
            socket: sockets::sending_to(self.to)?,
            packetizer: Packetizer::new(SSRC, 0),
            log: BufWriter::with_capacity(1 << 20, log),
            start: self.start_ns.map_or_else(clock::now, Instant::from_nanos),
        };
        for frame in 0..self.frames.unwrap_or(usize::MAX) {
            let Some(unit) = units.next()? else { break };
            camera.send_frame(frame, &unit)?;
        }
        camera.log.flush().context("cannot write the log")
    }
}

struct Camera {
    socket: UdpSocket,
    packetizer: Packetizer,
    log: BufWriter<File>,
    start: Instant,
}

impl Camera {
    fn send_frame(&mut self, frame: usize, unit: &AccessUnit) -> anyhow::Result<()> {
        let number = frame as u64;
        let timestamp = number * u64::from(CLOCK_HZ) / u64::from(FPS);
        let timestamp = (timestamp & u64::from(u32::MAX)) as u32;
        let packets = self.packetizer.packetize(unit, timestamp);
        let captured = self.start + Duration::from_nanos(number * 1_000_000_000 / u64::from(FPS));
        clock::sleep_until(captured);
        let sent: Vec<Instant> = packets.iter().map(|packet| self.send(packet)).collect();
        for (packet, sent) in packets.iter().zip(sent) {
            let sequence = u16::from_be_bytes([packet[2], packet[3]]);
            let line = SentLine {
                frame,
                idr: unit.is_idr(),
                captured,
                sent,
                sequence,
                timestamp,
                bytes: packet.len(),
            };
            line.write(&mut self.log).context("cannot write the log")?;
        }
        Ok(())
    }

    /// Sends one packet and returns its send time. A packet that the network refuses is lost, as
    /// for a camera: it is logged and never arrives.
    fn send(&self, packet: &Bytes) -> Instant {
        let now = clock::now();
        let _ = self.socket.send(packet);
        now
    }
}
