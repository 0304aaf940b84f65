//! Encodes, damages, decodes and compares a clip of two seconds. Skipped without ffmpeg.

use std::sync::OnceLock;
use std::time::Duration;

use roadweave_lab::video::quality::Player;
use roadweave_lab::video::rtp::Packetizer;
use roadweave_lab::video::stream_log::{Arrivals, SentLine};
use roadweave_proto::Instant;

use super::super::clip::{self, ClipSpec};
use super::*;

const FRAMES: usize = 60;

fn clip_bytes() -> &'static [u8] {
    static CLIP: OnceLock<Vec<u8>> = OnceLock::new();
    CLIP.get_or_init(|| {
        let scratch = tempfile::tempdir().unwrap();
        let clip = scratch.path().join("clip.h264");
        let spec = ClipSpec { source: None, seconds: 2, bitrate_bps: 8_000_000 };
        let mut progress = Vec::new();
        spec.encode(&clip, |frames| progress.push(frames)).unwrap();
        assert_eq!(progress.last(), Some(&(FRAMES as u64)));
        let bytes = std::fs::read(&clip).unwrap();
        // In its first seconds the encoder is up to 20 % below the rate.
        let rate = bytes.len() as f64 * 8.0 / 2.0;
        assert!((6.4e6..8.4e6).contains(&rate), "{rate} bit/s");
        bytes
    })
}

/// Measures the clip after 20 ms of delay and the losses `lost` (frame, packet of the frame).
fn run(lost: impl Fn(usize, usize) -> bool) -> Option<(Comparison, Playout)> {
    if let Err(missing) = ffmpeg::check() {
        assert!(std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    let clip = scratch.path().join("clip.h264");
    std::fs::write(&clip, clip_bytes()).unwrap();
    let units = clip::read(&clip).unwrap();
    assert_eq!(units.len(), FRAMES);
    let mut packetizer = Packetizer::new(1, 65_000);
    let (mut source, mut sink) = (Vec::new(), Vec::new());
    for (frame, unit) in units.iter().enumerate() {
        let captured = Instant::from_millis(5_000 + 33 * frame as u64);
        let timestamp = 3_000 * frame as u32;
        for (index, packet) in packetizer.packetize(unit, timestamp).iter().enumerate() {
            let sequence = u16::from_be_bytes([packet[2], packet[3]]);
            let idr = unit.is_idr();
            let bytes = packet.len();
            let sent = captured;
            SentLine { frame, idr, captured, sent, sequence, timestamp, bytes }
                .write(&mut source)
                .unwrap();
            if !lost(frame, index) {
                let at = captured + Duration::from_millis(20);
                ArrivedPacket::write(at, packet, &mut sink).unwrap();
            }
        }
    }
    let arrivals = scratch.path().join("arrivals");
    std::fs::write(&arrivals, &sink).unwrap();
    let stream = SentStream::read(source.as_slice()).unwrap();
    let arrived = Arrivals::read(&stream, sink.as_slice()).unwrap();
    let player = Player::default();
    let playout = Playout::new(&stream.log, &arrived.first, &player, Instant::from_millis(9_000));
    let comparison = compare(&stream, &playout, &arrivals, &clip, scratch.path()).unwrap();
    assert_eq!(comparison.ssim.len(), FRAMES);
    Some((comparison, playout))
}

/// Exactly the frames that the player considers undamaged equal the reference to the last bit.
fn assert_agreement(comparison: &Comparison, playout: &Playout) {
    for (index, (ssim, fate)) in comparison.ssim.iter().zip(&playout.frames).enumerate() {
        assert_eq!(*ssim == 1.0, fate.undamaged, "frame {index}: ssim {ssim}, {fate:?}");
    }
}

#[test]
fn what_arrives_whole_is_the_reference() {
    let Some((comparison, playout)) = run(|_, _| false) else { return };
    assert_eq!((comparison.decoded, comparison.unreadable), (FRAMES, 0));
    assert!((comparison.mean() - 1.0).abs() < 1e-6, "{}", comparison.mean());
    assert_agreement(&comparison, &playout);
}

#[test]
fn a_lost_packet_damages_until_the_next_idr_frame() {
    let Some((comparison, playout)) = run(|frame, packet| (frame, packet) == (12, 3)) else {
        return;
    };
    assert_agreement(&comparison, &playout);
    assert_eq!(playout.frames.iter().filter(|fate| fate.undamaged).count(), FRAMES - 18);
}

#[test]
fn missing_frames_freeze_the_picture() {
    let Some((comparison, _)) = run(|frame, _| (10..20).contains(&frame)) else { return };
    assert!(comparison.ssim[9] == 1.0 && comparison.ssim[30] == 1.0);
    assert!(comparison.ssim[14] < 0.9, "the picture moves on: {}", comparison.ssim[14]);
}

#[test]
fn what_does_not_arrive_or_cannot_be_decoded_is_black() {
    // Without the two IDR frames there are no parameter sets and no reference pictures.
    for arriving in [0, FRAMES - 31] {
        let Some((comparison, playout)) = run(|frame, _| frame < FRAMES - arriving) else { return };
        assert_eq!((comparison.fed, comparison.decoded), (arriving, 0));
        assert!(comparison.mean() < 0.5, "{}", comparison.mean());
        assert_agreement(&comparison, &playout);
    }
}

#[test]
fn few_pictures_behind_many_that_cannot_be_decoded_are_seen() {
    let Some((comparison, playout)) = run(|frame, _| frame == 0 || frame > 33) else { return };
    assert_eq!(comparison.fed, 33);
    assert_agreement(&comparison, &playout);
    assert_eq!(comparison.ssim[33], 1.0);
}

#[test]
fn pictures_without_a_readable_id_take_the_next_place() {
    let mut shown = Vec::new();
    let mut screen = Screen::new(&mut shown, vec![0, 2, 3], Decoder::ShowsDamage);
    let picture = |value: u8| vec![value; PICTURE];
    screen.show(&picture(50)).unwrap();
    screen.show(&picture(60)).unwrap();
    assert_eq!(screen.finish(5).unwrap(), (2, 2));
    let values: Vec<_> = shown.chunks(PICTURE).map(|picture| picture[0]).collect();
    assert_eq!(values, [50, 50, 60, 60, 60]);
}

fn numbered(id: u16) -> Vec<u8> {
    let check = id.to_be_bytes().iter().fold(0xff_u8, |crc, byte| {
        (0..8).fold(crc ^ byte, |crc, _| if crc & 0x80 == 0 { crc << 1 } else { crc << 1 ^ 7 })
    });
    let code = u32::from(id) << 8 | u32::from(check);
    let mut picture = vec![16; PICTURE];
    for block in (0..24).filter(|block| code >> (23 - block) & 1 == 1) {
        for row in 0..16 {
            let at = (16 + block / 12 * 16 + row) * WIDTH + 16 + block % 12 * 16;
            picture[at..at + 16].fill(235);
        }
    }
    picture
}

#[test]
fn a_picture_that_was_not_shown_takes_no_place_of_others() {
    let mut shown = Vec::new();
    let mut screen = Screen::new(&mut shown, vec![5, 6], Decoder::HidesDamage);
    for id in [3, 4, 5, 6] {
        screen.show(&numbered(id)).unwrap();
    }
    assert_eq!(screen.finish(7).unwrap(), (4, 0));
    let ids: Vec<_> = shown
        .chunks(PICTURE)
        .map(|picture| frame_id::read(&picture[..LUMA], WIDTH, HEIGHT))
        .collect();
    assert_eq!(ids[4..], [None, Some(5), Some(6)]);
}
