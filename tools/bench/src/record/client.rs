//! `roadweave record client`.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use roadweave_linux::{Clock, Signal, Signals, random_bytes};
use roadweave_proto::Rate;
use roadweave_record::{DelayClock, RecordClient, RecordMode, RecordPlan};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use tracing::warn;

use super::display::Display;
use super::files::{Recorded, Recording};
use super::link::{LinkName, LinkRecorder};
use super::modems::ModemLog;
use super::run::RecordRun;
use super::{PORT, parse_rate, token, unix_epoch};

/// Records this machine's links to a server, several interfaces at once
///
/// Ctrl-C ends the recording early and keeps what was measured; a second Ctrl-C does not wait for
/// the rest of the server's data. Each interface needs a route to the server, such as a default
/// route of any metric.
#[derive(Debug, clap::Args)]
pub struct ClientArgs {
    /// The server, a name or address; port 4437 unless given
    #[arg(long, value_name = "HOST[:PORT]")]
    server: String,
    /// Interfaces to record; NAME=INTERFACE gives the link another name than the interface
    #[arg(long, value_name = "[NAME=]INTERFACE,..", required = true, value_delimiter = ',',
        value_parser = parse_link)]
    interfaces: Vec<LinkName>,
    /// The directory to create, with a file per link and direction
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// How to measure the capacity
    #[arg(long, value_enum, default_value_t = Mode::Saturate)]
    mode: Mode,
    /// The rate of --mode constant, above what the link can carry: 100M for 5G, 50M for LTE. For
    /// --mode saturate the highest rate, 200M unless given. NAME=RATE for one link alone
    #[arg(long, value_name = "[NAME=]RATE,..", value_delimiter = ',', value_parser = parse_link_rate)]
    rate: Vec<LinkRate>,
    /// Directions whose capacity to measure; delay and loss are measured in both
    #[arg(long, value_enum, default_value_t = Directions::Both)]
    direction: Directions,
    /// How long to record, seconds; a replay of --mode saturate lasts half as long
    #[arg(long, value_name = "SECONDS", default_value_t = 180,
        value_parser = clap::value_parser!(u32).range(2..=7_200))]
    seconds: u32,
    /// The length of one cycle of saturation (half of it), draining and probing, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(4..=60))]
    cycle: u32,
    /// The clocks of both machines agree to a millisecond (GPS, PTP, the same machine): measure
    /// each direction's delay by them, not half of the round trip
    #[arg(long)]
    synchronized_clocks: bool,
    /// A file with the server's token, if it needs one; default: ROADWEAVE_RECORD_TOKEN, if it is
    /// set
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The socket of a client on this machine: also record the facts that it has of the modems
    #[arg(long, value_name = "SOCKET")]
    modems: Option<PathBuf>,
    /// Print a summary as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LinkRate {
    name: Option<String>,
    rate: Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// In cycles: fill the link, let it drain, probe it (CellNem)
    Saturate,
    /// Continuously at a constant rate, after two seconds of probes (CellFusion)
    Constant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Directions {
    /// From the vehicle
    Up,
    /// To the vehicle
    Down,
    /// Both at the same time
    Both,
}

