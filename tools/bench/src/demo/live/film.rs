//! What stands before the live encoder's camera: the pictures of the demo's clip, smaller, so that
//! they are encoded within half a core, and hardly compressed. Each carries its number.

use std::path::Path;

use crate::demo::clip::{self, FPS};
use crate::demo::ffmpeg::{self, FfmpegError, Running};

/// What the live encoder makes of them.
pub const WIDTH: usize = 640;
/// What the live encoder makes of them.
pub const HEIGHT: usize = 360;

/// Makes a film of so many frames out of `source`, or of the generated pictures.
///
/// # Errors
/// [`FfmpegError`] when ffmpeg is missing or the source cannot be read.
pub fn make(source: Option<&Path>, frames: u32, out: &Path) -> Result<(), FfmpegError> {
    let mut command = ffmpeg::command();
    clip::input(source, &format!(",scale={WIDTH}:{HEIGHT}"), &mut command);
    command.args(["-frames:v", &frames.to_string(), "-pix_fmt", "yuv420p"]);
    // Quick to decode, since the camera of the demo has to.
    command.args(["-c:v", "libx264", "-preset", "ultrafast", "-tune", "fastdecode", "-crf", "8"]);
    command.args(["-g", &FPS.to_string(), "-bf", "0"]).arg(out);
    Running::start("make the film", &mut command)?.finish()
}
