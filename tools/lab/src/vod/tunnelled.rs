//! A viewer whose requests are TCP connections through the tunnel.
//!
//! ```text
//! Player ─ wants ─► Exchange, one for each chunk ─ IP packets ─► World: client ═ links ═ server
//!        ◄─ data ──          by its port          ◄────────────┘
//! ```
//!
//! The lanes are the tunnel's defaults. The host answers at once. Both ends drop the connections of
//! videos that the viewer has left.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_emulate::{Direction, DriveLink};
use roadweave_proto::{Instant, earliest};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::default_lanes;

use super::player::{ChunkId, Player, Program};
use super::seen::{ServerTraffic, Viewing};
use super::viewer::{DRAIN, recorded, sent, steady};
use crate::inner;
use crate::tcp::{Exchange, SocketConfig};
use crate::web::{LEAD_IN, WARM_UP};
use crate::world::{MTU, World, WorldConfig, WorldError};

#[derive(Debug)]
struct Connections {
    world: World,
    config: SocketConfig,
    open: BTreeMap<u16, PlayerConnection>,
    port: u16,
}

#[derive(Debug)]
struct PlayerConnection {
    exchange: Exchange,
    chunk: Option<ChunkId>,
    delivered: u64,
}

/// Simulates a viewer of `program` over `links`, whose traces are at `from` when the viewer starts;
/// the program's seed decides all randomness.
pub(super) fn watch(
    (links, from): (&[DriveLink], Duration),
    (algorithm, congestion): (CongestionControl, CongestionControl),
    program: Program,
) -> Result<(Viewing, ServerTraffic), WorldError> {
    let seed = program.seed;
    let plain = WorldConfig::plain(steady(links, seed), default_lanes(), seed);
    let mut tunnel = Connections {
        world: World::joined(WorldConfig { congestion, ..plain })?,
        config: SocketConfig { algorithm, mtu: MTU, seed },
        open: BTreeMap::new(),
        port: FIRST_PORT,
    };
    tunnel.ask(None, WARM_UP.into());
    let begins = tunnel.world.now() + LEAD_IN;
    tunnel.run(None, begins);
    tunnel.open.clear();
    tunnel.world.restart_links(recorded((links, from), program));
    let before = sent(&tunnel.world);
    let start = tunnel.world.now();
    let mut player = Player::new(program, start);
    let end = start + program.lasting;
    tunnel.run(Some(&mut player), end);
    let viewed = sent(&tunnel.world);
    while player.is_loading() && tunnel.world.now() < end + DRAIN {
        let next = (tunnel.world.now() + LOOK).min(end + DRAIN);
        tunnel.run(Some(&mut player), next);
    }
    Ok((player.finish(tunnel.world.now()), viewed.since(&before)))
}

impl Connections {
    fn run(&mut self, mut player: Option<&mut Player>, end: Instant) {
        loop {
            let now = self.world.now();
            if let Some(player) = player.as_deref_mut() {
                self.watch(player, now);
            }
            self.send(now);
            let exchanges = self.open.values().filter_map(|it| it.exchange.poll_timeout());
            let due = earliest([
                self.world.poll_timeout(),
                exchanges.min(),
                player.as_deref().and_then(Player::poll_timeout),
            ]);
            let Some(due) = due.filter(|due| *due <= end) else { break };
            self.world.handle_timeout(due.max(now));
            self.receive(player.as_deref_mut());
        }
        self.world.run_until(end);
        self.receive(player);
    }

    fn watch(&mut self, player: &mut Player, now: Instant) {
        let is_due = player.poll_timeout().is_some_and(|due| due <= now);
        if is_due && player.handle_timeout(now) {
            self.open.clear();
        }
        while let Some((chunk, bytes)) = player.wants(now) {
            self.ask(Some(chunk), bytes);
            player.on_asked(now);
        }
    }

    fn ask(&mut self, chunk: Option<ChunkId>, bytes: u64) {
        let mut exchange = Exchange::new(&self.config, Direction::Down, self.port, Some(bytes));
        exchange.begin(self.world.now());
        self.open.insert(self.port, PlayerConnection { exchange, chunk, delivered: 0 });
        self.port = self.port.checked_add(1).unwrap_or(FIRST_PORT);
    }

    fn send(&mut self, now: Instant) {
        for connection in self.open.values_mut() {
            while let Some((direction, packet)) = connection.exchange.poll_transmit(now) {
                self.world.handle_inner(direction, &packet);
            }
        }
        self.world.flush();
    }

    fn receive(&mut self, mut player: Option<&mut Player>) {
        while let Some(arrival) = self.world.poll_arrival() {
            let Some(port) = inner::port(&arrival.packet) else { continue };
            // Packets of a closed connection are dropped.
            let Some(connection) = self.open.get_mut(&port) else { continue };
            connection.exchange.handle_packet(arrival.at, arrival.direction, &arrival.packet);
            let came = connection.exchange.received() - connection.delivered;
            connection.delivered += came;
            if let (Some(player), Some(chunk), 1..) =
                (player.as_deref_mut(), connection.chunk, came)
                && player.on_came(arrival.at, chunk, came)
            {
                self.open.remove(&port);
            }
        }
    }
}

const FIRST_PORT: u16 = 5_000;
const LOOK: Duration = Duration::from_millis(100);
