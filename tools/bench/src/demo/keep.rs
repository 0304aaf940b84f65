//! Files of `--keep`, for `roadweave qoe` and for further runs of the same clip.
//!
//! ```text
//!   DIR/clip.h264
//!   DIR/xnc/sent.csv, arrived.log
//!   DIR/single-att/sent.csv, arrived.log
//!   DIR/film.mp4
//!   DIR/lola-adaptive/sent.jsonl, shown.jsonl, received.h264
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::qoe::Logs;

#[derive(Debug)]
pub struct KeepFolder {
    directory: PathBuf,
}

impl KeepFolder {
    pub fn new(directory: &Path, clip: Option<&Path>, film: Option<&Path>) -> anyhow::Result<Self> {
        let keep = Self { directory: directory.to_owned() };
        for (file, name) in [(clip, "clip.h264"), (film, "film.mp4")] {
            if let Some(file) = file {
                keep.copy(file, Path::new(name))?;
            }
        }
        Ok(keep)
    }

    pub fn take(&self, name: &str, files: &[&Path]) -> anyhow::Result<()> {
        let run = Logs::of_run(Path::new(""), name).sent;
        files.iter().try_for_each(|file| {
            self.copy(file, &run.with_file_name(file.file_name().unwrap_or_default()))
        })
    }

    fn copy(&self, from: &Path, to: &Path) -> anyhow::Result<()> {
        let to = self.directory.join(to);
        let unwritable = || format!("--keep: cannot write {}", to.display());
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).with_context(unwritable)?;
        }
        // Copying a file onto itself would empty it.
        if to.canonicalize().is_ok_and(|to| from.canonicalize().is_ok_and(|from| from == to)) {
            return Ok(());
        }
        fs::copy(from, &to).with_context(unwritable).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clip_that_is_there_already_stays_and_runs_lie_side_by_side() {
        let folder = tempfile::tempdir().unwrap();
        let clip = folder.path().join("clip.h264");
        fs::write(&clip, b"pictures").unwrap();
        let keep = KeepFolder::new(folder.path(), Some(&clip), None).unwrap();
        keep.take("single:att-adaptive", &[&clip]).unwrap();
        for file in ["clip.h264", "single-att-adaptive/clip.h264"] {
            assert_eq!(fs::read(folder.path().join(file)).unwrap(), b"pictures", "{file}");
        }
    }
}
