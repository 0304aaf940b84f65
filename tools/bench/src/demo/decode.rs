//! The pictures that the viewer saw: decodes the received stream and compares it with the clip.
//!
//! ```text
//!   sink's log --Depacketizer--> received.h264 --ffmpeg decodes, 640x360--> pictures
//!      (frame k as of the time at which the player closed it)                  | bar code: frame ID
//!                                                                              v
//!   clip.h264 ----ffmpeg decodes, 640x360----> ssim of frame k <-- frame k, or the last one before it
//! ```
//!
//! Both sides are scaled to 640x360 first (bicubic, the same filter), for speed; SSIM is ffmpeg's,
//! over all three planes with its usual weights. Damaged pictures are as ffmpeg's error concealment
//! leaves them; the viewer sees black before the first picture. A picture with a destroyed bar code
//! counts as the next frame with an arrived part.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use roadweave_lab::video::frame_id;
use roadweave_lab::video::h264;
use roadweave_lab::video::quality::Playout;
use roadweave_lab::video::rtp::{Depacketizer, RtpPacket};
use roadweave_lab::video::stream_log::{ArrivedPacket, SentStream};
use roadweave_terminal::out;

use super::clip::{FPS, is_byte_stream};
use super::ffmpeg::{self, FfmpegError, Running};

const WIDTH: usize = 640;
const HEIGHT: usize = 360;
const LUMA: usize = WIDTH * HEIGHT;
const PICTURE: usize = LUMA * 3 / 2;
const PIXEL_FORMAT: &str = "yuv420p";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    #[error(transparent)]
    Ffmpeg(#[from] FfmpegError),
    #[error("cannot compare the pictures: {0}")]
    Io(#[from] io::Error),
    #[error("ffmpeg compared {compared} pictures of {sent}")]
    Incomplete {
        /// Number of pictures in the statistics.
        compared: usize,
        sent: usize,
    },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// SSIM of each frame of the reference with the picture seen in its place, 0..1.
    pub ssim: Vec<f32>,
    pub fed: usize,
    pub decoded: usize,
    pub unreadable: usize,
}

impl Comparison {
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.ssim.iter().map(|ssim| f64::from(*ssim)).sum();
        sum / self.ssim.len().max(1) as f64
    }

    pub fn warn_of_nothing_decoded(&self, run: &str) {
        if self.fed > 0 && self.decoded == 0 {
            out::note(format_args!(
                "{run}: none of {} frames could be decoded, so nothing was shown",
                self.fed
            ));
        }
    }
}

