use super::*;
use crate::testing::{at, free, path};

const LOSS_DELAY: Duration = Duration::from_millis(50);

fn send(flight: &mut Flight<()>, now: Instant, id: PacketId, path: u32) -> bool {
    flight.on_sent(now, id, PathId(path), LOSS_DELAY, ()).is_some()
}

fn overdue(flight: &mut Flight<()>, now: Instant) -> Vec<PacketId> {
    let paths = [path(0, 40, 10)];
    std::iter::from_fn(|| flight.poll_overdue(now, &free(&paths), |_, _| LOSS_DELAY))
        .map(|overdue| overdue.id)
        .collect()
}

#[test]
fn only_what_is_not_acknowledged_becomes_overdue_also_across_the_wrap() {
    let mut flight = Flight::new();
    let ids: Vec<_> = (0..4).map(|offset| PacketId(u32::MAX - 1).plus(offset)).collect();
    for (position, id) in ids.iter().enumerate() {
        send(&mut flight, at(position as u64), *id, 0);
    }
    flight.set(ids[0], PacketState::Settled);
    flight.set(ids[2], PacketState::Settled);
    assert_eq!(overdue(&mut flight, at(50)), []);
    assert_eq!(overdue(&mut flight, at(53)), [ids[1], ids[3]]);
    assert_eq!(flight.state(ids[3]), Some(PacketState::Lost { path: PathId(0), sent: at(3) }));
    assert_eq!(flight.state(ids[0]), None, "settled packets at the front are gone");
}

#[test]
fn acknowledged_packets_set_no_timer() {
    let mut flight = Flight::new();
    for id in 0..4 {
        send(&mut flight, at(id.into()), PacketId(id), 0);
    }
    flight.set(PacketId(1), PacketState::Settled);
    assert_eq!(flight.poll_timeout(), Some(at(50)));
    flight.set(PacketId(0), PacketState::Settled);
    assert_eq!(flight.poll_timeout(), Some(at(52)));
    flight.set(PacketId(2), PacketState::Settled);
    flight.set(PacketId(3), PacketState::Settled);
    assert_eq!(flight.poll_timeout(), None);
}

#[test]
fn a_second_transmission_has_a_time_of_its_own() {
    let mut flight = Flight::new();
    send(&mut flight, at(0), PacketId(0), 0);
    assert_eq!(overdue(&mut flight, at(50)), [PacketId(0)]);
    send(&mut flight, at(60), PacketId(0), 0);
    assert_eq!(overdue(&mut flight, at(109)), []);
    assert_eq!(overdue(&mut flight, at(110)), [PacketId(0)]);
}

#[test]
fn a_second_transmission_after_the_acknowledgement_is_not_watched() {
    let mut flight = Flight::new();
    send(&mut flight, at(0), PacketId(0), 0);
    flight.set(PacketId(0), PacketState::Settled);
    send(&mut flight, at(1), PacketId(0), 0);
    send(&mut flight, at(2), PacketId(1), 0);
    assert_eq!(overdue(&mut flight, at(60)), [PacketId(1)]);
}

#[test]
fn a_path_that_has_become_slower_grants_more_time() {
    let mut flight = Flight::new();
    send(&mut flight, at(0), PacketId(0), 0);
    let paths = [path(0, 40, 10)];
    assert_eq!(flight.poll_overdue(at(60), &free(&paths), |_, _| LOSS_DELAY * 2), None);
    assert_eq!(flight.poll_timeout(), Some(at(100)));
}

#[test]
fn what_was_sent_on_a_path_that_is_gone_is_overdue_at_its_time() {
    let mut flight = Flight::new();
    send(&mut flight, at(0), PacketId(0), 7);
    assert_eq!(overdue(&mut flight, at(50)), [PacketId(0)]);
}

