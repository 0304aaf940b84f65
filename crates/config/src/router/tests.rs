use std::time::Duration;

use super::*;
use crate::tests::{check_broken, read};

const LINK: &str =
    "[[links]]\nname = \"lte\"\nlisten = \"10.1.0.2:6081\"\npeer = \"10.1.0.1:6081\"\n";

#[test]
fn the_smallest_file_is_complete() {
    let file = read::<RouterFile>(LINK).expect("complete");
    assert_eq!(file.order(), Order::Reorder { max_buffer: Duration::from_millis(300) });
    let (sockets, links) = file.links();
    assert_eq!((sockets.len(), links[0].number, links[0].socket), (1, 0, 0));
    let pass = read::<RouterFile>(&format!("ordering = \"pass\"\n{LINK}")).expect("complete");
    assert_eq!(pass.order(), Order::Pass);
}

#[test]
fn links_with_one_address_share_a_socket() {
    let link = |name: &str, more: &str| {
        format!("[[links]]\nname = \"{name}\"\nlisten = \"10.1.0.2:6081\"\n{more}\n")
    };
    let text = [
        link("a", "peer_within = [\"100.64.0.0/10\"]\nnumber = 7"),
        link("b", "peer_within = [\"0.0.0.0/0\"]"),
        link("c", "peer = \"10.1.0.1:6081\"\ninterface = \"eth1\""),
    ];
    let (sockets, links) = read::<RouterFile>(&text.concat()).expect("complete").links();
    assert_eq!(sockets.len(), 2);
    assert_eq!(sockets[1].interface.as_deref(), Some("eth1"));
    let places: Vec<_> = links.iter().map(|link| (link.number, link.socket)).collect();
    assert_eq!(places, [(7, 0), (1, 0), (2, 1)]);
    assert!(matches!(&links[0].peer, RouterPeer::Within(prefixes) if prefixes.len() == 1));
}

#[test]
fn public_addresses_need_a_word() {
    let listen = |address: &str| {
        LINK.replacen("10.1.0.2:6081", address, 1).replacen("10.1.0.1", "9.9.9.9", 1)
    };
    for address in ["0.0.0.0:6081", "8.8.8.8:6081", "100.128.0.1:6081", "198.20.0.1:6081"] {
        assert!(read::<RouterFile>(&listen(address)).is_err(), "{address}");
        let insecure = format!("insecure = true\n{}", listen(address));
        assert!(read::<RouterFile>(&insecure).is_ok(), "{address}");
    }
    for address in ["192.168.8.100:6081", "100.64.0.1:6081", "127.0.0.1:6081", "169.254.1.1:1"] {
        assert!(read::<RouterFile>(&listen(address)).is_ok(), "{address}");
    }
    let v6 = |address: &str| is_public(address.parse().expect("an address"));
    for address in ["::", "2001:200::1", "2a00::1", "::ffff:8.8.8.8"] {
        assert!(v6(address), "{address}");
    }
    for address in ["::1", "fd00::1", "fe80::1", "2001:db8::1", "::ffff:10.0.0.1"] {
        assert!(!v6(address), "{address}");
    }
}

#[test]
fn links_that_cannot_work_are_refused_with_what_would_be_right() {
    check_broken::<RouterFile>("broken-router.txt", str::to_owned);
    let any = format!("insecure = true\n{LINK}").replace("10.1.0.1:6081", "[fd00::1]:6081");
    assert!(read::<RouterFile>(&any.replace("10.1.0.2:6081", "[::]:6081")).is_ok());
    let learned = LINK.replace("peer = \"10.1.0.1:6081\"", "peer_within = [\"100.64.0.0/10\"]");
    for network in ["0.0.0.0/0", "100.64.8.0/24"] {
        let text = format!("into_tunnel = [\"{network}\"]\n{learned}interface = \"eth1\"\n");
        assert!(read::<RouterFile>(&text).is_ok());
    }
}

#[test]
fn the_examples_of_the_page_are_files_that_work() {
    let text = include_str!("../../../../docs/router.md");
    let examples = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let files: Vec<RouterFile> = examples.map(|text| read(text).expect("it works")).collect();
    assert_eq!(files.len(), 2);
    assert_eq!(files[0].links.len(), files[1].links.len());
}
