//! Reads recordings from files and directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roadweave_emulate::{Capacity, Direction, LinkFiles, Trace, TraceError, read_trace};
use roadweave_terminal::exit::BadInput;

use super::Section;

/// Links recorded at the same time, or a single file.
#[derive(Debug)]
pub struct Recording {
    pub name: String,
    pub path: PathBuf,
    pub links: Vec<RecordedLink>,
}

/// One direction of a link, or both.
#[derive(Debug)]
pub struct RecordedLink {
    pub name: String,
    /// The direction that is always present.
    pub first: (Direction, Trace),
    /// The direction to the vehicle, if `first` is the one from it.
    pub down: Option<Trace>,
}

impl Recording {
    pub fn length(&self) -> Duration {
        let ways = self.links.iter().flat_map(RecordedLink::ways);
        let longest = ways.filter_map(|(_, trace)| trace.length()).max();
        longest.unwrap_or(Duration::from_secs(1))
    }

    pub fn uplinks(&self) -> Vec<&Trace> {
        let ways = self.links.iter().flat_map(RecordedLink::ways);
        ways.filter(|(way, _)| *way == Direction::Up).map(|(_, trace)| trace).collect()
    }

    /// The requested part, with the same length for all links. [`BadInput`] if it repeats a
    /// recording so often that it would not fit the memory.
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
                    let problem = "too many delivery opportunities; use fewer --seconds";
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
    pub fn ways(&self) -> impl Iterator<Item = (Direction, &Trace)> {
        let down = self.down.iter().map(|trace| (Direction::Down, trace));
        std::iter::once((self.first.0, &self.first.1)).chain(down)
    }

    /// Both directions; a direction without a recording has the delay of the other.
    pub fn round_trip(&self) -> (&Trace, &Trace) {
        (&self.first.1, self.down.as_ref().unwrap_or(&self.first.1))
    }
}

pub fn read_all(paths: &[PathBuf], rtt: Duration) -> Result<Vec<Recording>, BadInput> {
    let mut recordings = Vec::new();
    for path in paths {
        if path.is_dir() {
            recordings.extend(directory(path, rtt)?);
        } else {
            recordings.push(file(path, rtt)?);
        }
    }
    Ok(recordings)
}

pub fn read_one(path: &Path, rtt: Duration) -> Result<Recording, BadInput> {
    let mut recordings = read_all(&[path.to_owned()], rtt)?;
    match (recordings.pop(), recordings.len()) {
        (Some(recording), 0) => Ok(recording),
        (_, more) => {
            let problem = format!("{}: {} drives; name one of them", path.display(), more + 1);
            Err(BadInput::new(problem))
        }
    }
}

fn file(path: &Path, rtt: Duration) -> Result<Recording, BadInput> {
    let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (name, direction) = LinkFiles::name_of(path)
        .map_or_else(|| (stem(), Direction::Up), |(name, way)| (name.to_owned(), way));
    let trace = read_trace(path, rtt).map_err(BadInput::new)?;
    let link = RecordedLink { name, first: (direction, trace), down: None };
    Ok(Recording { name: name_of(path), path: path.to_owned(), links: vec![link] })
}

fn drive(directory: &Path, rtt: Duration) -> Result<Recording, TraceError> {
    let mut links = Vec::new();
    for LinkFiles { name, up, down } in LinkFiles::of_directory(directory)? {
        let up = read_trace(&up, rtt)?;
        let down = down.map(|down| read_trace(&down, rtt)).transpose()?;
        links.push(RecordedLink { name, first: (Direction::Up, up), down });
    }
    Ok(Recording { name: name_of(directory), path: directory.to_owned(), links })
}

fn directory(directory: &Path, rtt: Duration) -> Result<Vec<Recording>, BadInput> {
    let failed = |error| BadInput::new(format!("{}: {error}", directory.display()));
    let mut folders = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        folders.extend(Some(entry.map_err(failed)?.path()).filter(|path| path.is_dir()));
    }
    folders.sort_unstable();
    let mut drives = Vec::new();
    for folder in folders {
        match drive(&folder, rtt) {
            Ok(recording) => drives.push(recording),
            Err(TraceError::EmptyDrive { .. }) => {}
            Err(error) => return Err(BadInput::new(error)),
        }
    }
    if drives.is_empty() {
        drives.push(drive(directory, rtt).map_err(BadInput::new)?);
    }
    Ok(drives)
}

pub fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Up => "up",
        Direction::Down => "down",
    }
}

fn name_of(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    full.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

const OPPORTUNITIES_MAX: f64 = 5e7;
