use std::collections::VecDeque;

use proptest::prelude::*;
use roadweave_proto::{PathSnapshot, PathStatus};

use super::*;
use crate::pace::Pace;
use crate::testing::{Among, at, free, packet_of as packet, path, to, to_all};

const MS: Duration = Duration::from_millis(1);

/// A path whose pace is known: `owd_ms` one way, and a packet each `iat_ms`.
fn paced(lola: &mut Lola, id: u32, owd_ms: u64, iat_ms: u64) -> PathSnapshot {
    let (iat, rtt) = (MS * iat_ms as u32, MS * 2 * owd_ms as u32);
    lola.windows.push_known(at(10_000), PathId(id), iat, rtt);
    lola.paths.push(PathState::new(at(10_000), PathId(id)));
    path(id, 2 * owd_ms, u64::MAX / 4)
}

/// The latest arrival in the best of all spreads, ms; `None` if the packets do not fit.
fn best_of_all(paths: &[(u64, u64, u64)], packets: u64, delta: u64) -> Option<u64> {
    let Some(((owd, iat, under_way), others)) = paths.split_first() else {
        return (packets == 0).then_some(0);
    };
    let window = delta.saturating_sub(*owd) / iat;
    let most = window.saturating_sub(*under_way).min(packets);
    let spread = |here: u64| {
        let rest = best_of_all(others, packets - here, delta)?;
        let last = if here > 0 { owd + (under_way + here) * iat } else { 0 };
        Some(last.max(rest))
    };
    (0..=most).filter_map(spread).min()
}

proptest! {
    #[test]
    fn the_last_packet_of_a_frame_arrives_as_soon_as_can_be(
        specs in prop::collection::vec((1..70_u64, 1..20_u64, 0..5_u64), 1..4),
        packets in 1..12_u64,
    ) {
        let mut lola = Lola::new(MS * 100);
        let mut paths: Vec<PathSnapshot> = (0..)
            .zip(&specs)
            .map(|(id, (owd, iat, under_way))| PathSnapshot {
                bytes_in_flight: under_way * 1200,
                ..paced(&mut lola, id, *owd, *iat)
            })
            .collect();
        let (mut last, mut placed) = (0, 0);
        for left in (1..=packets).rev() {
            let decision = lola.select_among(at(10_000), &packet(left * 1200), &paths);
            let Decision::Send(set) = decision else { break };
            prop_assert_eq!(set.len(), 1, "no path needs to be probed");
            let position = set.iter().next().expect("one");
            paths[position].bytes_in_flight += 1200;
            let (owd, iat, _) = specs[position];
            last = last.max(owd + paths[position].bytes_in_flight / 1200 * iat);
            placed += 1;
        }
        prop_assert_eq!(Some(last), best_of_all(&specs, placed, 100));
        let more = best_of_all(&specs, placed + 1, 100).is_some();
        prop_assert!(placed == packets || !more, "all that fits is placed");
        prop_assert!(last <= 100, "nothing arrives after delta: {last}");
    }

    #[test]
    fn coalesced_acknowledgements_show_the_pace_of_the_link(
        iat_us in 200..8_000_u64, gathered_us in 1..3_000_u64, more in 8..30_u64,
    ) {
        // A frame that arrives in one batch shows no pace.
        let frame = more + 3 * gathered_us / iat_us;
        let mut link = Link::new(Duration::from_micros(iat_us), MS * 20, 1);
        link.gathers = Duration::from_micros(gathered_us);
        let mut pace = Pace::default();
        // Frames come as the link can take them, with a pause behind each.
        let interval = Duration::from_micros(iat_us * (frame + 3)).max(MS * 40);
        for number in 0..60 {
            let begin = Instant::ZERO + interval * number;
            link.acknowledge(begin, &mut pace);
            (0..frame).for_each(|_| link.push(begin));
        }
        link.acknowledge(Instant::FAR_FUTURE, &mut pace);
        let measured = pace.byte_time().expect("there were packets") * 1200e6;
        let off = measured / iat_us as f64;
        prop_assert!((0.6..1.6).contains(&off), "{measured:.0} us, not {iat_us}");
    }
}

#[test]
fn a_sender_with_little_to_send_does_not_take_a_link_for_slow() {
    let mut link = Link::new(MS * 2, MS * 30, 0);
    let mut pace = Pace::default();
    for number in 0..100 {
        let now = at(20 * number);
        link.acknowledge(now, &mut pace);
        link.push(now);
    }
    let measured = pace.byte_time().expect("there were packets") * 1200.0;
    assert!(measured < 0.002, "{measured} s");
}

