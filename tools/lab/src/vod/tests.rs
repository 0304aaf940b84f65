use super::*;

#[test]
fn ways_have_names_that_lead_back_to_them() {
    assert_eq!(Way::all().iter().map(Way::to_string).collect::<Vec<_>>(), WAYS);
    let way: Way = "xlink:95-80+first".parse().unwrap();
    let strategy = strategies::strategy("xlink:95-80").unwrap();
    assert_eq!(way, Way::Streams { strategy, first_frame: true });
    assert_eq!("tunnel:bbr".parse(), Ok(Way::Tunnel(CongestionControl::Bbr)));
    for unknown in ["fastest+first", "tunnel:reno", "tunnel:bbr+first"] {
        assert!(unknown.parse::<Way>().is_err(), "{unknown}");
    }
}

#[test]
fn viewers_begin_at_even_distances_of_the_recording() {
    let begins = [1, 2, 3, 4].map(|seed| Pair::synthetic(1).begins(seed, 4).as_secs());
    assert_eq!(begins, [0, 30, 60, 90]);
}
