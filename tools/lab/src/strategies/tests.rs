use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathOffer, PathSnapshot, PathStatus, Rate};
use roadweave_schedule::{Decision, PacketInfo};

use super::*;

fn path(id: u32, rtt_ms: u64, room: u64) -> PathSnapshot {
    PathSnapshot::idle(PathId(id), Duration::from_millis(rtt_ms), room)
}

fn chosen(scheduler: &mut dyn Scheduler, flow: u64, paths: &[PathOffer<'_>]) -> Option<usize> {
    let packet = PacketInfo {
        bytes: 1200,
        backlog_bytes: 1200,
        flow,
        flow_bytes: 1200,
        waited: Duration::ZERO,
        is_of_streams: false,
    };
    match scheduler.select(Instant::ZERO, &packet, paths) {
        Decision::Send(chosen) => chosen.iter().next(),
        Decision::Wait => None,
    }
}

fn free(paths: &[PathSnapshot]) -> Vec<PathOffer<'_>> {
    paths.iter().map(PathOffer::free).collect()
}

#[test]
fn the_documentation_names_every_baseline() {
    let text = include_str!("../../../../docs/lab.md");
    for entry in BASELINES {
        let row = format!("| `{}` | {} |", entry.name(), entry.when());
        assert!(text.contains(&row), "{row}");
    }
}

#[test]
fn names_are_checked_and_the_error_lists_those_of_the_lab_as_well() {
    for name in plain_names().chain(["xlink:95-80", "xlink:1-1", "raven:100"]) {
        assert_eq!(strategy(name).expect("known").as_str(), name);
    }
    for name in ["xlink:", "xlink:95", "xlink:80-95", "xlink:100-50", "xlink:50-0", "xnc:1"] {
        let error = strategy(name).expect_err("unknown").to_string();
        assert!(error.contains(name) && error.contains("known are: xnc, minrtt,"), "{error}");
        assert!(error.ends_with("pluribus, bonding"), "{error}");
    }
}

#[test]
fn of_a_bond_a_flow_stays_on_its_path_and_flows_share_all_paths() {
    let paths = [path(0, 20, 9000), path(1, 30, 9000), path(2, 90, 9000)];
    let mut counts = [0; 3];
    for flow in 0..300 {
        let at = chosen(&mut Bonding, flow, &free(&paths)).expect("all have room");
        counts[at] += 1;
        // The path is full: the flow waits for it and does not move.
        let mut full = paths.clone();
        full[at].bytes_in_flight = 9000;
        assert_eq!(chosen(&mut Bonding, flow, &free(&full)), None);
        // A path that disappears moves only its own flows.
        let after = chosen(&mut Bonding, flow, &free(&paths[..2])).expect("both have room");
        assert!(at == 2 || at == after, "flow {flow}: {at}, then {after}");
    }
    assert!(counts.iter().all(|count| *count > 70), "{counts:?}");
}

#[test]
fn a_silent_path_is_used_as_any_other_as_long_as_it_has_room() {
    let mut paths = [path(0, 20, 9000), path(1, 30, 9000)];
    paths[0].status = PathStatus::Suspect;
    assert_eq!(chosen(&mut MinRtt::default(), 0, &free(&paths)), Some(1));
    assert_eq!(chosen(&mut Plain, 0, &free(&paths)), Some(0));
    paths[0].bytes_in_flight = 9000;
    assert_eq!(chosen(&mut Plain, 0, &free(&paths)), Some(1));
    paths[1].bytes_in_flight = 9000;
    assert_eq!(chosen(&mut Plain, 0, &free(&paths)), None);
}

#[test]
fn the_pacer_of_a_fast_path_is_waited_for_as_long_as_that_is_sooner() {
    let mut fast = path(0, 20, 90_000);
    fast.pacing_budget = 0;
    fast.pacing_rate = Some(Rate::from_kbps(9_600)); // a packet of 1,200 bytes each millisecond
    let slow = path(1, 60, 90_000);
    let select = |fast: &PathSnapshot, queued_bytes| {
        let fast = PathOffer { queued_bytes, ..PathOffer::free(fast) };
        chosen(&mut Earliest, 0, &[fast, PathOffer::free(&slow)])
    };
    assert_eq!(select(&fast, 0), None, "11 ms against 30 ms");
    assert_eq!(select(&fast, 24_000), Some(1), "31 ms against 30 ms");
    fast.pacing_budget = 30_000;
    assert_eq!(select(&fast, 24_000), Some(0));
    fast.bytes_in_flight = 90_000;
    assert_eq!(select(&fast, 24_000), Some(1), "its window is full");
}

#[test]
fn as_the_paper_has_it_the_window_alone_decides_and_a_packet_waits_for_its_path() {
    let mut fast = path(0, 40, 2400);
    fast.pacing_budget = 0;
    let slow = path(1, 50, 9000);
    let select = |queued_bytes| {
        let waited_for = PathOffer { queued_bytes, ..PathOffer::free(&fast) };
        chosen(&mut Window, 0, &[waited_for, PathOffer::free(&slow)])
    };
    assert_eq!(select(1200), Some(0));
    assert_eq!(select(1201), Some(1), "what waits fills the window");
}