struct Link {
    iat: Duration,
    owd: Duration,
    free_at: Instant,
    gathers: Duration,
    snapshot: PathSnapshot,
    under_way: VecDeque<(Instant, Instant)>,
    slowest: Duration,
    pushed: u32,
}

impl Link {
    fn new(iat: Duration, owd: Duration, id: u32) -> Self {
        let snapshot = path(id, 2 * owd.as_millis() as u64, u64::MAX / 4);
        Self {
            iat,
            owd,
            free_at: Instant::ZERO,
            gathers: MS,
            snapshot,
            under_way: VecDeque::new(),
            slowest: Duration::ZERO,
            pushed: 0,
        }
    }

    fn change(&mut self, now: Instant, iat: Duration) {
        (self.iat, self.free_at) = (iat, now);
        for (_, arrives) in &mut self.under_way {
            self.free_at += iat;
            *arrives = (*arrives).min(self.free_at + self.owd);
        }
    }

    fn push(&mut self, now: Instant) {
        self.free_at = self.free_at.max(now) + self.iat;
        let arrives = self.free_at + self.owd;
        self.pushed += 1;
        self.slowest = self.slowest.max(arrives.since(now));
        self.under_way.push_back((now, arrives));
        self.snapshot.bytes_in_flight += 1200;
    }

    fn acknowledge(&mut self, now: Instant, pace: &mut Pace) {
        for (now, acknowledged) in self.acknowledgements(now) {
            pace.on_acknowledged(now, &acknowledged, MS * 5);
        }
    }

    fn acknowledgements(&mut self, now: Instant) -> Vec<(Instant, AcknowledgedDatagram)> {
        let mut acknowledged = Vec::new();
        while let Some(&(sent, arrives)) = self.under_way.front() {
            let gathers = self.gathers.as_nanos() as u64;
            let leaves = Instant::from_nanos(arrives.as_nanos().div_ceil(gathers) * gathers);
            if leaves + self.owd > now {
                break;
            }
            self.under_way.pop_front();
            self.snapshot.bytes_in_flight -= 1200;
            let (path, rtt) = (self.snapshot.id, arrives.since(sent) + self.owd);
            acknowledged
                .push((leaves + self.owd, AcknowledgedDatagram { path, sent, bytes: 1200, rtt }));
        }
        acknowledged
    }
}

fn target(lola: &Lola, now: Instant, paths: &[PathSnapshot]) -> u64 {
    let paths = free(paths);
    lola.share_of(&paths, &lola.windows.rooms(now, &paths)).round() as u64
}

/// Sends frames of the target size over links, 30 a second; `change` alters the links before each.
fn stream(links: &mut [Link], frames: u64, mut change: impl FnMut(u64, &mut [Link])) -> Vec<u64> {
    let mut lola = Lola::new(MS * 100);
    let mut targets = Vec::new();
    let mut waiting: VecDeque<Instant> = VecDeque::new();
    for ms in 0..frames * 33 {
        let now = at(ms);
        for link in links.iter_mut() {
            for (at, acknowledged) in link.acknowledgements(now) {
                lola.on_acknowledged(at, &acknowledged, 0);
            }
        }
        let snapshots =
            |links: &[Link]| links.iter().map(|link| link.snapshot.clone()).collect::<Vec<_>>();
        if ms.is_multiple_of(33) {
            change(ms / 33, links);
            let target = target(&lola, now, &snapshots(links));
            let target = target.saturating_sub(waiting.len() as u64 * 1200);
            targets.push(target);
            // A camera with something to show, that never makes more than 40 packets.
            (0..(target / 1200).clamp(2, 40)).for_each(|_| waiting.push_back(now));
        }
        waiting.retain(|since| now.since(*since) < MS * 100);
        while let Some(since) = waiting.front() {
            let backlog_bytes = waiting.len() as u64 * 1200;
            let info = PacketInfo { waited: now.since(*since), ..packet(backlog_bytes) };
            let Decision::Send(set) = lola.select_among(now, &info, &snapshots(links)) else {
                break;
            };
            waiting.pop_front();
            for position in set.iter() {
                links[position].push(now);
                lola.on_sent(now, links[position].snapshot.id, 1200, 0);
            }
        }
    }
    targets
}

