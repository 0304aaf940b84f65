//! Bytes from the network never panic, never steal a connection, and are counted.

use super::link::links;
use super::*;

fn source(world: &World, to: usize) -> Source {
    let local = match to {
        CLIENT => Local::Uplink(UplinkId(0)),
        _ => Local::Address(Some(server_address().ip())),
    };
    let remote = if to == CLIENT { server_address() } else { world.links[0].address };
    Source { remote, local, ecn: None }
}

fn inject(world: &mut World, to: usize, packet: &[u8]) {
    let (now, source) = (world.now, source(world, to));
    let _ = world.sides[to].endpoint.handle_packet(now, source, BytesMut::from(packet));
    world.settle();
}

/// The packets that are on the links at present, with the side that they go to.
fn under_way(world: &World) -> Vec<(usize, Vec<u8>)> {
    world.network.iter().map(|arrival| (arrival.to, arrival.packet.clone())).collect()
}

fn check_alive(world: &mut World) {
    for side in [CLIENT, SERVER] {
        assert_eq!(world.sides[side].books.closed, None);
        let token = world.send(side, PathId(0), 500).unwrap();
        world.run(ms(500));
        assert!(world.sides[side].books.acknowledged.contains_key(&token));
    }
}

#[test]
fn random_bytes_change_nothing() {
    let mut world = World::connected(links(&[20, 50]));
    for length in 0..1500 {
        let mut packet: Vec<u8> = (0..length).map(|_| world.random.next() as u8).collect();
        // All kinds of headers.
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
    assert!(world.sides[SERVER].endpoint.stats().strays > 700);
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
            let cut = world.random.next() as usize % packet.len();
            inject(&mut world, to, &packet[..cut]);
            let mut altered = packet.clone();
            let bit = world.random.next() as usize % (packet.len() * 8);
            altered[bit / 8] ^= 1 << (bit % 8);
            inject(&mut world, to, &altered);
            // To the wrong side.
            inject(&mut world, 1 - to, &packet);
        }
        world.run(ms(7));
    }
    world.run(ms(2000));
    let received = world.sides[SERVER].books.received.len();
    let sent = world.sides[CLIENT].books.sent.len();
    assert_eq!(received, sent, "each once");
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
                    let byte = world.random.next() as usize % packet.len();
                    altered[byte] = world.random.next() as u8;
                }
                inject(&mut world, to, &altered);
                let cut = world.random.next() as usize % packet.len();
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
    let mut altered = packet.clone();
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
    let stats = world.sides[SERVER].endpoint.stats();
    assert!(stats.responses <= 1, "{stats:?}");
    assert_eq!(stats.strays, 5000);
}
