use super::*;

const KEY_FIRST: u8 = 1;
const KEY: u8 = 2;
const OTHER: u8 = 0;

fn packet(number: u16, frame: u32, kind: u8, marker: bool) -> JumpPacket {
    let part = match kind {
        KEY_FIRST => FramePart::BEGINS | FramePart::SEQUENCE | FramePart::PICTURE,
        KEY => FramePart::SLICE,
        _ => FramePart::OTHER,
    };
    JumpPacket { number, timestamp: frame * 3_000, payload_type: 96, marker, part }
}

fn key_frame(first: u16) -> [JumpPacket; 3] {
    [(0, KEY_FIRST, false), (1, KEY, false), (2, KEY, true)]
        .map(|(at, kind, marker)| packet(first.wrapping_add(at), 9, kind, marker))
}

fn other(number: u16) -> JumpPacket {
    packet(number, u32::from(number), OTHER, false)
}

fn check(jump: &mut Jump, packets: &[JumpPacket], filled: Option<&[u16]>) {
    for (at, packet) in packets.iter().enumerate() {
        let entry = jump.on_packet(Duration::ZERO, *packet);
        let is_last = at + 1 == packets.len();
        let expected = filled.filter(|_| is_last).map(|it| InputAction::Fill(it.to_vec()));
        assert_eq!(entry, expected.unwrap_or(InputAction::Pass), "{at} of {packets:?}");
    }
}

#[test]
fn a_key_frame_that_is_whole_waits_for_nothing_before_it() {
    for start in [0_u16, 100, 65_530, 65_526] {
        let at = |distance: u16| start.wrapping_add(distance);
        let mut jump = Jump::new();
        let before = [0, 1, 4, 5, 7].map(|distance| other(at(distance)));
        check(&mut jump, &before, None);
        assert_eq!(jump.on_out(at(0)), OutputAction::Pass);
        check(&mut jump, &key_frame(at(9)), Some(&[at(2), at(3), at(6), at(8)]));
        assert_eq!(jump.on_out(at(1)), OutputAction::Drop);
        (2..9).for_each(|distance| assert_eq!(jump.on_out(at(distance)), OutputAction::Drop));
        assert_eq!(jump.on_out(at(9)), OutputAction::Resume);
        assert!(jump.on_key_frame_asked() && !jump.on_key_frame_asked());
        assert_eq!(jump.on_out(at(10)), OutputAction::Pass);
        check(&mut jump, &[other(at(12))], None);
        // Late packets are dropped, unless they were not waited for.
        let late = |jump: &mut Jump, distance| jump.on_packet(Duration::ZERO, other(at(distance)));
        for distance in [2, 8, 6] {
            assert_eq!(late(&mut jump, distance), InputAction::Drop);
        }
        assert_eq!(late(&mut jump, 13), InputAction::Pass);
    }
}

#[test]
fn the_packets_of_the_key_frame_come_in_any_order_and_twice() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        let mut jump = Jump::new();
        let key = key_frame(5);
        check(&mut jump, &[other(0), other(2)], None);
        check(&mut jump, &order.map(|at| key[at]), Some(&[1, 3, 4]));
        assert_eq!(jump.on_packet(Duration::ZERO, key[order[0]]), InputAction::Pass);
    }
    let mut jump = Jump::new();
    let [first, middle, last] = key_frame(5);
    check(&mut jump, &[other(0), first, first, last, last], None);
    check(&mut jump, &[middle], Some(&[1, 2, 3, 4]));
}

#[test]
fn what_is_no_whole_key_frame_is_no_reason_to_go_on() {
    let [first, middle, last] = key_frame(5);
    let without_marker = JumpPacket { marker: false, ..last };
    let of_another_frame = JumpPacket { timestamp: 1, ..middle };
    let of_another_type = JumpPacket { payload_type: 98, ..middle };
    let no_parameters = JumpPacket { part: FramePart::SLICE, ..first };
    let not_alone = JumpPacket { part: FramePart::OTHER, ..middle };
    for key in [
        [first, first, last],
        [middle, last, last],
        [first, middle, without_marker],
        [first, of_another_frame, last],
        [first, of_another_type, last],
        [no_parameters, middle, last],
        [first, not_alone, last],
    ] {
        let mut jump = Jump::new();
        check(&mut jump, &[other(0)], None);
        check(&mut jump, &key, None);
        assert_eq!(jump.on_out(5), OutputAction::Pass);
    }
}

#[test]
fn without_a_gap_packets_pass_and_none_is_buffered() {
    let mut jump = Jump::new();
    for number in 0..200_000_u32 {
        let number = number as u16;
        let key = key_frame(number / 3 * 3)[usize::from(number % 3)];
        check(&mut jump, &[key], None);
        assert!(jump.ahead.is_empty());
        assert_eq!(jump.on_out(number), OutputAction::Pass);
        assert!(!jump.on_key_frame_asked());
    }
    let mut jump = Jump::new();
    let [first, middle, last] = key_frame(2);
    check(&mut jump, &[other(0), first, middle, other(1), last], None);
    assert!(jump.ahead.is_empty());
}

