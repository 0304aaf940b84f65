//! Properties of every recovery.

use roadweave_proto::{PacketId, PathId, PathSnapshot};

use crate::testing::{Among, at, path, sent};
use crate::{
    Detection, Recovery, RecoveryConfig, RecoveryStats, Reliable, Repair, Thresholds, Xlink, Xnc,
    XncConfig,
};

const WATCHFUL: [&str; 7] =
    ["xnc", "xnc-sigcomm23", "xnc-no-coding", "xnc-no-qoe", "xnc-runs", "reliable", "xlink"];
const FLOOD: u32 = 1 << 18;

fn recovery(name: &str) -> Box<dyn Recovery> {
    let lane = RecoveryConfig::default();
    let usual = XncConfig::default();
    let config = match name {
        "reliable" => return Box::new(Reliable::new(lane)),
        "xlink" => return Box::new(Xlink::new(lane, Thresholds::default())),
        "xnc" => usual,
        "xnc-sigcomm23" => XncConfig::sigcomm23(lane),
        "xnc-no-coding" => XncConfig { codes: false, ..usual },
        "xnc-no-qoe" => XncConfig { detection: Detection::Quic, ..usual },
        "xnc-runs" => XncConfig { bridges: false, ..usual },
        other => panic!("no recovery is called {other}"),
    };
    Box::new(Xnc::new(config))
}

fn paths() -> [PathSnapshot; 2] {
    [path(0, 40, 100), path(1, 60, 100)]
}

fn repairs(recovery: &mut dyn Recovery, times_ms: &[u64]) -> Vec<Repair> {
    let paths = paths();
    let at_time = |ms: &u64| {
        let now = at(*ms);
        std::iter::from_fn(|| recovery.poll_repair_among(now, &paths, 0)).collect::<Vec<_>>()
    };
    times_ms.iter().flat_map(at_time).collect()
}

fn burst(recovery: &mut dyn Recovery, lost: &[u32]) {
    (0..10).for_each(|id| recovery.on_sent(at(0), sent(id, 0), &paths()));
    let arrived = (0..10).filter(|id| !lost.contains(id));
    arrived.for_each(|id| recovery.on_acknowledged(at(40), PacketId(id)));
}

#[test]
fn it_is_settled_when_nothing_is_under_way_and_only_then() {
    for name in WATCHFUL {
        let mut recovery = recovery(name);
        (0..2).for_each(|id| recovery.on_sent(at(0), sent(id, 0), &paths()));
        assert!(!recovery.is_settled(), "{name}: two packets are under way");
        recovery.on_acknowledged(at(40), PacketId(0));
        assert!(!recovery.is_settled(), "{name}: one is");
        recovery.on_acknowledged(at(40), PacketId(1));
        assert!(recovery.is_settled(), "{name}");
    }
}

#[test]
fn what_is_more_than_can_be_watched_is_given_up_and_counted() {
    for name in WATCHFUL {
        for waits in [false, true] {
            let mut recovery = recovery(name);
            for id in 0..FLOOD {
                match waits {
                    false => recovery.on_sent(at(0), sent(id, 0), &paths()),
                    true => recovery.on_waiting(at(0), sent(id, 0), &paths()),
                }
            }
            let abandoned = recovery.stats().abandoned;
            assert!((1..u64::from(FLOOD)).contains(&abandoned), "{name}, {waits}: {abandoned}");
        }
    }
}

#[test]
fn superseded_packets_are_settled_and_not_repaired() {
    for name in WATCHFUL {
        let mut recovery = recovery(name);
        (0..6).for_each(|id| recovery.on_sent(at(0), sent(id, 0), &paths()));
        recovery.on_acknowledged(at(40), PacketId(0));
        recovery.on_lost(at(45), PacketId(1), PathId(0));
        let needed: Vec<u32> = (0..5).filter(|id| !recovery.on_superseded(PacketId(*id))).collect();
        assert_eq!(needed, [0], "{name}: it had arrived");
        let repairs = repairs(&mut *recovery, &[50, 100, 200, 400]);
        let back: Vec<u32> = repairs.iter().flat_map(Repair::brings_back).map(|id| id.0).collect();
        assert!(!back.is_empty() && back.iter().all(|id| *id == 5), "{name}: {repairs:?}");
        recovery.on_acknowledged(at(420), PacketId(5));
        assert!(recovery.is_settled(), "{name}");
    }
}

#[test]
fn figures_add_up() {
    let times = |n: u64| RecoveryStats {
        lost: n,
        lost_by_timer: 2 * n,
        spurious: 3 * n,
        repairs: 4 * n,
        repaired: 5 * n,
        abandoned: 6 * n,
    };
    let mut sum = times(1);
    sum.merge(&times(2));
    assert_eq!(sum, times(3));
}

#[test]
fn repairs_and_losses_are_counted_one_by_one() {
    let mut reliable = recovery("reliable");
    burst(&mut *reliable, &[2, 3, 4, 5]);
    assert_eq!(repairs(&mut *reliable, &[400]).len(), 4);
    let stats = reliable.stats();
    assert_eq!((stats.lost, stats.lost_by_timer, stats.repairs), (4, 4, 4));

    let mut xnc = recovery("xnc-sigcomm23");
    burst(&mut *xnc, &[1, 7]);
    let count = repairs(&mut *xnc, &[60, 200]).len() as u64;
    assert_eq!((count, xnc.stats().repairs, xnc.stats().repaired), (2, 2, 2));
}

#[test]
fn ablations_leave_out_what_their_name_says() {
    let is_coded = |repair: &Repair| matches!(repair, Repair::Coded { .. });
    let times: Vec<u64> = (1..60).map(|step| step * 10).collect();
    let fired = |name: &str| {
        let mut recovery = recovery(name);
        burst(&mut *recovery, &[2, 3, 4, 5]);
        repairs(&mut *recovery, &times)
    };
    assert!(fired("xnc").iter().filter(|repair| is_coded(repair)).count() > 1, "it insists");
    assert_eq!(fired("xnc-sigcomm23").iter().filter(|repair| is_coded(repair)).count(), 1);
    let uncoded = fired("xnc-no-coding");
    assert!(!uncoded.is_empty() && !uncoded.iter().any(is_coded), "{uncoded:?}");
}