#[test]
fn the_window_keeps_the_delay_below_delta_when_a_rate_halves() {
    let mut links = [Link::new(MS * 2, MS * 20, 0), Link::new(MS * 3, MS * 30, 1)];
    let mut before = Duration::ZERO;
    let targets = stream(&mut links, 300, |frame, links| match frame {
        20 => links.iter_mut().for_each(|link| link.slowest = Duration::ZERO),
        150 => {
            before = links[0].slowest;
            links[0].iat *= 2;
        }
        // Packets under way at that time are late, but no more than fit into delta.
        156 => {
            assert!(links[0].slowest < MS * 200, "{:?}", links[0].slowest);
            links.iter_mut().for_each(|link| link.slowest = Duration::ZERO);
        }
        _ => {}
    });
    assert!(before <= MS * 105, "{before:?}");
    // This camera fills each target, so that there is a queue when the pace changes.
    for link in &links {
        assert!(link.slowest <= MS * 115, "{:?}", link.slowest);
    }
    let mean = |targets: &[u64]| targets.iter().sum::<u64>() / targets.len() as u64;
    let (fast, slow) = (mean(&targets[100..150]), mean(&targets[200..300]));
    assert!(slow < fast * 4 / 5, "the encoder is told: {fast} bytes, then {slow}");
}

#[test]
fn a_link_that_healed_is_found_by_a_pair_of_copies() {
    let mut links = [Link::new(MS * 2, MS * 20, 0), Link::new(MS, MS * 10, 1)];
    let mut pushed = [0; 4];
    stream(&mut links, 400, |frame, links| match frame {
        // A packet each 150 ms: no packet arrives in time, and the window is zero.
        30 => links[1].iat = MS * 150,
        100 => pushed[0] = links[1].pushed,
        200 => {
            pushed[1] = links[1].pushed;
            links[1].change(at(200 * 33), MS);
        }
        220 => pushed[2] = links[1].pushed,
        399 => pushed[3] = links[1].pushed,
        _ => {}
    });
    let probes = pushed[1] - pushed[0];
    assert!(probes <= 100 * 33 / 150 + 2, "no more than the link can carry: {probes}");
    let used = pushed[3] - pushed[2];
    assert!(used > 179 * 10, "the healed link carries its share again: {used}");
}

#[test]
fn a_link_has_the_same_window_for_any_size_of_the_measured_packets() {
    // A link of 1,200 bytes each 4 ms; packets of the size fill it, one after the other.
    let window = |bytes: u32| {
        let mut lola = Lola::new(MS * 100);
        let path = path(0, 40, u64::MAX / 4);
        let select = |lola: &mut Lola, in_flight: u64, bytes: usize| {
            let path = PathSnapshot { bytes_in_flight: in_flight, ..path.clone() };
            lola.select_among(at(12_000), &crate::testing::packet(bytes), &[path])
        };
        select(&mut lola, 0, 1200); // it has seen a large one
        for packet in 1..=300 {
            let arrives = at(10_000) + MS * 4 * packet * bytes / 1200;
            let now = arrives + MS * 20;
            let acknowledged =
                AcknowledgedDatagram { path: PathId(0), sent: now - MS * 40, bytes, rtt: MS * 40 };
            lola.on_acknowledged(now, &acknowledged, 0);
        }
        let fits = |in_flight: &u64| select(&mut lola, *in_flight, 100) != Decision::Wait;
        (0..100_000).step_by(100).take_while(fits).last().expect("an empty link takes a packet")
    };
    // 80 ms: 20 large packets, or 240 small ones.
    let (large, small) = (window(1200), window(100));
    assert!((23_000..=24_000).contains(&large), "{large}");
    assert!(small.abs_diff(large) <= 500, "{small} after packets of 100 bytes");
}

#[test]
fn copies_are_two_of_the_next_frame_and_no_more() {
    let mut lola = Lola::new(MS * 100);
    let paths = [paced(&mut lola, 0, 10, 1), paced(&mut lola, 1, 60, 10)];
    let sets = |lola: &mut Lola, now: u64| -> Vec<usize> {
        let mut set = |left: u64| match lola.select_among(at(now), &packet(left * 1200), &paths) {
            Decision::Send(set) => {
                set.iter().for_each(|path| lola.on_sent(at(now), PathId(path as u32), 1200, 0));
                set.len()
            }
            Decision::Wait => 0,
        };
        (1..=4).rev().map(&mut set).collect()
    };
    assert_eq!(sets(&mut lola, 10_000), [1, 1, 1, 1], "both have had two packets just now");
    assert_eq!(sets(&mut lola, 10_033), [2, 2, 1, 1], "33 ms are longer than 2 * 10 ms");
    assert_eq!(sets(&mut lola, 10_050), [1, 1, 1, 1], "17 ms are not");
}

