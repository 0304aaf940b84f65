//! Stored results, so that an interrupted comparison can be continued.
//!
//! A text file with one JSON object per line: the run and its result. A result is reused only if
//! everything that it depends on is unchanged, including this program.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use roadweave_lab::compare::{Measured, Setting};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    pub drive: String,
    pub strategy: String,
    #[serde(flatten)]
    pub setting: Setting,
    /// Fingerprint of the clip and of ffmpeg, if pictures were compared.
    #[serde(default)]
    pub clip: Option<String>,
    pub recordings: String,
    pub program: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedRun {
    key: Key,
    measured: Measured,
}

#[derive(Debug)]
pub struct SavedRuns {
    path: PathBuf,
    file: File,
    lines: Vec<SavedRun>,
}

impl SavedRuns {
    /// Opens `path`, or creates it. Broken lines, such as the last one of a killed program, are
    /// reported and ignored. [`BadInput`] if the file contains something other than results.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("--resume {}", path.display()))?;
        let mut lines = Vec::new();
        let mut broken = 0;
        for (number, text) in (1..).zip(BufReader::new(&file).split(b'\n')) {
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            match serde_json::from_slice(&text) {
                Ok(line) => lines.push(line),
                Err(_) if text.is_empty() => {}
                Err(_) => {
                    out::note(format_args!(
                        "{}:{number}: incomplete result, ignored",
                        path.display()
                    ));
                    broken += 1;
                }
            }
        }
        if lines.is_empty() && broken > 1 {
            let problem = format!("--resume {}: not a file of results", path.display());
            return Err(BadInput::new(problem).into());
        }
        end_last_line(&mut file).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file, lines })
    }

    pub fn find(&self, key: &Key) -> Option<&Measured> {
        self.lines.iter().find(|line| line.key == *key).map(|line| &line.measured)
    }

    pub fn keep(&self, key: &Key, measured: &Measured) -> anyhow::Result<()> {
        let line = SavedRun { key: key.clone(), measured: measured.clone() };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        // One write, so that lines of several workers do not mix.
        let written = (&self.file).write_all(&text);
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn end_last_line(file: &mut File) -> std::io::Result<()> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(());
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    if last == *b"\n" { Ok(()) } else { file.write_all(b"\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_something_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter");
        std::fs::write(&path, "Dear all,\nhello").unwrap();
        let error = SavedRuns::open(&path).unwrap_err();
        assert!(error.is::<BadInput>(), "{error:#}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "Dear all,\nhello");
    }
}
