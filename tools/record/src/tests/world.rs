//! A vehicle's links to a server in virtual time: the recorder over emulated links.

use std::net::SocketAddr;
use std::time::Duration;

use roadweave_emulate::{Link, LinkSettings, Trace};
use roadweave_proto::Instant;

use crate::{
    DelayClock, LinkRecording, RecordClient, RecordError, RecordLimits, RecordPeer, RecordPlan,
    RecordServer,
};

pub struct World {
    pub now: Instant,
    pub clients: Vec<RecordClient>,
    pub links: Vec<[Link<Vec<u8>>; 2]>,
    pub server: RecordServer,
    pub ports: Vec<u16>,
    pub server_started: Duration,
}

const HEADER_BYTES: usize = 28;
/// The wall clock when the virtual time began.
const UNIX: Duration = Duration::from_secs(1_700_000_000);

impl World {
    /// A world with a link for each pair of traces, up and down, which start with the plan.
    pub fn new(plan: &RecordPlan, traces: &[(Trace, Trace)]) -> Self {
        let settings = traces.iter().zip(1..).map(|((up, down), seed)| {
            let settings = |trace: &Trace, seed| LinkSettings {
                origin: START,
                ..LinkSettings::new(trace.clone(), seed)
            };
            [settings(up, seed), settings(down, seed + 100)]
        });
        let client = |nonce| RecordClient::new(plan.clone(), true, nonce, UNIX);
        let mut world = Self {
            now: Instant::ZERO,
            clients: (1..=traces.len() as u64).map(client).collect(),
            links: settings.map(|pair| pair.map(Link::new)).collect(),
            server: Self::new_server(Duration::ZERO, 0),
            ports: (1..=traces.len() as u16).collect(),
            server_started: Duration::ZERO,
        };
        world.run_until(START);
        let now = world.now;
        world.clients.iter_mut().for_each(|client| client.start(now));
        world
    }

    pub fn new_server(started: Duration, salt: u64) -> RecordServer {
        let mut secret = 1_000 + salt;
        RecordServer::new(RecordLimits::default(), UNIX + started, move || {
            secret += 17;
            secret
        })
    }

    pub fn server_now(&self) -> Instant {
        self.now - self.server_started
    }

    pub fn run_until(&mut self, end: Instant) {
        while self.now < end {
            self.exchange();
            let next = self.next_event();
            assert!(next > self.now, "nothing happens at {} again and again", self.now);
            self.now = next.min(end);
        }
        self.exchange();
    }

    pub fn run(&mut self) {
        let end = self.now + Duration::from_secs(100_000);
        while !self.clients.iter().all(|client| client.is_done(self.now)) {
            assert!(self.now < end, "it never ends");
            self.run_until(self.now + Duration::from_millis(100));
        }
    }

    pub fn recording(&self, link: usize, clock: DelayClock) -> Result<LinkRecording, RecordError> {
        self.clients[link].recording(clock)
    }

    fn exchange(&mut self) {
        loop {
            let mut moved = false;
            for link in 0..self.clients.len() {
                moved |= self.deliver(link);
                while let Some(datagram) = self.clients[link].poll_transmit(self.now) {
                    self.push(link, 0, datagram);
                    moved = true;
                }
            }
            while let Some((peer, datagram)) = self.server.poll_transmit(self.server_now()) {
                moved = true;
                if let Some(link) = self.ports.iter().position(|port| *port == peer.remote.port()) {
                    self.push(link, 1, datagram);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn deliver(&mut self, link: usize) -> bool {
        let mut moved = false;
        while let Some(datagram) = self.links[link][0].poll(self.now) {
            let remote = SocketAddr::from(([10, 0, 0, 1], self.ports[link]));
            let peer = RecordPeer { remote, local: None };
            self.server.handle_datagram(self.now - self.server_started, peer, &datagram);
            moved = true;
        }
        while let Some(datagram) = self.links[link][1].poll(self.now) {
            self.clients[link].handle_datagram(self.now, &datagram);
            moved = true;
        }
        moved
    }

    fn push(&mut self, link: usize, way: usize, datagram: Vec<u8>) {
        let bytes = datagram.len() + HEADER_BYTES;
        // The drops are part of the recording.
        let _ = self.links[link][way].push(self.now, bytes, datagram);
    }

    fn next_event(&mut self) -> Instant {
        let server = self.server.poll_timeout(self.server_now());
        let server = match server {
            Instant::FAR_FUTURE => server,
            at => at + self.server_started,
        };
        let links = self.links.iter().flatten().filter_map(Link::poll_timeout);
        let clients = self.clients.iter().map(|client| client.poll_timeout(self.now));
        links.chain(clients).chain([server]).min().unwrap_or(Instant::FAR_FUTURE)
    }
}

/// When plans and traces start.
pub const START: Instant = Instant::from_millis(2_000);
