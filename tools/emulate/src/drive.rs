//! All links of a vehicle over one drive.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roadweave_proto::Rate;

use crate::bridge::Direction;
use crate::capacity::Capacity;
use crate::csv::UNKNOWN_RTT;
use crate::error::TraceError;
use crate::load::read_trace;
use crate::synthetic::{Operator, synthetic_trace};
use crate::trace::Trace;

/// Simultaneous links of a vehicle.
#[derive(Clone, Debug, PartialEq)]
pub struct Drive {
    pub links: Vec<DriveLink>,
}

/// Both directions of one link.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveLink {
    /// The name, unique in its drive.
    pub name: String,
    /// From the vehicle.
    pub up: Trace,
    /// To the vehicle.
    pub down: Trace,
}

/// The files of one link in the directory of a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFiles {
    pub name: String,
    /// The recording from the vehicle.
    pub up: PathBuf,
    /// The recording to the vehicle, if there is one.
    pub down: Option<PathBuf>,
}

impl Drive {
    /// The capacity towards the vehicle if it is unknown.
    pub const DOWNLINK: Rate = Rate::from_kbps(20_000);

    /// Synthetic cellular links, one per operator, that repeat after `length`; equal seeds give
    /// equal drives. An operator that occurs again is numbered: `lte`, `lte-2`.
    pub fn synthetic(seed: u64, operators: &[Operator], length: Duration) -> Self {
        let link = |(index, operator): (usize, &Operator)| {
            let before = operators[..index].iter().filter(|o| o.name == operator.name).count();
            let name = match before {
                0 => operator.name.to_owned(),
                _ => format!("{}-{}", operator.name, before + 1),
            };
            DriveLink::from_uplink(name, synthetic_trace(seed, index as u64, operator, length))
        };
        Self { links: operators.iter().enumerate().map(link).collect() }
    }

    /// Reads a directory with one recording of the uplink per link and optionally one of the
    /// downlink, ordered by name; other files are ignored.
    ///
    /// `<name>.csv` and `<name>.down.csv`, or in Mahimahi's format, which has neither delay nor
    /// loss, `<name>.up` or `<name>.mm` and `<name>.down`, also as `<name>_up.mm` and
    /// `<name>_down.mm`.
    pub fn read(dir: &Path) -> Result<Self, TraceError> {
        let link = |files: LinkFiles| {
            let mut link = DriveLink::from_uplink(files.name, read_trace(&files.up, UNKNOWN_RTT)?);
            if let Some(down) = files.down {
                link.down = read_trace(&down, UNKNOWN_RTT)?;
            }
            Ok(link)
        };
        let files = LinkFiles::of_directory(dir)?.into_iter();
        Ok(Self { links: files.map(link).collect::<Result<_, TraceError>>()? })
    }

    /// The length of the longest link; `None` if all are constant.
    pub fn length(&self) -> Option<Duration> {
        self.links.iter().filter_map(|link| link.up.length().max(link.down.length())).max()
    }
}

impl LinkFiles {
    /// The recordings in `dir`, ordered by link, at least one; other files are ignored.
    pub fn of_directory(dir: &Path) -> Result<Vec<Self>, TraceError> {
        let failed = |source| TraceError::Read { file: dir.into(), source };
        let mut ups: BTreeMap<String, PathBuf> = BTreeMap::new();
        let mut downs: BTreeMap<String, PathBuf> = BTreeMap::new();
        for entry in fs::read_dir(dir).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            let Some((name, direction)) = Self::name_of(&file) else { continue };
            let files = if direction == Direction::Up { &mut ups } else { &mut downs };
            if let Some(other) = files.get(name) {
                let (file, other) = (file.clone().max(other.clone()), file.min(other.clone()));
                return Err(TraceError::Twice { file, other });
            }
            files.insert(name.to_owned(), file);
        }
        if let Some((name, down)) = downs.iter().find(|(name, _)| !ups.contains_key(*name)) {
            let ending = if is_csv(down) { "csv" } else { "up" };
            let uplink = dir.join(format!("{name}.{ending}"));
            return Err(TraceError::NoUplink { file: down.clone(), uplink });
        }
        if ups.is_empty() {
            return Err(TraceError::EmptyDrive { dir: dir.into() });
        }
        let of_link = |(name, up): (String, PathBuf)| {
            let down = downs.remove(&name);
            Self { name, up, down }
        };
        Ok(ups.into_iter().map(of_link).collect())
    }

    /// The link and direction of a file by its name; `None` for other files.
    pub fn name_of(file: &Path) -> Option<(&str, Direction)> {
        let name = file.file_name()?.to_str()?;
        // Macs and editors leave hidden files with the same suffixes beside recordings.
        if name.starts_with('.') {
            return None;
        }
        ENDINGS
            .iter()
            .find_map(|(ending, direction)| Some((name.strip_suffix(ending)?, *direction)))
    }
}

