//! `roadweave drain`: lets the clients of a server or proxy go to another, before it stops.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use roadweave_node::local::{Drain, RequestError, RpcError, drain};
use roadweave_terminal::out;

use crate::set::refused;

/// Moves the clients of a running server or proxy to others, and waits until they have left.
///
/// It accepts no more clients and asks those it has to leave. Each client joins another server
/// before it leaves, so that nothing is lost. Clients that know no other server stay. To undo this,
/// restart the server or proxy.
#[derive(Debug, clap::Args)]
pub struct DrainArgs {
    /// The socket of the running server or proxy
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// Seconds over which clients are asked to leave, so that they do not all arrive elsewhere at
    /// once
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(..=60))]
    over: u64,
    /// How many seconds to wait until they have left; 0 does not wait
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    wait: u64,
}

impl DrainArgs {
    pub fn run(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(self.wait);
        let first = self.ask(end)?;
        if self.wait == 0 {
            return Ok(out::line(format_args!("draining: asked {} to leave", clients(first)))?);
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
