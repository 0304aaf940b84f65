//! The boxes that a fleet's table lets in, beside the clients of the server's own file.

use ipnet::IpNet;
use prefix_trie::joint::JointPrefixMap;
use roadweave_fleet::{Admission, Role};
use roadweave_identity::PublicKey;
use roadweave_tunnel::Peer;
use roadweave_types::Rate;

/// The boxes of a table whose chain holds, by key.
pub(super) fn boxes(admission: &Admission<'_>) -> Vec<(PublicKey, Peer)> {
    let boxes = admission.admitted.iter().filter(|(who, _)| who.statement.role == Role::Box);
    let peer = |(who, member): &(roadweave_fleet::Admitted, &roadweave_fleet::Member)| {
        let peer = Peer {
            name: who.statement.name.to_string(),
            tenant: String::new(),
            addresses: member.addresses.clone(),
            expires_unix: None,
            rate_limit: member.rate_kbps.map(|rate| Rate::from_kbps(rate.into())),
        };
        (member.key, peer)
    };
    boxes.map(peer).collect()
}

/// The clients of a server's own `file`, and those of `members` who are no others and share no
/// addresses with those before them or with the server's `own`; and how many of them did. What the
/// file says wins, whoever leads the fleet.
pub(crate) fn beside(
    file: Vec<(PublicKey, Peer)>,
    members: &[(PublicKey, Peer)],
    own: &[IpNet],
) -> (Vec<(PublicKey, Peer)>, usize) {
    let mut keys: std::collections::BTreeSet<PublicKey> =
        file.iter().map(|(key, _)| *key).collect();
    let mut taken: JointPrefixMap<IpNet, ()> = JointPrefixMap::new();
    let theirs = file.iter().flat_map(|(_, peer)| peer.addresses.iter().copied());
    for network in theirs.chain(own.iter().map(|own| IpNet::from(own.addr()))) {
        taken.insert(network.trunc(), ());
    }
    let mut peers = file;
    let mut left_out = 0;
    for (key, peer) in members {
        let mine: Vec<IpNet> = peer.addresses.iter().map(IpNet::trunc).collect();
        let is_free = |network: &IpNet| {
            taken.get_lpm(network).is_none() && taken.children(network).next().is_none()
        };
        if mine.is_empty() || !mine.iter().all(is_free) || !keys.insert(*key) {
            left_out += 1;
            continue;
        }
        mine.into_iter().for_each(|network| _ = taken.insert(network, ()));
        peers.push((*key, Peer { addresses: peer.addresses.clone(), ..peer.clone() }));
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
        let (peers, left_out) = beside(file.to_vec(), members, &own);
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
}
