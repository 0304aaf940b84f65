//! Joins the far end of clients' streams with the node of a server or an anchor.

use std::net::IpAddr;

use roadweave_proto::Instant;
use roadweave_stream::{Event as StreamEvent, Streams};
use roadweave_tunnel::{Anchor, Node, Server, StreamsOwner};

use super::event_loop::{Driver, STREAMS};
use super::serving::reload::Destinations;
use crate::DeviceError;
use crate::poll::Event;
use crate::status::StreamsStatus;
use crate::streams::{ClientStreams, Exit, ExitRules, ExitSettings, Sources};

impl ClientStreams for Server {
    fn streams_of(&mut self, owner: StreamsOwner) -> Option<&mut Streams> {
        self.streams(owner)
    }

    fn is_clients(&self, address: IpAddr) -> bool {
        self.is_of_client(address)
    }

    fn address_of(&self, owner: StreamsOwner, ipv4: bool) -> Option<IpAddr> {
        self.stream_address(owner, ipv4)
    }
}

impl ClientStreams for Anchor {
    fn streams_of(&mut self, owner: StreamsOwner) -> Option<&mut Streams> {
        self.streams(owner)
    }

    fn is_clients(&self, address: IpAddr) -> bool {
        self.is_of_client(address)
    }

    fn address_of(&self, owner: StreamsOwner, ipv4: bool) -> Option<IpAddr> {
        self.stream_address(owner, ipv4)
    }
}

pub(super) trait EndsStreams: Node + ClientStreams {
    fn hand_over(&mut self, _now: Instant) {}

    /// An owner all of whose streams have ended.
    fn poll_over(&mut self) -> Option<StreamsOwner> {
        None
    }

    fn poll_stream(&mut self, _now: Instant) -> Option<(StreamsOwner, StreamEvent)> {
        None
    }
}

impl EndsStreams for Server {
    fn hand_over(&mut self, now: Instant) {
        self.hand_over_symbols(now);
    }

    fn poll_over(&mut self) -> Option<StreamsOwner> {
        self.poll_streams_over()
    }

    fn poll_stream(&mut self, now: Instant) -> Option<(StreamsOwner, StreamEvent)> {
        self.poll_stream_event(now)
    }
}

impl EndsStreams for Anchor {
    fn hand_over(&mut self, now: Instant) {
        self.hand_over_symbols(now);
    }

    fn poll_over(&mut self) -> Option<StreamsOwner> {
        self.poll_streams_over()
    }

    fn poll_stream(&mut self, now: Instant) -> Option<(StreamsOwner, StreamEvent)> {
        self.poll_stream_event(now)
    }
}

pub(super) struct FarEnd {
    exit: Exit,
    rules: ExitRules,
    sources: Sources,
}

impl FarEnd {
    /// One of `count` far ends in this process.
    pub(super) fn start<N: Node>(
        settings: ExitSettings,
        count: u16,
        driver: &Driver<N>,
    ) -> Result<Self, DeviceError> {
        let (rules, sources) = (settings.rules.clone(), settings.sources);
        let mut exit = Exit::start(settings, STREAMS, &driver.waker())?;
        exit.share_sockets(count);
        Ok(Self { exit, rules, sources })
    }

    pub(super) fn set_destinations(&mut self, destinations: &Destinations) {
        let Destinations { denied, allowed, .. } = destinations;
        if (denied, allowed) != (&self.rules.denied, &self.rules.allowed) {
            (self.rules.denied, self.rules.allowed) = (denied.clone(), allowed.clone());
            self.exit.set_rules(self.rules.clone());
        }
    }

    pub(super) fn on_ready(&mut self, event: &Event) {
        self.exit.on_ready(event);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.exit.poll_timeout()
    }

    pub(super) fn turn<N: EndsStreams>(&mut self, driver: &mut Driver<N>, now: Instant) {
        driver.node.hand_over(now);
        self.handle_events(driver, now);
        self.exit.turn(now, &driver.poller, &mut driver.node);
    }

    pub(super) fn handle_events<N: EndsStreams>(&mut self, driver: &mut Driver<N>, now: Instant) {
        while let Some(owner) = driver.node.poll_over() {
            self.exit.on_streams_over(owner);
        }
        while let Some((owner, event)) = driver.node.poll_stream(now) {
            self.exit.handle_event(now, owner, event, &mut driver.node);
        }
    }

    pub(super) fn status(&self) -> StreamsStatus {
        let ends = self.exit.ends().iter();
        StreamsStatus {
            connections: self.exit.connections(),
            accepted: self.exit.accepted(),
            ends: ends.map(|(end, count)| (end.name().to_owned(), count)).collect(),
            http: self.exit.heard().map(|(what, times)| (what.to_owned(), times)).collect(),
            source: Some(self.sources.name().to_owned()),
            split: None,
        }
    }
}
