//! What happens to the links and the ends of a world.

use std::net::SocketAddr;

use roadweave_emulate::{Direction, DuplexLink};
use roadweave_tunnel::{Client, EncoderTarget, Portal, Server, SetError, Strategy, Superseded};

use super::strangers::{Hostile, Neighbour};
use super::{
    Hostility, OtherServer, SERVER_LIVES, Side, Tampering, UDP_IP_HEADERS, World, WorldError, ends,
    uplink,
};

impl World {
    /// Kills both directions of a link, or brings them back; see
    /// [`Link::set_dead`](roadweave_emulate::Link::set_dead).
    pub fn set_dead(&mut self, link: usize, dead: bool) {
        self.wires[link].set_dead(self.now, dead);
    }

    /// Kills one direction of a link, or brings it back.
    pub fn set_dead_way(&mut self, link: usize, direction: Direction, dead: bool) {
        self.wires[link].link_mut(direction).set_dead(self.now, dead);
    }

    /// Both directions of a link lose packets of more than `payload` bytes of UDP from now on.
    pub fn set_mtu(&mut self, link: usize, payload: usize) {
        for direction in [Direction::Up, Direction::Down] {
            self.wires[link].link_mut(direction).set_mtu(payload + UDP_IP_HEADERS);
        }
    }

    /// The network's translator shows the server another address of the vehicle from now on;
    /// packets to the old one go nowhere.
    pub fn rebind(&mut self, link: usize) {
        self.wires[link].rebind();
    }

    /// From now on the network's translator loses what comes from the vehicle's present port: it
    /// keeps an entry that leads nowhere.
    pub fn lose_binding(&mut self, link: usize) {
        self.wires[link].lose_binding();
    }

    /// The translator's address of a link is `public` from now on.
    pub fn set_public(&mut self, link: usize, public: SocketAddr) {
        self.wires[link].public = public;
    }

    /// Both directions of a link do this to what comes out of them from now on; `seed` decides
    /// when.
    pub fn tamper(&mut self, link: usize, tampering: Tampering, seed: u64) {
        self.wires[link].tamper(tampering, seed);
    }

    /// From now on this is the matter with a link, or nothing.
    ///
    /// # Errors
    /// As [`World::new`].
    pub fn set_hostility(
        &mut self,
        link: usize,
        hostility: Option<Hostility>,
    ) -> Result<(), WorldError> {
        self.portals.remove(&link);
        if hostility == Some(Hostility::Portal) {
            let portal = Neighbour::new(&self.recipe(), OtherServer::WrongKey)?;
            self.portals.insert(link, portal);
        }
        self.wires[link].hostile = hostility.map(Hostile::new);
        Ok(())
    }

    /// What further ends are made of.
    pub(super) fn recipe(&self) -> ends::Recipe<'_> {
        ends::Recipe { epoch: self.epoch, world: &self.config }
    }

    /// The vehicle's interface to a link is there, or has got another address.
    pub fn add_uplink(&mut self, link: usize) {
        let name = &self.config.links[link].name;
        self.client.end.add_uplink(self.now, uplink(link), name);
        self.flush_client();
    }

    /// The vehicle's interface to a link is gone.
    pub fn remove_uplink(&mut self, link: usize) {
        self.client.end.remove_uplink(self.now, uplink(link));
        self.flush_client();
    }

    /// The network of a link answers HTTP with a login page, or does so no more.
    pub fn set_portal(&mut self, link: usize, portal: Option<Portal>) {
        self.client.end.set_portal(self.now, uplink(link), portal);
        self.flush_client();
    }

    /// The server is killed and started again, with the same key and nothing else
    /// of its former life.
    ///
    /// # Errors
    /// As [`World::new`].
    pub fn restart_server(&mut self) -> Result<(), WorldError> {
        self.server_lives = self.server_lives.wrapping_add(1);
        let server = Side::new(ends::server(self.epoch, &self.config, self.server_lives)?);
        self.server = server.on(&self.config, SERVER_LIVES + u64::from(self.server_lives));
        if self.trails.is_some() {
            self.observe_packets();
        }
        Ok(())
    }

    /// Starts all links, and all that is random in them, from their beginning now, with the traces
    /// of `links`, which are as many. Packets under way arrive as if nothing had happened; those
    /// that wait depart as the traces say.
    pub fn restart_links(&mut self, links: Vec<DuplexLink>) {
        for (wire, link) in self.wires.iter_mut().zip(links) {
            wire.restart(self.now, link.up.trace, link.down.trace);
        }
    }

    /// Lets a lane of one direction follow another strategy from now on.
    ///
    /// # Errors
    /// When there is no such lane, or the strategy cannot be used there.
    pub fn set_strategy(
        &mut self,
        direction: Direction,
        lane: &str,
        strategy: Strategy,
    ) -> Result<(), SetError> {
        let now = self.now;
        let (client, server) = self.ends_mut();
        match direction {
            Direction::Up => client.set_strategy(now, lane, strategy),
            Direction::Down => server.set_strategy(lane, strategy),
        }?;
        self.flush();
        Ok(())
    }

    /// Both ends and what they may be told beyond; follow it with [`World::flush`].
    pub fn ends_mut(&mut self) -> (&mut Client, &mut Server) {
        (self.client.touched, self.server.touched) = (true, true);
        (&mut self.client.end, &mut self.server.end)
    }

    /// What an encoder at the end of `direction` should do whose video goes by the first lane.
    pub fn encoder_target(&mut self, direction: Direction) -> EncoderTarget {
        let now = self.now();
        let (client, server) = self.ends_mut();
        let mut lanes = match direction {
            Direction::Up => client.encoder_targets(now),
            Direction::Down => server.encoder_targets(now).remove(ends::NAME).unwrap_or_default(),
        };
        let lane = &self.config.lanes_up[0].name;
        lanes.remove(lane).unwrap_or_default()
    }

    /// That encoder has begun anew: what is older of its video goes. A server's has none to tell.
    pub fn supersede(&mut self, direction: Direction, superseded: Superseded) {
        let (now, lane) = (self.now(), self.config.lanes_up[0].name.clone());
        if direction == Direction::Up {
            let (client, _) = self.ends_mut();
            client.supersede(now, &lane, superseded).expect("the lane of the configuration");
        }
    }
}