#[test]
fn numbers_that_the_jitter_buffer_has_given_up_are_not_filled() {
    let mut jump = Jump::new();
    check(&mut jump, &[other(0), other(4)], None);
    // 1 to 3 are reported lost; 4 comes out.
    (1..=4).for_each(|number| assert_eq!(jump.on_out(number), OutputAction::Pass));
    check(&mut jump, &key_frame(7), Some(&[5, 6]));
    assert_eq!(jump.on_packet(Duration::ZERO, other(6)), InputAction::Drop);
    let mut jump = Jump::new();
    check(&mut jump, &[other(0)], None);
    (1..=6).for_each(|number| assert_eq!(jump.on_out(number), OutputAction::Pass));
    check(&mut jump, &key_frame(7), None);
    assert_eq!(jump.on_packet(Duration::ZERO, other(6)), InputAction::Pass);
}

#[test]
fn where_too_much_is_missing_it_is_waited_for_as_ever() {
    for (first, filled) in [(1_001, true), (1_002, false), (2_045, false), (3_000, false)] {
        let mut jump = Jump::new();
        check(&mut jump, &[other(0)], None);
        let missing: Vec<u16> = (1..first).collect();
        check(&mut jump, &key_frame(first), filled.then_some(&missing[..]));
    }
}

#[test]
fn a_key_frame_each_millisecond_is_gone_on_with_ten_times_a_second() {
    let mut jump = Jump::new();
    let (mut jumps, mut filled) = (0, 0);
    for ms in 0..10_000_u64 {
        let number = (ms * 100) as u16;
        let alone = JumpPacket {
            part: key_frame(0).iter().fold(FramePart::NONE, |all, it| all | it.part),
            ..other(number)
        };
        let packet = JumpPacket { marker: true, ..alone };
        if let InputAction::Fill(numbers) = jump.on_packet(Duration::from_millis(ms), packet) {
            (jumps, filled) = (jumps + 1, filled + numbers.len());
        }
        assert!(jump.ahead.len() <= 2_048);
    }
    assert!((100..=104).contains(&jumps) && filled <= 104_000, "{jumps} {filled}");
}

/// A jitter buffer that waits forever.
#[derive(Default)]
struct Buffer {
    next: u16,
    there: std::collections::BTreeSet<u16>,
}

impl Buffer {
    fn put(&mut self, number: u16) {
        assert!(distance(number, self.next) >= 0, "{number} is late, it is at {}", self.next);
        self.there.insert(number);
    }

    fn out(&mut self) -> Option<u16> {
        let is_there = self.there.remove(&self.next);
        self.next = self.next.wrapping_add(u16::from(is_there));
        is_there.then(|| self.next.wrapping_sub(1))
    }
}

#[test]
fn whatever_comes_memory_is_bounded_and_what_goes_on_is_in_order() {
    for seed in 0..20_u32 {
        let mut random = seed;
        let mut random = |below: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % below
        };
        let (mut jump, mut buffer) = (Jump::new(), Buffer::default());
        let (mut passed, mut fills) = (None::<u16>, 0);
        let mut queue: Vec<(u64, JumpPacket)> = Vec::new();
        for sent in 0..30_000_u64 {
            let (frame, at) = (sent / 3, (sent % 3) as usize);
            let mut packet = key_frame(sent as u16 - at as u16)[at];
            packet.timestamp = frame as u32;
            if frame % 10 != 0 {
                packet.part = FramePart::OTHER;
            }
            let delay = if random(20) == 0 { random(40) } else { random(3) };
            if sent == 0 || random(30) > 0 {
                queue.push((sent + u64::from(delay), packet));
            }
            queue.sort_by_key(|(due, _)| *due);
            while queue.first().is_some_and(|(due, _)| *due <= sent) {
                let (_, packet) = queue.remove(0);
                // The jitter buffer drops duplicates.
                let is_new = distance(packet.number, buffer.next) >= 0;
                match jump.on_packet(Duration::from_millis(sent), packet) {
                    InputAction::Drop => assert!(!is_new, "{packet:?}"),
                    entry => {
                        if let InputAction::Fill(numbers) = entry {
                            fills += 1;
                            numbers.into_iter().for_each(|number| buffer.put(number));
                        }
                        if is_new {
                            buffer.put(packet.number);
                        }
                    }
                }
                assert!(jump.ahead.len() <= 2_048);
                while let Some(number) = buffer.out() {
                    if jump.on_out(number) != OutputAction::Drop {
                        assert!(passed.is_none_or(|it| distance(number, it) > 0));
                        passed = Some(number);
                    }
                }
            }
        }
        assert!((200..=304).contains(&fills) && passed.is_some(), "{fills}");
        assert!(distance(buffer.next, 30_000_u16) > -400, "{}", buffer.next);
    }
}
