use super::*;

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn player(kind: ProgramKind, seconds: u64) -> Player {
    let lasting = Duration::from_secs(seconds);
    Player::new(Program { kind, bitrate: Rate::from_kbps(8_000), lasting, seed: 1 }, at(0))
}

/// `bytes` each ten milliseconds, except in pauses.
fn play(kind: ProgramKind, seconds: u64, bytes: u64, pauses: impl Fn(u64) -> bool) -> Player {
    let mut player = player(kind, seconds);
    let mut under_way: Vec<(ChunkId, u64)> = Vec::new();
    for ms in (0..seconds * 1_000).step_by(10) {
        let now = at(ms);
        while player.poll_timeout().is_some_and(|due| due <= now) {
            let due = player.poll_timeout().unwrap();
            if player.handle_timeout(due.min(now)) {
                under_way.clear();
            }
        }
        while let Some(wanted) = player.wants(now) {
            player.on_asked(now);
            under_way.push(wanted);
        }
        let mut room = if pauses(ms) { 0 } else { bytes };
        while room > 0
            && let Some((id, left)) = under_way.first_mut()
        {
            let comes = room.min(*left);
            (room, *left) = (room - comes, *left - comes);
            let (id, is_last) = (*id, *left == 0);
            assert_eq!(player.on_came(now, id, comes), is_last, "{id:?} at {ms} ms");
            if is_last {
                under_way.remove(0);
            }
        }
    }
    player.handle_timeout(at(seconds * 1_000));
    player
}

#[test]
fn on_a_fast_link_nothing_stands_still_and_the_buffer_fills_to_its_end() {
    // 16 Mbit/s for a video of 8.
    let seen = play(ProgramKind::Long, 60, 20_000, |_| false).finish(at(60_000));
    assert_eq!(seen.stalled, Duration::ZERO);
    assert!(seen.played > Duration::from_millis(59_000), "{:?}", seen.played);
    assert_eq!(seen.first_frames.len(), 1);
    // An eighth of a chunk at twice the rate of the video.
    assert!((40..=90).contains(&seen.first_frames[0].as_millis()), "{:?}", seen.first_frames);
    let most = *seen.levels.iter().max().unwrap();
    assert!(most <= AHEAD_MAX && most > AHEAD_MAX - CHUNK * 2, "{most:?}");
    // 60 chunks and those ahead; no chunk is requested without room.
    assert!((64..=68).contains(&seen.requests.len()), "{}", seen.requests.len());
}

#[test]
fn a_pause_longer_than_the_buffer_is_seen_to_its_end() {
    let pause = |ms: u64| (30_000..42_000).contains(&ms);
    let seen = play(ProgramKind::Long, 60, 20_000, pause).finish(at(60_000));
    // 12 s less the buffer, plus half a second at twice the rate to restart.
    let stalled = seen.stalled.as_millis();
    assert!((4_000..=6_300).contains(&stalled), "{stalled} ms");
    let danger = seen.levels.iter().filter(|left| left.is_zero()).count() as u128;
    assert!(danger * 100 >= stalled - 500, "{danger} samples of nothing left");
    let sum = seen.played + seen.stalled;
    assert!(sum > Duration::from_millis(59_500) && sum < Duration::from_secs(60), "{sum:?}");
}

#[test]
fn who_sees_nothing_gives_up_and_what_never_came_counts() {
    let seen = play(ProgramKind::Short, 25, 20_000, |ms| ms < 24_000).finish(at(25_000));
    assert_eq!(seen.first_frames[..2], [Duration::from_secs(10); 2]);
    let seen = play(ProgramKind::Long, 25, 20_000, |_| true).finish(at(40_000));
    assert_eq!(seen.requests, [Duration::from_secs(40)]);
    assert_eq!(seen.first_frames, [Duration::from_secs(25)]);
}

#[test]
fn a_chunk_that_failed_is_asked_for_again_and_its_time_goes_on() {
    let mut player = player(ProgramKind::Long, 10);
    let (id, bytes) = player.wants(at(0)).unwrap();
    player.on_asked(at(0));
    player.on_came(at(10), id, bytes - 1);
    assert!(player.wants(at(10)).is_some(), "most of it is there: the next one is wanted");
    assert_eq!(player.on_failed(id), Some(bytes));
    assert!(player.wants(at(20)).is_none());
    assert!(player.left(at(20)).is_zero());
    assert!(player.on_came(at(300), id, bytes));
    assert_eq!(player.finish(at(300)).requests, [Duration::from_millis(300)]);
}

#[test]
fn the_player_reports_its_buffer_until_the_viewer_leaves() {
    let mut player = player(ProgramKind::Long, 10);
    let (id, bytes) = player.wants(at(0)).unwrap();
    player.on_asked(at(0));
    player.on_came(at(100), id, bytes);
    let left = |ms| player.qoe(at(ms)).unwrap().play_time_left().as_millis();
    // Only whole frames count.
    assert_eq!((left(100), left(600)), (1_000, 500));
    player.handle_timeout(at(10_000));
    assert_eq!((player.qoe(at(10_000)), player.poll_timeout()), (None, None));
}
