//! The directory of a recording: a drive for `emulate`, `lab` and `trace`.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use roadweave_emulate::format_csv;
use roadweave_proto::Rate;
use roadweave_record::{DelayClock, DirectionRecording, DirectionSummary, LinkRecording};
use roadweave_terminal::exit::BadInput;
use serde_json::{Value, json};

use crate::table::{Column, filled, plain, right_aligned};

#[derive(Debug)]
pub struct Recording {
    directory: PathBuf,
    is_vain: Cell<bool>,
}

#[derive(Debug)]
pub struct Recorded {
    pub name: String,
    pub interface: String,
    pub recording: LinkRecording,
    pub modem: Option<String>,
}

impl Recording {
    /// Creates the directory, or takes an empty one, before the recording starts: a typo must not
    /// cost hours. It is removed again if nothing is written.
    pub fn new(directory: &Path) -> Result<Self, BadInput> {
        let failed = |error| BadInput::new(format!("--output {}: {error}", directory.display()));
        let is_vain = Cell::new(!directory.exists());
        fs::create_dir_all(directory).map_err(failed)?;
        if fs::read_dir(directory).map_err(failed)?.next().is_some() {
            let problem = format!("--output {}: not empty", directory.display());
            return Err(BadInput::new(problem));
        }
        Ok(Self { directory: directory.to_owned(), is_vain })
    }

    /// Writes a file per link and direction, modem readings, and the returned `recording.json`.
    pub fn write(&self, mode: &str, links: &[Recorded]) -> anyhow::Result<Value> {
        let (mut described, mut of_modems) = (Vec::new(), Vec::new());
        for link in links {
            let LinkRecording { up, down, delay_clock, .. } = &link.recording;
            let (up_file, down_file) =
                (format!("{}.csv", link.name), format!("{}.down.csv", link.name));
            self.write_file(&up_file, &csv(&link.name, "uplink", *delay_clock, up))?;
            self.write_file(&down_file, &csv(&link.name, "downlink", *delay_clock, down))?;
            let mut description = json!({
                "name": link.name,
                "interface": link.interface,
                "delay_clock": delay_clock,
                "entries_missing": link.recording.entries_missing,
                "up": with_file(&up.summary, &up_file)?,
                "down": with_file(&down.summary, &down_file)?,
            });
            if let Some(lines) = &link.modem {
                let file = format!("{}.modem.jsonl", link.name);
                description["modem"] = json!({ "file": file });
                of_modems.push((file, lines));
            }
            described.push(description);
        }
        // Traces are written first, in case the disk fills up.
        for (file, lines) in of_modems {
            self.write_file(&file, lines)?;
        }
        let summary = json!({ "mode": mode, "links": described });
        let text = serde_json::to_string_pretty(&summary).context("cannot write JSON")?;
        self.write_file("recording.json", &(text + "\n"))?;
        Ok(summary)
    }

    pub fn table(&self, links: &[Recorded]) -> String {
        let columns: &[Column<(&str, &str, &DirectionSummary)>] = &[
            ("link", |way| way.0.to_owned()),
            ("way", |way| way.1.to_owned()),
            ("replay s", |way| format!("{:.1}", way.2.seconds)),
            ("capacity", |way| match way.2.capacity_bps {
                Some(bps) => Rate::from_bps(bps).to_string(),
                None => "-".to_owned(),
            }),
            ("delay ms", |way| format!("{:.1}-{:.1}", way.2.delay_ms_min, way.2.delay_ms_max)),
            ("loss %", |way| {
                way.2.loss.map_or_else(|| "-".to_owned(), |loss| format!("{:.1}", loss * 100.0))
            }),
        ];
        let ways = links.iter().flat_map(|link| {
            let LinkRecording { up, down, .. } = &link.recording;
            [(&*link.name, "up", &up.summary), (&*link.name, "down", &down.summary)]
        });
        let table = right_aligned(filled(plain(), columns, ways), 2);
        format!("{table}\nwritten to {}", self.directory.display())
    }

    fn write_file(&self, name: &str, text: &str) -> anyhow::Result<()> {
        self.is_vain.set(false);
        let file = self.directory.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.is_vain.get() {
            // This removes only an empty directory; one that stays does no harm.
            let _ = fs::remove_dir(&self.directory);
        }
    }
}

fn csv(name: &str, way: &str, clock: DelayClock, direction: &DirectionRecording) -> String {
    let capacity = match direction.summary.capacity_bps {
        Some(_) => "",
        None => ", capacity not measured",
    };
    let delay = match clock {
        DelayClock::HalfRoundTrip => "delay is half of the round trip",
        DelayClock::Synchronized => "delay by synchronised clocks",
    };
    let trace = format_csv(&direction.trace);
    format!("# roadweave record: {way} of {name}, {delay}{capacity}\n{trace}")
}

fn with_file(summary: &DirectionSummary, file: &str) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(summary).context("cannot write JSON")?;
    value["file"] = file.into();
    Ok(value)
}
