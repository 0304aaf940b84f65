//! One link of a recording: its recorder, and the socket that is bound to its interface.

use std::net::SocketAddr;
use std::time::Duration;

use roadweave_linux::{Clock, Interest, Poller, SendFailure, Token, UdpOptions, UplinkSocket};
use roadweave_proto::Instant;
use roadweave_record::{RecordClient, RecordPeer};
use tracing::{info, warn};

use super::BUFFER_BYTES;
use super::outbox::Outbox;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkName {
    pub name: String,
    pub interface: String,
}

pub struct LinkRecorder {
    pub name: LinkName,
    pub client: RecordClient,
    socket: Option<UplinkSocket>,
    watched: bool,
    outbox: Outbox,
    retry_at: Instant,
    failure: Option<SendFailure>,
    to: RecordPeer,
}

impl LinkRecorder {
    pub fn open(name: LinkName, server: SocketAddr, client: RecordClient) -> anyhow::Result<Self> {
        let socket = open_socket(&name.interface, server)?;
        let to = RecordPeer { remote: server, local: None };
        let (outbox, retry_at) = (Outbox::default(), Instant::ZERO);
        let (socket, watched) = (Some(socket), false);
        Ok(Self { name, client, socket, watched, outbox, retry_at, failure: None, to })
    }

    pub fn transmit(&mut self, now: Instant) -> bool {
        let Some(socket) = &mut self.socket else {
            // Lost, as on a dead link.
            return std::iter::from_fn(|| self.client.poll_transmit(now)).count() > 0;
        };
        let mut sent = false;
        self.outbox.flush(socket);
        while self.outbox.is_open()
            && let Some(datagram) = self.client.poll_transmit(now)
        {
            self.outbox.push(socket, self.to, datagram);
            self.failure = self.outbox.failure.or(self.failure.filter(|_| !sent));
            sent = true;
        }
        self.outbox.flush(socket);
        self.failure = self.outbox.failure.or(self.failure.filter(|_| !sent));
        sent
    }

    pub fn receive(&mut self, clock: Clock) {
        let Some(socket) = &mut self.socket else { return };
        let (client, server) = (&mut self.client, self.to.remote);
        let received = socket.recv(|incoming| {
            if incoming.remote == server {
                client.handle_datagram(clock.now(), incoming.payload);
            }
        });
        if received.is_err() {
            self.failure = Some(SendFailure::NoInterface);
        }
    }

    pub fn poll_timeout(&self, now: Instant) -> Instant {
        let client = self.client.poll_timeout(now);
        match &self.socket {
            Some(_) if self.outbox.is_open() => client,
            Some(_) => Instant::FAR_FUTURE,
            None => client.min(self.retry_at),
        }
    }

    pub fn watch(&mut self, poller: &Poller, token: Token) -> anyhow::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let wants = if self.outbox.is_open() { Interest::Read } else { Interest::ReadWrite };
        if self.watched {
            poller.modify(socket, token, wants)?;
        } else {
            poller.add(socket, token, wants)?;
            self.watched = true;
        }
        Ok(())
    }

    /// Reopens the socket when the interface returns: the old one stays bound to the old interface.
    pub fn reopen(&mut self, now: Instant, poller: &Poller) -> anyhow::Result<()> {
        let LinkName { name, interface } = &self.name;
        if let Some(socket) = &self.socket
            && self.failure == Some(SendFailure::NoInterface)
        {
            if self.watched {
                poller.remove(socket)?;
            }
            self.socket = None;
            self.watched = false;
            self.outbox = Outbox::default();
            self.retry_at = now + RETRY;
            warn!("{name}: the interface {interface} is gone");
        }
        if self.socket.is_none() && self.retry_at <= now {
            self.retry_at = now + RETRY;
            if let Ok(socket) = open_socket(interface, self.to.remote) {
                self.socket = Some(socket);
                self.failure = None;
                info!("{name}: the interface {interface} is back");
            }
        }
        Ok(())
    }

    pub fn cause(&self) -> String {
        let interface = &self.name.interface;
        match self.failure {
            Some(SendFailure::Unreachable) => {
                format!(": the server is unreachable over {interface}; is there a route?")
            }
            Some(SendFailure::NoInterface) => format!(": the interface {interface} is gone"),
            Some(failure) => format!(": the system could not send over {interface} ({failure})"),
            None => String::new(),
        }
    }
}

fn open_socket(interface: &str, server: SocketAddr) -> anyhow::Result<UplinkSocket> {
    let options =
        UdpOptions { buffer_size: BUFFER_BYTES, ..UdpOptions::uplink(interface, server.is_ipv4()) };
    Ok(UplinkSocket::open(&options)?)
}

const RETRY: Duration = Duration::from_secs(1);
