//! Who is let in, who is not, and how both sides learn it.

use super::wire::{links, links_with};
use super::*;

#[test]
fn both_sides_learn_each_others_key() {
    let mut world = World::new(links(&[20]), &config(1));
    world.connect(0);
    world.run(ms(500));
    let connected = |side: usize| world.sides[side].books.connected[0];
    assert_eq!(connected(CLIENT).0, server_identity().public_key());
    assert_eq!(connected(SERVER).0, client_identity().public_key());
    // One round trip for the keys, one for the confirmation.
    assert_eq!(connected(CLIENT).1, Instant::from_millis(1080));
    assert_eq!(connected(SERVER).1, Instant::from_millis(1060));
    assert_eq!(world.client().stats().handshake, Some(ms(80)));
    let incoming = EndpointEvent::Incoming(ConnectionId(0));
    assert_eq!(world.sides[SERVER].endpoint_events, [incoming]);
}

#[test]
fn a_refused_client_and_its_server_both_learn_why() {
    for why in [Refusal::Unknown, Refusal::Expired, Refusal::Revoked, Refusal::Forbidden] {
        let mut world = World::with_policy(links(&[20]), &config(1), Err(why));
        world.connect(0);
        world.run(ms(2000));
        assert_eq!(world.closed(CLIENT), Some(CloseReason::Refused(why)));
        assert_eq!(world.sides[CLIENT].books.connected, [], "it was never connected");
        let (remote, key) = (world.links[0].address, client_identity().public_key());
        let refused = EndpointEvent::Refused { remote, key, why };
        assert_eq!(world.sides[SERVER].endpoint_events, [refused]);
        assert_eq!((world.server_stats().refused, world.server_connections()), (1, 0));
    }
}

#[test]
fn a_handshake_survives_heavy_loss() {
    for seed in 1..6 {
        let network = links_with(&[40], |direction| direction.loss = 0.3);
        let mut world = World::new(network, &config(seed));
        world.connect(0);
        world.run(ms(8000));
        for side in &world.sides {
            assert_eq!(side.books.connected.len(), 1, "seed {seed}");
        }
    }
}

#[test]
fn the_first_key_update_loses_nothing() {
    // The library compares packet numbers of different paths, and so takes old packets of a slower
    // path for packets under later keys. The update before further paths are opened prevents it.
    for seed in 1..9 {
        let mut world = World::connected_with(links(&[10, 100]), &config(seed));
        world.sides[SERVER].feedback = false;
        world.every(ms(1), ms(3000), |world, turn| {
            _ = world.send(CLIENT, PathId(u32::from(turn % 5 != 0)), 1000);
        });
        world.run(ms(1000));
        let sent = world.sides[CLIENT].books.sent.len();
        assert!(sent > 1000, "{sent}");
        assert_eq!(world.sides[SERVER].books.received.len(), sent, "seed {seed}");
    }
}

fn replaced(key: Arc<Identity>, config: &TransportConfig, sends: bool) -> Option<CloseReason> {
    let mut world = World::connected(links(&[20, 50]));
    let policy = Arc::new(Anyone(Ok(())));
    world.sides[SERVER] = side(Endpoint::server(world.epoch, config, key, policy).unwrap());
    let start = world.now;
    if sends {
        world.send(CLIENT, PathId(1), 500).unwrap();
    }
    world.run(ms(3000));
    let (reason, at) = world.sides[CLIENT].books.closed.clone()?;
    let soon = if sends { ms(600) } else { ms(1500) };
    assert!(at - start <= soon, "{:?}", at - start);
    Some(reason)
}

#[test]
fn a_restarted_server_resets_old_connections_soon_and_no_other_can() {
    let own = server_identity();
    assert_eq!(replaced(own.clone(), &config(77), true), Some(CloseReason::Reset));
    // A client that sends nothing learns it by its keep-alive.
    assert_eq!(replaced(own.clone(), &config(77), false), Some(CloseReason::Reset));
    assert_eq!(replaced(Arc::new(Identity::from_seed([66; 32])), &config(2), true), None);
    let other = TransportConfig { reset_salt: [1; 32], ..config(2) };
    assert_eq!(replaced(own, &other, true), None);
}

#[test]
fn a_crowded_server_lets_clients_prove_their_address() {
    let config = TransportConfig { retry_threshold: 0, ..config(1) };
    let mut world = World::new(links(&[20]), &config);
    world.connect(0);
    world.run(ms(500));
    assert_eq!(world.server_stats().retries, 1);
    assert_eq!(world.sides[CLIENT].books.connected[0].1, Instant::from_millis(1120));
}