#[test]
fn a_path_is_probed_by_copies_and_never_by_a_packet_without_a_place() {
    let mut lola = Lola::new(MS * 100);
    let full = PathSnapshot { bytes_in_flight: 100 * 1200, ..paced(&mut lola, 0, 20, 4) };
    let slow = paced(&mut lola, 1, 20, 150);
    let silent = PathSnapshot { status: PathStatus::Suspect, ..paced(&mut lola, 2, 20, 4) };
    let mut paths = [full, slow, silent];
    (0..3).for_each(|_| lola.on_sent(at(10_499), PathId(0), 1200, 0));
    let select = |lola: &mut Lola, paths: &[PathSnapshot]| {
        lola.select_among(at(10_500), &packet(4800), paths)
    };
    assert_eq!(select(&mut lola, &paths), Decision::Wait);
    paths[0].bytes_in_flight = 0;
    assert_eq!(select(&mut lola, &paths), to_all(&[0, 1, 2]), "two copies beside it");
}

#[test]
fn where_nothing_is_under_way_a_pair_leaves_without_a_place() {
    let mut lola = Lola::new(MS * 100);
    let mut paths = [paced(&mut lola, 0, 20, 200), paced(&mut lola, 1, 20, 150)];
    let sets: Vec<usize> = (0..4)
        .map(|_| match lola.select_among(at(10_500), &packet(4800), &paths) {
            Decision::Send(set) => {
                for path in set.iter() {
                    lola.on_sent(at(10_500), PathId(path as u32), 1200, 0);
                    paths[path].bytes_in_flight += 1200;
                }
                set.len()
            }
            Decision::Wait => 0,
        })
        .collect();
    assert_eq!(sets, [2, 2, 0, 0], "nothing arrives in time, and both are probed");
}

#[test]
fn the_target_is_four_fifths_of_the_windows_less_what_stands_before_it() {
    let mut lola = Lola::new(MS * 100);
    let mut paths = [paced(&mut lola, 0, 20, 4), paced(&mut lola, 1, 40, 6)];
    // Windows of 80/4 and 60/6 packets; ten of the first path are on their way or were answered.
    paths[0].bytes_in_flight = 9 * 1200;
    assert_eq!(target(&lola, at(10_000), &paths), (16 + 8) * 1200);
    paths[0].bytes_in_flight = 15 * 1200;
    assert_eq!(target(&lola, at(10_000), &paths), (16 - 5 + 8) * 1200);
    paths[1].status = PathStatus::Suspect;
    assert_eq!(target(&lola, at(10_000), &paths), 11 * 1200);
    paths[0].bytes_in_flight = 100 * 1200;
    assert_eq!(target(&lola, at(10_000), &paths), 0, "it has more than it brings in time");
    paths[0].bytes_in_flight = 0;
    paths[0].status = PathStatus::Suspect;
    assert_eq!(target(&lola, at(10_000), &paths), 0, "no path answers");
    assert_eq!(target(&lola, at(10_000), &[]), 0);
}

#[test]
fn the_pacer_of_the_best_path_is_waited_for_unless_another_is_sooner() {
    let mut lola = Lola::new(MS * 100);
    let mut paths = [paced(&mut lola, 0, 20, 1), paced(&mut lola, 1, 25, 1)];
    paths[0].pacing_budget = 0;
    paths[0].pacing_rate = Some(Rate::from_kbps(9_600));
    assert_eq!(lola.select_among(at(10_000), &packet(1200), &paths), Decision::Wait, "1 ms");
    paths[0].pacing_rate = Some(Rate::from_kbps(960));
    let decision = lola.select_among(at(10_000), &packet(1200), &paths);
    assert_eq!(decision, to(1), "10 ms");
}

#[test]
fn a_packet_is_held_back_by_what_the_pacer_and_the_window_lack() {
    let path = |budget, window, in_flight| PathSnapshot {
        pacing_rate: Some(Rate::from_kbps(8_000)),
        pacing_budget: budget,
        bytes_in_flight: in_flight,
        ..PathSnapshot::idle(PathId(0), Duration::from_millis(40), window)
    };
    let ms = |path: &PathSnapshot| (held_back(path, 1200) * 1e6).round() / 1e3;
    assert_eq!(ms(&path(1200, 12_000, 0)), 0.0);
    // 8 Mbit/s: the 1,000 bytes that are missing take 1 ms.
    assert_eq!(ms(&path(200, 12_000, 0)), 1.0);
    // A window of ten packets lets one go each tenth of a round trip.
    assert_eq!(ms(&path(1200, 12_000, 12_000)), 4.0);
    assert_eq!(ms(&path(200, 12_000, 12_000)), 5.0);
}
