use proptest::prelude::*;

use super::log::Log;
use super::tables::Tables;
use super::*;
use crate::testing::{Among, at, packet_of as packet, path, to};

const MS: Duration = Duration::from_millis(1);

fn raven(confidence: u8) -> Raven {
    Raven::new(RavenConfig { confidence, ..RavenConfig::default() })
}

fn acknowledge(raven: &mut Raven, now: Instant, path: u32, rtt_ms: u64) {
    let (rtt, path) = (MS * rtt_ms as u32, PathId(path));
    let acknowledged = AcknowledgedDatagram { path, sent: now - rtt, bytes: 1200, rtt };
    raven.on_acknowledged(now, &acknowledged, 0);
}

fn measured(confidence: u8, rtts_ms: &[u64]) -> (Raven, Vec<PathSnapshot>) {
    let mut raven = raven(confidence);
    let paths: Vec<_> = (0..).zip(rtts_ms).map(|(id, rtt_ms)| path(id, *rtt_ms, 30_000)).collect();
    raven.select_among(at(0), &packet(1200), &paths);
    for (id, rtt_ms) in (0..).zip(rtts_ms) {
        acknowledge(&mut raven, at(0), id, *rtt_ms);
    }
    (raven, paths)
}

fn chosen(raven: &mut Raven, now: Instant, paths: &[PathSnapshot]) -> Vec<usize> {
    match raven.select_among(now, &packet(1200), paths) {
        Decision::Send(set) => set.iter().collect(),
        Decision::Wait => Vec::new(),
    }
}

/// Chooses for a packet and puts it on the paths; returns their positions, none if it waits.
fn send(
    raven: &mut Raven,
    now: Instant,
    packet: &PacketInfo,
    paths: &mut [PathSnapshot],
) -> Vec<usize> {
    let Decision::Send(set) = raven.select_among(now, packet, paths) else { return Vec::new() };
    for position in set.iter() {
        paths[position].bytes_in_flight += 1200;
        raven.on_sent(now, paths[position].id, 1200, packet.flow);
    }
    set.iter().collect()
}

#[test]
fn confidence_weighs_volume_against_time() {
    for (confidence, expected) in
        [(0, &[1][..]), (20, &[1]), (50, &[0, 1]), (90, &[0, 1]), (100, &[0, 1, 2])]
    {
        let (mut raven, paths) = measured(confidence, &[60, 50, 400]);
        assert_eq!(chosen(&mut raven, at(0), &paths), expected, "{confidence} %");
    }
}

#[test]
fn a_stale_bad_path_gets_probed_by_a_copy() {
    let (mut raven, paths) = measured(90, &[50, 300]);
    let mut copied_at = None;
    for now in (0..60_000).step_by(20).map(at) {
        acknowledge(&mut raven, now, 0, 50);
        match &chosen(&mut raven, now, &paths)[..] {
            [0] if copied_at.is_none() => {}
            [0, 1] => {
                copied_at = Some(now);
                break;
            }
            other => panic!("{now}: {other:?}"),
        }
    }
    let copied_at = copied_at.expect("in the end the intervals overlap");
    assert!((1_000..30_000).contains(&(copied_at.as_nanos() / 1_000_000)), "{copied_at}");
    // The copy finds out that the path is as bad as before, and there are no more of them.
    acknowledge(&mut raven, copied_at, 1, 300);
    assert_eq!(chosen(&mut raven, copied_at, &paths), [0]);
    acknowledge(&mut raven, copied_at + MS * 5_000, 1, 10);
    (0..40).for_each(|_| acknowledge(&mut raven, copied_at + MS * 5_000, 1, 10));
    acknowledge(&mut raven, copied_at + MS * 5_000, 0, 50);
    assert_eq!(chosen(&mut raven, copied_at + MS * 5_000, &paths), [1]);
}

#[test]
fn without_ageing_a_stale_bad_path_stays_bad() {
    let (mut raven, paths) = measured(90, &[50, 300]);
    raven.config.ages = false;
    for now in (0..60_000).step_by(20).map(at) {
        acknowledge(&mut raven, now, 0, 50);
        assert_eq!(chosen(&mut raven, now, &paths), [0], "{now}");
    }
}

