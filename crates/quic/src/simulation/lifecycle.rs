//! Paths that come, go, fall silent, heal and move.

use super::wire::links;
use super::*;

fn use_all(world: &mut World, interval: Duration, span: Duration) {
    world.every(interval, span, |world, turn| {
        let now = world.now;
        let connection = world.client();
        connection.refresh(now);
        let usable: Vec<_> =
            connection.paths().iter().filter(|p| p.is_usable()).map(|p| p.id).collect();
        match usable.is_empty() {
            true => connection.on_backlog(now),
            false => _ = world.send(CLIENT, usable[turn % usable.len()], 1000),
        }
    });
}

fn moved() -> SocketAddr {
    SocketAddr::from(([100, 64, 0, 1], 33_333))
}

fn usable_again(world: &mut World, side: usize, path: PathId, limit: Duration) -> Duration {
    let start = world.now;
    while world.status(side, path) != PathStatus::Usable {
        assert!(world.now - start < limit, "{path} is not usable after {limit:?}");
        world.run(ms(1));
    }
    world.now - start
}

#[test]
fn a_path_that_falls_silent_is_suspect_until_it_answers() {
    let mut world = World::connected(links(&[20, 50]));
    use_all(&mut world, ms(2), ms(1000));
    world.links[1].set_dead(true);
    use_all(&mut world, ms(2), ms(300));
    assert_eq!(world.status(CLIENT, PathId(1)), PathStatus::Suspect);
    assert_eq!(world.status(CLIENT, PathId(0)), PathStatus::Usable);
    world.links[1].set_dead(false);
    let took = usable_again(&mut world, CLIENT, PathId(1), ms(1000));
    assert!(took <= ms(300), "{took:?}");
    assert_eq!(world.stats(CLIENT, 1).suspicions, 1);
}

#[test]
fn an_answer_that_was_late_itself_excuses_no_second_silence() {
    // The second link answers before the first one is asked for the second time.
    let seldom = TransportConfig { probe_interval: ms(400), ..config(7) };
    let mut world = World::connected_with(links(&[20, 50]), &seldom);
    use_all(&mut world, ms(2), ms(1000));
    // Packets that the first link delivers before it dies are acknowledged when the second heals.
    world.links.iter_mut().for_each(|link| link.direction(SERVER).dead = true);
    use_all(&mut world, ms(2), ms(30));
    world.links[0].set_dead(true);
    use_all(&mut world, ms(2), ms(400));
    assert_eq!(world.status(CLIENT, PathId(0)), PathStatus::Suspect);
    world.links[1].set_dead(false);
    let cleared = usable_again(&mut world, CLIENT, PathId(0), ms(1000));
    let began = world.now;
    while world.status(CLIENT, PathId(0)) == PathStatus::Usable {
        assert!(world.now - began < ms(200), "still trusted; cleared after {cleared:?}");
        use_all(&mut world, ms(2), ms(1));
    }
    assert_eq!(world.stats(CLIENT, 0).suspicions, 2);
}

#[test]
fn all_paths_dead_for_a_minute_resume_as_they_heal() {
    let mut world = World::connected(links(&[20, 50]));
    use_all(&mut world, ms(2), ms(500));
    world.set_dead(true);
    use_all(&mut world, ms(2), ms(60_000));
    for path in [PathId(0), PathId(1)] {
        assert_eq!(world.status(CLIENT, path), PathStatus::Suspect);
    }
    world.links[1].set_dead(false);
    let took = usable_again(&mut world, CLIENT, PathId(1), ms(1000));
    assert!(took <= ms(350), "{took:?}");
    world.send(CLIENT, PathId(1), 1000).unwrap();
    let token = world.send(SERVER, PathId(1), 1000).unwrap();
    world.run(ms(400));
    assert!(world.is_acknowledged(SERVER, token));
    assert_eq!(world.closed(CLIENT), None);
}

#[test]
fn silence_beyond_the_idle_timeout_ends_the_connection() {
    let config = TransportConfig { idle_timeout: Duration::from_secs(30), ..config(1) };
    let mut world = World::connected_with(links(&[20, 50]), &config);
    world.set_dead(true);
    world.run(ms(40_000));
    for side in [CLIENT, SERVER] {
        assert_eq!(world.closed(side), Some(CloseReason::TimedOut));
        assert_eq!(world.sides[side].endpoint.connection_ids(), []);
    }
}

#[test]
fn another_port_or_address_keeps_the_path() {
    let address = SocketAddr::from(([100, 99, 9, 9], 33_333));
    for (path, address) in [(0, moved()), (1, moved()), (0, address), (1, address)] {
        let mut world = World::connected(links(&[20, 50]));
        use_all(&mut world, ms(2), ms(500));
        world.links[path].address = address;
        use_all(&mut world, ms(2), ms(2000));
        let id = PathId(path as u32);
        assert_eq!(world.status(SERVER, id), PathStatus::Usable);
        assert_eq!(world.server().remote_address(id), Some(address));
        assert_eq!(world.stats(SERVER, path as u32).rebindings, 1);
        for _ in 0..20 {
            world.send(SERVER, id, 900).unwrap();
            world.run(ms(5));
        }
        use_all(&mut world, ms(10), ms(3000));
        world.run(ms(1000));
        for side in [CLIENT, SERVER] {
            assert_eq!(world.check_books(side), 0);
            assert_eq!(world.side(side).stats().on_wrong_path, 0);
        }
        assert_eq!(world.sides[SERVER].books.acknowledged.len(), 20);
        assert_eq!(world.sides[CLIENT].books.closed_paths, []);
    }
}

