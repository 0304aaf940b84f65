//! Finds `roadweave-video`, and checks that it runs.

use std::path::PathBuf;
use std::process::Command;

use roadweave_terminal::program;

use crate::demo::ffmpeg;

const NAME: &str = "roadweave-video";

/// The program, beside this one or in `PATH`, if its encoder works. The error has the fix.
pub fn find() -> Result<PathBuf, String> {
    let program = program::find(NAME).ok_or_else(|| {
        format!("{NAME} is neither beside this program nor in PATH; build it with: make video")
    })?;
    ffmpeg::check().map_err(|error| error.to_string())?;
    let trial = ["send", "--to", "127.0.0.1:9", "--size", "320x180", "--seconds", "1"];
    let output = Command::new(&program).args(trial).output();
    let problem = match output {
        Ok(output) if output.status.success() => return Ok(program),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            said.lines().last().unwrap_or("no message").to_owned()
        }
        Err(error) => error.to_string(),
    };
    let program = program.display();
    Err(format!("cannot run {program} ({problem}); install its dependencies with: make video"))
}
