//! Joins the streams of a box's LAN with the tunnel.

use roadweave_config::ClientStreams;
use roadweave_linux::{DeviceError, Event, Excluded, Instance, Interface};
use roadweave_proto::Instant;
use roadweave_stream::{Config, Side, Streams};
use roadweave_tunnel::{Client, StreamsConfig, StreamsOwner};

use super::split::Split;
use crate::driver::event_loop::{Driver, STREAMS};
use crate::driver::steering::Steering;
use crate::status::{SplitStatus, StreamsStatus};
use crate::streams::{EventStreams, LOOPBACK, ListenerSettings, PlayerReport, StreamListener};

pub(super) struct LanStreams {
    listener: StreamListener,
    event_streams: EventStreams,
    owner: Option<StreamsOwner>,
    /// Stands in if no server takes streams; none can be opened on it.
    nowhere: Streams,
    split: Option<Split>,
    is_up: bool,
}

impl LanStreams {
    pub(super) fn open(
        instance: &Instance,
        fields: &ClientStreams,
        driver: &Driver<Client>,
    ) -> Result<Self, DeviceError> {
        let settings = ListenerSettings::new(fields.clone(), instance.marks());
        let listener = StreamListener::open(settings, STREAMS);
        listener.register(&driver.poller)?;
        let nowhere = Streams::new(Config::for_streams(Side::Client, 0));
        let split = fields.splits().then(|| {
            let listeners = listener.transparent_addresses();
            let tun = driver.edge.tun_name();
            Split::new(instance, tun, fields, listeners, driver.waker())
        });
        let event_streams = EventStreams::default();
        Ok(Self { listener, event_streams, owner: None, nowhere, split, is_up: false })
    }

    pub(super) fn set_inside(
        &mut self,
        steering: &mut Steering,
        now: Instant,
        inside: &[Interface],
    ) {
        let indexes = inside.iter().map(|interface| interface.index);
        self.listener.set_inside(indexes.chain([LOOPBACK]).collect());
        if let Some(split) = &mut self.split {
            split.set_inside(steering, now, inside);
        }
    }

    pub(super) fn set_excluded(
        &mut self,
        steering: &mut Steering,
        now: Instant,
        excluded: &Excluded,
    ) {
        if let Some(split) = &mut self.split {
            split.set_excluded(steering, now, excluded.clone());
        }
    }

    pub(super) fn on_ready(&mut self, event: &Event) {
        if self.listener.owns(event.token) {
            self.listener.on_ready(event);
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.split.as_ref().is_none_or(Split::is_settled)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let split = self.split.as_ref().map(Split::poll_timeout);
        self.listener.poll_timeout().into_iter().chain(split).min()
    }

    /// `is_up`: there is a session that responds.
    pub(super) fn turn(
        &mut self,
        driver: &mut Driver<Client>,
        steering: &mut Steering,
        now: Instant,
        is_up: bool,
    ) {
        self.is_up = is_up;
        let found = driver.node.streams(now);
        let owner = found.as_ref().map(|(owner, _)| *owner);
        if self.owner != owner {
            self.owner = owner;
            self.listener.on_streams_over(now);
        }
        if let Some(split) = &mut self.split {
            split.handle_timeout(steering, now);
            self.listener.set_taking(is_up && owner.is_some() && split.failure().is_none());
        }
        let streams = found.map_or(&mut self.nowhere, |(_, streams)| streams);
        self.listener.turn(now, &driver.poller, streams);
        for PlayerReport { player, qoe } in self.listener.take_reports() {
            let _ = driver.node.report_player(now, StreamsConfig::LANE, player, qoe);
        }
        for listening in self.listener.take_listening(&driver.poller) {
            if let Some(subscribers) = driver.subscribers() {
                self.event_streams.begin(listening, subscribers);
            }
        }
    }

    pub(super) fn handle_events(&mut self, driver: &mut Driver<Client>, now: Instant) {
        if let Some((owner, streams)) = driver.node.streams(now)
            && self.owner == Some(owner)
        {
            self.listener.handle_events(now, streams);
        }
    }

    pub(super) fn status(&self) -> StreamsStatus {
        let ends = self.listener.ends().iter();
        StreamsStatus {
            connections: self.listener.connections(),
            accepted: self.listener.accepted(),
            ends: ends.map(|(end, count)| (end.name().to_owned(), count)).collect(),
            http: self.listener.findings().map(|(what, times)| (what.to_owned(), times)).collect(),
            source: None,
            split: self.split.as_ref().map(|split| SplitStatus {
                taken: self.listener.taken(),
                obstacle: self.obstacle(split).map(str::to_owned),
            }),
        }
    }

    fn obstacle<'a>(&'a self, split: &'a Split) -> Option<&'a str> {
        if !self.is_up {
            return Some("there is no session, or it does not answer");
        }
        if !split.is_settled() {
            return Some("its filters are not in place yet");
        }
        if self.owner.is_none() {
            return Some("the server does not accept streams");
        }
        split.failure().or_else(|| self.listener.obstacle())
    }
}
