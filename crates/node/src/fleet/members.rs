//! The boxes admitted by a fleet's table, in addition to the clients of the server's own file.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipnet::IpNet;
use prefix_trie::joint::JointPrefixMap;
use roadweave_fleet::{Admission, Name, Role, Scope};
use roadweave_identity::PublicKey;
use roadweave_proto::Rate;
use roadweave_tunnel::Peer;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Members {
    pub(crate) boxes: Vec<(PublicKey, Peer)>,
    pub(crate) proxies: Vec<(PublicKey, Peer)>,
}

impl Members {
    /// The members of a table with valid chains; boxes only of the tenant `only`, if given.
    pub(super) fn of(admission: &Admission<'_>, only: Option<&Name>) -> Self {
        let mut members = Self::default();
        for (who, member) in &admission.admitted {
            let tenant = match &who.statement.scope {
                Scope::Tenant(tenant) => Some(tenant),
                Scope::All => None,
            };
            let list = match who.statement.role {
                Role::Box if only.is_none() || only == tenant => &mut members.boxes,
                Role::Proxy => &mut members.proxies,
                _ => continue,
            };
            let peer = Peer {
                name: who.statement.name.to_string(),
                tenant: tenant.map(ToString::to_string).unwrap_or_default(),
                addresses: member.addresses.clone(),
                expires_unix: None,
                rate_limit: member.rate_kbps.map(|rate| Rate::from_kbps(rate.into())),
                offline_max: member.offline_max_s.map(|most| Duration::from_secs(most.into())),
            };
            list.push((member.key, peer));
        }
        members
    }

    pub(crate) fn has(&self, key: &PublicKey) -> bool {
        let has = |list: &[(PublicKey, Peer)]| list.binary_search_by_key(key, |it| it.0).is_ok();
        has(&self.boxes) || has(&self.proxies)
    }

    pub(crate) fn offline_max(&self) -> BTreeMap<String, Duration> {
        let of = |(_, peer): &(PublicKey, Peer)| Some((peer.tenant.clone(), peer.offline_max?));
        self.boxes.iter().filter_map(of).collect()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Space<'a> {
    /// At a server or an anchor: the networks of its `own` addresses and `accepted`, except its
    /// own. Others would divert the machine's own traffic into the tunnel.
    Networks {
        own: &'a [IpNet],
        /// Other networks behind boxes.
        accepted: &'a [IpNet],
    },
    /// At a proxy, which does not route by them: any address, separate for each tenant.
    Tenants,
}

impl Space<'_> {
    fn has(self, network: &IpNet) -> bool {
        match self {
            Self::Networks { own, accepted } => {
                own.iter().chain(accepted).any(|around| around.trunc().contains(network))
            }
            Self::Tenants => true,
        }
    }

