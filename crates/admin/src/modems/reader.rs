//! Chooses the source for each interface: ModemManager where it runs, else the modem itself.
//!
//! ```text
//! ModemManager ──────────────── answers ─► its modems
//!       └─ has never answered ─► devices of the same USB device ─► AT, else uqmi
//! --at INTERFACE=DEVICE ───────────────────────────────────────► AT
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread::scope;
use std::time::{Duration, Instant};

use roadweave_node::ModemFacts;

use super::sysfs::Devices;
use super::{at, bus, sysfs, uqmi};

#[derive(Debug, Default)]
pub(super) struct ModemReading {
    pub(super) facts: BTreeMap<String, ModemFacts>,
    pub(super) complaints: BTreeSet<String>,
}

#[derive(Debug, Default)]
pub(super) struct ModemReader {
    pub(super) bus: Option<String>,
    pub(super) root: PathBuf,
    pub(super) named: BTreeMap<String, PathBuf>,
    pub(super) known: BTreeMap<String, PathBuf>,
    /// ModemManager has answered once: the modems belong to it, even while it is away.
    pub(super) has_manager: bool,
}

impl ModemReader {
    pub(super) fn read(&mut self) -> ModemReading {
        let mut reading =
            ModemReading { facts: sysfs::wifi(&self.root), ..ModemReading::default() };
        let managed = bus::modems(self.bus.as_deref());
        self.has_manager |= managed.is_ok();
        let mut devices = match self.has_manager {
            true => BTreeMap::new(),
            false => sysfs::devices(&self.root),
        };
        devices.extend(self.named.iter().map(|(interface, port)| {
            (interface.clone(), Devices { serial: vec![port.clone()], control: None })
        }));
        match managed {
            Ok(facts) => reading.facts.extend(facts),
            Err(why) if self.has_manager || devices.is_empty() => {
                reading.complaints.insert(why);
            }
            Err(_) => {}
        }
        self.known.retain(|interface, port| {
            devices.get(interface).is_some_and(|devices| devices.serial.contains(port))
        });
        let known = &self.known;
        let asked = scope(|scope| {
            let ask = |(interface, devices): (String, Devices)| {
                let known = known.get(&interface);
                (interface, scope.spawn(move || ask(&devices, known.map(PathBuf::as_path))))
            };
            let threads: Vec<_> = devices.into_iter().map(ask).collect();
            let joined = threads.into_iter().map(|(interface, thread)| (interface, thread.join()));
            joined.collect::<Vec<_>>()
        });
        for (interface, answer) in asked {
            match answer.unwrap_or_else(|_| Err("cannot query it".to_owned())) {
                Ok((facts, port)) => {
                    self.known.extend(port.map(|port| (interface.clone(), port)));
                    reading.facts.insert(interface, facts);
                }
                Err(why) => _ = reading.complaints.insert(format!("{interface}: {why}")),
            }
        }
        reading
    }
}

fn ask(devices: &Devices, known: Option<&Path>) -> Result<(ModemFacts, Option<PathBuf>), String> {
    let mut ports: Vec<&PathBuf> = devices.serial.iter().collect();
    ports.sort_by_key(|port| known != Some(port.as_path()));
    let mut complaint = None;
    let deadline = Instant::now() + ASK_MAX;
    for port in ports {
        if Instant::now() >= deadline {
            return Err("it does not answer in time; name its device with --at".to_owned());
        }
        let why = match at::facts(port) {
            Ok(facts) => return Ok((facts, Some(port.clone()))),
            Err(why) => why,
        };
        if complaint.is_none() || why != at::SILENT {
            complaint = Some(format!("{}: {why}", port.display()));
        }
    }
    match devices.control.as_ref().filter(|_| Instant::now() < deadline) {
        Some(control) => match (uqmi::facts(control), complaint) {
            (Ok(facts), _) => Ok((facts, None)),
            (Err(why), None) => Err(format!("{}: {why}", control.display())),
            (Err(_), Some(why)) => Err(why),
        },
        None => Err(complaint.unwrap_or_else(|| "it has no device for queries".to_owned())),
    }
}

const ASK_MAX: Duration = Duration::from_secs(8);
