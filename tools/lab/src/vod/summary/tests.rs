use super::*;

fn seen(requests: &[u64], stalled_ms: u64) -> (Viewing, ServerTraffic) {
    let ms = |all: &[u64]| all.iter().map(|ms| Duration::from_millis(*ms)).collect();
    let seen = Viewing {
        requests: ms(requests),
        first_frames: ms(&requests[..1]),
        levels: ms(&[0, 49, 50, 2_000]),
        stalled: Duration::from_millis(stalled_ms),
        played: Duration::from_secs(1),
    };
    let sent = ServerTraffic {
        source: 1_010,
        again: 10,
        further: 40,
        datagrams: 100,
        lost: 1,
        further_datagrams: 4,
    };
    (seen, sent)
}

fn value(figures: &Figures, figure: Figure) -> f64 {
    figures[&figure].value.unwrap()
}

#[test]
fn figures_are_those_of_all_viewings_together() {
    let requests: Vec<u64> = (1..=100).rev().collect();
    let (low, high) = (&requests[50..], &requests[..50]);
    let viewings = Viewings::new(&[vec![seen(low, 100)], vec![seen(high, 300)]]);
    let figures = viewings.figures();
    let expected = [
        (Figure::RequestP50, 50.0),
        (Figure::RequestP95, 95.0),
        (Figure::RequestP99, 99.0),
        (Figure::FirstFrameP50, 50.0),
        (Figure::FirstFrameP99, 100.0),
        (Figure::Rebuffering, 0.2),
        (Figure::BufferP1, 0.0),
        (Figure::BufferDanger, 0.5),
        (Figure::Copies, 0.05),
        (Figure::Reinjected, 0.03),
    ];
    assert_eq!(expected.map(|(figure, _)| figure), Figure::ALL);
    for (figure, expected) in expected {
        assert!((value(&figures, figure) - expected).abs() < 1e-9, "{figure:?}");
    }
    // Each of the two pairs is drawn twice in a quarter of all draws.
    let rebuffering = figures[&Figure::Rebuffering];
    assert_eq!((rebuffering.low, rebuffering.high), (Some(0.1), Some(0.3)));
}

#[test]
fn a_comparison_takes_the_same_draw_of_pairs_for_both() {
    let half = Viewings::new(&[vec![seen(&[10, 20], 50)], vec![seen(&[300, 400], 500)]]);
    let whole = Viewings::new(&[vec![seen(&[20, 40], 100)], vec![seen(&[600, 800], 1_000)]]);
    let below = half.below(&whole);
    for figure in [Figure::RequestP50, Figure::RequestP99, Figure::Rebuffering] {
        let Interval { value, low, high } = below[&figure];
        assert_eq!((value, low, high), (Some(0.5), Some(0.5), Some(0.5)), "{figure:?}");
    }
    assert_eq!(value(&whole.below(&half), Figure::RequestP95), -1.0);
}

#[test]
fn what_nothing_was_seen_of_has_no_figure() {
    let nothing = Viewings::new(&[vec![Default::default()]]);
    assert!(nothing.figures().values().all(|it| it.value.is_none() && it.low.is_none()));
    let never_still = Viewings::new(&[vec![seen(&[1], 0)]]);
    assert_eq!(never_still.below(&never_still)[&Figure::Rebuffering].value, None);
    assert!(Viewings::new(&[]).figures().values().all(|it| it.value.is_none()));
}