#[test]
fn latecomers_from_a_former_address_are_received() {
    let mut world = World::connected(links(&[100]));
    use_all(&mut world, ms(5), ms(500));
    world.links[0].address = moved();
    world.links[0].direction(CLIENT).delay = ms(20);
    use_all(&mut world, ms(5), ms(500));
    world.run(ms(2000));
    assert_eq!(world.stats(SERVER, 0).rebindings, 1);
    assert_eq!(world.check_books(CLIENT), 0);
    let received = world.sides[SERVER].books.received.len();
    assert_eq!(received, world.sides[CLIENT].books.sent.len(), "nothing was lost");
}

/// Control frames in the library's queue, left by a lost packet, must not hold back the challenge
/// of the only path at a new address.
#[test]
fn the_last_path_may_move_while_control_frames_wait() {
    let mut world = World::connected(links(&[20, 50]));
    use_all(&mut world, ms(2), ms(500));
    world.close_path(0).unwrap();
    world.run(ms(30));
    world.set_dead(true);
    use_all(&mut world, ms(100), ms(2000));
    world.links[1].address = moved();
    world.links[1].set_dead(false);
    for side in [SERVER, CLIENT] {
        let took = usable_again(&mut world, side, PathId(1), ms(2000));
        assert!(took <= ms(500), "{took:?}");
    }
}

#[test]
fn a_server_that_sends_while_the_address_changes_reports_the_fate_of_every_datagram() {
    let mut world = World::connected(links(&[20, 50]));
    world.every(ms(2), ms(4000), |world, turn| {
        if turn == 400 {
            world.links[0].address = SocketAddr::from(([100, 99, 9, 9], 1234));
            let _ = world.send(CLIENT, PathId(0), 100);
        }
        let _ = world.send(SERVER, PathId(turn as u32 % 2), 1000);
    });
    world.run(ms(3000));
    assert_eq!(world.check_books(SERVER), 0);
    let stats = world.server().stats();
    assert_eq!((stats.on_wrong_path, stats.delayed_in_library), (0, 0));
    assert!(world.sides[SERVER].books.acknowledged.len() > 1500);
}

#[test]
fn a_closed_path_is_settled_and_its_uplink_may_have_another() {
    let mut world = World::connected(links(&[20, 50, 80]));
    let tokens: Vec<_> = (0..5).map(|_| world.send(CLIENT, PathId(1), 1000).unwrap()).collect();
    assert_eq!(world.open(1), Err(PathError::Exists));
    world.close_path(1).unwrap();
    world.settle();
    let books = &world.sides[CLIENT].books;
    assert!(tokens.iter().all(|token| books.lost.contains_key(token)));
    assert_eq!(books.closed_paths, [(PathId(1), PathCloseReason::Requested)]);
    world.open(1).unwrap();
    world.run(ms(1000));
    let closed = &world.sides[SERVER].books.closed_paths;
    assert_eq!(*closed, [(PathId(1), PathCloseReason::ByPeer)]);
    assert_eq!(world.sides[CLIENT].books.usable.last(), Some(&PathId(3)));
    assert_eq!(world.path(CLIENT, PathId(3)).uplink, Some(UplinkId(1)));
    let token = world.send(CLIENT, PathId(3), 1000).unwrap();
    world.run(ms(300));
    assert!(world.is_acknowledged(CLIENT, token));
}

#[test]
fn the_first_path_can_go_too_but_not_the_last() {
    let mut world = World::connected(links(&[20, 50]));
    world.close_path(0).unwrap();
    world.run(ms(1000));
    assert_eq!(world.close_path(0), Err(PathError::Unknown));
    assert_eq!(world.close_path(1), Err(PathError::Last));
    let token = world.send(CLIENT, PathId(1), 1000).unwrap();
    world.run(ms(300));
    assert!(world.is_acknowledged(CLIENT, token));
}

#[test]
fn paths_can_be_opened_again_and_again() {
    let mut world = World::connected(links(&[20, 50]));
    for _ in 0..40 {
        let newest = world.client().paths().last().unwrap().id;
        world.close_path(newest.0).unwrap();
        world.open(1).unwrap();
        world.run(ms(1500));
    }
    let newest = world.client().paths().last().unwrap().id;
    assert_eq!((newest, world.client().paths().len()), (PathId(41), 2));
    assert_eq!(world.status(SERVER, newest), PathStatus::Usable);
}

