//! A model of the same rules without caches: all that waits is examined from the start each time.

use std::collections::BTreeSet;

use super::*;

const LONG: u64 = 10_000;

type Waiting = ([u64; 2], Packet);

#[derive(Default)]
struct Model {
    now: u64,
    known: BTreeSet<u32>,
    waiting: Vec<Waiting>,
    last: (u16, u32),
    passed: Option<u32>,
    /// The last frame that went out: its due time, timestamp and last number.
    before: (u64, u32, u16),
    interval: u64,
    out: Vec<(u64, u32)>,
    discarded: usize,
}

impl Model {
    fn handle(&mut self, at: u64, packet: Packet) {
        self.run_until(at);
        self.now = at;
        self.known.insert(packet.id);
        if packet.sequence <= self.last.0 {
            self.discarded += 1;
            return;
        }
        let due = at + DEADLINE.saturating_sub(at - packet.sent).max(self.interval);
        self.waiting.push(([at, due], packet));
        self.waiting.sort_by_key(|(_, packet)| packet.sequence);
        self.advance();
        self.run_until(at);
    }

    fn run_until(&mut self, end: u64) {
        while let Some(due) = self.due().filter(|due| *due <= end) {
            self.now = due.max(self.now);
            self.give_up();
        }
    }

    fn is_any_missing(&self, before: u32, behind: u32) -> bool {
        (before + 1..behind).any(|id| !self.known.contains(&id))
    }

    fn front(&self) -> Option<(Waiting, bool, Option<Waiting>)> {
        let first = *self.waiting.first()?;
        let behind = self.waiting.iter().find(|(_, other)| other.timestamp != first.1.timestamp);
        Some((first, first.1.sequence == self.last.0 + 1, behind.copied()))
    }

    fn due(&self) -> Option<u64> {
        let next = match self.front()? {
            (([_, due], _), false, _) | (_, true, Some(([_, due], _))) => due,
            (([_, due], _), true, None) => due + self.interval,
        };
        let first_came = self.waiting.iter().map(|([came, _], _)| *came).min()?;
        Some((next - DECODE).min(first_came + LONG))
    }

    fn give_up(&mut self) {
        let Some(((_, first), is_next, behind)) = self.front() else { return };
        let skip_to = |behind: Waiting| behind.1.sequence - 1;
        if is_next {
            while self.waiting.first().is_some_and(|(_, other)| other.timestamp == first.timestamp)
            {
                self.release();
            }
            self.last.0 = behind.map_or(self.last.0, skip_to);
            self.passed = behind.is_none().then_some(first.timestamp);
        } else {
            self.last.0 = first.sequence - 1;
        }
        self.advance();
    }

    fn advance(&mut self) {
        while let Some(((_, first), is_next, _)) = self.front() {
            let is_passed = self.passed == Some(first.timestamp);
            if !is_passed && !is_next && self.is_any_missing(self.last.1, first.id) {
                return;
            }
            self.last.0 = first.sequence - 1;
            let packets = if is_passed { Some(1) } else { self.whole_front() };
            let Some(packets) = packets else { return };
            (0..packets).for_each(|_| self.release());
        }
    }

    fn whole_front(&self) -> Option<usize> {
        let (mut before, timestamp) = (self.last, self.waiting.first()?.1.timestamp);
        for (at, (_, packet)) in self.waiting.iter().enumerate() {
            if packet.sequence > before.0 + 1 && self.is_any_missing(before.1, packet.id) {
                return None;
            }
            if packet.timestamp != timestamp {
                return Some(at);
            }
            if packet.marker {
                return Some(at + 1);
            }
            before = (packet.sequence, packet.id);
        }
        None
    }

    fn release(&mut self) {
        let ([_, due_now], packet) = self.waiting.remove(0);
        let (due, timestamp, sequence) = self.before;
        if timestamp != packet.timestamp {
            self.before.0 = due_now;
            if sequence + 1 == packet.sequence {
                self.interval = self.before.0.saturating_sub(due).min(100);
            }
        }
        (self.before.1, self.before.2) = (packet.timestamp, packet.sequence);
        self.passed = self.passed.filter(|passed| *passed == packet.timestamp);
        self.last = (packet.sequence, packet.id);
        self.out.push((self.now, packet.id));
    }
}

proptest! {
    #[test]
    fn what_is_kept_to_be_quick_changes_nothing(
        frames in proptest::collection::vec((1..6_usize, 5..60_u64), 1..25),
        // Each packet's delay, if it comes; and whether another flow's packet is in its place.
        fates in proptest::collection::vec(
            (
                prop_oneof![
                    8 => (0..25_u64).prop_map(Some),
                    2 => (0..260_u64).prop_map(Some),
                    1 => Just(None),
                ],
                prop_oneof![9 => Just(false), 1 => Just(true)],
            ),
            150,
        ),
    ) {
        let mut bench = Bench::new(LONG);
        let mut video = Video::new(1, 100, 5000);
        bench.meet(&mut video);
        let last = video.next.sequence - 1;
        let timestamp = video.next.timestamp - 90 * INTERVAL as u32;
        let mut model = Model {
            known: (0..LEAD).collect(),
            last: (last, LEAD - 1),
            before: (BEGIN - INTERVAL + DEADLINE, timestamp, last),
            interval: INTERVAL,
            ..Model::default()
        };
        let (mut sent, mut arrivals, mut fates) = (BEGIN, Vec::new(), fates.into_iter());
        for (size, pause) in frames {
            for (packet, fate) in video.frame(sent, &mut bench.id, size).into_iter().zip(&mut fates) {
                let (after, is_strange) = fate;
                arrivals.extend(after.map(|after| (sent + after, packet, is_strange)));
            }
            sent += pause;
        }
        arrivals.sort_by_key(|(at, packet, _)| (*at, packet.id));
        let mut discarded = 0;
        for (at, packet, is_strange) in arrivals {
            if is_strange {
                bench.handle_unit(at, Unit { packet: None, ..packet.unit(at, 0) });
                bench.out.retain(|(_, id)| *id != packet.id);
                model.run_until(at);
                model.known.insert(packet.id);
                continue;
            }
            discarded += usize::from(bench.handle(at, packet) == Turn::Discarded);
            model.handle(at, packet);
        }
        bench.run_until(LONG);
        model.run_until(LONG);
        prop_assert_eq!(&bench.out, &model.out);
        prop_assert_eq!(discarded, model.discarded);
    }
}
