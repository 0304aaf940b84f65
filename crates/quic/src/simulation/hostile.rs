//! Bytes from the network never panic, never steal a connection, and are counted.

use roadweave_emulate::forge::{Eavesdropper, stateless_reset};

use super::wire::links;
use super::*;

fn source(world: &World, to: usize) -> Source {
    let local = match to {
        CLIENT => Local::Uplink(UplinkId(0)),
        _ => Local::Address(Some(server_address().ip())),
    };
    let remote = if to == CLIENT { server_address() } else { world.links[0].address };
    Source { remote, local, ecn: None, received: None }
}

fn inject(world: &mut World, to: usize, packet: &[u8]) {
    let (now, source) = (world.now, source(world, to));
    let _ = world.sides[to].endpoint.handle_packet(now, source, BytesMut::from(packet));
    world.settle();
}

fn under_way(world: &World) -> Vec<(usize, Vec<u8>)> {
    world.network.iter().map(|arrival| (arrival.to, arrival.packet.clone())).collect()
}

fn check_alive(world: &mut World) {
    for side in [CLIENT, SERVER] {
        assert_eq!(world.closed(side), None);
        let token = world.send(side, PathId(0), 500).unwrap();
        world.run(ms(500));
        assert!(world.is_acknowledged(side, token));
    }
}

#[test]
fn random_bytes_change_nothing() {
    let mut world = World::connected(links(&[20, 50]));
    for length in 0..1500 {
        let mut packet: Vec<u8> = (0..length).map(|_| world.random.next_u64() as u8).collect();
        if let Some(first) = packet.first_mut() {
            *first = (length as u8).wrapping_mul(37);
        }
        if length % 3 == 0 && packet.len() > 5 {
            packet[1..5].copy_from_slice(&[0, 0, 0, 1]);
        }
        inject(&mut world, length % 2, &packet);
        world.run(Duration::from_micros(100));
    }
    check_alive(&mut world);
    assert!(world.sides[SERVER].endpoint.stats().without_connection > 700);
}

#[test]
fn replayed_truncated_and_altered_packets_change_nothing() {
    let mut world = World::connected(links(&[20, 50]));
    for round in 0..60 {
        for side in [CLIENT, SERVER] {
            let _ = world.send(side, PathId(round % 2), 900);
        }
        for (to, packet) in under_way(&world) {
            inject(&mut world, to, &packet);
            inject(&mut world, to, &packet);
            let cut = world.random.next_u64() as usize % packet.len();
            inject(&mut world, to, &packet[..cut]);
            let mut altered = packet.clone();
            let bit = world.random.next_u64() as usize % (packet.len() * 8);
            altered[bit / 8] ^= 1 << (bit % 8);
            inject(&mut world, to, &altered);
            inject(&mut world, 1 - to, &packet);
        }
        world.run(ms(7));
    }
    world.run(ms(2000));
    let [client, server] = &world.sides;
    assert_eq!(server.books.received.len(), client.books.sent.len(), "each once");
    check_alive(&mut world);
}

#[test]
fn altered_handshakes_never_panic() {
    for seed in 1..20 {
        let mut world = World::new(links(&[20]), &config(seed));
        world.connect(0);
        for _ in 0..30 {
            for (to, packet) in under_way(&world) {
                let mut altered = packet.clone();
                for _ in 0..3 {
                    let byte = world.random.next_u64() as usize % packet.len();
                    altered[byte] = world.random.next_u64() as u8;
                }
                inject(&mut world, to, &altered);
                let cut = world.random.next_u64() as usize % packet.len();
                inject(&mut world, to, &packet[..cut]);
            }
            world.run(ms(5));
        }
        world.run(ms(8000));
        assert_eq!(world.sides[CLIENT].books.connected.len(), 1, "seed {seed}");
    }
}

