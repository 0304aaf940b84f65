//! `roadweave record`: links as they are, for `emulate` and the lab to replay.
//!
//! ```text
//!  record client  RecordClient per interface <> UplinkSocket ~~ links ~~ UplinkSocket <> RecordServer  record server
//!       └> DIR/NAME.csv, NAME.down.csv, recording.json (docs/traces.md)
//! ```

mod client;
mod display;
mod files;
mod link;
mod outbox;
mod run;
mod server;

use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use roadweave_device::Clock;
use roadweave_types::{Instant, Rate};

/// Records links under way: capacity, delay and loss, both ways, for emulate and lab to replay
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT)]
pub struct RecordArgs {
    #[command(subcommand)]
    role: Role,
}

const LONG_ABOUT: &str = "\
Records links under way: capacity, delay and loss, both ways, for emulate and lab to replay.

The server runs where the tunnel's server would be, the client in the vehicle. The client fills every \
link for 5 s, lets its queue drain, and sends small probes for 2 to 4.5 s; then again. A replay lasts \
half as long as the recording: what each cycle measured one after the other counts as simultaneous. \
This uses up whatever data the links can carry.

Both sides need UDP between them, port 4437 unless told otherwise, and no rights beyond those to bind \
a socket to an interface.";

#[derive(Debug, clap::Subcommand)]
enum Role {
    Client(client::ClientArgs),
    Server(server::ServerArgs),
}

impl RecordArgs {
    /// # Errors
    /// When an option is wrong, or the system or the other side does not let it record.
    pub fn run(&self) -> anyhow::Result<()> {
        match &self.role {
            Role::Client(args) => args.run(),
            Role::Server(args) => args.run(),
        }
    }
}

/// The wall clock, since 1970, when `clock` read zero.
fn unix_epoch(clock: &Clock) -> anyhow::Result<Duration> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.context("the system's clock is before 1970")?;
    Ok(now.saturating_sub(clock.now().since(Instant::ZERO)))
}

/// A rate as people write it: 50M, 800k, 1.5G or bits per second.
fn parse_rate(text: &str) -> Result<Rate, String> {
    let (number, unit) = match text.as_bytes().last() {
        Some(b'G' | b'g') => (&text[..text.len() - 1], 1e9),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1e6),
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1e3),
        _ => (text, 1.0),
    };
    let bps = number.parse::<f64>().map_or(0.0, |number| number * unit);
    if (RATE_MIN..=RATE_MAX).contains(&bps) {
        return Ok(Rate::from_bps(bps.round() as u64));
    }
    Err("a rate from 100k to 10G bit/s, such as 50M".to_owned())
}

/// The port of the server.
const PORT: u16 = 4437;
/// Bounds of all rates, bit/s; those of the plan.
const RATE_MIN: f64 = 100e3;
const RATE_MAX: f64 = 10e9;
/// After sending, more comes due within microseconds: to sleep a little makes runs of it.
const NAP: Duration = Duration::from_micros(500);
/// Bytes of a socket's buffers: what is sent waits in the link, not here.
const BUFFER_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        let check = |text, bps| assert_eq!(parse_rate(text), Ok(Rate::from_bps(bps)), "{text}");
        check("50M", 50_000_000);
        check("1.5g", 1_500_000_000);
        check("800k", 800_000);
        check("2e6", 2_000_000);
        for wrong in ["", "M", "-5M", "50 M", "99k", "11G", "nan", "fast"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
