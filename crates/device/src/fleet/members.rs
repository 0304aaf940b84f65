//! The boxes that a fleet's table lets in, beside the clients of the server's own file.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use prefix_trie::joint::JointPrefixMap;
use roadweave_fleet::{Admission, Name, Role, Scope};
use roadweave_identity::PublicKey;
use roadweave_tunnel::Peer;
use roadweave_types::Rate;

/// Those whom a fleet's table lets in, by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Members {
    /// The boxes, each of its tenant.
    pub(crate) boxes: Vec<(PublicKey, Peer)>,
    /// The proxies, at an anchor.
    pub(crate) proxies: Vec<(PublicKey, Peer)>,
}

impl Members {
    /// Those of a table whose chain holds; of boxes only those of the tenant `only`, if there is
    /// one.
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
            };
            list.push((member.key, peer));
        }
        members
    }
}

/// The clients of a server's own `file`, and those of `members` who are no others and share no
/// addresses with those before them or with the server's `own`, of their own tenant if tenants are
/// apart; and how many of them did. What the file says wins, whoever leads the fleet.
pub(crate) fn beside(
    file: Vec<(PublicKey, Peer)>,
    members: &[(PublicKey, Peer)],
    own: &[IpNet],
    by_tenant: bool,
) -> (Vec<(PublicKey, Peer)>, usize) {
    let mut keys: BTreeSet<PublicKey> = file.iter().map(|(key, _)| *key).collect();
    let space = |peer: &Peer| if by_tenant { peer.tenant.clone() } else { String::new() };
    let mut spaces: BTreeMap<String, JointPrefixMap<IpNet, ()>> = BTreeMap::new();
    for (_, peer) in &file {
        let taken = spaces.entry(space(peer)).or_default();
        peer.addresses.iter().for_each(|network| _ = taken.insert(network.trunc(), ()));
    }
    let own = own.iter().map(|own| IpNet::from(own.addr()));
    let mut peers = file;
    let mut left_out = 0;
    for (key, peer) in members {
        let taken = spaces.entry(space(peer)).or_default();
        own.clone().for_each(|network| _ = taken.insert(network, ()));
        let mine: Vec<IpNet> = peer.addresses.iter().map(IpNet::trunc).collect();
        let is_free = |network: &IpNet| {
            taken.get_lpm(network).is_none() && taken.children(network).next().is_none()
        };
        if mine.is_empty() || !mine.iter().all(is_free) || !keys.insert(*key) {
            left_out += 1;
            continue;
        }
        mine.into_iter().for_each(|network| _ = taken.insert(network, ()));
        peers.push((*key, peer.clone()));
    }
    (peers, left_out)
}

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;

    use super::*;

    fn peer(seed: u8, addresses: &[&str]) -> (PublicKey, Peer) {
        let addresses = addresses.iter().map(|text| text.parse().expect("a prefix")).collect();
        let peer = Peer {
            name: format!("p{seed}"),
            tenant: String::new(),
            addresses,
            expires_unix: None,
            rate_limit: None,
        };
        (Identity::from_seed([seed; 32]).public_key(), peer)
    }

    fn names(file: &[(PublicKey, Peer)], members: &[(PublicKey, Peer)]) -> (Vec<String>, usize) {
        let own = ["10.77.0.1/24".parse().expect("a prefix")];
        let (peers, left_out) = beside(file.to_vec(), members, &own, false);
        (peers.into_iter().map(|(_, peer)| peer.name).collect(), left_out)
    }

    #[test]
    fn a_controller_takes_no_addresses_from_the_file_or_the_server() {
        let file = [peer(1, &["10.77.0.2/32", "192.168.7.0/24"])];
        let check = |addresses: &[&str], is_in: bool| {
            let (names, left_out) = names(&file, &[peer(2, addresses)]);
            assert_eq!(
                (names.len() - 1, left_out),
                (is_in.into(), (!is_in).into()),
                "{addresses:?}"
            );
        };
        check(&["10.77.0.3/32"], true);
        check(&["10.77.0.3/32", "192.168.8.0/24"], true);
        // The file's client, part of what lies behind it, all around it, and the server itself.
        check(&["10.77.0.2/32"], false);
        check(&["10.77.0.3/32", "192.168.7.9/32"], false);
        check(&["0.0.0.0/0"], false);
        check(&["10.77.0.1/32"], false);
        check(&[], false);
        let same_key = [peer(1, &["10.77.0.9/32"])];
        assert_eq!(names(&file, &same_key), (vec!["p1".to_owned()], 1));
    }

    #[test]
    fn members_share_no_addresses_with_one_another() {
        let members =
            [peer(2, &["10.77.0.3/32"]), peer(3, &["10.77.0.0/28"]), peer(4, &["fd77::4/128"])];
        assert_eq!(names(&[], &members), (vec!["p2".to_owned(), "p4".to_owned()], 1));
    }
    #[test]
    fn tenants_of_a_proxy_may_have_the_same_addresses() {
        let of = |seed, tenant: &str| {
            let (key, member) = peer(seed, &["10.77.0.3/32"]);
            (key, Peer { tenant: tenant.to_owned(), ..member })
        };
        let members = [of(2, "north"), of(3, "south"), of(4, "north")];
        let (peers, left_out) = beside(vec![of(1, "west")], &members, &[], true);
        assert_eq!((peers.len(), left_out), (3, 1));
    }
}