#[test]
fn a_packet_from_a_foreign_address_does_not_move_the_path() {
    let mut world = World::connected(links(&[20, 50]));
    world.send(CLIENT, PathId(0), 900).unwrap();
    let (to, packet) = under_way(&world).remove(0);
    let mut altered = packet;
    *altered.last_mut().unwrap() ^= 1;
    let now = world.now;
    let foreign = Source { remote: "203.0.113.9:9".parse().unwrap(), ..source(&world, to) };
    let _ = world.sides[to].endpoint.handle_packet(now, foreign, BytesMut::from(&altered[..]));
    world.run(ms(500));
    assert_eq!(world.server().remote_address(PathId(0)), Some(world.links[0].address));
    check_alive(&mut world);
}

#[test]
fn answers_to_garbage_are_fewer_than_the_garbage() {
    let mut world = World::new(links(&[20]), &config(1));
    for i in 0..5000u32 {
        let mut packet = vec![0x40; 60];
        packet[1..5].copy_from_slice(&i.to_be_bytes());
        inject(&mut world, SERVER, &packet);
    }
    let stats = world.server_stats();
    assert!(stats.responses <= 1, "{stats:?}");
    assert_eq!(stats.without_connection, 5000);
}

fn first_packet(world: &World) -> Eavesdropper {
    under_way(world)
        .iter()
        .find_map(|(to, packet)| Eavesdropper::of(packet).filter(|_| *to == SERVER))
        .expect("an Initial packet is on the way")
}

fn closed_by(forged: impl Fn(&Eavesdropper) -> Vec<u8>) -> Option<CloseReason> {
    let mut world = World::new(links(&[20]), &config(1));
    world.connect(0);
    let packet = forged(&first_packet(&world));
    inject(&mut world, CLIENT, &packet);
    world.run(ms(3000));
    world.closed(CLIENT)
}

#[test]
fn a_refusal_that_anybody_could_write_is_none() {
    for code in [0x130, 0x12d, 0x12c, 0x15c, 0x131, 0x178, 0, 0xa, 1 << 40] {
        let reason = closed_by(|eavesdropper| eavesdropper.close(code, b"joined peer=me"));
        assert_eq!(reason, Some(CloseReason::Unproven { code }));
    }
    let busy = closed_by(|eavesdropper| eavesdropper.close(2, b""));
    assert_eq!(busy, Some(CloseReason::Busy));
    let versions = closed_by(|eavesdropper| eavesdropper.version_negotiation(&[0x0a0a_0a0a]));
    assert_eq!(versions, Some(CloseReason::VersionMismatch));
}

/// Where the packets with long headers end in a datagram (RFC 9000 section 17.2).
fn handshake_end(datagram: &[u8]) -> usize {
    let mut at = 0;
    while datagram.get(at).is_some_and(|first| first & 0x80 != 0) {
        let is_initial = datagram[at] & 0x30 == 0;
        at += 5;
        for _ in 0..2 {
            at += 1 + usize::from(datagram[at]);
        }
        let mut varint = || {
            let length = 1 << (datagram[at] >> 6);
            let bytes = &datagram[at..at + length];
            at += length;
            bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
                & ((1 << (8 * length - 2)) - 1)
        };
        let token = if is_initial { varint() } else { 0 };
        assert_eq!(token, 0, "servers send no tokens there");
        at += varint();
    }
    at
}

#[test]
fn a_refusal_is_none_in_the_packet_that_brings_the_proof_either() {
    let mut world = World::new(links(&[20]), &config(1));
    world.connect(0);
    let mut eavesdropper = first_packet(&world);
    let mut forged = 0;
    while world.now < Instant::from_millis(3000) {
        // Behind each of the first two datagrams with the handshake packets that prove the
        // server's key, in the same datagram, a packet that anybody can write.
        let mut network = std::mem::take(&mut world.network).into_vec();
        for arrival in network.iter_mut().filter(|arrival| arrival.to == CLIENT) {
            if forged < 2 {
                eavesdropper.hear_server(&arrival.packet);
                let end = handshake_end(&arrival.packet);
                arrival.packet.splice(end..end, eavesdropper.close(0x130, b""));
                forged += 1;
            }
        }
        world.network = network.into();
        world.run(ms(1));
    }
    assert_eq!(world.closed(CLIENT), Some(CloseReason::Unproven { code: 0x130 }));
}