#[test]
fn a_path_without_any_sample_gets_a_copy_of_everything() {
    let (mut raven, mut paths) = measured(90, &[50]);
    paths.push(path(7, 900, 30_000));
    assert_eq!(chosen(&mut raven, at(1), &paths), [0, 1]);
    acknowledge(&mut raven, at(1), 7, 900);
    assert_eq!(chosen(&mut raven, at(1), &paths), [0]);
}

#[test]
fn a_silent_path_is_never_the_only_one() {
    let (mut raven, mut paths) = measured(90, &[10, 300]);
    assert_eq!(chosen(&mut raven, at(0), &paths), [0]);
    paths[0].status = PathStatus::Suspect;
    let set = chosen(&mut raven, at(0), &paths);
    assert!(set.contains(&1), "{set:?}");
    paths[1].status = PathStatus::Suspect;
    assert_eq!(chosen(&mut raven, at(0), &paths), [0]);
    paths.iter_mut().for_each(|path| path.status = PathStatus::Standby);
    assert_eq!(chosen(&mut raven, at(0), &paths), [0_usize; 0]);
}

#[test]
fn what_the_carrier_measured_counts() {
    let (mut raven, mut paths) = measured(90, &[50, 300]);
    paths[1].last_acknowledged = Some(at(40_000));
    paths[1].latest_rtt = MS * 20;
    paths[0].last_acknowledged = Some(at(40_000));
    assert_eq!(chosen(&mut raven, at(40_000), &paths), [1]);
}

#[test]
fn a_large_transfer_is_not_doubled_and_what_follows_is_again() {
    let (mut raven, mut paths) = measured(90, &[50, 55]);
    let mut copies = 0;
    // 300 packets at once, with windows of 25: they leave as they are chosen, nothing arrives yet.
    let mut queued = [0; 2];
    for left in (1..=300_u64).rev() {
        let offer =
            |at: usize| PathOffer { queued_bytes: queued[at], ..PathOffer::free(&paths[at]) };
        let offers = [0, 1].map(offer);
        let Decision::Send(set) = raven.select(at(1), &packet(left * 1200), &offers) else { break };
        copies += set.len() - 1;
        for position in set.iter() {
            let path = &mut paths[position];
            if path.room() >= 1200 {
                path.bytes_in_flight += 1200;
                raven.on_sent(at(1), path.id, 1200, 0);
            } else {
                queued[position] += 1200;
            }
        }
    }
    assert!((24..=26).contains(&copies), "one window is doubled: {copies}");
    // The windows are free again, but packets are still under way.
    paths.iter_mut().for_each(|path| path.bytes_in_flight = 12_000);
    assert_eq!(raven.select_among(at(50), &packet(1200), &paths), to(0));
    paths.iter_mut().for_each(|path| path.bytes_in_flight = 0);
    assert_eq!(raven.select_among(at(75), &packet(4800), &paths), to(0));
    assert_eq!(chosen(&mut raven, at(75), &paths), [0, 1]);
}

#[test]
fn a_paced_stream_is_a_large_transfer_though_it_fills_no_window_of_a_path() {
    // 12 Mbit/s over two paths whose windows are ten times what is under way.
    let (mut raven, mut paths) = measured(100, &[50, 55]);
    paths.iter_mut().for_each(|path| path.congestion_window = 750_000);
    let (mut copies, mut flying) = (0, [0_u64; 2]);
    for millis in 0..2000_u64 {
        let now = at(millis);
        if millis % 2 == 0 {
            let sent = send(&mut raven, now, &packet(1200), &mut paths);
            copies += sent.len().saturating_sub(1);
            sent.iter().for_each(|position| flying[*position] += 1);
        }
        for position in 0..2 {
            if millis >= 52 && millis % 2 == 0 && flying[position] > 20 {
                flying[position] -= 1;
                paths[position].bytes_in_flight -= 1200;
                acknowledge(&mut raven, now, position as u32, 52);
            }
        }
    }
    assert!((54..=57).contains(&copies), "of 1,000 packets {copies} are copied");
}

