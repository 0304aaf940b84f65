//! Copies that wait for a path of their own.

use super::*;
use crate::lane::{Keeps, StrategyEntry};

#[test]
fn a_copy_for_a_path_without_room_waits_there_and_leaves_when_there_is_room() {
    let (mut sender, mut carrier) = sending(sender_everywhere(), [10_000, 0], &[500, 300]);
    assert_eq!(carrier.sent, [(PathId(0), 0), (PathId(0), 1)]);
    assert_eq!(sender.stats().copy_queue_bytes, 508 + 308);
    let queued = |sender: &LaneSender, carrier: &TwoPaths| {
        let offers = sender.resends.offers(&carrier.paths);
        offers.iter().map(|path| path.queued_bytes).collect::<Vec<_>>()
    };
    assert_eq!(queued(&sender, &carrier), [0, 508 + 308]);

    carrier.paths[1].congestion_window = 600;
    sender.transmit(at(1), &mut carrier);
    assert_eq!(carrier.sent[2..], [(PathId(1), 0)], "in order");
    assert_eq!(queued(&sender, &carrier), [0, 308]);
    let stats = sender.stats();
    assert_eq!((stats.source_datagrams, stats.duplicate_datagrams), (2, 1));
    assert_eq!(stats.redundancy(), (2.0 * 508.0 + 308.0) / 800.0 - 1.0);
}

#[test]
fn a_copy_that_waits_is_withdrawn_when_another_is_acknowledged() {
    let (mut sender, mut carrier) = sending(sender_everywhere(), [10_000, 0], &[500, 300]);
    acknowledge(&mut sender, at(40), PathId(0), 0);
    let stats = sender.stats();
    assert_eq!((stats.copy_queue_bytes, stats.drops.get(DropReason::CopyCancelled)), (308, 1));
    carrier.paths[1].congestion_window = 10_000;
    sender.transmit(at(41), &mut carrier);
    assert_eq!(carrier.sent[2..], [(PathId(1), 1)], "the first needs no copy any more");
}

#[test]
fn without_cancelling_a_copy_that_waits_leaves_although_another_was_acknowledged() {
    static KEEPING: StrategyEntry =
        StrategyEntry::new("keeping", "a test", |_, _| None, |_, _| None, Keeps::UntilGivenUp)
            .without_cancelling();
    let (mut sender, mut carrier) = sending(sender_everywhere(), [10_000, 0], &[500, 300]);
    sender.config.strategy.entry = &KEEPING;
    acknowledge(&mut sender, at(40), PathId(0), 0);
    assert_eq!(sender.stats().drops.get(DropReason::CopyCancelled), 0);
    carrier.paths[1].congestion_window = 10_000;
    sender.transmit(at(41), &mut carrier);
    assert_eq!(carrier.sent[2..], [(PathId(1), 0), (PathId(1), 1)]);
}

#[test]
fn a_packet_whose_copies_all_wait_is_sent_when_one_can_leave() {
    let (mut sender, mut carrier) = sending(sender_everywhere(), [0, 0], &[500]);
    assert_eq!((carrier.sent.len(), sender.stats().copy_queue_bytes), (0, 2 * 508));
    carrier.paths[1].congestion_window = 10_000;
    sender.transmit(at(900), &mut carrier);
    assert_eq!(carrier.sent, [(PathId(1), 0)], "waiting is no loss");
    assert_eq!(sender.stats().recovery.lost, 0);
    assert_eq!(sender.stats().duplicate_datagrams, 0, "the copy that left is the first");
}

#[test]
fn the_copies_of_a_path_that_falls_silent_are_given_up_and_sent_elsewhere() {
    let (mut carrier, mut sender) = (TwoPaths::new([0, 0]), sender_everywhere());
    sender.handle_inner(at(0), &[7; 500], 1, None);
    carrier.paths[1].status = PathStatus::Standby;
    sender.transmit(at(0), &mut carrier);
    carrier.paths[0].status = PathStatus::Suspect;
    carrier.paths[1].status = PathStatus::Usable;
    carrier.paths[1].congestion_window = 10_000;
    sender.transmit(at(1), &mut carrier);
    assert_eq!(carrier.sent, [(PathId(1), 0)]);
    sender.transmit(at(2), &mut carrier);
    assert_eq!(carrier.sent.len(), 1);
    assert_eq!(sender.stats().drops.get(DropReason::CopyUnsent), 1);
}

#[test]
fn the_packet_itself_counts_on_the_best_path_and_a_copy_on_the_slower_one() {
    let (mut carrier, mut sender) = (TwoPaths::new([10_000, 10_000]), sender_everywhere());
    carrier.paths[1].expected_rtt = Duration::from_millis(20);
    carrier.paths[1].pacing_budget = 0;
    sender.handle_inner(at(0), &[7; 500], 1, None);
    sender.transmit(at(0), &mut carrier);
    assert_eq!((carrier.sent.clone(), carrier.accounted), (vec![(PathId(0), 0)], [0, 508]));
    carrier.paths[1].pacing_budget = u64::MAX;
    sender.transmit(at(1), &mut carrier);
    assert_eq!((carrier.sent[1], carrier.accounted), ((PathId(1), 0), [508, 508]));
}
