use std::time::Duration;

use roadweave_emulate::{DriveLink, DuplexLink, GilbertElliott, Trace};
use roadweave_proto::Rate;
use roadweave_tunnel::{LaneConfig, Strategy, default_lanes};

use super::*;
use crate::run::run;
use crate::scenario::Scenario;
use crate::traffic::TrafficKind;

const ENDLESS: Bulk = Bulk { bytes: None, congestion: CongestionControl::Cubic };

fn spec(port: u16, bulk: Bulk, seconds: u64) -> TrafficSpec {
    let (name, kind) = (format!("bulk {port}"), TrafficKind::Bulk(bulk));
    TrafficSpec { name, port, kind, ..TrafficSpec::video(Rate::ZERO, Duration::from_secs(seconds)) }
}

fn link(name: &str, delay_ms: u64, index: u64) -> DuplexLink {
    let trace = Trace::constant(Rate::from_kbps(8_000), Duration::from_millis(delay_ms));
    DuplexLink::new(&DriveLink::symmetric(name, trace), index, 1)
}

/// Transfers over one link of 8 Mbit/s; the tunnel neither loses nor repairs packets.
fn over_one_link(delay_ms: u64, transfers: &[Bulk], seconds: u32) -> Scenario {
    let specs = (5_000..).zip(transfers);
    Scenario {
        traffic: specs.map(|(port, bulk)| spec(port, *bulk, seconds.into())).collect(),
        seconds,
        congestion: CongestionControl::Cubic,
        ..Scenario::new("bulk", vec![link("a", delay_ms, 0)], "single:a".parse().unwrap())
    }
}

fn reports(scenario: &Scenario) -> (Vec<BulkReport>, Option<f64>) {
    let outcome = run(scenario).unwrap();
    let bulk = |report: &TrafficReport| match &report.detail {
        Detail::Bulk(bulk) => (**bulk).clone(),
        other => panic!("a bulk transfer reports one, not {other:?}"),
    };
    assert!(outcome.traffic.iter().all(|report| report.unexpected_packets == 0));
    (outcome.traffic.iter().map(bulk).collect(), outcome.fairness)
}

#[test]
fn one_fills_most_of_the_link_and_two_share_it() {
    let (alone, fairness) = reports(&over_one_link(20, &[ENDLESS], 8));
    let share = alone[0].goodput_bps / 8e6;
    assert!((0.85..1.0).contains(&share), "{share}");
    assert_eq!((fairness, alone[0].completion_s, alone[0].is_broken), (None, None, false));
    assert!(alone[0].stream.log.packets.len() > 5_000);
    let (two, fairness) = reports(&over_one_link(20, &[ENDLESS, ENDLESS], 12));
    let share = (two[0].goodput_bps + two[1].goodput_bps) / 8e6;
    assert!((0.8..1.0).contains(&share) && fairness.unwrap() > 0.8, "{share} {fairness:?}");
}

#[test]
fn a_transfer_of_so_many_bytes_completes() {
    let million = Bulk { bytes: Some(1_000_000), ..ENDLESS };
    let (reports, _) = reports(&over_one_link(20, &[million], 4));
    assert_eq!(reports[0].received_bytes, 1_000_000);
    let completion = reports[0].completion_s.unwrap();
    assert!((1.0..2.0).contains(&completion), "{completion}");
    assert!((reports[0].goodput_bps * completion / 8e6 - 1.0).abs() < 1e-9);
}

#[test]
fn in_the_products_lanes_two_links_carry_more_than_the_better_one() {
    let mut second = link("b", 45, 1);
    second.up.burst_loss = Some(GilbertElliott::bursts(0.01, 4.0));
    let goodput = |lanes: Vec<LaneConfig>| {
        let scenario = Scenario {
            links: vec![link("a", 20, 0), second.clone()],
            lanes,
            congestion: CongestionControl::Bbr,
            ..over_one_link(20, &[ENDLESS], 8)
        };
        reports(&scenario).0[0].goodput_bps
    };
    let lanes = goodput(default_lanes());
    let single = goodput(vec![LaneConfig::new("single", "single:a".parse().unwrap())]);
    let pass = goodput(vec![LaneConfig::new("pass", Strategy::xnc())]);
    assert!(lanes > 1.3 * single, "{lanes} {single}");
    assert!(pass < 0.7 * lanes, "packets that overtake others are taken for lost: {pass} {lanes}");
}

#[test]
fn fairness_is_one_for_equals_and_one_part_for_a_glutton() {
    let report = |goodput_bps| TrafficReport {
        detail: Detail::Bulk(Box::new(BulkReport { goodput_bps, ..BulkReport::default() })),
        ..TrafficReport::default()
    };
    assert_eq!(fairness(&[report(3.0), report(3.0), report(3.0)]), Some(1.0));
    assert_eq!(fairness(&[report(8.0), report(0.0), report(0.0), report(0.0)]), Some(0.25));
    assert_eq!(fairness(&[report(1.0)]), None);
    assert_eq!(fairness(&[report(0.0), report(0.0)]), None);
}
