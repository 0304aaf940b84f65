//! `roadweave demo-sink`: the viewer. Logs every arriving datagram with its time.
//!
//! The log is written to a file at once, to bound memory, and is evaluated after the stream.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use roadweave_lab::video::stream_log::ArrivedPacket;
use roadweave_proto::Instant;

use crate::sandbox::{clock, sockets};

const TICK: Duration = Duration::from_millis(100);
const DATAGRAM_MAX: usize = 65_535;
const LOG_BYTES_MAX: u64 = 4 << 30;

/// Logs the datagrams that arrive, at the viewer's end
#[derive(Debug, clap::Args)]
pub struct SinkArgs {
    /// Where to listen.
    #[arg(long)]
    pub listen: SocketAddr,
    /// The file for the log of received packets.
    #[arg(long)]
    pub out: PathBuf,
    /// When to stop, nanoseconds of the monotonic clock.
    #[arg(long)]
    pub until_ns: u64,
}

impl SinkArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let socket = sockets::listening_on(self.listen)?;
        socket.set_read_timeout(Some(TICK)).context("cannot set a timeout")?;
        let log = File::create(&self.out)
            .with_context(|| format!("cannot write the log {}", self.out.display()))?;
        let mut log = BufWriter::with_capacity(1 << 20, log);
        let until = Instant::from_nanos(self.until_ns);
        let mut buffer = vec![0; DATAGRAM_MAX];
        let mut written = 0_u64;
        while clock::now() < until {
            match socket.recv(&mut buffer) {
                Ok(length) if written < LOG_BYTES_MAX => {
                    ArrivedPacket::write(clock::now(), &buffer[..length], &mut log)
                        .context("cannot write the log")?;
                    written += length as u64;
                }
                Ok(_) => anyhow::bail!("the log reached its limit of {} bytes", LOG_BYTES_MAX),
                Err(error) if sockets::is_transient(error.kind()) => {}
                Err(error) => return Err(error).context("cannot receive"),
            }
        }
        log.flush().context("cannot write the log")
    }
}
