//! `roadweave record`: records links for `emulate` and the lab to replay.
//!
//! ```text
//!  record client  RecordClient per interface <> UplinkSocket ~~ links ~~ UplinkSocket <> RecordServer  record server
//!       └> DIR/NAME.csv, NAME.down.csv, NAME.modem.jsonl, recording.json (docs/traces.md)
//! ```

mod client;
mod display;
mod files;
mod link;
mod modems;
mod outbox;
mod run;
mod server;

use std::env::VarError;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use roadweave_linux::Clock;
use roadweave_proto::{Instant, Rate};
use roadweave_record::RecordToken;
use roadweave_terminal::exit::BadInput;

use crate::rate;

/// Records links of a moving vehicle: capacity, delay and loss, both ways, for emulate and lab to
/// replay
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT)]
pub struct RecordArgs {
    #[command(subcommand)]
    role: RecordRole,
}

const LONG_ABOUT: &str = "\
Records links of a moving vehicle: capacity, delay and loss, both ways, for emulate and lab to \
replay.

The server runs where the tunnel's server would be, the client in the vehicle. The client fills every \
link for 5 s, lets its queue drain, and sends small probes for 2 to 4.5 s; then again. A replay lasts \
half as long as the recording: what each cycle measured one after the other counts as simultaneous. \
This uses as much data as the links can carry.

Both sides need UDP between them, on port 4437 by default, and no privileges beyond those to bind a \
socket to an interface.";

#[derive(Debug, clap::Subcommand)]
enum RecordRole {
    Client(client::ClientArgs),
    Server(server::ServerArgs),
}

impl RecordArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        match &self.role {
            RecordRole::Client(args) => args.run(),
            RecordRole::Server(args) => args.run(),
        }
    }
}

/// The wall clock, since 1970, when `clock` was zero.
fn unix_epoch(clock: &Clock) -> anyhow::Result<Duration> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.context("the system clock is before 1970")?;
    Ok(now.saturating_sub(clock.now().since(Instant::ZERO)))
}

/// The token from a file or the environment, never from the arguments, which all users can see.
fn token(file: Option<&Path>) -> Result<Option<RecordToken>, BadInput> {
    let (text, place) = match file {
        Some(file) => {
            let place = format!("--token-file {}", file.display());
            let text = std::fs::read_to_string(file)
                .map_err(|error| BadInput::new(format!("{place}: {error}")))?;
            (text, place)
        }
        None => match std::env::var(TOKEN_VARIABLE) {
            Ok(text) => (text, TOKEN_VARIABLE.to_owned()),
            Err(VarError::NotPresent) => return Ok(None),
            Err(error) => return Err(BadInput::new(format!("{TOKEN_VARIABLE}: {error}"))),
        },
    };
    let token = RecordToken::new(&text);
    token.map(Some).map_err(|error| BadInput::new(format!("{place}: {error}")))
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    rate::parse(text, &RATES)
}

const TOKEN_VARIABLE: &str = "ROADWEAVE_RECORD_TOKEN";
const PORT: u16 = 4437;
const RATES: RangeInclusive<Rate> = Rate::from_kbps(100)..=Rate::from_kbps(10_000_000);
/// More datagrams become due within microseconds of sending: a short sleep batches them.
const NAP: Duration = Duration::from_micros(500);
/// Size of a socket's buffers: packets queue in the link, not here.
const BUFFER_BYTES: usize = 1 << 20;
