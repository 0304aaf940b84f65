//! Input of the live encoder: the pictures of the demo's clip with their frame IDs, hardly
//! compressed, and smaller, so that encoding takes half a core at most.

use std::path::Path;

use crate::demo::clip::{self, FPS};
use crate::demo::ffmpeg::{self, FfmpegError, Running};

pub const WIDTH: usize = 640;
pub const HEIGHT: usize = 360;

pub fn make(source: Option<&Path>, frames: u32, out: &Path) -> Result<(), FfmpegError> {
    let mut command = ffmpeg::command();
    clip::input(source, &format!(",scale={WIDTH}:{HEIGHT}"), &mut command);
    command.args(["-frames:v", &frames.to_string(), "-pix_fmt", "yuv420p"]);
    // Quick to decode, since the demo's camera decodes it in real time.
    command.args(["-c:v", "libx264", "-preset", "ultrafast", "-tune", "fastdecode", "-crf", "8"]);
    command.args(["-g", &FPS.to_string(), "-bf", "0"]).arg(out);
    Running::start("make the film", &mut command)?.finish()
}
