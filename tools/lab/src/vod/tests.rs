use roadweave_emulate::{AtEnd, Capacity, Timeline, Trace};

use super::*;

fn pair() -> Pair {
    let link = |name: &str, delay, dead: std::ops::Range<u64>| {
        let second = Duration::from_secs;
        let rate = |kbps| Rate::from_kbps(kbps);
        let steps = vec![
            (second(0), rate(6_000)),
            (second(dead.start), rate(0)),
            (second(dead.end), rate(6_000)),
        ];
        let rates = Timeline::new(steps, second(24), AtEnd::Repeat).unwrap();
        let trace = Trace::constant(rate(6_000), Duration::from_millis(delay));
        DriveLink::symmetric(name, trace.with_capacity(Capacity::Rates(rates)))
    };
    Pair {
        name: "dead in turn".into(),
        links: vec![link("wifi", 15, 4..8), link("lte", 30, 10..16)],
    }
}

fn setting(seconds: u64, seeds: u16) -> Setting {
    let lasting = Duration::from_secs(seconds);
    Setting { lasting, seeds, congestion: CongestionControl::default() }
}

fn both(way: &str) -> Over {
    Over::All(way.parse().unwrap())
}

#[test]
fn ways_have_names_that_lead_back_to_them() {
    assert_eq!(Way::all().iter().map(Way::to_string).collect::<Vec<_>>(), WAYS);
    let way: Way = "xlink:95-80+first".parse().unwrap();
    let strategy = strategies::strategy("xlink:95-80").unwrap();
    assert_eq!(way, Way::Streams { strategy, first_frame: true });
    assert_eq!("tunnel:bbr".parse(), Ok(Way::Tunnel(Algorithm::Bbr)));
    for unknown in ["fastest+first", "tunnel:reno", "tunnel:bbr+first"] {
        assert!(unknown.parse::<Way>().is_err(), "{unknown}");
    }
}

#[test]
fn viewers_begin_at_even_distances_of_the_recording() {
    let begins = [1, 2, 3, 4].map(|seed| pair().begins(seed, 4).as_secs());
    assert_eq!(begins, [0, 6, 12, 18]);
}

#[test]
fn over_both_links_a_video_goes_on_that_stands_still_over_each_alone() {
    let (pair, setting) = (pair(), setting(24, 1));
    let watched = (Kind::Long, Rate::from_kbps(4_500));
    let stalled = |over: &Over| {
        let (seen, sent) = pair.view(over, watched, setting, 1).unwrap();
        assert!(sent.source > 10_000_000, "{sent:?}");
        assert!(seen.requests.len() > 15 && seen.first_frames.len() == 1, "{seen:?}");
        (seen.stalled.as_millis(), sent)
    };
    for link in [0, 1] {
        let (alone, _) = stalled(&Over::One(link));
        assert!(alone > 1_000, "link {link}: {alone} ms");
    }
    for tunnel in ["tunnel:cubic", "tunnel:bbr"] {
        let (still, sent) = stalled(&both(tunnel));
        assert!(still < 1_000 && sent.again == 0, "{tunnel}: {still} ms, {sent:?}");
    }
    let (without, _) = stalled(&both("minrtt"));
    let (with, sent) = stalled(&both("xlink:1-1+first"));
    assert!(without < 500 && with < 500, "{without} ms, {with} ms");
    let (_, controlled) = stalled(&both("xlink:95-80+first"));
    assert!(
        controlled.further_datagrams * 2 < sent.further_datagrams,
        "a player with enough in its buffer asks for few copies: {controlled:?}, {sent:?}"
    );
}

#[test]
fn equal_viewers_see_the_same() {
    let pair = Pair::synthetic(3);
    for way in ["xlink:60-1+first", "tunnel:cubic"] {
        let view = |seed| {
            let watched = (Kind::Short, Rate::from_kbps(3_000));
            pair.view(&both(way), watched, setting(8, 2), seed).unwrap()
        };
        assert_eq!(view(1), view(1));
        assert_ne!(view(1), view(2));
    }
}

#[test]
fn over_tcp_through_the_tunnel_the_viewer_swipes() {
    let watched = (Kind::Short, Rate::from_kbps(2_000));
    let (seen, sent) = pair().view(&both("tunnel:cubic"), watched, setting(24, 1), 1).unwrap();
    assert!(seen.first_frames.len() > 2 && seen.requests.len() > 8, "{seen:?}");
    assert_eq!(seen.unanswered, 0, "what is under way in the end is waited for: {seen:?}");
    assert!(sent.source > 2_000_000, "{sent:?}");
}

#[test]
fn the_bitrate_is_one_at_which_the_best_link_stands_still_a_little() {
    let chosen = choose(&pair(), setting(24, 1)).unwrap();
    assert!(STANDS_STILL.contains(&chosen.stands_still), "{}", chosen.stands_still);
    assert!((2_000..6_000).contains(&(chosen.bitrate.as_bps() / 1_000)), "{}", chosen.bitrate);
    let still = |at: usize| chosen.alone[at][0].0.stalled;
    assert!(still(chosen.best) <= still(1 - chosen.best));
}