fn let_in(world: &World) -> usize {
    let let_in = |event: &&EndpointEvent| matches!(event, EndpointEvent::Incoming(_));
    world.sides[SERVER].endpoint_events.iter().filter(let_in).count()
}

#[test]
fn a_late_server_begins_few_handshakes_and_leaves_the_others_to_be_sent_again() {
    let mut world = World::new(links(&[20, 20, 20]), &config(7));
    world.sides[SERVER].late = ms(400);
    (0..40).for_each(|number| world.connect(number % 3));
    world.run(ms(500));
    let EndpointStats { handshakes, retries, ignored, .. } = world.server_stats();
    assert_eq!((handshakes, retries, ignored), (16, 0, 24));
    world.run(ms(400));
    assert_eq!(let_in(&world), 16, "handshakes under way are completed");
    world.sides[SERVER].late = ms(0);
    world.run(ms(3_000));
    assert_eq!(let_in(&world), 40, "the others are sent again");
}

#[test]
fn incomplete_handshakes_do_not_block_a_late_server_for_long() {
    let mut world = World::new(links(&[20, 20, 20]), &config(7));
    world.sides[SERVER].late = ms(400);
    for link in [0, 1] {
        // Their retransmissions arrive, so the handshakes continue but do not complete.
        world.links[link].directions[SERVER].dead = true;
        (0..8).for_each(|_| world.connect(link));
    }
    world.run(ms(100));
    world.connect(2);
    world.run(ms(1_500));
    assert_eq!((world.server_stats().handshakes, let_in(&world)), (16, 0), "all places are taken");
    for _ in 0..2 {
        world.connect(2);
        world.run(ms(1_000));
    }
    assert!(let_in(&world) > 0, "the client that hears the server");
}

#[test]
fn one_source_has_half_of_what_a_late_server_begins() {
    let mut world = World::new(links(&[20, 20]), &config(7));
    world.sides[SERVER].late = ms(400);
    world.links[0].directions[SERVER].dead = true;
    (0..40).for_each(|_| world.connect(0));
    world.run(ms(100));
    world.connect(1);
    world.run(ms(1_000));
    assert_eq!(world.server_stats().handshakes, 8 + 1);
    assert_eq!(let_in(&world), 1, "another source has room");
}

fn hand_over(
    world: &mut World,
    now: Instant,
    remote: SocketAddr,
    received: Option<Instant>,
    packet: &[u8],
) -> EndpointStats {
    let local = Local::Address(Some(server_address().ip()));
    let source = Source { remote, local, ecn: None, received };
    let endpoint = &mut world.sides[SERVER].endpoint;
    let _ = endpoint.handle_packet(now, source, BytesMut::from(packet));
    endpoint.stats()
}

#[test]
fn a_late_server_turns_clients_away_before_it_reads_what_they_say() {
    let mut world = World::new(links(&[20]), &config(7));
    let mut begun = initials(17);
    let another = begun.pop().unwrap();
    let mut hand_over = |number: usize, late: Duration, packet: &[u8]| {
        let remote = SocketAddr::from(([203, 0, 113, number as u8], 9));
        let now = world.now;
        hand_over(&mut world, now, remote, Some(now - late), packet)
    };
    for (number, packet) in begun.iter().enumerate() {
        assert_eq!(hand_over(number, ms(400), packet).ignored, 0);
    }
    // No key fits these, which is only found out by computing keys.
    for number in 0..40 {
        let mut nonsense = vec![0xc0 | (number % 16), 0, 0, 0, 1, 16];
        nonsense.resize(1_200, number);
        let stats = hand_over(100, ms(400), &nonsense);
        let expected = (u64::from(number) + 1, 0, 16);
        assert_eq!((stats.ignored, stats.without_connection, stats.handshakes), expected);
    }
    let stats = hand_over(0, ms(400), &begun[0]);
    assert_eq!((stats.ignored, stats.without_connection, stats.handshakes), (40, 0, 16));
    let stats = hand_over(100, ms(0), &another);
    assert_eq!((stats.ignored, stats.handshakes), (40, 17), "the door is open again");
}

fn flood(config: &TransportConfig) -> EndpointStats {
    let mut world = World::new(links(&[20]), config);
    world.links[0].directions[SERVER].dead = true;
    (0..100).for_each(|_| world.connect(0));
    for _ in 0..40 {
        world.run(ms(1000));
        let half_open = world.server_connections();
        assert!(half_open <= config.half_open_max, "{half_open}");
    }
    assert_eq!(world.server_connections(), 0);
    world.server_stats()
}

