//! `roadweave record server`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use roadweave_linux::{
    Clock, Interest, Poller, Signal, Signals, Token, UdpOptions, UplinkSocket, random_bytes,
};
use roadweave_proto::{Instant, Rate};
use roadweave_record::{RecordLimits, RecordPeer, RecordServer};
use roadweave_terminal::out;
use serde_json::json;
use tracing::{info, warn};

use super::outbox::Outbox;
use super::{BUFFER_BYTES, NAP, PORT, parse_rate, token, unix_epoch};

/// Takes part in the recordings of any number of vehicles
///
/// It runs until SIGINT or SIGTERM. It sends only short answers to an address that has not proved
/// that it receives them, and no data to a client that has been silent for three seconds. Without a
/// token, everyone who can reach the port can record, within the limits below.
#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    /// Where to listen; default: every IPv4 and IPv6 address
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from(([0; 16], PORT)))]
    listen: SocketAddr,
    /// The most links recorded at a time, of all clients together
    #[arg(long, value_name = "COUNT", default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=4_096))]
    links: u16,
    /// The highest sending rate for one link
    #[arg(long, value_name = "RATE", default_value = "200M", value_parser = parse_rate)]
    rate_max: Rate,
    /// The highest sending rate for all links together; a link whose plan does not fit is refused
    #[arg(long, value_name = "RATE", default_value = "4G", value_parser = parse_rate)]
    rate_all: Rate,
    /// A file with the token that clients must have; default: ROADWEAVE_RECORD_TOKEN, if it is set
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The longest recording, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600,
        value_parser = clap::value_parser!(u32).range(2..=7_200))]
    seconds_max: u32,
    /// Print JSON: a line when it listens, a line with a summary
    #[arg(long)]
    json: bool,
}

impl ServerArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let clock = Clock::start();
        let token = token(self.token_file.as_deref())?;
        let is_open = token.is_none();
        let limits = RecordLimits {
            sessions: self.links.into(),
            length: Duration::from_secs(self.seconds_max.into()),
            rate: self.rate_max,
            rate_all: self.rate_all,
        };
        // Fails now rather than later, where no error can be returned.
        random_bytes::<8>()?;
        let secret = || {
            let bytes = random_bytes().expect("the system has given random bytes before");
            u64::from_ne_bytes(bytes)
        };
        let server = RecordServer::new(limits, unix_epoch(&clock)?, secret).with_token(token);
        let options =
            UdpOptions { buffer_size: 4 * BUFFER_BYTES, ..UdpOptions::server(self.listen) };
        let socket = UplinkSocket::open(&options)?;
        let listens_at = socket.local_address();
        let mut run = ServerRun { clock, server, socket, outbox: Outbox::default() };
        let mut signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate])?;
        info!(address = %listens_at, "listening");
        if is_open {
            warn!(
                "no token: everyone who can reach this port may record; set one with --token-file"
            );
        }
        if self.json {
            out::json_line(&json!({ "ready": true, "listen": listens_at }))?;
        }
        run.carry(&mut signals)?;
        self.print_statistics(&run)
    }

    fn print_statistics(&self, run: &ServerRun) -> anyhow::Result<()> {
        let statistics = run.server.statistics();
        if self.json {
            let json = json!({
                "sessions": statistics.opened,
                "refused": statistics.refused,
                "ignored_datagrams": statistics.ignored,
                "bytes_sent": statistics.bytes_sent,
                "bytes_received": statistics.bytes_received,
            });
            out::json_line(&json)
        } else {
            Ok(out::line(format_args!(
                "{} links recorded, {:.1} MB sent, {:.1} MB received; {} refused",
                statistics.opened,
                statistics.bytes_sent as f64 / 1e6,
                statistics.bytes_received as f64 / 1e6,
                statistics.refused,
            ))?)
        }
    }
}

struct ServerRun {
    clock: Clock,
    server: RecordServer,
    socket: UplinkSocket,
    outbox: Outbox,
}

impl ServerRun {
    fn carry(&mut self, signals: &mut Signals) -> anyhow::Result<()> {
        let mut poller = Poller::new()?;
        poller.add(&self.socket, SOCKET, Interest::Read)?;
        poller.add(&*signals, SIGNALS, Interest::Read)?;
        let mut printed = self.server.statistics();
        while signals.take().is_none() {
            let sent = self.transmit();
            let interest = if self.outbox.is_open() { Interest::Read } else { Interest::ReadWrite };
            poller.modify(&self.socket, SOCKET, interest)?;
            let now = self.clock.now();
            let due = if self.outbox.is_open() {
                self.server.poll_timeout(now)
            } else {
                Instant::FAR_FUTURE
            };
            let wait = Clock::until(now, due).map(|wait| if sent { wait.max(NAP) } else { wait });
            poller.wait(wait).context("cannot wait for the socket")?;
            self.receive()?;
            let statistics = self.server.statistics();
            if (statistics.opened, statistics.sessions) != (printed.opened, printed.sessions) {
                info!(links = statistics.sessions, opened = statistics.opened, "recording");
            }
            if statistics.refused > printed.refused {
                warn!(refused = statistics.refused, "a link was refused; see the limits in --help");
            }
            printed = statistics;
        }
        Ok(())
    }

    fn transmit(&mut self) -> bool {
        let now = self.clock.now();
        let mut sent = false;
        self.outbox.flush(&mut self.socket);
        while self.outbox.is_open()
            && let Some((peer, datagram)) = self.server.poll_transmit(now)
        {
            self.outbox.push(&mut self.socket, peer, datagram);
            sent = true;
        }
        self.outbox.flush(&mut self.socket);
        sent
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        let (server, clock) = (&mut self.server, self.clock);
        let handle = |incoming: roadweave_linux::Incoming<'_>| {
            let peer = RecordPeer { remote: incoming.remote, local: incoming.local };
            server.handle_datagram(clock.now(), peer, incoming.payload);
        };
        self.socket.recv(handle).context("cannot receive")?;
        Ok(())
    }
}

const SOCKET: Token = Token(0);
const SIGNALS: Token = Token(1);
