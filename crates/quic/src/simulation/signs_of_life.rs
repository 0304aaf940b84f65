//! Signs of life: what is asked of paths that owe an answer, and when.

use super::wire::links;
use super::*;

fn probes(world: &mut World, path: u32) -> u64 {
    world.client().path_stats(PathId(path)).unwrap().probes_sent
}

/// The client sends on a path that is alive for so long.
fn use_path(world: &mut World, path: PathId, span: Duration) {
    let mut next = world.now;
    world.run_with(span, |world| {
        while next <= world.now {
            let _ = world.send(CLIENT, path, 500);
            next += ms(20);
        }
        Some(next)
    });
}

#[test]
fn a_dead_path_of_an_idle_connection_is_asked_ever_less_often() {
    let mut world = World::connected(links(&[20, 50, 80, 110]));
    world.links.iter_mut().for_each(|link| link.set_dead(true));
    world.run(ms(30_000));
    let all = |world: &mut World| (0..4).map(|path| probes(world, path)).sum::<u64>();
    let before = all(&mut world);
    world.run(ms(20_000));
    let asked = all(&mut world) - before;
    // Once a second, however many paths there are.
    assert!((12..=20).contains(&asked), "{asked} in 20 s");
    world.links.iter_mut().for_each(|link| link.set_dead(false));
    world.run(ms(6_000));
    for path in 0..4 {
        assert_eq!(world.status(CLIENT, PathId(path)), PathStatus::Usable, "path {path}");
    }
}

#[test]
fn a_path_that_nobody_asks_any_more_is_asked_at_once_when_the_connection_is_used() {
    let mut world = World::connected(links(&[20, 50]));
    world.links[1].set_dead(true);
    // The keep-alive of the path finds it out.
    world.run(ms(60_000));
    assert_eq!(world.status(CLIENT, PathId(1)), PathStatus::Suspect);
    let before = probes(&mut world, 1);
    world.run(ms(20_000));
    let idle = probes(&mut world, 1) - before;
    assert!((8..=12).contains(&idle), "{idle} in 20 s");
    world.links[1].set_dead(false);
    use_path(&mut world, PathId(0), ms(110));
    assert_eq!(world.status(CLIENT, PathId(1)), PathStatus::Usable);
    world.links[1].set_dead(true);
    use_path(&mut world, PathId(0), ms(2_000));
    let before = probes(&mut world, 1);
    use_path(&mut world, PathId(0), ms(10_000));
    let used = probes(&mut world, 1) - before;
    assert!((48..=52).contains(&used), "{used} in 10 s, as long as somebody waits for it");
}

#[test]
fn where_no_path_answers_each_is_asked_twice_as_often() {
    let asked = |dead: &[usize]| {
        let mut world = World::connected(links(&[20, 50]));
        dead.iter().for_each(|link| world.links[*link].set_dead(true));
        let send = |world: &mut World, span| {
            let mut next = world.now;
            world.run_with(span, |world| {
                while next <= world.now {
                    // Seldom enough for its window.
                    let _ = [0, 1].map(|path| world.send(CLIENT, PathId(path), 100));
                    next += ms(400);
                }
                Some(next)
            });
        };
        send(&mut world, ms(2_000));
        let before = probes(&mut world, 1);
        send(&mut world, ms(4_000));
        probes(&mut world, 1) - before
    };
    let (one, both) = (asked(&[1]), asked(&[0, 1]));
    assert!((19..=21).contains(&one) && (38..=41).contains(&both), "{one} and {both} in 4 s");
}

#[test]
fn what_lies_here_unread_makes_no_path_suspect() {
    let mut world = World::connected(links(&[20, 50]));
    world.run(ms(5_000));
    let packets = |world: &mut World| -> u64 {
        let of = |world: &mut World, path| world.client().path_stats(PathId(path)).unwrap();
        of(world, 0).packets_sent + of(world, 1).packets_sent
    };
    let before = packets(&mut world);
    world.run(ms(20_000));
    let punctual = packets(&mut world) - before;
    world.sides[CLIENT].late = ms(400);
    // The first packet that lay here tells.
    world.run(ms(5_000));
    let suspicions = |world: &mut World| -> u64 {
        [0, 1].map(|it| world.client().path_stats(PathId(it)).unwrap().suspicions).iter().sum()
    };
    let (before, suspected) = (packets(&mut world), suspicions(&mut world));
    world.run(ms(20_000));
    let late = packets(&mut world) - before;
    assert!(late <= punctual + 4, "{late} packets in 20 s, {punctual} before");
    assert!(suspicions(&mut world) <= suspected + 1);
}

#[test]
fn one_packet_that_lay_here_unread_puts_off_the_suspicion_of_a_used_path_by_half_a_second() {
    // How soon after a datagram a path that has died is suspect, so long after a late packet.
    let suspect_after = |long_ago: Duration| {
        let mut world = World::connected(links(&[20]));
        world.run(ms(5_000));
        world.sides[CLIENT].late = ms(3_000);
        world.send(SERVER, PathId(0), 500).unwrap();
        world.settle();
        world.sides[CLIENT].late = Duration::ZERO;
        // As if it had been the only one of a pause.
        let arrival = world.network.pop().unwrap();
        assert!(world.network.is_empty());
        world.now = arrival.at;
        world.sides[CLIENT].late = ms(3_000);
        world.deliver(arrival);
        world.sides[CLIENT].late = Duration::ZERO;
        world.links[0].set_dead(true);
        world.run(long_ago);
        let _ = world.send(CLIENT, PathId(0), 500);
        let asked = world.now;
        while world.status(CLIENT, PathId(0)) != PathStatus::Suspect {
            assert!(world.now - asked < ms(5_000));
            world.run(ms(10));
        }
        world.now - asked
    };
    for long_ago in [0, 100, 500, 3_000].map(ms) {
        let after = suspect_after(long_ago);
        assert!(after <= ms(600), "{after:?} where the packet was read {long_ago:?} before");
    }
}