#[test]
fn half_open_handshakes_are_bounded() {
    let crowded = TransportConfig { half_open_max: 200, retry_threshold: 10, ..config(1) };
    let stats = flood(&crowded);
    assert!(stats.retries >= 90 && stats.ignored == 0, "{stats:?}");
    let full = TransportConfig { half_open_max: 20, retry_threshold: 1000, ..config(1) };
    let stats = flood(&full);
    assert!(stats.retries >= 90 && stats.handshakes <= 10, "{stats:?}");
}

fn initials(count: usize) -> Vec<Vec<u8>> {
    let mut world = World::new(links(&[20]), &config(9));
    (0..count).for_each(|_| world.connect(0));
    world.network.drain().map(|arrival| arrival.packet).collect()
}

#[test]
fn spoofed_sources_do_not_block_clients() {
    let mut world = World::new(links(&[20]), &config(1));
    for (number, packet) in (0_u32..).zip(initials(2_000)) {
        let remote = SocketAddr::from(((0x0a00_0000 + number * 7).to_be_bytes(), 9));
        let now = world.now;
        hand_over(&mut world, now, remote, None, &packet);
    }
    let half = config(1).half_open_max / 2;
    assert_eq!(world.server_connections(), half, "{:?}", world.server_stats());
    world.connect(0);
    world.run(ms(500));
    assert_eq!(world.sides[CLIENT].books.connected.len(), 1, "after one more round trip");
}

#[test]
fn handshakes_behind_one_address_are_bounded_once_it_has_proved_itself() {
    let mut world = World::new(links(&[20]), &config(1));
    (0..400).for_each(|_| world.connect(0));
    // The retries arrive, and the answers to the next packets are lost.
    world.run(ms(45));
    world.links[0].directions[SERVER].dead = true;
    world.run(ms(100));
    let stats = world.server_stats();
    assert_eq!((world.server_connections(), stats.retries), (16 + 256, 400 - 16), "{stats:?}");
    assert!(stats.ignored >= 400 - 16 - 256, "{stats:?}");
}

#[test]
fn what_is_over_is_forgotten_soon_however_slow_the_peer_and_however_many() {
    // With round trips of four seconds, three probe timeouts are more than half a minute.
    let config = TransportConfig {
        handshake_timeout: ms(20_000),
        retry_threshold: 1_000,
        half_open_per_source_max: 1_000,
        half_open_max: 2_000,
        ..config(1)
    };
    let mut world = World::new(links(&[2_000]), &config);
    (0..270).for_each(|_| world.connect(0));
    world.run(ms(12_000));
    let now = world.now;
    let server = &mut world.sides[SERVER].endpoint;
    let ids = server.connection_ids();
    for id in &ids {
        let connection = server.connection_mut(*id).expect("it was just listed");
        assert!(connection.is_open());
        connection.close(now, 0, "");
        while connection.poll_event().is_some() {}
    }
    assert_eq!(ids.len(), 270);
    world.run(ms(100));
    assert_eq!(world.server_connections(), 256, "the oldest go when there are too many");
    world.run(ms(3_000));
    assert_eq!(world.server_connections(), 0);
    world.run(ms(5_000));
    let client = &world.sides[CLIENT].endpoint;
    let is_open = |id: &ConnectionId| client.connection(*id).is_some_and(Connection::is_open);
    assert!(!client.connection_ids().iter().any(is_open));
}

#[test]
fn a_handshake_that_is_never_completed_is_given_up() {
    let mut world = World::new(links(&[20]), &config(1));
    world.links[0].directions[SERVER].dead = true;
    world.connect(0);
    world.run(ms(30_000));
    for side in &world.sides {
        assert_eq!(side.endpoint.connection_ids(), []);
    }
    assert_eq!(world.closed(CLIENT), Some(CloseReason::HandshakeTimedOut));
    let (remote, reason) = (world.links[0].address, CloseReason::HandshakeTimedOut);
    let failed = EndpointEvent::HandshakeFailed { remote, reason };
    assert_eq!(world.sides[SERVER].endpoint_events, [failed]);
}

#[test]
fn a_reason_that_forges_a_log_line_is_escaped_and_cut() {
    let mut world = World::connected(links(&[20]));
    let forged = "\u{1b}[2K\n2026-11-22T10:00:00Z  INFO joined peer=ambulance-7\u{202e}";
    let now = world.now;
    world.client().close(now, 0, forged);
    world.settle();
    world.run(ms(1000));
    let text = world.closed(SERVER).unwrap().to_string();
    assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text:?}");
    let escaped = r"\u{1b}[2K\n2026-11-22T10:00:00Z  INFO joined peer=ambulance-7\u{202e}";
    assert!(text.contains(escaped));
}