/// Intermediate files go to `scratch` and are removed.
pub fn compare(
    stream: &SentStream,
    playout: &Playout,
    arrivals: &Path,
    clip: &Path,
    scratch: &Path,
) -> Result<Comparison, DecodeError> {
    let received = scratch.join("received.h264");
    let fed = {
        let log = BufReader::with_capacity(1 << 20, File::open(arrivals)?);
        let out = BufWriter::with_capacity(1 << 20, File::create(&received)?);
        write_received(stream, playout, log, out)?
    };
    let sent = stream.log.frames.len();
    let seen = compare_shown(&received, fed, Decoder::ShowsDamage, clip, sent, scratch)?;
    std::fs::remove_file(&received)?;
    Ok(seen)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoder {
    ShowsDamage,
    /// Leaves damaged pictures out: only frames whose IDs are on the screen were shown.
    HidesDamage,
}

/// Decodes the byte stream `received`, which has the frames `fed` of `reference`, and compares the
/// first `frames` frames with the pictures on the screen in their places.
pub fn compare_shown(
    received: &Path,
    fed: Vec<usize>,
    decoder: Decoder,
    reference: &Path,
    frames: usize,
    scratch: &Path,
) -> Result<Comparison, DecodeError> {
    let statistics = scratch.join("ssim.txt");
    let mut comparer = start_comparer(reference, frames, &statistics)?;
    let pipe = comparer.child.stdin.take().expect("standard input is piped");
    let frames_fed = fed.len();
    let mut screen = Screen::new(BufWriter::with_capacity(PICTURE, pipe), fed, decoder);
    let shown = if frames_fed == 0 { Ok(()) } else { decode(received, &mut screen) };
    let result = shown.and_then(|()| Ok(screen.finish(frames)?));
    // If the comparer died, its own message is more informative than the broken pipe.
    comparer.finish()?;
    let (decoded, unreadable) = result?;
    let ssim = read_statistics(&statistics)?;
    std::fs::remove_file(&statistics)?;
    if ssim.len() != frames {
        return Err(DecodeError::Incomplete { compared: ssim.len(), sent: frames });
    }
    Ok(Comparison { ssim, fed: frames_fed, decoded, unreadable })
}

/// Writes the byte stream that the player gave its decoder; returns its frames. `arrivals` is
/// ordered by time; a packet counts if it arrived before its frame was closed.
fn write_received(
    stream: &SentStream,
    playout: &Playout,
    mut arrivals: impl Read,
    mut out: impl Write,
) -> io::Result<Vec<usize>> {
    let mut depacketizer = Depacketizer::default();
    let mut open: VecDeque<usize> = (0..playout.frames.len()).collect();
    let mut fed = Vec::new();
    let mut annex_b = Vec::new();
    let closes_before = |frame: usize, at| playout.frames[frame].closed < at;
    let mut feed = |frame: usize, depacketizer: &mut Depacketizer| -> io::Result<()> {
        let picture = depacketizer.take(stream.timestamps[frame]);
        if let Some(picture) = picture.filter(|picture| !picture.nals.is_empty()) {
            annex_b.clear();
            h264::write_annex_b(&picture.nals, &mut annex_b);
            out.write_all(&annex_b)?;
            fed.push(frame);
        }
        Ok(())
    };
    while let Some(arrived) = ArrivedPacket::read(&mut arrivals)? {
        while let Some(&frame) = open.front().filter(|frame| closes_before(**frame, arrived.at)) {
            open.pop_front();
            feed(frame, &mut depacketizer)?;
        }
        let packet = RtpPacket::parse(&arrived.datagram).ok();
        if let Some(packet) = packet.filter(|packet| stream.index_of(packet).is_some()) {
            depacketizer.push(packet);
        }
    }
    for frame in open {
        feed(frame, &mut depacketizer)?;
    }
    out.flush()?;
    Ok(fed)
}

/// ffmpeg fails without any picture, as without parameter sets; that is not an error here.
fn decode(received: &Path, screen: &mut Screen<impl Write>) -> Result<(), DecodeError> {
    let scale = format!("scale={WIDTH}:{HEIGHT}");
    let mut command = ffmpeg::command();
    // Damage is expected; only errors that stop the decoder are logged.
    command.args(["-loglevel", "fatal"]);
    if screen.decoder == Decoder::ShowsDamage {
        command.args(["-flags", "+output_corrupt", "-flags2", "+showall"]);
    } else {
        command.args(["-flags", "-output_corrupt"]);
    }
    // Pictures without parameter sets are no failure either.
    command.args(["-max_error_rate", "1"]);
    command.args(["-f", "h264", "-i"]).arg(received);
    command.args(["-fps_mode", "passthrough", "-vf", &scale, "-pix_fmt", PIXEL_FORMAT]);
    command.args(["-f", "rawvideo", "pipe:1"]).stdout(Stdio::piped());
    let mut decoder = Running::start("decode what arrived", &mut command)?;
    let mut pictures = decoder.child.stdout.take().expect("standard output is piped");
    let mut picture = vec![0; PICTURE];
    loop {
        match pictures.read_exact(&mut picture) {
            Ok(()) => screen.show(&picture)?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error.into()),
        }
    }
    match decoder.finish() {
        // A killed ffmpeg has no exit code.
        Err(FfmpegError::Failed { status, .. })
            if screen.decoded == 0 && status.code().is_some() =>
        {
            Ok(())
        }
        finished => Ok(finished?),
    }
}