#[test]
fn a_packet_is_lost_only_when_all_of_its_copies_are() {
    let mut flight = Flight::new();
    let id = PacketId(0);
    for path in 0..3 {
        send(&mut flight, at(u64::from(path)), id, path);
    }
    assert_eq!(flight.on_lost(at(10), id, PathId(0)), None);
    assert_eq!(flight.on_lost(at(10), id, PathId(0)), None, "it was told before");
    assert_eq!(flight.on_lost(at(11), id, PathId(2)), None);
    assert_eq!(flight.state(id), Some(PacketState::InFlight { path: PathId(1), sent: at(1) }));
    assert_eq!(flight.on_lost(at(12), id, PathId(1)), Some(()));
    assert_eq!(flight.state(id), Some(PacketState::Lost { path: PathId(1), sent: at(1) }));
    assert!(flight.further.is_empty());
}

#[test]
fn a_packet_is_overdue_when_its_last_copy_is() {
    let mut flight = Flight::new();
    send(&mut flight, at(0), PacketId(0), 0);
    send(&mut flight, at(0), PacketId(1), 0);
    send(&mut flight, at(20), PacketId(0), 1);
    let paths = [path(0, 40, 10), path(1, 40, 10)];
    let mut overdue = |ms| {
        let loss_delay = |path: &PathSnapshot, _: u32| LOSS_DELAY * (path.id.0 + 1);
        flight.poll_overdue(at(ms), &free(&paths), loss_delay).map(|overdue| overdue.id)
    };
    assert_eq!(overdue(50), Some(PacketId(1)));
    assert_eq!(overdue(119), None);
    assert_eq!(overdue(120), Some(PacketId(0)));
}

#[test]
fn a_copy_that_waits_for_its_path_is_neither_overdue_nor_forgotten() {
    let mut flight = Flight::new();
    let (waits, also) = (PacketId(0), PacketId(1));
    flight.on_waiting(waits, PathId(1), ());
    send(&mut flight, at(0), also, 0);
    flight.on_waiting(also, PathId(1), ());
    assert_eq!(overdue(&mut flight, at(900)), []);
    send(&mut flight, at(1000), waits, 1);
    assert_eq!(
        flight.state(waits),
        Some(PacketState::InFlight { path: PathId(1), sent: at(1000) })
    );
    assert_eq!(flight.on_lost(at(1001), also, PathId(1)), None, "it could not leave");
    assert_eq!(overdue(&mut flight, at(1001)), [also]);
    assert_eq!(overdue(&mut flight, at(1049)), []);
    assert_eq!(overdue(&mut flight, at(1050)), [waits]);
    assert!(flight.further.is_empty());
}

#[test]
fn a_packet_none_of_whose_copies_could_leave_is_lost() {
    let mut flight = Flight::new();
    flight.on_waiting(PacketId(0), PathId(0), ());
    flight.on_waiting(PacketId(0), PathId(1), ());
    assert_eq!(flight.on_lost(at(5), PacketId(0), PathId(0)), None);
    assert_eq!(flight.on_lost(at(6), PacketId(0), PathId(1)), Some(()));
    assert_eq!(flight.poll_lost(), Some(PacketId(0)));
}

#[test]
fn memory_is_bounded() {
    let mut flight = Flight::new();
    let mut evicted = 0;
    for id in 0..CAPACITY as u32 + 10 {
        evicted += usize::from(send(&mut flight, at(0), PacketId(id), 0));
    }
    assert_eq!((flight.slots.len(), evicted), (CAPACITY, 10));
}

#[test]
fn only_the_copy_that_waits_for_its_path_is_forgotten_when_it_cannot_leave() {
    let mut flight = Flight::new();
    let id = PacketId(0);
    send(&mut flight, at(0), id, 0);
    send(&mut flight, at(1), id, 1);
    flight.on_waiting(id, PathId(2), ());
    assert!(!flight.take_further(0, PathId(1)), "it has left");
    assert!(!flight.take_further(0, PathId(3)), "there is none");
    assert!(flight.take_further(0, PathId(2)));
    assert_eq!(flight.on_lost(at(5), id, PathId(0)), None, "the copy on path 1 is under way");
    assert_eq!(flight.on_lost(at(6), id, PathId(1)), Some(()));
}
