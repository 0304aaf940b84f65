//! Changes to links and sides of a running world.

use roadweave_emulate::{Direction, DuplexLink};
use roadweave_tunnel::{Client, EncoderTarget, Portal, Server, SetError, Strategy, Superseded};

use super::strangers::{Hostile, Neighbour};
use super::{
    Hostility, OtherServer, Tampering, UDP_IP_HEADERS, World, WorldError, ends, server_end, uplink,
};

impl World {
    /// Disables or enables both directions of a link; see
    /// [`Link::set_dead`](roadweave_emulate::Link::set_dead).
    pub fn set_dead(&mut self, link: usize, dead: bool) {
        self.network.wires[link].set_dead(self.now, dead);
    }

    /// Disables or enables one direction of a link.
    pub fn set_dead_way(&mut self, link: usize, direction: Direction, dead: bool) {
        self.network.wires[link].link_mut(direction).set_dead(self.now, dead);
    }

    /// Both directions of a link lose packets above `payload` bytes of UDP from now on.
    pub fn set_mtu(&mut self, link: usize, payload: usize) {
        for direction in [Direction::Up, Direction::Down] {
            self.network.wires[link].link_mut(direction).set_mtu(payload + UDP_IP_HEADERS);
        }
    }

    /// NAT rebinding: the server sees another address; packets to the old one are lost.
    pub fn rebind(&mut self, link: usize) {
        self.network.wires[link].rebind();
    }

    /// A stale NAT entry: packets from the vehicle's present port are lost from now on.
    pub fn lose_binding(&mut self, link: usize) {
        self.network.wires[link].lose_binding();
    }

    /// Tampers with the packets of a link from now on; `seed` decides when.
    pub fn tamper(&mut self, link: usize, tampering: Tampering, seed: u64) {
        self.network.wires[link].tamper(tampering, seed);
    }

    /// Sets or clears the hostility of a link; fails like [`World::new`].
    pub fn set_hostility(
        &mut self,
        link: usize,
        hostility: Option<Hostility>,
    ) -> Result<(), WorldError> {
        self.portals.remove(&link);
        if hostility == Some(Hostility::Portal) {
            let portal = Neighbour::new(self.epoch, &self.config, OtherServer::WrongKey)?;
            self.portals.insert(link, portal);
        }
        self.network.wires[link].hostile = hostility.map(Hostile::new);
        Ok(())
    }

    /// Adds the vehicle's interface to a link, or changes its address.
    pub fn add_uplink(&mut self, link: usize) {
        let name = &self.config.links[link].name;
        self.client.end.add_uplink(self.now, uplink(link), name);
        self.flush_client();
    }

    /// Removes the vehicle's interface to a link.
    pub fn remove_uplink(&mut self, link: usize) {
        self.client.end.remove_uplink(self.now, uplink(link));
        self.flush_client();
    }

    /// Sets or removes a captive portal that answers HTTP with a login page.
    pub fn set_portal(&mut self, link: usize, portal: Option<Portal>) {
        self.client.end.set_portal(self.now, uplink(link), portal);
        self.flush_client();
    }

    /// Kills and restarts the server; only its key survives. Fails like [`World::new`].
    pub fn restart_server(&mut self) -> Result<(), WorldError> {
        self.server_generations = self.server_generations.wrapping_add(1);
        self.server = server_end(self.epoch, &self.config, self.server_generations)?;
        if self.network.trails.is_some() {
            self.observe_packets();
        }
        Ok(())
    }

    /// Restarts all links and their randomness with the traces of `links`, one per link. Packets
    /// under way arrive unchanged; queued ones follow the new traces.
    pub fn restart_links(&mut self, links: Vec<DuplexLink>) {
        for (wire, link) in self.network.wires.iter_mut().zip(links) {
            wire.restart(self.now, [link.up.trace, link.down.trace]);
        }
    }

    /// Changes a lane's strategy in one direction; fails without the lane, or if it cannot be used.
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

    /// Both sides; call [`World::flush`] afterwards.
    pub fn ends_mut(&mut self) -> (&mut Client, &mut Server) {
        (self.client.touched, self.server.touched) = (true, true);
        (&mut self.client.end, &mut self.server.end)
    }

    /// The encoder target of the first lane at the sending end of `direction`.
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

    /// Drops superseded video from the queues; without effect on a server.
    pub fn supersede(&mut self, direction: Direction, superseded: Superseded) {
        let (now, lane) = (self.now(), self.config.lanes_up[0].name.clone());
        if direction == Direction::Up {
            let (client, _) = self.ends_mut();
            client.supersede(now, &lane, superseded).expect("the lane of the configuration");
        }
    }
}
