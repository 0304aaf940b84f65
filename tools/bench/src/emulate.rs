//! `roadweave emulate`: emulated links between two network namespaces.

mod file;
mod realtime;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use comfy_table::{CellAlignment, Table};
use roadweave_config::{Fault, read_text};
use roadweave_emulate::{Drive, DuplexLink, LinkError, LinkStats, Operator, Trace};
use roadweave_linux::{Signal, Signals};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use serde_json::json;
use tracing::info;

pub use self::file::{EmulateFile, NamespaceSettings};
use self::file::{Emulation, EmulationError};
use self::realtime::{EmulatedLinkReport, Emulator};
use crate::table::{Column, filled, plain};

/// Puts emulated links between pairs of TUN devices, for any IP traffic.
///
/// Each link NAME is a device NAME in the namespace at the vehicle and NAME-far in the other,
/// 10.201.N.2 and 10.201.N.1 unless the file says otherwise. It runs until SIGINT or SIGTERM, and
/// then prints counters; SIGHUP restarts the traces. The devices disappear with the process.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("links").required(true))]
pub struct EmulateArgs {
    /// A file that describes the links, as in docs/traces.md
    #[arg(long, value_name = "FILE", group = "links")]
    config: Option<PathBuf>,
    /// A recorded drive: a directory with one or two files per link, as in docs/traces.md
    #[arg(long, value_name = "DIR", group = "links")]
    drive: Option<PathBuf>,
    /// Synthetic cellular links of these operators: att, verizon, tmobile, lte
    #[arg(long, value_name = "NAME,..", group = "links", value_delimiter = ',')]
    synthetic: Vec<String>,
    /// The network namespace at the vehicle; default: that of the --config file, else the current
    /// one
    #[arg(long, value_name = "NETNS")]
    near: Option<String>,
    /// The network namespace at the other end; default: as with --near
    #[arg(long, value_name = "NETNS")]
    far: Option<String>,
    /// The seed of everything random; default: that of the --config file, else 1
    #[arg(long)]
    seed: Option<u64>,
    /// Only check the file or drive, and print what the links can carry
    #[arg(long)]
    check: bool,
    /// Print JSON: a line when the links are ready, a line with the counters
    #[arg(long)]
    json: bool,
}

impl EmulateArgs {
    pub fn run(&self) -> Result<()> {
        let emulation = self.emulation()?;
        if self.check {
            let capabilities = json!({ "links": capabilities(&emulation) });
            return self.print(&capabilities, || describe(&emulation));
        }
        let mut signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate, Signal::Hangup])?;
        let mut emulator = Emulator::open(&emulation)?;
        let names: Vec<&str> = emulation.links.iter().map(|link| link.link.name.as_str()).collect();
        info!(links = names.join(", "), "ready");
        if self.json {
            out::json_line(&json!({ "ready": true, "links": names }))?;
        }
        emulator.run(&mut signals)?;
        let reports = emulator.report();
        self.print(&json!({ "links": reports }), || summarize(&reports))
    }

    fn emulation(&self) -> Result<Emulation, BadInput> {
        if let Some(file) = &self.config {
            return self.described(file);
        }
        let seed = self.seed.unwrap_or(1);
        let drive = match &self.drive {
            Some(dir) => Drive::read(dir).map_err(BadInput::new)?,
            None => {
                let operators: Result<Vec<Operator>, BadInput> =
                    self.synthetic.iter().map(|name| operator(name)).collect();
                Drive::synthetic(seed, &operators?, SYNTHETIC_LENGTH)
            }
        };
        let (near, far) = (self.near.clone(), self.far.clone());
        let namespaces = NamespaceSettings { near, far, ..NamespaceSettings::default() };
        Emulation::of_drive(&drive, seed, namespaces).map_err(BadInput::new)
    }

    fn described(&self, file: &Path) -> Result<Emulation, BadInput> {
        let mut description = EmulateFile::read(file)?;
        let place = &mut description.namespaces;
        for (said, namespace) in [(&self.near, &mut place.near), (&self.far, &mut place.far)] {
            if said.is_some() {
                namespace.clone_from(said);
            }
        }
        description.seed = self.seed.unwrap_or(description.seed);
        resolve(&description, file)
    }

    fn print(&self, json: &serde_json::Value, text: impl FnOnce() -> Table) -> Result<()> {
        if self.json { out::json_line(json) } else { Ok(out::line(text())?) }
    }
}

fn operator(name: &str) -> Result<Operator, BadInput> {
    Operator::by_name(name).ok_or_else(|| {
        let known = Operator::ALL.map(|operator| operator.name).join(", ");
        BadInput::new(format!("--synthetic: unknown operator `{name}`; there are {known}"))
    })
}

/// Paths are relative to the directory of `file`.
fn resolve(description: &EmulateFile, file: &Path) -> Result<Emulation, BadInput> {
    description.resolve(file.parent().unwrap_or(Path::new("."))).map_err(|error| {
        let text = read_text(file, false).unwrap_or_default();
        let field = match &error {
            EmulationError::Link(LinkError::Field { link, field, .. }) => {
                format!("link.{}.{field}", link - 1)
            }
            EmulationError::Link(LinkError::Trace(_)) => return BadInput::new(error),
            EmulationError::Link(_) => "link".to_owned(),
            EmulationError::Mtu(_) => "place.mtu".to_owned(),
        };
        BadInput::new(Fault::new(field, error.to_string()).in_file(file, &text))
    })
}

