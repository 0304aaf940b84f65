//! `roadweave client` and `roadweave router`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use roadweave_config::{
    BeforeJoin, ClientFile, ClientStreams, LinkSocket, LocalNetworks, RouterFile, ServerFields,
    TcpRule, TcpWay, TunFields, Validate,
};
use roadweave_device::fleet::{FleetOptions, Membership};
use roadweave_device::streams::EntranceSettings;
use roadweave_device::{
    CandidateOptions, ClientOptions, ClientReload, LanStreamsOptions, Reread, RouteSettings,
    RouterOptions, RouterSocket, SplitRule, SplitRules, TunSettings, UplinkNeighbours,
    random_bytes, run_client, run_router,
};
use roadweave_fleet::Role;
use roadweave_identity::PublicKey;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use roadweave_tunnel::{Candidate, RouterConfig};

use crate::member::{self, CLIENT_FILE, InForce, Source};

/// Runs the client, in the vehicle.
#[derive(Debug, clap::Args)]
pub struct ClientArgs {
    /// The configuration file; after `roadweave join` none has to be there
    #[arg(long, value_name = "FILE", default_value = CLIENT_FILE)]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// Use this instead of state_directory in the file
    #[arg(long, value_name = "FOLDER")]
    state_directory: Option<PathBuf>,
}

/// Runs a redundant router: every packet on every link, not encrypted, the same on both sides.
#[derive(Debug, clap::Args)]
pub struct RouterArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/roadweave/router.toml")]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
}

impl ClientArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the client run.
    pub fn run(&self) -> Result<()> {
        let source = Source::new(&self.config, self.state_directory.as_deref());
        let mut file = source.read(None).map_err(BadInput::new)?.file;
        member::check(&source.path, &file.private_key, &file.state_directory)?;
        if file.server.is_none() && !Membership::is_there(&file.state_directory) {
            return Err(source.without_server().into());
        }
        if self.check {
            return in_order(&source.path, &file);
        }
        warnings(&file).iter().for_each(|warning| tracing::warn!("{warning}"));
        let mut membership = Membership::open(&file.state_directory, Role::Box)?;
        let identity =
            member::identity(&source.path, file.private_key.take(), membership.as_ref())?;
        let follows_fleet = file.server.is_none();
        let servers: Vec<CandidateOptions> = match &membership {
            _ if !follows_fleet => file.servers().map(candidate_options).collect(),
            // Without servers in the file, the controller names some.
            Some(its) => its.candidates().iter().map(CandidateOptions::of_fleet).collect(),
            None => return Err(source.without_server().into()),
        };
        let in_force = Arc::new(Mutex::new(None));
        if let Some(membership) = &mut membership {
            file = member::begin(&source, membership, &in_force, file)?;
        }
        let reload =
            reload_client(source.clone(), file.clone(), identity.public_key(), in_force.clone());
        let merge = member::merge_client(source.clone(), in_force);
        let fleet = membership.map(|membership| FleetOptions {
            membership,
            merge: Box::new(merge),
            offline_max: None,
        });
        let files = source.files();
        Ok(run_client(ClientOptions {
            lanes: file.lane_configs(),
            policies: file.policies(),
            technologies: member::technologies_of(&file),
            routes: route_settings(&file),
            kill_switch: file.routes.kill_switch,
            streams: file.streams.as_ref().map(|streams| LanStreamsOptions {
                config: streams.to_config(),
                entrance: EntranceSettings {
                    origins: streams.origins.clone(),
                    http_ports: streams.http_ports.clone(),
                    transparent: streams.splits(),
                    ..EntranceSettings::new(streams.listen, streams.from.clone())
                },
                split: split_rules(streams),
            }),
            metrics: file.metrics.as_ref().map(|metrics| metrics.listen),
            memory_max: file.limits.client_memory_mb.bytes(),
            portal_probe: file.portal_probe(),
            name: file.name,
            identity,
            servers,
            transport: file.transport.to_config(random_bytes()?),
            tun: tun_settings(&file.tun),
            marks: file.packet_marks.into(),
            masquerade: file.routes.masquerade,
            dns: file.dns,
            state_directory: file.state_directory,
            forward_between_uplinks: file.uplinks.forward,
            reload: Box::new(reload),
            files,
            fleet,
            follows_fleet,
        })?)
    }
}

fn candidate_options(fields: &ServerFields) -> CandidateOptions {
    let millis = fields.to_anchor_ms.map_or(0, |ms| ms.get().unsigned_abs());
    CandidateOptions {
        addresses: fields.names(),
        candidate: Candidate {
            name: fields.name.clone(),
            site: fields.site.clone(),
            to_anchor: Duration::from_millis(millis),
            ..Candidate::only(fields.public_key, Vec::new())
        },
    }
}

