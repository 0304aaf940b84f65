//! Recordings from files and directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roadweave_emulate::{Capacity, Direction, LinkFiles, Trace, TraceError, Unknown, read_trace};
use roadweave_terminal::exit::BadInput;

use super::Section;

/// Links recorded at the same time, or a file by itself.
#[derive(Debug)]
pub struct Recording {
    /// The name of its directory, or of its file.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// At least one.
    pub links: Vec<RecordedLink>,
}

/// What was recorded of a link: one direction or both.
#[derive(Debug)]
pub struct RecordedLink {
    /// What it is called.
    pub name: String,
    /// The direction that is always there, and its recording.
    pub first: (Direction, Trace),
    /// The way to the vehicle, beside that from it.
    pub down: Option<Trace>,
}

impl Recording {
    /// How long the longest link takes; a second for what never changes.
    pub fn length(&self) -> Duration {
        let ways = self.links.iter().flat_map(RecordedLink::ways);
        let longest = ways.filter_map(|(_, trace)| trace.length()).max();
        longest.unwrap_or(Duration::from_secs(1))
    }

    /// The links from the vehicle.
    pub fn uplinks(&self) -> Vec<&Trace> {
        let ways = self.links.iter().flat_map(RecordedLink::ways);
        ways.filter(|(way, _)| *way == Direction::Up).map(|(_, trace)| trace).collect()
    }

    /// The part that is wanted, of the same length for all links; all of it if there is no wish.
    ///
    /// # Errors
    /// [`BadInput`] when that repeats a recording so often that it would fill the memory.
    pub fn part(self, part: Section) -> Result<Self, BadInput> {
        if part.from.is_none() && part.seconds.is_none() {
            return Ok(self);
        }
        let from = part.from.unwrap_or_default();
        let whole = self.length();
        let lasting = part.seconds.unwrap_or_else(|| match whole.saturating_sub(from) {
            Duration::ZERO => whole,
            rest => rest,
        });
        let cut = |trace: &Trace| {
            if let Capacity::Opportunities(opportunities) = &**trace.capacity() {
                let passes = (from + lasting).div_duration_f64(opportunities.period()).ceil();
                if passes * opportunities.iter().count() as f64 > OPPORTUNITIES_MAX {
                    let problem = "more delivery opportunities than fit; ask for fewer --seconds";
                    return Err(BadInput::new(format!("{}: {problem}", self.path.display())));
                }
            }
            Ok(trace.part(from, lasting))
        };
        let links = self.links.iter().map(|link| {
            Ok(RecordedLink {
                name: link.name.clone(),
                first: (link.first.0, cut(&link.first.1)?),
                down: link.down.as_ref().map(cut).transpose()?,
            })
        });
        let links = links.collect::<Result<_, BadInput>>()?;
        Ok(Self { links, ..self })
    }
}

impl RecordedLink {
    /// Each direction that was recorded.
    pub fn ways(&self) -> impl Iterator<Item = (Direction, &Trace)> {
        let down = self.down.iter().map(|trace| (Direction::Down, trace));
        std::iter::once((self.first.0, &self.first.1)).chain(down)
    }

    /// The way there and the way back; one that was not recorded has the delay of the other.
    pub fn round_trip(&self) -> (&Trace, &Trace) {
        (&self.first.1, self.down.as_ref().unwrap_or(&self.first.1))
    }
}

/// Reads each of `paths`: a file, a drive, or a directory of drives.
///
/// # Errors
/// [`BadInput`] with the place of what is wrong.
pub fn read_all(paths: &[PathBuf], unknown: Unknown) -> Result<Vec<Recording>, BadInput> {
    let mut recordings = Vec::new();
    for path in paths {
        if path.is_dir() {
            recordings.extend(directory(path, unknown)?);
        } else {
            recordings.push(file(path, unknown)?);
        }
    }
    Ok(recordings)
}

/// Reads `path`: a file or a drive.
///
/// # Errors
/// [`BadInput`] with the place of what is wrong, also when there are several drives.
pub fn read_one(path: &Path, unknown: Unknown) -> Result<Recording, BadInput> {
    let mut recordings = read_all(&[path.to_owned()], unknown)?;
    match (recordings.pop(), recordings.len()) {
        (Some(recording), 0) => Ok(recording),
        (_, more) => {
            let problem = format!("{}: {} drives; name one of them", path.display(), more + 1);
            Err(BadInput::new(problem))
        }
    }
}

fn file(path: &Path, unknown: Unknown) -> Result<Recording, BadInput> {
    let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (name, direction) = LinkFiles::name_of(path)
        .map_or_else(|| (stem(), Direction::Up), |(name, way)| (name.to_owned(), way));
    let trace = read_trace(path, unknown).map_err(BadInput::new)?;
    let link = RecordedLink { name, first: (direction, trace), down: None };
    Ok(Recording { name: name_of(path), path: path.to_owned(), links: vec![link] })
}

fn drive(directory: &Path, unknown: Unknown) -> Result<Recording, TraceError> {
    let mut links = Vec::new();
    for LinkFiles { name, up, down } in LinkFiles::of_directory(directory)? {
        let up = read_trace(&up, unknown)?;
        let down = down.map(|down| read_trace(&down, unknown)).transpose()?;
        links.push(RecordedLink { name, first: (Direction::Up, up), down });
    }
    Ok(Recording { name: name_of(directory), path: directory.to_owned(), links })
}

/// The drives in `directory`, by name; the directory itself if there are none in it.
fn directory(directory: &Path, unknown: Unknown) -> Result<Vec<Recording>, BadInput> {
    let failed = |error| BadInput::new(format!("{}: {error}", directory.display()));
    let mut folders = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        folders.extend(Some(entry.map_err(failed)?.path()).filter(|path| path.is_dir()));
    }
    folders.sort_unstable();
    let mut drives = Vec::new();
    for folder in folders {
        match drive(&folder, unknown) {
            Ok(recording) => drives.push(recording),
            Err(TraceError::EmptyDrive { .. }) => {}
            Err(error) => return Err(BadInput::new(error)),
        }
    }
    if drives.is_empty() {
        drives.push(drive(directory, unknown).map_err(BadInput::new)?);
    }
    Ok(drives)
}

/// A direction in a word.
pub fn told(direction: Direction) -> &'static str {
    match direction {
        Direction::Up => "up",
        Direction::Down => "down",
    }
}

/// What a path is called, also `.` and `..`.
fn name_of(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    full.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// So many delivery opportunities a part may have.
const OPPORTUNITIES_MAX: f64 = 5e7;