#[test]
fn a_large_flow_does_not_take_the_copies_of_another() {
    let (mut raven, mut paths) = measured(90, &[50, 55]);
    let of = |flow, backlog| PacketInfo { flow, ..packet(backlog) };
    let mut left = 300;
    while !send(&mut raven, at(1), &of(7, left * 1200), &mut paths).is_empty() && left > 1 {
        left -= 1;
    }
    paths.iter_mut().for_each(|path| path.bytes_in_flight = 20_000);
    let mut copies = |flow| match raven.select_among(at(2), &of(flow, 250 * 1200), &paths) {
        Decision::Send(set) => set.len() - 1,
        Decision::Wait => panic!("there is room"),
    };
    assert_eq!((copies(7), copies(8), copies(8)), (0, 1, 1));
}

#[test]
fn a_transfer_of_streams_is_large_after_what_the_paper_copies() {
    // Windows that other traffic has found out.
    let copies = |is_of_streams| {
        let (mut raven, mut paths) = measured(100, &[50, 55]);
        paths.iter_mut().for_each(|path| path.congestion_window = 750_000);
        let copied = (1..=300_u64).rev().filter(|left| {
            let packet = PacketInfo { is_of_streams, ..packet(left * 1200) };
            let sent = send(&mut raven, at(1), &packet, &mut paths);
            paths.iter_mut().for_each(|path| path.bytes_in_flight = 0);
            sent.len() > 1
        });
        copied.count()
    };
    // 20,800 and 64,000 bytes, plus two packets behind which no more are known.
    assert_eq!((copies(true), copies(false)), (20, 56));
}

#[test]
fn copies_go_on_when_one_of_two_paths_falls_silent() {
    let (mut raven, mut paths) = measured(90, &[50, 55]);
    paths[0].status = PathStatus::Suspect;
    assert_eq!(chosen(&mut raven, at(0), &paths), [0, 1]);
    // Packets that the silent path holds do not show how much is sent.
    paths[0].bytes_in_flight = 28_800;
    (0..26).for_each(|_| raven.on_sent(at(0), PathId(0), 1200, 0));
    assert_eq!(chosen(&mut raven, at(0), &paths), [0, 1]);
    (0..26).for_each(|_| raven.on_sent(at(0), PathId(1), 1200, 0));
    paths[1].bytes_in_flight = 28_800;
    assert_eq!(chosen(&mut raven, at(0), &paths), [1], "a large transfer all the same");
    // It was the nearest by far: it will be again, if it answers.
    let (mut raven, mut paths) = measured(90, &[10, 300]);
    paths[0].status = PathStatus::Suspect;
    assert_eq!(chosen(&mut raven, at(0), &paths), [0, 1]);
}

#[test]
fn a_transfer_over_the_one_certain_path_spills_when_waiting_for_that_would_take_too_long() {
    let spread = |behind: u64| {
        let (mut raven, mut paths) = measured(90, &[50, 300, 400]);
        let mut sent = [0; 3];
        for left in (1..=60_u64).rev() {
            let packet = packet((left + behind) * 1200);
            let chosen = send(&mut raven, at(1), &packet, &mut paths);
            if chosen.is_empty() {
                break;
            }
            chosen.iter().for_each(|position| sent[*position] += 1);
        }
        sent
    };
    assert_eq!(spread(8000), [25, 25, 10]);
    assert_eq!(spread(0), [25, 0, 0], "it passes the rest in 70 ms");
}

#[test]
fn a_copy_waits_for_a_full_path_and_another_leaves_at_once() {
    let (mut raven, mut paths) = measured(90, &[50, 55, 300]);
    paths[0].pacing_budget = 0;
    assert_eq!(chosen(&mut raven, at(0), &paths), [0, 1]);
    paths[1].pacing_budget = 0;
    assert_eq!(chosen(&mut raven, at(0), &paths), [0, 1, 2], "better slow than not at all");
    paths[2].pacing_budget = 0;
    assert_eq!(chosen(&mut raven, at(0), &paths), [0, 1], "they wait where they would be fastest");
}

#[test]
fn a_lone_path_is_waited_for() {
    let (mut raven, mut paths) = measured(90, &[50]);
    assert_eq!(chosen(&mut raven, at(0), &paths), [0]);
    paths[0].pacing_budget = 0;
    assert_eq!(chosen(&mut raven, at(0), &paths), [0_usize; 0]);
    assert_eq!(chosen(&mut raven, at(0), &[]), [0_usize; 0]);
}