/// The rules for traffic into the tunnel, and for refused traffic.
fn route_settings(file: &ClientFile) -> RouteSettings {
    RouteSettings {
        into_tunnel: file.routes.into_tunnel.clone(),
        excluded: member::excluded_of(file),
        closed_before_join: file.routes.before_join == BeforeJoin::Closed,
        uplink_neighbours: match file.uplinks.local {
            LocalNetworks::None => UplinkNeighbours::None,
            LocalNetworks::Gateway => UplinkNeighbours::Gateway,
            LocalNetworks::Network => UplinkNeighbours::Network,
        },
        accept: file.routes.accept.clone(),
        selector: file.selector(),
    }
}

/// The rules of transparent splitting, if it is on.
fn split_rules(streams: &ClientStreams) -> Option<SplitRules> {
    let splits = |way| way == TcpWay::Split;
    let rule = |rule: &TcpRule| SplitRule {
        to: rule.to.clone(),
        ports: rule.port_ranges(),
        split: splits(rule.tcp),
    };
    let rules = streams.rules.iter().map(rule).collect();
    streams.splits().then(|| SplitRules { rules, others: splits(streams.tcp) })
}

pub(crate) fn tun_settings(tun: &TunFields) -> TunSettings {
    let mtu = tun.mtu_bytes.get() as u16;
    TunSettings { name: tun.name.as_str().to_owned(), mtu, offload: tun.offload }
}

fn router_socket(LinkSocket { listen, interface }: LinkSocket) -> RouterSocket {
    RouterSocket { listen, interface }
}

const CLIENT_RELOADS: [&str; 9] = [
    "lanes",
    "uplinks.include",
    "uplinks.exclude",
    "uplinks.inside",
    "uplinks.order",
    "uplinks.policies",
    "uplinks.portal_probe",
    "routes.exclude",
    "routes.exclude_mark",
];

/// Reads a client's file again. `started` is the file of the start.
fn reload_client(
    source: Source,
    started: ClientFile,
    key: PublicKey,
    in_force: InForce,
) -> impl FnMut() -> Result<Reread<ClientReload>, String> {
    move || {
        let remote = in_force.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut file = source.read(remote.as_deref()).map_err(|error| error.to_string())?.file;
        let other_key = member::is_other_key(file.private_key.take(), key)?;
        let ignored = ignored(&started, &file, &CLIENT_RELOADS, other_key);
        Ok(Reread { read: member::reload_of(&file), ignored })
    }
}

/// The changed fields that need a restart. Neither file has its private key, which is kept nowhere
/// in memory; the caller compares keys.
pub(crate) fn ignored<T: serde::Serialize>(
    started: &T,
    now: &T,
    reloaded: &[&str],
    other_key: bool,
) -> Vec<String> {
    let is_read = |field: &String| {
        reloaded.iter().any(|name| {
            field.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let mut ignored: Vec<String> = roadweave_config::differing(started, now)
        .into_iter()
        .filter(|field| !is_read(field))
        .collect();
    if other_key {
        ignored.push("private_key".to_owned());
    }
    ignored
}

/// Warnings of settings that are probably mistakes.
pub(crate) fn warnings(file: &impl Validate) -> Vec<String> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    file.warnings(since_1970.as_secs())
}

pub(crate) fn in_order(path: &Path, file: &impl Validate) -> Result<()> {
    for warning in warnings(file) {
        out::note(format_args!("warning: {}: {warning}", path.display()));
    }
    Ok(out::line(format_args!("{} is in order", path.display()))?)
}

impl RouterArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the router run.
    pub fn run(&self) -> Result<()> {
        let file: RouterFile = roadweave_config::load(&self.config).map_err(BadInput::new)?;
        if self.check {
            return in_order(&self.config, &file);
        }
        let (sockets, links) = file.links();
        Ok(run_router(RouterOptions {
            config: RouterConfig {
                vni: file.vni.get() as u32,
                epoch: u32::from_be_bytes(random_bytes()?),
                hello_begin_us: u32::from_be_bytes(random_bytes()?),
                order: file.order(),
                links,
                inner_sources: (!file.accept_sources.is_empty()).then_some(file.accept_sources),
            },
            metrics: file.metrics.as_ref().map(|metrics| metrics.listen),
            sockets: sockets.into_iter().map(router_socket).collect(),
            addresses: file.addresses,
            tun: TunSettings {
                name: file.tun.name.into(),
                mtu: file.tun.mtu_bytes.get() as u16,
                offload: file.tun.offload,
            },
            into_tunnel: file.into_tunnel,
        })?)
    }
}
