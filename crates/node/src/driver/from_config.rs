//! What a configuration asks of this machine, as `linux` takes it.

use ipnet::IpNet;
use roadweave_config::{
    AllowedDestination, BeforeJoin, ClientFile, ForwardFields, LocalNetworks as Local, PacketMark,
    PeerFields, RouteFields, TcpRule, TcpWay, TunFields,
};
use roadweave_linux::split::SplitRule;
use roadweave_linux::{Destination, Excluded, Forward, LocalNetworks, RouteSettings, TunOptions};

pub(super) fn tun_options<M: Copy + Into<i64>>(
    tun: &TunFields<M>,
    addresses: &[IpNet],
) -> TunOptions {
    TunOptions {
        name: tun.name.as_str().to_owned(),
        mtu: tun.mtu(),
        addresses: addresses.to_vec(),
        offload: tun.offload,
    }
}

pub(super) fn route_settings(file: &ClientFile) -> RouteSettings {
    RouteSettings {
        into_tunnel: file.routes.into_tunnel.clone(),
        excluded: excluded(&file.routes),
        closed_before_join: file.routes.before_join == BeforeJoin::Closed,
        local: match file.uplinks.local {
            Local::None => LocalNetworks::None,
            Local::Gateway => LocalNetworks::Gateway,
            Local::Network => LocalNetworks::Network,
        },
        accept: file.routes.accept.clone(),
        selector: file.selector(),
    }
}

pub(super) fn excluded(routes: &RouteFields) -> Excluded {
    let marks = routes.exclude_mark.map(PacketMark::bits).into_iter().collect();
    Excluded { destinations: routes.exclude.clone(), marks }
}

pub(super) fn forward(fields: &ForwardFields, peers: &[PeerFields]) -> Forward {
    Forward {
        tcp: fields.protocol.has_tcp(),
        udp: fields.protocol.has_udp(),
        ports: fields.ports(),
        to: fields.to,
        to_ports: fields.to_ports(),
        near: fields.near(peers),
    }
}

pub(super) fn destinations(allowed: &[AllowedDestination]) -> Vec<Destination> {
    let of = |it: &AllowedDestination| Destination { network: it.network, port: it.port };
    allowed.iter().map(of).collect()
}

pub(super) fn split_rule(rule: &TcpRule) -> SplitRule {
    let (to, ports) = (rule.to.clone(), rule.port_ranges());
    SplitRule { to, ports, split: rule.tcp == TcpWay::Split }
}