impl DriveLink {
    /// A link by its uplink; the downlink is [`Drive::DOWNLINK`] with the same delay and loss.
    pub fn from_uplink(name: impl Into<String>, up: Trace) -> Self {
        let down = up.with_capacity(Capacity::constant(Drive::DOWNLINK));
        Self { name: name.into(), up, down }
    }

    pub fn symmetric(name: impl Into<String>, trace: Trace) -> Self {
        Self { name: name.into(), up: trace.clone(), down: trace }
    }
}

/// Suffixes of the files of a drive; longer suffixes precede shorter ones that match too.
const ENDINGS: [(&str, Direction); 9] = [
    (".down.csv", Direction::Down),
    (".csv", Direction::Up),
    (".down.mm", Direction::Down),
    ("_down.mm", Direction::Down),
    (".up.mm", Direction::Up),
    ("_up.mm", Direction::Up),
    (".mm", Direction::Up),
    (".down", Direction::Down),
    (".up", Direction::Up),
];

fn is_csv(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "csv")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synthetic_drive_has_a_link_per_operator_and_downlinks_share_delay_and_loss() {
        let operators = [Operator::LTE, Operator::ATT, Operator::LTE];
        let drive = Drive::synthetic(5, &operators, Duration::from_secs(30));
        let names: Vec<&str> = drive.links.iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names, ["lte", "att", "lte-2"]);
        assert_eq!(drive.length(), Some(Duration::from_secs(30)));
        let link = &drive.links[1];
        assert_eq!(link.down.capacity().mean_rate(), Drive::DOWNLINK);
        assert_eq!((link.up.delay(), link.up.loss()), (link.down.delay(), link.down.loss()));
        assert_eq!(drive, Drive::synthetic(5, &operators, Duration::from_secs(30)));
    }

    fn read(files: &[(&str, &str)]) -> Result<Drive, String> {
        let dir = std::env::temp_dir().join(format!("roadweave-drive-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for (file, text) in files {
            fs::write(dir.join(file), text).unwrap();
        }
        let drive = Drive::read(&dir).map_err(|error| error.to_string());
        fs::remove_dir_all(&dir).unwrap();
        drive
    }

    #[test]
    fn a_directory_is_a_drive() {
        let csv = [
            ("verizon.csv", "t_ms,capacity_kbps\n0,1000\n"),
            ("._verizon.csv", "\0\x05\x16\x07\0\x02\0\0Mac OS X"),
            ("att.csv", "t_ms,rtt_ms\n0,80\n"),
            ("drive.json", "{}"),
        ];
        let with = |file, text| read(&[&csv[..], &[(file, text)]].concat());
        let drive = read(&csv).unwrap();
        assert_eq!(drive.links[0].name, "att");
        assert_eq!(drive.links[0].down.delay().at(Duration::ZERO), Duration::from_millis(40));
        assert_eq!(drive.links[1].up.capacity().mean_rate(), Rate::from_kbps(1_000));
        let both_ways = with("att.down.csv", "t_ms,bytes,delay_ms\n0,,7\n1000,500,\n").unwrap();
        assert_eq!(both_ways.links.len(), 2);
        assert_eq!(both_ways.links[0].up, drive.links[0].up);
        let down = &both_ways.links[0].down;
        assert_eq!(down.capacity().mean_rate(), Rate::from_bps(4_000));
        assert_eq!(down.delay().at(Duration::ZERO), Duration::from_millis(7));

        let mahimahi = [
            ("a.up", "1\n2\n"),
            ("a.down", "1\n4\n"),
            ("b.mm", "1\n"),
            ("c_up.mm", "2\n"),
            ("c_down.mm", "1\n"),
            ("notes.txt", "no link"),
        ];
        let links = read(&mahimahi).unwrap().links;
        let mbps = |trace: &Trace| trace.capacity().mean_rate().as_bps() / 1_000_000;
        let links = links.iter().map(|link| (&*link.name, mbps(&link.up), mbps(&link.down)));
        assert_eq!(links.collect::<Vec<_>>(), [("a", 12, 6), ("b", 12, 20), ("c", 6, 12)]);

        let alone = read(&[&mahimahi[..], &[("d.down", "1\n")]].concat());
        for (result, parts) in [
            (read(&[]), ["no links", ""]),
            (with("modem.down.csv", "t_ms\n0\n"), ["modem.down.csv: no uplink", ""]),
            (with("att.up", "1\n"), ["att.up: ", "att.csv"]),
            (with("bad.csv", "t_ms\nx\n"), ["bad.csv:2:1: `x` is not a valid t_ms", ""]),
            (alone, ["d.down: no uplink", "d.up"]),
        ] {
            let error = result.unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