#[test]
fn what_other_lanes_have_under_way_ends_no_copies() {
    let (mut raven, mut paths) = measured(90, &[50, 55]);
    paths.iter_mut().for_each(|path| path.bytes_in_flight = 30_000);
    assert_eq!(chosen(&mut raven, at(0), &paths), [0, 1]);
}

/// Round trips of a network that wander and have spikes, each 200 ms.
fn recorded(base_ms: u64) -> Vec<(Instant, Duration)> {
    let rtt = |n: u64| base_ms + n / 20 * 7 % 30 + if n.is_multiple_of(31) { 150 } else { 0 };
    (0..600).map(|n| (at(n * 200), MS * rtt(n) as u32)).collect()
}

#[test]
fn what_was_learned_lives_on() {
    let mut teacher = raven(90);
    teacher.learn("wwan0", recorded(50));
    teacher.learn("wlan0", recorded(20));
    let learned = teacher.learned().expect("it learns");
    assert!(learned.len() < 40_000, "{} bytes", learned.len());

    let mut pupil = raven(90);
    pupil.restore(&learned).expect("it was written by the same program");
    assert_eq!(pupil.learned().expect("it learns"), learned);
    pupil.name_path(PathId(0), "wwan0");
    let paths = [0, 1, 2].map(|id| path(id, 50, 30_000));
    pupil.select_among(at(0), &packet(1200), &paths);
    pupil.name_path(PathId(2), "wlan0");
    let tables = |path: usize| pupil.networks.tables(pupil.paths[path].network);
    let teacher = teacher.networks;
    assert_eq!(tables(0), teacher.all[0].tables.as_ref().expect("learned"));
    assert_eq!(tables(2), teacher.all[1].tables.as_ref().expect("learned"), "named later");
    assert_eq!(tables(1), teacher.pooled.as_ref().expect("learned"), "nobody knows this one");
}

#[test]
fn stored_state_is_bounded_for_any_number_of_networks() {
    let network = |number: usize| {
        let mut log = Log::default();
        let mut sample = |at: u32| log.add(f64::from(at) / 5.0, 0.05 + f64::from(at % 37) / 1e3);
        assert!((0..4_000).all(&mut sample));
        Network { name: Some(format!("wwan{number}")), log, ..Network::default() }
    };
    let kept = |count: usize| {
        let text = stored::write(&(0..count).map(network).collect::<Vec<_>>(), None);
        let (networks, _) = stored::read(&text).expect("it was just written");
        assert_eq!(networks.len(), count);
        let samples: Vec<usize> = networks.iter().map(|network| network.log.len()).collect();
        (text.len(), samples[0], samples.iter().sum::<usize>())
    };
    let (few, whole, _) = kept(4);
    assert!(whole >= log::LOG_MAX, "a box with four modems forgets nothing: {whole}");
    let (many, each, all) = kept(NETWORKS_MAX);
    assert_eq!((each, all), (4 * log::LOG_MAX / NETWORKS_MAX, 4 * log::LOG_MAX));
    assert!(many < few + NETWORKS_MAX * 64 && many < 256 << 10, "{few} and {many} bytes");
}

#[test]
fn a_network_is_learned_when_there_is_enough_and_then_once_a_day() {
    let (mut raven, paths) = measured(90, &[50]);
    let learned_at = |raven: &Raven| raven.networks.all[0].learned_at;
    let mut now = at(1_000);
    for n in 0..99 {
        acknowledge(&mut raven, now, 0, 50 + n % 7);
        now += MS * 200;
    }
    assert_eq!(learned_at(&raven), None);
    acknowledge(&mut raven, now, 0, 50);
    assert_eq!(learned_at(&raven), Some(now));
    let first = now;
    while now.since(first) < Duration::from_secs(24 * 60 * 60) {
        assert_eq!(learned_at(&raven), Some(first));
        acknowledge(&mut raven, now, 0, 52);
        now += Duration::from_secs(60);
    }
    acknowledge(&mut raven, now, 0, 52);
    assert_eq!(learned_at(&raven), Some(now));
    for _ in 0..2048 {
        now += MS * 200;
        acknowledge(&mut raven, now, 0, 53);
    }
    assert_eq!(learned_at(&raven), Some(now), "so many samples make it sooner");
    assert_eq!(chosen(&mut raven, now, &paths), [0]);
}