#[test]
fn closing_sends_the_peer_code_and_reason() {
    let mut world = World::connected(links(&[20, 50]));
    let now = world.now;
    world.server().close(now, 7, "maintenance");
    world.settle();
    world.run(ms(3000));
    assert_eq!(world.closed(SERVER), Some(CloseReason::Local));
    let expected = CloseReason::ByPeer { code: 7, reason: "maintenance".to_owned() };
    assert_eq!(world.closed(CLIENT), Some(expected));
    for side in &world.sides {
        assert_eq!(side.endpoint.connection_ids(), [], "nothing is left of it");
    }
}

#[test]
fn nothing_can_be_sent_before_or_after() {
    let mut world = World::new(links(&[20]), &config(1));
    world.connect(0);
    let datagram = Bytes::from_static(b"\x01 data");
    let closed = || Err(SendError::Closed(datagram.clone()));
    let now = world.now;
    assert_eq!(world.client().send_on(now, PathId(0), datagram.clone(), 0), closed());
    world.run(ms(500));
    let now = world.now;
    world.client().close(now, 0, "");
    assert_eq!(world.client().send_on(now, PathId(0), datagram.clone(), 0), closed());
    assert_eq!(world.client().send_message(datagram.clone()), Err(MessageError::Closed));
    assert_eq!(world.open(1), Err(PathError::Closed));
}

#[test]
fn each_connection_asks_for_the_key_of_its_own_server() {
    let mut world = World::new(links(&[20]), &config(1));
    world.connect(0);
    world.run(ms(500));
    world.server_key = client_identity().public_key();
    world.connect(0);
    world.run(ms(2000));
    let wrong = CloseReason::WrongServerKey { got: server_identity().public_key() };
    assert_eq!(world.closed(CLIENT), Some(wrong));
    assert_eq!(world.sides[CLIENT].books.connected.len(), 1, "the first one is not touched");
    let (remote, reason) = (world.links[0].address, CloseReason::UnexpectedServerKey);
    let failed = EndpointEvent::HandshakeFailed { remote, reason };
    assert_eq!(world.sides[SERVER].endpoint_events.last(), Some(&failed));
}

#[test]
fn ends_of_other_versions_say_so() {
    let mut world = World::new(links(&[20]), &config(1));
    let (identity, policy) = (server_identity(), Arc::new(Anyone(Ok(()))));
    let later = Endpoint::server_of(world.epoch, &config(1), identity, policy, b"roadweave/2");
    world.sides[SERVER].endpoint = later.unwrap();
    world.connect(0);
    world.run(ms(2000));
    let reason = world.closed(CLIENT).unwrap();
    assert_eq!(reason, CloseReason::Unproven { code: 0x178 });
    assert!(reason.to_string().contains("upgrade the older end"), "{reason}");
    let (remote, reason) = (world.links[0].address, CloseReason::VersionMismatch);
    assert_eq!(
        world.sides[SERVER].endpoint_events,
        [EndpointEvent::HandshakeFailed { remote, reason }]
    );
}

#[test]
fn a_server_answers_probes_and_keeps_nothing_of_them() {
    use crate::probe::Prober;
    let mut world = World::new(links(&[20]), &config(1));
    let mut prober = Prober::new(&[5; 32]);
    let (now, remote) = (world.now, world.links[0].address);
    assert!(prober.probe(now, UplinkId(0), server_address()));
    let packets = prober.poll_transmit().unwrap();
    let probe = packets.packets().next().unwrap().1.to_vec();
    drop(packets);
    let server = &mut world.sides[SERVER].endpoint;
    let mut ask = |probe: &[u8], now| {
        let source = Source { remote, local: Local::Address(None), ecn: None, received: None };
        assert_eq!(server.handle_packet(now, source, BytesMut::from(probe)), None);
        let packets = server.poll_transmit()?;
        packets.packets().next().map(|(_, packet)| packet.to_vec())
    };
    assert_eq!(ask(&probe[..1199], now), None, "an answer is never longer than the question");
    let answer = ask(&probe, now).unwrap();
    assert!(answer.len() < 64, "{}", answer.len());
    let local = Local::Uplink(UplinkId(0));
    let source = Source { remote: server_address(), local, ecn: None, received: None };
    let outcome = prober.handle_packet(now + ms(40), &source, &answer).unwrap();
    assert_eq!(outcome.rtt, Some(ms(40)));
    assert_eq!(world.sides[SERVER].endpoint.connection_count(), 0);
}
