//! `roadweave drain`: lets the clients of a server or proxy go to another, before it stops.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use roadweave_node::local::{Drain, RequestError, RpcError, drain};
use roadweave_terminal::out;

use crate::set::refused;

/// Lets the clients of a running server or proxy go to another, and waits until they are gone.
///
/// It takes no new clients from now on, and asks those that it has to go: each joins another first
/// and leaves then, so that nothing is lost. Clients that know no other stay. There is no way back
/// but a new start.
#[derive(Debug, clap::Args)]
pub struct DrainArgs {
    /// The socket of the running server or proxy
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// Over how many seconds the clients are asked to go, so that they do not all arrive at once
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(..=60))]
    over: u64,
    /// How many seconds to wait until they are gone; 0 does not wait
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    wait: u64,
}

impl DrainArgs {
    pub fn run(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(self.wait);
        let first = self.ask(end)?;
        if self.wait == 0 {
            return Ok(out::line(format_args!("draining: {} are asked to go", clients(first)))?);
        }
        let mut left = first;
        while left > 0 {
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                bail!("{} left after {} s", clients(left), self.wait);
            }
            sleep(rest.min(ASK_INTERVAL));
            left = self.ask(end)?;
        }
        Ok(out::line(format_args!("drained: {} gone", clients(first)))?)
    }

    fn ask(&self, end: Instant) -> Result<u64> {
        loop {
            let error = match drain(&self.socket, &Drain { over_ms: self.over * 1_000 }) {
                Ok(answer) => return Ok(answer.sessions),
                Err(error) => error,
            };
            let passes = match &error {
                RequestError::Refused(error) => error.code == RpcError::BUSY,
                RequestError::Io { .. } | RequestError::Malformed { .. } => true,
                _ => false,
            };
            if passes && Instant::now() < end {
                sleep(ASK_INTERVAL);
                continue;
            }
            return Err(if passes { error.into() } else { refused(error) });
        }
    }
}

fn clients(count: u64) -> String {
    format!("{count} {}", if count == 1 { "client" } else { "clients" })
}

const ASK_INTERVAL: Duration = Duration::from_millis(250);