impl ClientArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let server = resolve(&self.server)?;
        let plans = self.plans()?;
        let token = token(self.token_file.as_deref())?;
        let recording = Recording::new(&self.output)?;
        let clock = Clock::start();
        let epoch = unix_epoch(&clock)?;
        let links = self.interfaces.iter().zip(plans).map(|(link, plan)| {
            let nonce = u64::from_ne_bytes(random_bytes()?);
            let client =
                RecordClient::new(plan, server.is_ipv4(), nonce, epoch).with_token(token.clone());
            LinkRecorder::open(link.clone(), server, client)
        });
        let links = links.collect::<anyhow::Result<Vec<LinkRecorder>>>()?;
        let modems =
            self.modems.clone().map(|socket| ModemLog::start(socket, clock)).transpose()?;
        let mut run = RecordRun { clock, server, links, started: false };
        let mut signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate])?;
        run.carry(&mut signals, &mut Display::new(&self.interfaces))?;
        self.write(&recording, &run.links, modems.as_ref())
    }

    fn plans(&self) -> Result<Vec<RecordPlan>, BadInput> {
        for (index, link) in self.interfaces.iter().enumerate() {
            if self.interfaces[..index].iter().any(|before| before.name == link.name) {
                return Err(BadInput::new(format!("--interfaces: `{}` is given twice", link.name)));
            }
        }
        for rate in &self.rate {
            let Some(name) = &rate.name else { continue };
            if !self.interfaces.iter().any(|link| link.name == *name) {
                let problem = format!("--rate: `{name}` is not in --interfaces");
                return Err(BadInput::new(problem));
            }
        }
        self.interfaces.iter().map(|link| self.plan(&link.name)).collect()
    }

    fn plan(&self, link: &str) -> Result<RecordPlan, BadInput> {
        let of_link = self.rate.iter().find(|rate| rate.name.as_deref() == Some(link));
        let rate = of_link.or(self.rate.iter().find(|rate| rate.name.is_none()));
        let rate = rate.map(|rate| rate.rate);
        let default = RecordPlan::default();
        let mode = match (self.mode, rate) {
            (Mode::Saturate, _) => RecordMode::Saturate,
            (Mode::Constant, Some(rate)) => RecordMode::Constant(rate),
            (Mode::Constant, None) => {
                let problem = format!("--rate: {link} needs a rate for --mode constant");
                return Err(BadInput::new(problem));
            }
        };
        let plan = RecordPlan {
            mode,
            up: self.direction != Directions::Down,
            down: self.direction != Directions::Up,
            length: Duration::from_secs(self.seconds.into()),
            cycle: Duration::from_secs(self.cycle.into()),
            rate_max: rate.unwrap_or(default.rate_max),
            ..default
        };
        plan.check().map_err(|error| BadInput::new(format!("--{error}")))?;
        Ok(plan)
    }

    fn write(
        &self,
        recording: &Recording,
        links: &[LinkRecorder],
        modems: Option<&ModemLog>,
    ) -> anyhow::Result<()> {
        let delay_clock = match self.synchronized_clocks {
            true => DelayClock::Synchronized,
            false => DelayClock::HalfRoundTrip,
        };
        let mut recorded = Vec::new();
        for link in links {
            match link.client.recording(delay_clock) {
                Ok(recording) => {
                    let LinkName { name, interface } = link.name.clone();
                    let modem = modems.and_then(|modems| modems.of(&interface));
                    if modems.is_some() && modem.is_none() {
                        warn!("{name}: no facts of a modem behind {interface}");
                    }
                    recorded.push(Recorded { name, interface, recording, modem });
                }
                Err(error) => warn!("{}: {error}{}", link.name.name, link.cause()),
            }
        }
        if recorded.is_empty() {
            bail!("no link could be recorded");
        }
        for link in &recorded {
            if self.synchronized_clocks && link.recording.delay_clock != delay_clock {
                warn!(
                    "{}: the clocks are not synchronised; delays are half of the round trip",
                    link.name
                );
            }
        }
        let mode = match self.mode {
            Mode::Saturate => "saturate",
            Mode::Constant => "constant",
        };
        let summary = recording.write(mode, &recorded)?;
        if self.json {
            out::line(summary)?;
        } else {
            out::line(recording.table(&recorded))?;
        }
        Ok(())
    }
}

fn resolve(text: &str) -> Result<SocketAddr, BadInput> {
    let failed = |error: std::io::Error| BadInput::new(format!("--server {text}: {error}"));
    // A port follows the last colon, unless that belongs to a bare IPv6 address.
    let is_bare = text.parse::<IpAddr>().is_ok() || !text.contains(':');
    let mut addresses = match is_bare {
        true => (text.trim_matches(['[', ']']), PORT).to_socket_addrs().map_err(failed)?,
        false => text.to_socket_addrs().map_err(failed)?,
    };
    addresses.next().ok_or_else(|| BadInput::new(format!("--server {text}: it has no address")))
}

fn parse_link(text: &str) -> Result<LinkName, String> {
    let (name, interface) = text.split_once('=').unwrap_or((text, text));
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.chars().all(fits) {
        return Err(format!(
            "a link's name has 1 to {NAME_BYTES_MAX} letters, digits, `-` or `_`; \
             give it one as in modem1={interface}"
        ));
    }
    if !(1..=INTERFACE_BYTES_MAX).contains(&interface.len()) {
        return Err(format!("`{interface}` is not an interface"));
    }
    Ok(LinkName { name: name.to_owned(), interface: interface.to_owned() })
}

fn parse_link_rate(text: &str) -> Result<LinkRate, String> {
    let (name, rate) = match text.split_once('=') {
        Some((name, rate)) => (Some(name.to_owned()), rate),
        None => (None, text),
    };
    Ok(LinkRate { name, rate: parse_rate(rate)? })
}

/// Allows `emulate` to name interfaces after links.
const NAME_BYTES_MAX: usize = 11;
/// Linux's limit.
const INTERFACE_BYTES_MAX: usize = 15;

#[cfg(test)]
mod tests;
