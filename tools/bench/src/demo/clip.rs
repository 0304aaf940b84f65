//! The reference clip: 1080p30 H.264 at a constant rate, with a frame ID in every frame.
//!
//! ```text
//!   texture, panned + sensor noise --+
//!                                    +--> stamp --> libx264, low latency --> clip.h264
//!   a file of the user's, looped ----+
//! ```
//!
//! The generated picture is a fine texture under a swaying camera, with sensor noise: like street
//! scenes it needs the encoder's whole rate. The encoder is set up as in a vehicle: no B-frames, an
//! IDR frame every second, a buffer of 100 ms, slices encoded in parallel.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use roadweave_lab::video::frame_id::{self, PICTURE_HEIGHT, PICTURE_WIDTH};
use roadweave_lab::video::h264::{AccessUnit, Splitter};

use super::ffmpeg::{self, FfmpegError, Running};

pub const FPS: u32 = 30;
const READ_SIZE: usize = 64 << 10;

/// With an IDR frame a second and a buffer of 100 ms, x264 stays below its target rate. This factor
/// gives 30.3 Mbit/s for 30 and 7.0 Mbit/s for 8 (measured).
const RATE_RESERVE: f64 = 1.18;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClipSpec {
    /// A video instead of the generated one, repeated if it is too short.
    pub source: Option<PathBuf>,
    /// Seconds, at least 1.
    pub seconds: u32,
    /// Without RTP headers.
    pub bitrate_bps: u64,
}

impl ClipSpec {
    pub fn frames(&self) -> u32 {
        self.seconds * FPS
    }

    pub fn encode(&self, out: &Path, mut progress: impl FnMut(u64)) -> Result<(), FfmpegError> {
        ffmpeg::check()?;
        let mut command = self.command(out);
        command.args(["-progress", "pipe:1"]).stdout(Stdio::piped());
        let mut running = Running::start("encode the clip", &mut command)?;
        if let Some(stdout) = running.child.stdout.take() {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(frames) =
                    line.strip_prefix("frame=").and_then(|n| n.trim().parse().ok())
                {
                    progress(frames);
                }
            }
        }
        running.finish()
    }

    /// All inputs of the clip except ffmpeg and the bytes of a source.
    pub fn recipe(&self) -> String {
        format!("{:?}", self.command(Path::new("")))
    }

    fn command(&self, out: &Path) -> Command {
        let mut command = ffmpeg::command();
        input(self.source.as_deref(), "", &mut command);
        self.output(&mut command, out);
        command
    }

    fn output(&self, command: &mut Command, out: &Path) {
        let rate = self.bitrate_bps as f64 * RATE_RESERVE;
        let buffer = format!("{:.0}", rate / 10.0);
        let rate = format!("{rate:.0}");
        let (frames, interval) = (self.frames().to_string(), FPS.to_string());
        command.args(["-frames:v", &frames, "-pix_fmt", "yuv420p"]);
        command.args(["-c:v", "libx264", "-preset", "superfast", "-tune", "zerolatency"]);
        command.args(["-b:v", &rate, "-maxrate", &rate, "-bufsize", &buffer]);
        command.args(["-g", &interval, "-keyint_min", &interval, "-sc_threshold", "0", "-bf", "0"]);
        // zerolatency makes one slice per thread; the number must not depend on the machine.
        command.args(["-threads", "4", "-f", "h264"]).arg(out);
    }
}

/// Adds endless, stamped pictures as ffmpeg's input. `then` has further filters: empty, or
/// beginning with a comma.
pub fn input(source: Option<&Path>, then: &str, command: &mut Command) {
    let stamp = frame_id::stamp_filter();
    match source {
        None => {
            let picture = format!("{},{stamp}{then}", generated_picture());
            command.args(["-f", "lavfi", "-i", &picture]);
        }
        Some(file) => {
            let fit = format!(
                "fps={FPS},scale={PICTURE_WIDTH}:{PICTURE_HEIGHT}:force_original_aspect_ratio=decrease,\
                 pad={PICTURE_WIDTH}:{PICTURE_HEIGHT}:-1:-1,setsar=1,format=yuv420p,{stamp}{then}"
            );
            if is_byte_stream(file) {
                command.args(["-f", "h264", "-framerate", &FPS.to_string()]);
            }
            command.args(["-stream_loop", "-1", "-i"]).arg(file);
            command.args(["-map", "0:v:0", "-vf", &fit]);
        }
    }
}

/// Whether a video is an H.264 byte stream, for which ffmpeg needs the format and frame rate.
pub fn is_byte_stream(clip: &Path) -> bool {
    clip.extension().is_some_and(|extension| extension == "h264" || extension == "264")
}

pub fn read(clip: &Path) -> anyhow::Result<Arc<[AccessUnit]>> {
    let mut units = Units::open(clip)?;
    std::iter::from_fn(|| units.next().transpose()).collect()
}

pub struct Units {
    file: File,
    splitter: Splitter,
    ended: bool,
}

impl Units {
    pub fn open(clip: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(clip)?, splitter: Splitter::default(), ended: false })
    }

    pub fn next(&mut self) -> anyhow::Result<Option<AccessUnit>> {
        let mut piece = vec![0; READ_SIZE];
        loop {
            if let Some(unit) = self.splitter.next_access_unit() {
                return Ok(Some(unit));
            }
            if self.ended {
                return Ok(None);
            }
            match self.file.read(&mut piece) {
                Ok(0) => {
                    self.splitter.finish();
                    self.ended = true;
                }
                Ok(length) => self.splitter.push(&piece[..length])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot read the clip"),
            }
        }
    }
}

/// ffmpeg's description of the generated picture: a texture in a swaying window, and noise.
fn generated_picture() -> String {
    let (margin_x, margin_y) = (256, 144);
    let (width, height) = (PICTURE_WIDTH + 2 * margin_x, PICTURE_HEIGHT + 2 * margin_y);
    let luma = "118+46*sin(X/61+2*sin(Y/83))*cos(Y/47)+70*(random(1)-0.5)\
                +40*lt(mod(X+Y,97),6)-40*lt(mod(X-2*Y+5000,131),7)";
    let blue = "128+36*sin(X/211+Y/97)";
    let red = "128+36*sin(Y/151-X/301)";
    format!(
        "nullsrc=s={width}x{height}:r={FPS}:d=0.03,format=yuv420p,\
         geq=lum='{luma}':cb='{blue}':cr='{red}',gblur=sigma=0.8:steps=1,loop=loop=-1:size=1,\
         crop={PICTURE_WIDTH}:{PICTURE_HEIGHT}:x='{margin_x}+240*sin(2*PI*n/170)':y='{margin_y}+130*sin(2*PI*n/110)',\
         noise=c0s=12:c0f=t+u:all_seed=1,setpts=N/{FPS}/TB"
    )
}