    fn of(self, peer: &Peer) -> String {
        match self {
            Self::Networks { .. } => String::new(),
            Self::Tenants => peer.tenant.clone(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) prefixes: usize,
    pub(crate) first: Option<(String, IpNet)>,
    /// Those whose key or addresses are taken, or without a valid address.
    pub(crate) members: usize,
}

fn is_host(network: &IpNet) -> bool {
    network.prefix_len() == network.max_prefix_len()
}

/// Merges a server's own clients with the `members` that have addresses in `space` and share none
/// with earlier peers or the server. The file takes precedence; members with networks come last.
pub(crate) fn beside(
    file: Vec<(PublicKey, Peer)>,
    members: &[(PublicKey, Peer)],
    space: Space<'_>,
) -> (Vec<(PublicKey, Peer)>, LeftOut) {
    let mut keys: BTreeSet<PublicKey> = file.iter().map(|(key, _)| *key).collect();
    let mut spaces: BTreeMap<String, JointPrefixMap<IpNet, ()>> = BTreeMap::new();
    for (_, peer) in &file {
        let taken = spaces.entry(space.of(peer)).or_default();
        peer.addresses.iter().for_each(|network| _ = taken.insert(network.trunc(), ()));
    }
    if let Space::Networks { own, .. } = space {
        let taken = spaces.entry(String::new()).or_default();
        own.iter().for_each(|own| _ = taken.insert(own.addr().into(), ()));
    }
    let mut peers = file;
    let mut left_out = LeftOut::default();
    // A member's network must not take the address that the controller gave to another.
    let has_networks = |peer: &Peer| peer.addresses.iter().any(|it| !is_host(it));
    let (with, without): (Vec<_>, Vec<_>) = members.iter().partition(|(_, it)| has_networks(it));
    for (key, peer) in without.into_iter().chain(with) {
        let taken = spaces.entry(space.of(peer)).or_default();
        let all = peer.addresses.iter().map(IpNet::trunc);
        let (mine, foreign): (Vec<_>, Vec<_>) = all.partition(|network| space.has(network));
        left_out.prefixes += foreign.len();
        let first = || Some((peer.name.clone(), *foreign.first()?));
        left_out.first = left_out.first.or_else(first);
        let is_free = |network: &IpNet| {
            taken.get_lpm(network).is_none() && taken.children(network).next().is_none()
        };
        if mine.is_empty() || !mine.iter().all(is_free) || !keys.insert(*key) {
            left_out.members += 1;
            continue;
        }
        mine.iter().for_each(|network| _ = taken.insert(*network, ()));
        peers.push((*key, Peer { addresses: mine, ..peer.clone() }));
    }
    (peers, left_out)
}

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;

    use super::*;

    fn peer(seed: u8, addresses: &[&str]) -> (PublicKey, Peer) {
        let peer = Peer::new(format!("p{seed}"), nets(addresses));
        (Identity::from_seed([seed; 32]).public_key(), peer)
    }

    fn nets(prefixes: &[&str]) -> Vec<IpNet> {
        prefixes.iter().map(|text| text.parse().expect("a prefix")).collect()
    }

    fn joined(
        file: &[(PublicKey, Peer)],
        members: &[(PublicKey, Peer)],
    ) -> (Vec<(PublicKey, Peer)>, LeftOut) {
        let own = nets(&["10.77.0.1/16", "fd77::1/64"]);
        let accepted = nets(&["192.168.0.0/20"]);
        let space = Space::Networks { own: &own, accepted: &accepted };
        beside(file.to_vec(), members, space)
    }

    fn names(file: &[(PublicKey, Peer)], members: &[(PublicKey, Peer)]) -> (Vec<String>, usize) {
        let (peers, left_out) = joined(file, members);
        (peers.into_iter().map(|(_, peer)| peer.name).collect(), left_out.members)
    }

    #[test]
    fn a_controller_takes_no_addresses_from_the_file_or_the_server() {
        let file = [peer(1, &["10.77.0.2/32", "192.168.7.0/24"])];
        let check = |addresses: &[&str], is_in: bool| {
            let (names, left_out) = names(&file, &[peer(2, addresses)]);
            let expected = if is_in { (2, 0) } else { (1, 1) };
            assert_eq!((names.len(), left_out), expected, "{addresses:?}");
        };
        check(&["10.77.0.3/32"], true);
        check(&["10.77.0.3/32", "192.168.8.0/24"], true);
        check(&["10.77.0.2/32"], false);
        check(&["10.77.0.3/32", "192.168.7.9/32"], false);
        check(&["10.77.0.0/24"], false);
        check(&["10.77.0.1/32"], false);
        check(&[], false);
        let same_key = [peer(1, &["10.77.0.9/32"])];
        assert_eq!(names(&file, &same_key), (vec!["p1".to_owned()], 1));
    }

    #[test]
    fn members_share_no_addresses_and_a_network_behind_one_box_keeps_no_other_out() {
        let members =
            [peer(2, &["10.77.0.3/32"]), peer(3, &["10.77.0.0/28"]), peer(4, &["fd77::4/128"])];
        assert_eq!(names(&[], &members), (vec!["p2".to_owned(), "p4".to_owned()], 1));
        let greedy = peer(1, &["10.77.0.9/32", "10.77.128.0/17"]);
        let members = [greedy, peer(2, &["10.77.128.2/32"]), peer(3, &["10.77.0.3/32"])];
        assert_eq!(names(&[], &members), (vec!["p2".to_owned(), "p3".to_owned()], 1));
    }

    #[test]
    fn a_controller_draws_nothing_into_the_tunnel_that_is_not_behind_boxes() {
        // Metadata, a resolver, half of all, all, around the own networks, just beside them, and
        // with host bits, which do not narrow the network.
        for foreign in [
            "169.254.169.254/32",
            "192.0.2.53/32",
            "0.0.0.0/1",
            "0.0.0.0/0",
            "::/0",
            "2000::/3",
            "10.76.0.0/15",
            "10.78.0.1/32",
            "192.168.16.0/24",
            "::ffff:10.77.0.9/128",
            "10.77.0.9/8",
        ] {
            let network: IpNet = foreign.parse().expect("a prefix");
            let first = Some(("p2".to_owned(), network.trunc()));
            let (peers, left_out) = joined(&[], &[peer(2, &["10.77.0.3/32", foreign])]);
            assert_eq!(left_out, LeftOut { prefixes: 1, first, members: 0 }, "{foreign}");
            assert_eq!(peers[0].1.addresses, nets(&["10.77.0.3/32"]), "{foreign}");
            let (peers, left_out) = joined(&[], &[peer(2, &[foreign])]);
            assert_eq!((peers.len(), left_out.members), (0, 1), "{foreign}");
        }
        let behind = [peer(2, &["10.77.0.3/32", "192.168.15.0/24", "fd77::3/128"])];
        assert_eq!(joined(&[], &behind).1, LeftOut::default());
    }

    #[test]
    fn tenants_of_a_proxy_may_have_the_same_addresses() {
        let of = |seed, tenant: &str| {
            let (key, member) = peer(seed, &["10.77.0.3/32"]);
            (key, Peer { tenant: tenant.to_owned(), ..member })
        };
        let members = [of(2, "north"), of(3, "south"), of(4, "north")];
        let (peers, left_out) = beside(vec![of(1, "west")], &members, Space::Tenants);
        assert_eq!((peers.len(), left_out.members), (3, 1));
    }
}