#[test]
fn sixteen_paths_work_at_once() {
    let delays: Vec<u64> = (0..16).map(|i| 20 + 5 * i).collect();
    let mut world = World::connected(links(&delays));
    use_all(&mut world, ms(1), ms(2000));
    world.run(ms(1000));
    assert_eq!(world.check_books(CLIENT), 0);
    assert_eq!(world.client().stats().on_wrong_path, 0);
    for path in 0..16 {
        let received = world.stats(SERVER, path).datagrams_received;
        assert!(received > 100, "path {path}: {received}");
    }
    assert_eq!(world.open(16), Err(PathError::TooMany));
    let now = world.now;
    let by_server = world.server().open_path(now, UplinkId(3), server_address());
    assert_eq!(by_server, Err(PathError::NotClient));
}

#[test]
fn uplinks_with_the_same_address_are_distinguished() {
    // Two modems behind one translator, whose addresses differ only in the port.
    let mut links = links(&[20, 50]);
    links[1].address = SocketAddr::from(([100, 64, 0, 1], 20_000));
    let mut world = World::connected(links);
    use_all(&mut world, ms(2), ms(1000));
    world.run(ms(500));
    assert_eq!(world.check_books(CLIENT), 0);
    assert_eq!(world.client().stats().on_wrong_path, 0);
}

#[test]
fn a_path_that_the_peer_holds_back_is_on_standby_until_it_ends_that() {
    let mut world = World::connected(links(&[20, 50]));
    for (held, status) in [
        (noq_proto::PathStatus::Backup, PathStatus::Standby),
        (noq_proto::PathStatus::Available, PathStatus::Usable),
    ] {
        world.client().library().set_path_status(noq_proto::PathId::ZERO, held).unwrap();
        world.send(CLIENT, PathId(1), 1000).unwrap();
        world.run(ms(500));
        assert_eq!(world.status(SERVER, PathId(0)), status);
    }
    world.send(SERVER, PathId(0), 1000).unwrap();
    world.run(ms(500));
    assert_eq!(world.check_books(SERVER), 0);
}

#[test]
fn a_path_that_stays_dead_is_given_up_in_the_end() {
    let limit = Duration::from_secs(120);
    let config = TransportConfig { unresponsive_timeout: limit, ..config(1) };
    let mut world = World::connected_with(links(&[20, 50]), &config);
    world.links[1].set_dead(true);
    world.run(ms(100_000));
    assert_eq!(world.sides[CLIENT].books.closed_paths, []);
    world.run(ms(60_000));
    let closed = &world.sides[CLIENT].books.closed_paths;
    assert_eq!(*closed, [(PathId(1), PathCloseReason::Unresponsive)]);
}

#[test]
fn messages_get_through_when_the_best_path_dies() {
    let mut world = World::connected(links(&[20, 50]));
    world.links[0].set_dead(true);
    world.client().send_message(Bytes::from_static(b"hello")).unwrap();
    world.settle();
    world.run(ms(3000));
    assert_eq!(world.sides[SERVER].books.messages, [Bytes::from_static(b"hello")]);
}

#[test]
fn a_connection_that_waits_says_little_and_answers_at_once_when_asked() {
    let mut world = World::connected(links(&[20, 50]));
    world.client().set_keep_alive(ms(25_000));
    world.run(ms(10_000));
    let sent = |world: &mut World| -> u64 {
        [0, 1].map(|path| world.stats(CLIENT, path).packets_sent).iter().sum()
    };
    let before = sent(&mut world);
    world.run(ms(100_000));
    let kept = sent(&mut world) - before;
    assert!((8..=24).contains(&kept), "{kept} packets on two paths in 100 s");
    let now = world.now;
    assert!(now - world.client().last_heard() < ms(26_000));
    world.client().suspect_all_paths(now);
    assert_eq!(world.status(CLIENT, PathId(0)), PathStatus::Suspect);
    world.settle();
    let took = usable_again(&mut world, CLIENT, PathId(0), ms(200));
    assert!(took <= ms(41), "a round trip of 40 ms: {took:?}");
    world.set_dead(true);
    let now = world.now;
    world.client().ask_paths(now);
    world.settle();
    world.run(ms(400));
    assert_eq!(world.status(CLIENT, PathId(1)), PathStatus::Suspect, "no answer to the probe");
    world.client().restore_keep_alive();
}

#[test]
fn what_left_before_a_path_was_suspected_again_clears_it_of_nothing() {
    let mut world = World::connected(links(&[20, 50]));
    let uplink = world.client().paths()[0].uplink.unwrap();
    let now = world.now;
    world.client().suspect_path_on(now, uplink);
    world.settle();
    world.run(ms(30));
    // The uplink now has another address. The answer that comes after 40 ms proves nothing of it.
    let now = world.now;
    world.client().suspect_path_on(now, uplink);
    world.settle();
    world.run(ms(20));
    assert_eq!(world.status(CLIENT, PathId(0)), PathStatus::Suspect);
    world.run(ms(21));
    assert_eq!(world.status(CLIENT, PathId(0)), PathStatus::Usable);
    assert_eq!(world.stats(CLIENT, 0).suspicions, 1, "one that lasted");
}
