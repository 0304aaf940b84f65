//! The anchor's role in the event loop. It owns the TUN, routes, filters, source NAT and far end of
//! streams of one tenant, as a server does, but its sessions are those of proxies.

use std::sync::Arc;
use std::time::Duration;

use roadweave_config::{AnchorFile, AnchorStreams, Within};
use roadweave_linux::random_bytes;
use roadweave_proto::Instant;
use roadweave_quic::Epoch;
use roadweave_tunnel::{Anchor, AnchorConfig, AnchorEvent, AnchorTenant, PeerTable};

use super::event_loop::Driver;
use super::serving::host::HostOptions;
use super::serving::role::{self, Egress, Ground, Served};
use super::serving::{Serving, Tables};
use super::{DriverError, MemberOptions};
use crate::StateFile;
use crate::reset_salt::reset_salt;
use crate::state::PersistedBindings;
use crate::status::{AnchorRoleStatus, RoleStatus, Status};

const BINDINGS_INTERVAL: Duration = Duration::from_secs(10);
/// A crash before the write restores older bindings.
const BINDINGS_SOON: Duration = Duration::from_millis(500);

/// Runs an anchor until SIGINT or SIGTERM. If it cannot start, everything it had set up is removed.
pub fn run_anchor(options: MemberOptions<AnchorFile>) -> Result<(), DriverError> {
    role::run(start(options)?)
}

fn start(options: MemberOptions<AnchorFile>) -> Result<Served<Bindings>, DriverError> {
    let (file, serving) = options.split();
    let joined = serving.fleet.as_ref().map(|fleet| fleet.membership.tenant());
    let clients = Arc::new(PeerTable::new(file.devices()));
    let tenant = AnchorTenant {
        name: joined.unwrap_or(&file.tenant).to_owned(),
        devices: clients.clone(),
        clients_reach_clients: file.clients_reach_clients,
        rate_limit: file.rate_limit_mbps.map(Within::rate),
    };
    let mut config = AnchorConfig {
        transport: file.transport.to_config(random_bytes()?),
        tenants: vec![tenant],
        leg_rate: file.leg_rate_mbps.map(Within::rate),
        streams: file.streams.as_ref().map(AnchorStreams::to_config),
        memory_max: file.streams.as_ref().map_or(0, |streams| streams.memory_mb.bytes()),
    };
    let (host, streams) = (HostOptions::from(&file), &mut config.streams);
    let ground = Ground::with_host(&host, &serving, &clients.peers(), streams, true, None)?;
    let proxies = Arc::new(PeerTable::new(serving.of_file.proxies.clone()));
    config.transport.reset_salt = reset_salt(&serving.state_directory, ground.instance.name())?;
    let epoch = Epoch::new(ground.clock.epoch());
    let anchor = Anchor::new(epoch, config, serving.identity.clone(), proxies.clone())?;
    let file = StateFile::new(&serving.state_directory, ground.instance.name());
    let egress = Bindings { file, next: NextWrite(Instant::ZERO + BINDINGS_INTERVAL) };
    let tables = Tables { clients, proxies: Some(proxies) };
    let mut served = ground.start("anchor", anchor, egress, tables, serving)?;
    served.driver.node.restore(served.role.egress.file.read().0);
    Ok(served)
}

struct Bindings {
    file: StateFile<PersistedBindings>,
    next: NextWrite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextWrite(Instant);

impl NextWrite {
    fn on_change(&mut self, now: Instant) {
        self.0 = self.0.min(now + BINDINGS_SOON);
    }

    /// `is_written` is false if the write failed or an earlier one is still running.
    fn on_written(&mut self, now: Instant, is_written: bool) {
        self.0 = now + if is_written { BINDINGS_INTERVAL } else { BINDINGS_SOON };
    }
}

impl Egress for Bindings {
    type Node = Anchor;

    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.next.0)
    }

    fn before_packets(&mut self, anchor: &mut Anchor, now: Instant, is_second: bool) {
        if is_second {
            anchor.on_time_of_day(now);
        }
        if self.next.0 <= now {
            let is_written = self.file.write(&PersistedBindings(anchor.bindings()));
            self.next.on_written(now, is_written);
        }
    }

    fn log_events(&mut self, anchor: &mut Anchor, now: Instant, serving: &mut Serving) {
        while let Some(event) = anchor.poll_event() {
            match event {
                AnchorEvent::LegUp { proxy, key } => tracing::info!(proxy, %key, "a leg is up"),
                AnchorEvent::LegDown { proxy, reason } => {
                    tracing::warn!(proxy, reason, "a leg is down");
                }
                AnchorEvent::Attached { device, key, proxy } => {
                    self.next.on_change(now);
                    if serving.may_log(now, key, &device) {
                        tracing::info!(device, proxy, "attached");
                    }
                }
                AnchorEvent::Refused { reason } => tracing::warn!("refused {reason}"),
            }
        }
    }

    fn status_line(&self, _: &Anchor) -> String {
        String::new()
    }

    fn status(&self, driver: &Driver<Anchor>, _: bool) -> Status {
        let passing = driver.node.status();
        let mut drops = driver.node.drops().clone();
        drops.merge(&passing.drops());
        let role = RoleStatus::Anchor(AnchorRoleStatus { passing, streams: None });
        driver.status(String::new(), drops, role)
    }

    fn close(&mut self, driver: &mut Driver<Anchor>, _: &mut Serving) {
        driver.node.close(driver.edge.clock.now());
    }

    fn write_last(&mut self, anchor: &mut Anchor) {
        self.file.write_last(&PersistedBindings(anchor.bindings()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_binding_is_written_within_half_a_second_and_many_at_once() {
        let at = Instant::from_millis;
        let mut next = NextWrite(at(10_000));
        next.on_change(at(1_000));
        next.on_change(at(1_400));
        assert_eq!(next, NextWrite(at(1_500)));
        next.on_written(at(1_500), false);
        assert_eq!(next, NextWrite(at(2_000)), "the write before is under way");
        next.on_written(at(2_000), true);
        next.on_change(at(11_900));
        assert_eq!(next, NextWrite(at(12_000)));
    }
}