fn start_comparer(clip: &Path, frames: usize, statistics: &Path) -> Result<Running, FfmpegError> {
    let size = format!("{WIDTH}x{HEIGHT}");
    let rate = FPS.to_string();
    let name = statistics.to_string_lossy().replace('\\', "\\\\").replace(':', "\\:");
    let graph = format!(
        "[0:v]trim=end_frame={frames},scale={WIDTH}:{HEIGHT},format={PIXEL_FORMAT},settb=1/{FPS},setpts=N[sent];\
         [1:v]settb=1/{FPS},setpts=N[seen];[sent][seen]ssim=stats_file='{name}'"
    );
    let mut command: Command = ffmpeg::command();
    if is_byte_stream(clip) {
        command.args(["-f", "h264"]);
    }
    command.arg("-i").arg(clip);
    command.args(["-f", "rawvideo", "-pix_fmt", PIXEL_FORMAT, "-s", &size, "-r", &rate]);
    command.args(["-i", "pipe:0", "-lavfi", &graph, "-f", "null", "-"]);
    Running::start("compare the pictures", command.stdin(Stdio::piped()))
}

struct Screen<W> {
    out: W,
    decoder: Decoder,
    expected: VecDeque<usize>,
    /// The picture on the screen, its frame, and whether the frame's number was read from it.
    held: Vec<u8>,
    held_frame: Option<(usize, bool)>,
    written: usize,
    decoded: usize,
    unreadable: usize,
}

impl<W: Write> Screen<W> {
    fn new(out: W, fed: Vec<usize>, decoder: Decoder) -> Self {
        let mut black = vec![16; PICTURE];
        black[LUMA..].fill(128);
        Self {
            out,
            decoder,
            expected: fed.into(),
            held: black,
            held_frame: None,
            written: 0,
            decoded: 0,
            unreadable: 0,
        }
    }

    fn show(&mut self, picture: &[u8]) -> io::Result<()> {
        self.decoded += 1;
        let id = frame_id::read(&picture[..LUMA], WIDTH, HEIGHT);
        self.unreadable += usize::from(id.is_none());
        let matches = |frame: usize| id == Some((frame & 0xffff) as u16);
        // An earlier picture without a readable ID was taken for this frame.
        if self.held_frame.is_some_and(|(frame, read)| !read && matches(frame)) {
            self.held.copy_from_slice(picture);
            return Ok(());
        }
        let found = self.expected.iter().position(|frame| matches(*frame));
        if id.is_some() && found.is_none() && self.decoder == Decoder::HidesDamage {
            return Ok(());
        }
        self.expected.drain(..found.unwrap_or(0));
        let Some(frame) = self.expected.pop_front() else { return Ok(()) };
        self.hold_until(frame)?;
        self.held.copy_from_slice(picture);
        self.held_frame = Some((frame, found.is_some()));
        Ok(())
    }

    /// Holds the last picture until the end of the stream; returns the numbers of decoded pictures
    /// and of pictures without a readable ID.
    fn finish(mut self, frames: usize) -> io::Result<(usize, usize)> {
        self.hold_until(frames)?;
        self.out.flush()?;
        Ok((self.decoded, self.unreadable))
    }

    fn hold_until(&mut self, frame: usize) -> io::Result<()> {
        for _ in self.written..frame {
            self.out.write_all(&self.held)?;
        }
        self.written = self.written.max(frame);
        Ok(())
    }
}

/// Lines have the form `n:1 Y:0.99 U:0.99 V:0.99 All:0.99 (20.0)`.
fn read_statistics(path: &Path) -> io::Result<Vec<f32>> {
    let text = std::fs::read_to_string(path)?;
    let all = |line: &str| line.split_once("All:")?.1.split(' ').next()?.parse().ok();
    Ok(text.lines().filter_map(all).collect())
}

#[cfg(test)]
mod tests;
