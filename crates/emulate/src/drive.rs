//! All links of a vehicle over one drive.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roadweave_types::Rate;

use crate::capacity::Capacity;
use crate::csv::Unknown;
use crate::error::TraceError;
use crate::load::read_csv;
use crate::synthetic::{Operator, synthetic_trace};
use crate::trace::Trace;

/// Links that a vehicle has at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct Drive {
    /// The links.
    pub links: Vec<DriveLink>,
}

/// Both directions of one link.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveLink {
    /// What it is called, unique in its drive.
    pub name: String,
    /// From the vehicle.
    pub up: Trace,
    /// To the vehicle.
    pub down: Trace,
}

impl Drive {
    /// The capacity towards the vehicle, where nothing else is known.
    pub const DOWNLINK: Rate = Rate::from_kbps(20_000);

    /// Synthetic cellular links, one per operator; equal seeds give equal drives.
    ///
    /// They repeat after `length`. An operator that occurs again is numbered: `lte`, `lte-2`.
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

    /// Reads a directory with one CSV recording of the uplink per link, `<name>.csv`, in the order
    /// of their names, and of the downlink where there is a `<name>.down.csv`; other files are
    /// ignored.
    ///
    /// # Errors
    /// [`TraceError`] when the directory or a recording cannot be read, none is there, or there is
    /// a downlink without its uplink.
    pub fn read(dir: &Path) -> Result<Self, TraceError> {
        let failed = |source| TraceError::Read { file: dir.into(), source };
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(dir).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file.extension().is_some_and(|extension| extension == "csv") {
                files.push(file);
            }
        }
        files.sort_unstable();
        let (downs, ups): (Vec<PathBuf>, Vec<PathBuf>) =
            files.into_iter().partition(|file| is_downlink(file));
        if let Some(down) = downs.iter().find(|down| !ups.contains(&uplink_of(down))) {
            return Err(TraceError::NoUplink { file: down.clone(), uplink: uplink_of(down) });
        }
        if ups.is_empty() {
            return Err(TraceError::EmptyDrive { dir: dir.into() });
        }
        let link = |file: &PathBuf| {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let mut link = DriveLink::from_uplink(name, read_csv(file, Unknown::default())?);
            if let Some(down) = downs.iter().find(|down| uplink_of(down) == *file) {
                link.down = read_csv(down, Unknown::default())?;
            }
            Ok(link)
        };
        Ok(Self { links: ups.iter().map(link).collect::<Result<_, TraceError>>()? })
    }

    /// The length of the longest link; `None` when nothing ever changes.
    pub fn length(&self) -> Option<Duration> {
        self.links.iter().filter_map(|link| link.up.length().max(link.down.length())).max()
    }
}

impl DriveLink {
    /// A link of which only the uplink is known: towards the vehicle [`Drive::DOWNLINK`] with the
    /// same delay and loss.
    pub fn from_uplink(name: impl Into<String>, up: Trace) -> Self {
        let down = up.with_capacity(Capacity::constant(Drive::DOWNLINK));
        Self { name: name.into(), up, down }
    }

    /// A link of the same trace in both directions.
    pub fn symmetric(name: impl Into<String>, trace: Trace) -> Self {
        Self { name: name.into(), up: trace.clone(), down: trace }
    }
}

/// Whether `file` is a `<name>.down.csv`.
fn is_downlink(file: &Path) -> bool {
    file.file_stem().is_some_and(|stem| Path::new(stem).extension() == Some("down".as_ref()))
}

/// The `<name>.csv` that belongs to the `<name>.down.csv` of `down`.
fn uplink_of(down: &Path) -> PathBuf {
    down.with_extension("").with_extension("csv")
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

    #[test]
    fn a_directory_is_a_drive() {
        let dir = std::env::temp_dir().join(format!("roadweave-drive-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let empty = Drive::read(&dir).unwrap_err().to_string();
        fs::write(dir.join("verizon.csv"), "t_ms,capacity_kbps\n0,1000\n").unwrap();
        fs::write(dir.join("att.csv"), "t_ms,rtt_ms\n0,80\n").unwrap();
        fs::write(dir.join("drive.json"), "{}").unwrap();
        let drive = Drive::read(&dir).unwrap();
        fs::write(dir.join("att.down.csv"), "t_ms,bytes,delay_ms\n0,,7\n1000,500,\n").unwrap();
        let both_ways = Drive::read(&dir).unwrap();
        fs::write(dir.join("modem.down.csv"), "t_ms\n0\n").unwrap();
        let alone = Drive::read(&dir).unwrap_err().to_string();
        fs::remove_file(dir.join("modem.down.csv")).unwrap();
        fs::write(dir.join("bad.csv"), "t_ms\nx\n").unwrap();
        let bad = Drive::read(&dir).unwrap_err().to_string();
        fs::remove_dir_all(&dir).unwrap();

        assert!(empty.contains("no link here"), "{empty}");
        assert_eq!(drive.links[0].name, "att");
        assert_eq!(drive.links[0].down.delay().at(Duration::ZERO), Duration::from_millis(40));
        assert_eq!(drive.links[1].up.capacity().mean_rate(), Rate::from_kbps(1_000));
        assert_eq!(both_ways.links.len(), 2);
        assert_eq!(both_ways.links[0].up, drive.links[0].up);
        let down = &both_ways.links[0].down;
        assert_eq!(down.capacity().mean_rate(), Rate::from_bps(4_000));
        assert_eq!(down.delay().at(Duration::ZERO), Duration::from_millis(7));
        assert!(alone.contains("modem.down.csv: no uplink"), "{alone}");
        assert!(bad.contains("bad.csv:2:1: `x` is no t_ms"), "{bad}");
    }
}
