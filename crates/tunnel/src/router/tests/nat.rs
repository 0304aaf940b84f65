//! Peers behind NAT, whose addresses are learned.

use super::*;

struct Nat(Router);

impl Nat {
    const STRANGER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 9)), 1);

    fn new() -> Self {
        let nat: Vec<IpNet> = vec!["100.64.0.0/10".parse().expect("a prefix")];
        let peers = vec![RouterPeer::Within(nat.clone()), RouterPeer::Within(nat)];
        Self(Router::new(config(peers)).expect("two links"))
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([100, 64, 0, 9], port))
    }

    fn bytes(&mut self, millis: u64, from: SocketAddr, bytes: &[u8]) {
        self.0.handle_packet(ms(millis), &RecvMeta::new(SOCKET, from), bytes);
    }

    fn turn(&mut self, millis: u64) -> Vec<(SocketAddr, GeneveHello)> {
        self.0.handle_timeout(ms(millis));
        let mut hellos = Vec::new();
        while let Some(packets) = self.0.poll_transmit() {
            for (route, bytes) in packets.packets() {
                if let Ok(Geneve { content: GeneveContent::Hello(hello), .. }) =
                    Geneve::parse(bytes)
                {
                    hellos.push((route.destination, hello));
                }
            }
        }
        hellos
    }

    fn remotes(&self) -> Vec<Option<String>> {
        self.0.status().paths.into_iter().map(|link| link.remote).collect()
    }
}

fn answer(epoch: u32, link: u8, said: &GeneveHello) -> Vec<u8> {
    let hello = GeneveHello { epoch, link, sent_us: 0, echoed_us: said.sent_us, held_us: 1 };
    Geneve::hello(VNI, &hello).to_vec()
}

#[test]
fn an_address_behind_nat_is_learned_from_hellos_and_follows_them() {
    let mut nat = Nat::new();
    assert!(nat.turn(0).is_empty(), "nobody is known");
    nat.0.handle_inner(ms(0), &inner(0));
    nat.0.handle_timeout(ms(0));
    assert!(sent(&mut nat.0).is_empty(), "it waits");
    nat.bytes(1, Nat::STRANGER, &hello(5, 0));
    nat.bytes(1, Nat::at(1), &data(5, 0, &inner(0)));
    assert_eq!(nat.0.drops().get(DropReason::UnknownPeer), 2, "data teaches nothing");
    nat.bytes(2, Nat::at(1), &hello(5, 1));
    nat.0.handle_timeout(ms(2));
    let mut routes = Vec::new();
    while let Some(packets) = nat.0.poll_transmit() {
        routes.extend(packets.packets().map(|(route, _)| route.destination));
    }
    assert_eq!(routes, [Nat::at(1)], "what waited leaves by the link that is known");
    // The binding moves, as an answer to what was sent there shows; then the other link does.
    let said = nat.turn(1_000).remove(0).1;
    nat.bytes(1_003, Nat::at(2), &answer(5, 1, &said));
    assert_eq!(nat.remotes(), [None, Some(Nat::at(2).to_string())]);
    nat.bytes(1_004, Nat::at(2), &hello(5, 0));
    assert_eq!(nat.remotes(), [Some(Nat::at(2).to_string()), None]);
    assert_eq!(nat.0.status().paths[1].counters.rebindings, 1);
    // An address that has been silent may belong to another host.
    nat.turn(32_000);
    nat.turn(33_001);
    assert_eq!(nat.remotes(), [None, None]);
}

#[test]
fn a_neighbour_takes_no_link_that_is_heard() {
    let mut nat = Nat::new();
    nat.bytes(0, Nat::at(1), &hello(5, 0));
    nat.bytes(0, Nat::at(2), &hello(5, 1));
    let said = nat.turn(1_000).remove(0).1;
    nat.bytes(1_050, Nat::at(1), &answer(5, 0, &said));
    nat.bytes(1_050, Nat::at(2), &hello(5, 1));
    let bound = nat.remotes();
    // Not with this epoch, nor another one, nor an answer to what was never sent.
    let guess = GeneveHello { sent_us: said.sent_us.wrapping_add(1), ..said };
    for bytes in [hello(5, 0), hello(6, 0), hello(6, 1), answer(6, 0, &guess)] {
        nat.bytes(1_100, Nat::at(66), &bytes);
    }
    assert_eq!((nat.remotes(), nat.0.status().peer_restarts), (bound.clone(), 0));
    assert_eq!(nat.0.drops().get(DropReason::UnknownPeer), 4);
    // A silent link may be found elsewhere, but not with another epoch while one is heard.
    nat.bytes(5_000, Nat::at(2), &hello(5, 1));
    nat.bytes(5_001, Nat::at(66), &hello(6, 0));
    assert_eq!((nat.remotes(), nat.0.status().peer_restarts), (bound, 0));
    nat.bytes(5_002, Nat::at(3), &hello(5, 0));
    assert_eq!(nat.remotes()[0], Some(Nat::at(3).to_string()));
    // A peer that restarted with other addresses is heard once the old ones are silent.
    nat.bytes(8_400, Nat::at(4), &hello(7, 0));
    assert_eq!(nat.0.status().peer_restarts, 0);
    nat.bytes(8_600, Nat::at(4), &hello(7, 0));
    assert_eq!(nat.0.status().peer_restarts, 1);
    assert_eq!(nat.remotes()[0], Some(Nat::at(4).to_string()));
}

#[test]
fn a_link_that_moves_all_the_time_fills_no_log() {
    let mut nat = Nat::new();
    // Two links whose hellos come from one address take it from one another.
    for step in 0..4_000_u64 {
        nat.bytes(step, Nat::at(1), &hello(5, (step % 2) as u8));
        nat.turn(step);
    }
    let events: Vec<_> = std::iter::from_fn(|| nat.0.poll_event()).collect();
    assert!(events.len() <= 1 + 2 * 2 * 4, "{}", events.len());
    let moves = events.iter().map(|event| match event {
        RouterEvent::LinkMoved { times, .. } => *times,
        _ => 0,
    });
    assert!(moves.sum::<u64>() > 2_900, "what is not told is counted");
}

#[test]
fn hellos_of_fixed_peers_at_one_address_are_distinguished_by_their_numbers() {
    let peers = [6081, 6082].map(|port| RouterPeer::At(SocketAddr::from(([10, 0, 0, 2], port))));
    let mut router = Router::new(config(peers.to_vec())).expect("two links");
    // A NAT gave it a port that neither link has.
    let remote = SocketAddr::from(([10, 0, 0, 2], 50_000));
    router.handle_packet(ms(0), &RecvMeta::new(SOCKET, remote), &hello(5, 1));
    let heard: Vec<u64> =
        router.status().paths.iter().map(|link| link.counters.packets_received).collect();
    assert_eq!(heard, [0, 1]);
}
