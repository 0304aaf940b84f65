//! Signs of life: what is asked of paths that owe an answer, and when.

use super::wire::links;
use super::*;

fn probes(world: &mut World, path: u32) -> u64 {
    world.stats(CLIENT, path).probes_sent
}

fn probes_in(world: &mut World, path: u32, act: impl FnOnce(&mut World)) -> u64 {
    let before = probes(world, path);
    act(world);
    probes(world, path) - before
}

fn use_first(world: &mut World, span: Duration) {
    world.every(ms(20), span, |world, _| _ = world.send(CLIENT, PathId(0), 500));
}
#[test]
fn a_dead_path_of_an_idle_connection_is_asked_ever_less_often() {
    let mut world = World::connected(links(&[20, 50, 80, 110]));
    world.set_dead(true);
    world.run(ms(30_000));
    let all = |world: &mut World| (0..4).map(|path| probes(world, path)).sum::<u64>();
    let before = all(&mut world);
    world.run(ms(20_000));
    let asked = all(&mut world) - before;
    assert!((12..=20).contains(&asked), "{asked} in 20 s");
    world.set_dead(false);
    world.run(ms(6_000));
    for path in 0..4 {
        assert_eq!(world.status(CLIENT, PathId(path)), PathStatus::Usable, "path {path}");
    }
}

#[test]
fn an_idle_dead_path_is_probed_at_once_when_the_connection_is_used() {
    let mut world = World::connected(links(&[20, 50]));
    world.links[1].set_dead(true);
    world.run(ms(60_000));
    assert_eq!(world.status(CLIENT, PathId(1)), PathStatus::Suspect);
    let idle = probes_in(&mut world, 1, |world| world.run(ms(20_000)));
    assert!((8..=12).contains(&idle), "{idle} in 20 s");
    world.links[1].set_dead(false);
    use_first(&mut world, ms(110));
    assert_eq!(world.status(CLIENT, PathId(1)), PathStatus::Usable);
    world.links[1].set_dead(true);
    use_first(&mut world, ms(2_000));
    let used = probes_in(&mut world, 1, |world| use_first(world, ms(10_000)));
    assert!((48..=52).contains(&used), "{used} in 10 s, while the connection is used");
}

#[test]
fn where_no_path_answers_each_is_asked_twice_as_often() {
    let asked = |dead: &[usize]| {
        let mut world = World::connected(links(&[20, 50]));
        dead.iter().for_each(|link| world.links[*link].set_dead(true));
        let send = |world: &mut World, span| {
            world.every(ms(400), span, |world, _| {
                for path in 0..2 {
                    _ = world.send(CLIENT, PathId(path), 100);
                }
            });
        };
        send(&mut world, ms(2_000));
        probes_in(&mut world, 1, |world| send(world, ms(4_000)))
    };
    let (one, both) = (asked(&[1]), asked(&[0, 1]));
    assert!((19..=21).contains(&one) && (38..=41).contains(&both), "{one} and {both} in 4 s");
}

#[test]
fn what_lies_here_unread_makes_no_path_suspect() {
    let mut world = World::connected(links(&[20, 50]));
    world.run(ms(5_000));
    let counts = |world: &mut World| {
        let [one, other] = [0, 1].map(|path| world.stats(CLIENT, path));
        (one.packets_sent + other.packets_sent, one.suspicions + other.suspicions)
    };
    let (before, _) = counts(&mut world);
    world.run(ms(20_000));
    let punctual = counts(&mut world).0 - before;
    world.sides[CLIENT].late = ms(400);
    // The first late packet shows it.
    world.run(ms(5_000));
    let (before, suspected) = counts(&mut world);
    world.run(ms(20_000));
    let (after, suspicions) = counts(&mut world);
    let late = after - before;
    assert!(late <= punctual + 4, "{late} packets in 20 s, {punctual} before");
    assert!(suspicions <= suspected + 1);
}

#[test]
fn one_packet_that_lay_here_unread_puts_off_the_suspicion_of_a_used_path_by_half_a_second() {
    // The time from a datagram on a dead path to its suspicion, so long after a late packet.
    let suspect_after = |long_ago: Duration| {
        let mut world = World::connected(links(&[20]));
        world.run(ms(5_000));
        world.sides[CLIENT].late = ms(3_000);
        world.send(SERVER, PathId(0), 500).unwrap();
        world.settle();
        // As if it had been the only one of a pause.
        let arrival = world.network.pop().unwrap();
        assert!(world.network.is_empty());
        world.now = arrival.at;
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
