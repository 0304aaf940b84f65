//! IDs far from all received ones: the window stays, or follows the lane.

use super::*;

fn decoder() -> Decoder {
    Decoder::new(DecoderConfig::default())
}

/// Handles a packet on a lane of single packets: a source packet, or a coded packet over another.
fn arrive(decoder: &mut Decoder, millis: u64, id: u32, is_source: bool) -> bool {
    let mut out = Vec::new();
    let body = symbol(9, id.into());
    if is_source {
        let outcome = decoder.on_source(at(millis), PacketId(id), body, &mut out);
        assert_eq!(outcome == SourceOutcome::New, !out.is_empty());
    } else {
        decoder.on_coded(at(millis), range(id, 2, 1), body, &mut out);
    }
    assert_conservation(decoder);
    !out.is_empty()
}

#[test]
fn a_jump_is_refused_while_packets_come_and_after_a_silence_believed_the_second_time() {
    let (mut decoder, mut out) = (decoder(), Vec::new());
    let mut source =
        |millis, id| decoder.on_source(at(millis), PacketId(id), symbol(9, 9), &mut out);
    assert_eq!(source(0, 7), SourceOutcome::New);
    assert_eq!(source(1, 2_000_000_000), SourceOutcome::FarAhead);
    assert_eq!(source(2, 8), SourceOutcome::New);
    assert_eq!(source(3, 7), SourceOutcome::Duplicate);
    assert_eq!(source(702, 70_000), SourceOutcome::FarAhead);
    assert_eq!(source(703, 200_000), SourceOutcome::FarAhead);
    assert_eq!(source(703, 200_000), SourceOutcome::FarAhead, "the same again is no second one");
    assert_eq!(source(704, 200_001), SourceOutcome::New);
    assert_eq!(source(705, 199_000), SourceOutcome::New);
    assert_eq!(source(706, 9), SourceOutcome::Late);
    assert_eq!(source(707, 10), SourceOutcome::Late);
    assert_eq!(decoder.stats().drops.get(DropReason::IdJump), 4);
    let behind = range(199_999 - 131_072, 3, 1);
    assert_eq!(decoder.on_coded(at(707), behind, symbol(9, 9), &mut out), CodedOutcome::Late);
    let far = range(1_000_000, 2, 1);
    let outcome = decoder.on_coded(at(707), far, symbol(9, 9), &mut out);
    assert_eq!(outcome, CodedOutcome::FarAhead);
    assert_conservation(&decoder);
}

/// After a second of silence, on a lane of a packet each second, and as the very first of a lane.
#[test]
fn one_broken_id_costs_a_lane_no_more_than_one_packet() {
    for (before, pause) in [(100, 800), (100, 1), (0, 1), (0, 1_000), (1, 1), (1, 1_000)] {
        for is_source in [false, true] {
            for wild in [1 << 30, 3 << 30, 200_000, u32::MAX - 200_000] {
                let mut decoder = decoder();
                assert!((0..before).all(|id| arrive(&mut decoder, id.into(), id, true)));
                let mut millis = 100 + pause;
                arrive(&mut decoder, millis, wild, is_source);
                let mut refused = 0;
                for id in before..before + 1_000 {
                    millis += pause;
                    refused += u32::from(!arrive(&mut decoder, millis, id, true));
                }
                let most = u32::from(before == 0);
                assert!(refused <= most, "{refused} lost: {before}, {pause}, {is_source}, {wild}");
            }
        }
    }
}

#[test]
fn ids_are_near_one_another_within_half_a_window() {
    for (distance, is_near) in [(1, true), (65_535, true), (65_536, false), (1 << 31, false)] {
        for is_ascending in [true, false] {
            let mut decoder = decoder();
            assert!(arrive(&mut decoder, 0, 0, true));
            let ids = [1 << 30, (1 << 30) + distance];
            let [first, second] = if is_ascending { ids } else { [ids[1], ids[0]] };
            assert!(!arrive(&mut decoder, 1, first, true));
            assert_eq!(arrive(&mut decoder, 1, second, true), is_near, "{distance}");
        }
    }
}

#[test]
fn broken_ids_with_good_ones_between_them_move_no_window() {
    let mut decoder = decoder();
    assert!((0..100).all(|id| arrive(&mut decoder, 0, id, true)));
    for id in 0..10 {
        let millis = 1_000 * u64::from(id + 1);
        assert!(!arrive(&mut decoder, millis, (1 << 30) + id, true));
        assert!(arrive(&mut decoder, millis, 100 + id, true));
    }
}

#[test]
fn a_window_that_was_moved_away_returns_after_a_silence() {
    for wild in [1 << 30, 3 << 30] {
        let mut decoder = decoder();
        assert!((0..100).all(|id| arrive(&mut decoder, 0, id, true)));
        assert!(!arrive(&mut decoder, 800, wild, true));
        assert!(arrive(&mut decoder, 800, wild + 1, true));
        assert!((100..110).all(|id| !arrive(&mut decoder, 900, id, true)), "no silence yet");
        assert!(!arrive(&mut decoder, 1_501, 111, true));
        assert!((112..500).all(|id| arrive(&mut decoder, 1_502, id, true)));
        assert!((0..111).all(|id| !arrive(&mut decoder, 1_503, id, true)));
    }
}

#[test]
fn a_window_of_ids_that_never_start_again_waits_before_it_moves_back() {
    let config =
        DecoderConfig { rewind_after: Duration::from_secs(120), ..DecoderConfig::default() };
    let mut decoder = Decoder::new(config);
    assert!(arrive(&mut decoder, 0, 200_000, true));
    for id in 10..13 {
        assert!(!arrive(&mut decoder, 1, id, true), "it is the only one, and higher");
    }
    assert!(arrive(&mut decoder, 2, 200_001, true));
    for quiet in [1_000, 100_000] {
        for id in 10..13 {
            assert!(!arrive(&mut decoder, quiet, id, true), "after {quiet} ms");
        }
    }
    assert!(!arrive(&mut decoder, 100_001, 1_000_000, true));
    assert!(!arrive(&mut decoder, 100_001, 20, true));
    assert!(arrive(&mut decoder, 100_001, 1_000_001, true), "ahead the second is believed at once");
    assert!(!arrive(&mut decoder, 220_002, 10, true));
    assert!(arrive(&mut decoder, 220_002, 11, true), "no copy lives for so long");
}