#[test]
fn forged_packets_end_no_connection() {
    let mut world = World::new(links(&[20, 50]), &config(7));
    world.connect(0);
    let eavesdropper = first_packet(&world);
    world.run(ms(1000));
    world.open(1).unwrap();
    world.run(ms(2000));
    for round in 0..200_u64 {
        let kinds = [
            eavesdropper.close(0x130, b"forged"),
            eavesdropper.initial(round as u8, &[0x06, 0, 4, 2, 0, 0, 0]),
            eavesdropper.version_negotiation(&[round as u32 | 0x0a0a_0000]),
            eavesdropper.retry(b"forged token"),
            stateless_reset(|| world.random.next_u64()),
        ];
        for packet in kinds {
            inject(&mut world, CLIENT, &packet);
        }
        world.run(ms(1));
    }
    check_alive(&mut world);
}

#[test]
fn any_frames_in_a_forged_packet_end_no_more_than_the_attempt() {
    let (mut random, mut closes) = (SplitMix64::new(3), 0);
    for seed in 1..60 {
        let mut world = World::new(links(&[20]), &config(seed));
        for _ in 0..4 {
            world.connect(0);
            let eavesdropper = first_packet(&world);
            let (length, kind) = (random.next_u64() as usize % 300, random.next_u64() % 4);
            let code = [0x2a, 0x2c, 0x2d, 0x2e, 0x30, 0x31][random.next_u64() as usize % 6];
            let mut rest = (0..length).map(|_| random.next_u64() as u8);
            // Frames of handshakes, arbitrary ones, and a whole close with a server's refusal.
            let frames: Vec<u8> = match kind {
                0 => [0x06].into_iter().chain(rest).collect(),
                1 => [0x02].into_iter().chain(rest).collect(),
                2 => rest.collect(),
                _ => vec![0x1c, 0x41, code, rest.next().unwrap_or_default() % 64, 0],
            };
            inject(&mut world, CLIENT, &eavesdropper.initial(random.next_u64() as u8, &frames));
            world.run(ms(random.next_u64() % 30));
            world.run(ms(1000));
            let closed = world.sides[CLIENT].books.closed.take();
            let refused = matches!(closed, Some((CloseReason::Refused(_), _)));
            assert!(!refused, "seed {seed}: {closed:?}");
            closes += usize::from(matches!(closed, Some((CloseReason::Unproven { .. }, _))));
        }
    }
    assert!(closes > 30, "forged closes are recognised: {closes}");
}

#[test]
fn a_forged_retry_ends_no_more_than_the_attempt() {
    let mut world = World::new(links(&[20]), &config(1));
    world.connect(0);
    // The client goes on with a token that the server never gave; the server does not confirm that
    // it asked for one (RFC 9000 section 7.3).
    let packet = first_packet(&world).retry(b"forged token");
    inject(&mut world, CLIENT, &packet);
    world.run(ms(3000));
    let closed = world.sides[CLIENT].books.closed.take();
    let Some((CloseReason::Protocol(why), _)) = closed else { panic!("{closed:?}") };
    assert!(why.contains("CID authentication failure"), "{why}");
    world.connect(0);
    world.run(ms(1000));
    assert_eq!(world.sides[CLIENT].books.connected.len(), 1, "the next attempt");
}

#[test]
fn garbage_that_names_the_connection_says_nothing_of_a_path() {
    let mut world = World::connected(links(&[20, 50]));
    for side in [CLIENT, SERVER] {
        let _ = world.send(side, PathId(0), 900);
    }
    let packets = under_way(&world);
    world.run(ms(1000));
    for (to, packet) in packets {
        let heard = |world: &mut World| [0, 1].map(|path| world.stats(to, path).packets_received);
        let before = heard(&mut world);
        for _ in 0..20 {
            let mut garbage = packet.clone();
            let body = garbage.len() - 60;
            garbage[body..].iter_mut().for_each(|byte| *byte = world.random.next_u64() as u8);
            inject(&mut world, to, &garbage);
            inject(&mut world, to, &packet);
        }
        assert_eq!(heard(&mut world), before);
    }
    check_alive(&mut world);
}