#[test]
fn nonsense_is_refused_with_a_reason_and_changes_nothing() {
    let mut raven = raven(90);
    raven.learn("wwan0", recorded(50));
    let good = raven.learned().expect("it learns");
    let check = |wrong: &str, reason: &str| {
        let mut pupil = Raven::new(RavenConfig::default());
        pupil.restore(&good).expect("good");
        let error = pupil.restore(wrong).expect_err(wrong).to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(pupil.learned().as_ref(), Some(&good));
    };
    check("", "EOF");
    check("{}", "version");
    check(r#"{"version":2,"nets":[]}"#, "its version is 2, and this program supports 1");
    check(r#"{"version":1,"networks":{},"more":1}"#, "more");
    check(&good.replace("\"lambda_s\":", "\"lambda_s\":-"), "lambda_s is out of bounds");
    check(&good.replace("\"errors\":[", "\"errors\":[1e9,"), "errors are not percentiles");
    check(&good.replace("\"ages\":[[0.25,", "\"ages\":[[70.0,"), "ages are not a table");
    check(&good.replace("[[[0.0,", "[[[5000.0,"), "do not ascend");
    check(&good.replace("wwan0", &"w".repeat(65)), "its name is too long");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_damage_is_survived(place in 0.0..1.0_f64, byte in 32_u8..127, cut in any::<bool>()) {
        let mut teacher = raven(90);
        teacher.learn("wwan0", recorded(50));
        let mut text = teacher.learned().expect("it learns").into_bytes();
        // Mostly in the tables, which come after the log.
        let place = (place.sqrt() * text.len() as f64) as usize;
        if cut { text.truncate(place) } else { text[place] = byte }
        let text = String::from_utf8(text).expect("it is ASCII");
        let (mut raven, paths) = measured(90, &[50, 60]);
        let _ = raven.restore(&text);
        for now in [at(1), at(100_000)] {
            prop_assert!(!chosen(&mut raven, now, &paths).is_empty());
        }
    }

    #[test]
    fn the_lowest_prediction_and_all_that_overlap_are_chosen(
        rtts in prop::collection::vec((1..800_u64, 0..20_000_u64), 2..6),
        percent in 1_u8..100,
    ) {
        let mut raven = raven(percent);
        let paths: Vec<_> =
            (0..).zip(&rtts).map(|(id, (rtt, _))| path(id, *rtt, 30_000)).collect();
        raven.select_among(at(0), &packet(1200), &paths);
        for (id, (rtt, age)) in (0..).zip(&rtts) {
            acknowledge(&mut raven, at(20_000 - age), id, *rtt);
        }
        let tables = Tables::assumed();
        let interval = |(rtt, age): &(u64, u64)| {
            tables.interval(*rtt as f64 / 1e3, *age as f64 / 1e3, percent)
        };
        let best = rtts.iter().min_by_key(|(rtt, _)| *rtt).map(interval).expect("paths");
        let expected: Vec<usize> = (0..rtts.len())
            .filter(|at| {
                let this = interval(&rtts[*at]);
                this.low <= best.high && best.low <= this.high
            })
            .collect();
        prop_assert_eq!(chosen(&mut raven, at(20_000), &paths), expected);
    }
}

#[test]
fn memory_is_bounded_however_many_paths_come_and_go() {
    let mut raven = raven(90);
    for id in 0..500 {
        raven.name_path(PathId(2 * id), &format!("modem{id}"));
        let paths = [path(2 * id, 50, 30_000), path(2 * id + 1, 60, 30_000)];
        raven.select_among(at(u64::from(id) * 1000), &packet(1200), &paths);
        acknowledge(&mut raven, at(u64::from(id) * 1000), 2 * id, 50);
    }
    assert_eq!(raven.paths.len(), 2);
    let networks = raven.networks.all;
    assert!(networks.len() <= NETWORKS_MAX && raven.names.len() <= NETWORKS_MAX);
    let newest = networks.iter().find(|network| network.name.as_deref() == Some("modem499"));
    assert!(newest.is_some(), "the newest are remembered");
}