fn capabilities(emulation: &Emulation) -> Vec<serde_json::Value> {
    let link = |link: &DuplexLink| {
        let rate = |trace: &Trace| trace.capacity().mean_rate().as_bps();
        json!({
            "name": link.name,
            "mean_up_bps": rate(&link.up.trace),
            "mean_down_bps": rate(&link.down.trace),
            "queue_up_bytes": link.up.queue_bytes,
            "queue_down_bytes": link.down.queue_bytes,
            "repeats_after_s": link.up.trace.length().map(|length| length.as_secs_f64()),
        })
    };
    emulation.links.iter().map(|emulated| link(&emulated.link)).collect()
}

fn describe(emulation: &Emulation) -> Table {
    let columns: &[Column<DuplexLink>] = &[
        ("link", |link| link.name.clone()),
        ("repeats", |link| match link.up.trace.length() {
            Some(length) => format!("{} s", length.as_secs()),
            None => "constant".to_owned(),
        }),
        ("mean up", |link| link.up.trace.capacity().mean_rate().to_string()),
        ("mean down", |link| link.down.trace.capacity().mean_rate().to_string()),
        ("queue up kB", |link| (link.up.queue_bytes / 1_000).to_string()),
        ("queue down kB", |link| (link.down.queue_bytes / 1_000).to_string()),
    ];
    with_numbers(filled(plain(), columns, emulation.links.iter().map(|it| &it.link)))
}

fn summarize(reports: &[EmulatedLinkReport]) -> Table {
    let columns: &[Column<(&str, &str, &LinkStats)>] = &[
        ("link", |it| it.0.to_owned()),
        ("way", |it| it.1.to_owned()),
        ("packets in", |it| it.2.pushed.to_string()),
        ("MB in", |it| format!("{:.1}", it.2.pushed_bytes as f64 / 1e6)),
        ("MB out", |it| format!("{:.1}", it.2.delivered_bytes as f64 / 1e6)),
        ("max queue kB", |it| (it.2.queue_bytes_max / 1_000).to_string()),
        ("dropped", |it| {
            let reasons = it.2.dropped.iter();
            let reasons = reasons.map(|(reason, count)| format!("{} {count}", reason.name()));
            reasons.collect::<Vec<String>>().join(", ")
        }),
    ];
    let ways =
        reports.iter().flat_map(|it| [(&*it.name, "up", &it.up), (&*it.name, "down", &it.down)]);
    with_numbers(filled(plain(), columns, ways))
}

fn with_numbers(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(2).take(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

const SYNTHETIC_LENGTH: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use roadweave_emulate::LinkFields;

    use super::*;

    fn args(words: &[&str]) -> EmulateArgs {
        use clap::{Args as _, FromArgMatches as _};

        let command = EmulateArgs::augment_args(clap::Command::new("emulate"));
        let matches = command.get_matches_from([&["emulate"][..], words].concat());
        EmulateArgs::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("emulate.toml");
        let text =
            "seed = 3\n[place]\nnear = 'a'\nfar = 'b'\n[[link]]\nname = 'x'\nrate_kbps = 8\n";
        std::fs::write(&file, text).unwrap();
        let config = ["--config", file.to_str().unwrap()];
        let check = |words: &[&str], near: &str, far: &str, seed: u64| {
            let emulation = args(&[&config[..], words].concat()).emulation().unwrap();
            let Emulation { links, namespaces } = emulation;
            assert_eq!(namespaces.near.as_deref(), Some(near));
            assert_eq!(namespaces.far.as_deref(), Some(far));
            assert_eq!(links[0].link.up.seed, roadweave_proto::SplitMix64::word(seed, 0));
        };
        check(&[], "a", "b", 3);
        check(&["--near", "c", "--seed", "5"], "c", "b", 5);
        check(&["--far", "d"], "a", "d", 3);
    }

    /// docs/traces.md has what docs/lab.md lacks.
    #[test]
    fn the_page_describes_every_field() {
        let page = include_str!("../../../docs/traces.md");
        let (_, section) = page.split_once("## Links in a file: emulate.toml").unwrap();
        let (_, example) = section.split_once("```toml\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        let file: EmulateFile = roadweave_config::parse(Path::new("example"), example).unwrap();
        assert_eq!(resolve(&file, Path::new("example")).unwrap().links.len(), 2);
        let written = toml::Value::try_from(&file).unwrap();
        for field in written["place"].as_table().unwrap().keys() {
            assert!(section.contains(&format!("| `place.{field}` |")), "{field}");
        }
        let lab = include_str!("../../../docs/lab.md");
        let link = LinkFields {
            name: "all".into(),
            trace: Some("a.csv".into()),
            trace_down: Some("b.csv".into()),
            operator: Some("lte".into()),
            rate_kbps: Some(1),
            rate_down_kbps: Some(1),
            delay_ms: Some(1.0),
            jitter_ms: Some(1.0),
            reorder: true,
            loss: Some(0.1),
            loss_burst: Some(2.0),
            queue_bytes: Some(1),
            near_addresses: Vec::new(),
            far_addresses: Vec::new(),
        };
        for field in toml::Table::try_from(&link).unwrap().keys() {
            let row = format!("| `link.{field}` |");
            assert!(section.contains(&row) || lab.contains(&row), "{field}");
        }
    }
}
