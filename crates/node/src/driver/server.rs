//! The server's role in the event loop: clients' sessions end here, behind a TUN or a proxy's legs.

pub(super) mod options;

use std::sync::Arc;

use roadweave_config::ServerFile;
use roadweave_proto::Instant;
use roadweave_quic::Epoch;
use roadweave_tunnel::{PeerTable, Server, SharedState};

use self::options::ServerOptions;
use super::event_loop::Driver;
use super::serving::node::LearnedFile;
use super::serving::reload::Destinations;
use super::serving::role::{self, Egress, Ground, Served};
use super::serving::{Serving, ServingOptions, Tables};
use super::{DriverError, MemberOptions, shards};
use crate::status::{ProxyRoleStatus, RoleStatus, ServerStatus, Status};

/// Runs a server until SIGINT or SIGTERM. If it cannot start, everything it had set up is removed.
pub fn run_server(options: MemberOptions<ServerFile>) -> Result<(), DriverError> {
    let options = ServerOptions::of(options)?;
    if options.shards > 1 {
        return shards::run(options);
    }
    role::run(start(options)?)
}

fn start(mut options: ServerOptions) -> Result<Served<Clients>, DriverError> {
    let (clients, ground) = options.open(None)?;
    let ServerOptions { config, serving, .. } = options;
    let epoch = Epoch::new(ground.clock.epoch());
    let mut server = Server::new(epoch, config, serving.identity.clone(), clients.clone())?;
    server.set_forwards(serving.of_file.destinations.forwarded());
    Clients::start("server", ground, server, clients, serving)
}

pub(super) struct Clients {
    learned: LearnedFile,
}

impl Clients {
    pub(super) fn start(
        name: &'static str,
        ground: Ground,
        mut server: Server,
        clients: Arc<PeerTable>,
        serving: ServingOptions,
    ) -> Result<Served<Self>, DriverError> {
        let kept = SharedState::default();
        server.share_state(kept.clone());
        let learned = LearnedFile::restore(&serving.state_directory, ground.instance.name(), kept);
        let tables = Tables { clients, proxies: None };
        ground.start(name, server, Self { learned }, tables, serving)
    }
}

impl Egress for Clients {
    type Node = Server;

    fn before_packets(&mut self, server: &mut Server, now: Instant, is_second: bool) {
        if is_second {
            server.on_time_of_day();
            server.ask_learned();
            self.learned.handle_timeout(now);
        }
    }

    fn on_wake(&mut self, server: &mut Server, destinations: Destinations) {
        server.set_forwards(destinations.forwarded());
    }

    fn log_events(&mut self, server: &mut Server, now: Instant, serving: &mut Serving) {
        serving.log_events(now, || server.poll_event());
    }

    fn status(&self, driver: &Driver<Server>, with_sessions: bool) -> Status {
        let server = &driver.node;
        let sessions = if with_sessions { server.status() } else { Vec::new() };
        let (totals, memory_bytes) = (server.totals(), server.memory());
        let refusals = server.refusals().into_iter();
        let refusals = refusals.map(|(kind, count)| (kind.to_owned(), count)).collect();
        let mut drops = server.drops().clone();
        let role = match server.proxy_status() {
            Some(passing) => {
                drops.merge(&passing.drops());
                let role = ProxyRoleStatus { sessions, totals, memory_bytes, refusals, passing };
                RoleStatus::Proxy(role)
            }
            None => RoleStatus::Server(ServerStatus {
                sessions,
                totals,
                memory_bytes,
                refusals,
                ..ServerStatus::default()
            }),
        };
        driver.status(String::new(), drops, role)
    }

    fn close(&mut self, driver: &mut Driver<Server>, _: &mut Serving) {
        driver.node.close(driver.edge.clock.now());
    }

    fn write_last(&mut self, server: &mut Server) {
        server.ask_all_learned();
        self.learned.write_last();
    }
}
