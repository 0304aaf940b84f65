//! Readers that leave no room for others, and readers that are not to blame for it.

use super::*;

struct World {
    pair: Pair,
    written: Vec<StreamId>,
    out: Vec<u8>,
}

impl World {
    fn begin(transfers: usize) -> (Self, Vec<StreamId>) {
        let mut world = Self { pair: Pair::new(64), written: Vec::new(), out: vec![0; 64 << 10] };
        let ids: Vec<StreamId> = (0..transfers).map(|_| world.open()).collect();
        world.run(2_000, &readers(&ids, u64::MAX));
        (world, ids)
    }

    fn open(&mut self) -> StreamId {
        self.written.push(self.pair.open());
        self.written[self.written.len() - 1]
    }

    /// Runs for `time` ms. `readers`: stream, bytes, and each how many ms. Returns the bytes read.
    fn run(&mut self, time: u64, readers: &[(StreamId, u64, u64)]) -> u64 {
        let Self { pair, written, out } = self;
        let (mut read, mut turn) = (0, 0);
        pair.run(Duration::from_millis(time), |pair| {
            turn += 1;
            for id in written.iter() {
                let _ = pair.server.accept(pair.now, *id);
                // Nothing is to be written where it was reset.
                let _ = pair.client.write(pair.now, *id, &[1; 64 << 10]);
            }
            for (id, most, _) in readers.iter().filter(|(.., each)| turn % each == 0) {
                let mut left = *most;
                while left > 0 {
                    let room = left.min(out.len() as u64) as usize;
                    match pair.server.read(pair.now, *id, &mut out[..room]) {
                        Ok(length @ 1..) => {
                            (read, left) = (read + length as u64, left - length as u64)
                        }
                        _ => break,
                    }
                }
            }
        });
        read
    }

    fn is_crowded(&self) -> bool {
        self.pair.server.table.receive_credit.is_crowded()
    }

    fn unread(&self) -> u64 {
        self.pair.server.stats().unread
    }

    fn is_open(&self, id: StreamId) -> bool {
        self.pair.server.table.streams.contains_key(&id)
    }

    fn check_next_is_read(&mut self, transfers: u64) {
        assert!(self.is_crowded());
        let next = self.open();
        self.run(11_500, &[(next, u64::MAX, 1)]);
        let read = self.run(1_000, &[(next, u64::MAX, 1)]);
        assert!(read > 5_000_000, "{read} bytes in a second");
        assert!((1..transfers).contains(&self.unread()), "{} of {transfers}", self.unread());
    }
}

fn readers(ids: &[StreamId], most: u64) -> Vec<(StreamId, u64, u64)> {
    ids.iter().map(|id| (*id, most, 1)).collect()
}

#[test]
fn readers_that_all_stop_at_once_hold_up_the_others_for_seconds_only() {
    let (mut world, asleep) = World::begin(4);
    world.run(1_000, &[]);
    world.check_next_is_read(4);
    assert_eq!(asleep.iter().filter(|id| world.is_open(**id)).count() as u64, 4 - world.unread());
}

#[test]
fn readers_that_stop_one_after_another_hold_up_the_others_no_longer() {
    let (mut world, mut awake) = World::begin(6);
    while let Some(stops) = awake.pop() {
        world.run(1_500, &readers(&awake, 60));
        assert!(world.is_open(stops));
    }
    world.check_next_is_read(6);
}

#[test]
fn who_takes_a_byte_now_and_then_is_no_reader() {
    let (mut world, ids) = World::begin(4);
    let trickles: Vec<_> = ids.iter().map(|id| (*id, 1, 2_900)).collect();
    world.run(14_000, &trickles);
    assert!((1..4).contains(&world.unread()), "{} of 4", world.unread());
}

#[test]
fn slow_readers_and_one_that_pauses_beside_them_lose_nothing() {
    let (mut world, slow) = World::begin(30);
    let paused = world.open();
    let readers = readers(&slow, 60);
    for _ in 0..12 {
        world.run(5_000, &readers);
        assert!(world.is_crowded());
    }
    assert!(world.is_open(paused) && world.unread() == 0, "{} were reset", world.unread());
}

#[test]
fn what_waits_for_its_host_is_not_unread() {
    let mut pair = Pair::new(64);
    let ids = [(); 64].map(|()| pair.open());
    pair.run(Duration::from_secs(25), |pair| {
        for id in &ids {
            let _ = pair.client.write(pair.now, *id, &[1; 4096]);
        }
    });
    assert!(pair.server.table.receive_credit.is_crowded());
    assert_eq!((pair.server.stats().unread, pair.server.open_streams()), (0, 64));
}

#[test]
fn no_stream_is_unread_after_a_suspension_or_a_new_session() {
    let (mut world, ids) = World::begin(4);
    world.run(1_000, &[]);
    assert!(world.is_crowded());
    world.pair.now += Duration::from_secs(60);
    world.run(1, &[]);
    assert_eq!(world.unread(), 0, "it stood still");
    world.run(9_000, &[]);
    world.pair.server.on_new_session(world.pair.now);
    world.run(9_000, &[]);
    assert_eq!(world.unread(), 0, "a new session");
    assert!(world.run(1_000, &readers(&ids, u64::MAX)) > 10_000_000);
    assert_eq!(world.unread(), 0);
}
