use super::*;
use crate::timeline::AtEnd;

fn parse(text: &str) -> Result<Trace, String> {
    parse_csv("x.csv", text, UNKNOWN_RTT).map_err(|error| error.to_string())
}

fn rates(trace: &Trace) -> &Timeline<Rate> {
    match &**trace.capacity() {
        Capacity::Rates(rates) => rates,
        Capacity::Opportunities(_) => panic!("CSV holds rates"),
    }
}

#[test]
fn rows_hold_until_the_next_and_then_start_again() {
    let trace = parse("t_ms,capacity_kbps,rtt_ms,loss\n0,1000,50,0\n100,2000,60,1\n").unwrap();
    let at = |ms| (rates(&trace).at(ms), trace.delay().at(ms), trace.loss().at(ms));
    let ms = Duration::from_millis;
    assert_eq!(at(ms(99)), (Rate::from_kbps(1_000), ms(25), 0.0));
    assert_eq!(at(ms(199)), (Rate::from_kbps(2_000), ms(30), 1.0));
    assert_eq!(at(ms(200)), (Rate::from_kbps(1_000), ms(25), 0.0));
}

#[test]
fn blank_cells_keep_the_last_value_and_the_first_known_counts_from_the_start() {
    let trace = parse("t_ms,rtt_ms,capacity_kbps\n50,,8\n100,40,\n150,,16\n").unwrap();
    let ms = Duration::from_millis;
    assert_eq!(trace.delay().at(ms(0)), ms(20));
    assert_eq!(rates(&trace).at(ms(0)), Rate::from_kbps(8));
    assert_eq!(rates(&trace).at(ms(149)), Rate::from_kbps(8));
    assert_eq!(rates(&trace).at(ms(150)), Rate::from_kbps(16));
    assert_eq!(trace.length(), Some(ms(200)));
}

#[test]
fn absent_columns_have_their_default() {
    let trace = parse("# walked\n\nt_ms\r\n0\r\n1000\r\n").unwrap();
    assert_eq!(*trace.capacity().as_ref(), Capacity::constant(Rate::from_kbps(20_000)));
    assert_eq!(trace.delay().at(Duration::ZERO), Duration::from_millis(25));
    assert_eq!(trace.loss().at(Duration::ZERO), 0.0);
}

#[test]
fn errors_name_the_place_and_the_cure() {
    let check = |text: &str, place: &str, words: &str| {
        let error = parse(text).unwrap_err();
        assert!(error.starts_with(&format!("x.csv:{place}: ")), "{error}");
        assert!(error.contains(words), "{error}");
    };
    check("", "1:1", "the file is empty");
    check("t_ms,speed\n0,1", "1:6", "unknown column `speed`; the first line names");
    check("loss\n0", "1:1", "no column `t_ms`");
    check("t_ms,loss,loss\n", "1:11", "column `loss` twice");
    check("t_ms,loss\n", "2:1", "no row");
    check("t_ms,loss\n0,0\n0,0", "3:1", "not later");
    check("loss,t_ms\n0,5\n\n0.5,4", "4:5", "not later");
    check("t_ms,loss\n0,0\n9,1.5", "3:3", "`1.5` is not a valid loss; the loss is a share");
    check("t_ms,loss\n0,0\n0.000001,1", "3:1", "shorter than a millisecond; t_ms counts");
    check("t_ms,bytes\n0,1500\n0.9,", "3:1", "shorter than a millisecond");
    check("t_ms,capacity_kbps\n0,-1", "2:3", "`-1` is not a valid capacity_kbps");
    check("t_ms,rtt_ms\n0,NaN", "2:3", "`NaN` is not a valid rtt_ms");
    check("t_ms,rtt_ms\n,5", "2:1", "`` is not a valid t_ms");
    check("t_ms,rtt_ms\n0,5,6", "2:5", "3 cells; the header has 2 columns");
    check("t_ms,rtt_ms\n0", "2:3", "1 cells");
    check("t_ms,bytes,capacity_kbps\n0,1,1", "1:12", "both `capacity_kbps` and `bytes`");
    check("t_ms,rtt_ms,delay_ms\n0,1,1", "1:13", "both `rtt_ms` and `delay_ms`");
    check("t_ms,bytes\n0,1", "2:1", "the last row is at 0");
}

#[test]
fn bytes_are_delivery_opportunities_and_the_last_row_ends_the_recording() {
    let trace = parse("t_ms,bytes,delay_ms,loss\n0,,21.5,\n3,2800,,0.5\n7.25,100,30,\n10,,99,1\n");
    let trace = trace.unwrap();
    let ms = Duration::from_millis;
    let slots = [(ms(3), 2_800), (Duration::from_micros(7_250), 100)];
    let expected = Opportunities::with_bytes(slots, ms(10)).unwrap();
    assert_eq!(**trace.capacity(), Capacity::Opportunities(expected));
    let at = |at| (trace.delay().at(at), trace.loss().at(at));
    assert_eq!(at(ms(0)), (Duration::from_micros(21_500), 0.5));
    assert_eq!(at(ms(9)), (ms(30), 0.5));
    assert_eq!(at(ms(10)), at(ms(0)));
    assert_eq!(trace.length(), Some(ms(10)));
}

#[test]
fn a_recording_without_any_delivery_is_a_link_that_carries_nothing() {
    let trace = parse("t_ms,bytes\n0,\n5000,\n").unwrap();
    assert_eq!(trace.capacity().mean_rate(), Rate::ZERO);
    assert_eq!(trace.length(), Some(Duration::from_secs(5)));
}

#[test]
fn what_is_written_is_what_changes() {
    let ms = Duration::from_millis;
    let length = ms(90);
    let delay = Timeline::new([(ms(0), ms(20)), (ms(41), ms(61))], length, AtEnd::Repeat).unwrap();
    let loss = Timeline::new([(ms(0), 0.0), (ms(5), 0.125)], length, AtEnd::Repeat).unwrap();
    let slots = [(0, 1_400), (3, 4_200), (3, 60), (90, 7)].map(|(at, bytes)| (ms(at), bytes));
    let opportunities = Opportunities::with_bytes(slots, length).unwrap();
    let written = format_csv(&Trace::new(Capacity::Opportunities(opportunities), delay, loss));
    let rows = "0,1400,20,0\n3,4260,,\n5,,,0.125\n41,,61,\n90,7,,\n";
    assert_eq!(written, format!("t_ms,bytes,delay_ms,loss\n{rows}"));
}

#[test]
fn what_never_changes_can_be_written() {
    let constant = Trace::constant(Rate::from_kbps(8), Duration::from_millis(3));
    let read = parse(&format_csv(&constant)).unwrap();
    assert_eq!(rates(&read).at(Duration::from_secs(9)), Rate::from_kbps(8));
    assert_eq!(read.delay().at(Duration::from_secs(9)), Duration::from_millis(3));
}

mod any_trace {
    use proptest::prelude::*;

    use super::*;

    fn timeline<V: Copy + std::fmt::Debug>(
        value: impl Strategy<Value = V>,
    ) -> impl Strategy<Value = Timeline<V>> {
        prop::collection::btree_map(1..999_u64, value, 1..6).prop_map(|steps| {
            let mut steps: Vec<(Duration, V)> =
                steps.into_iter().map(|(at, v)| (Duration::from_millis(at), v)).collect();
            steps[0].0 = Duration::ZERO;
            Timeline::new(steps, Duration::from_secs(1), AtEnd::Repeat).unwrap()
        })
    }

    proptest! {
        #[test]
        fn survives_writing_and_reading(
            delay in timeline((0..500_000_000_u64).prop_map(Duration::from_nanos)),
            loss in timeline(0.0..=1.0),
            rates in timeline((0..100_000_000_u64).prop_map(Rate::from_bps)),
            slots in prop::collection::btree_map(0..=1_000_000_000_u64, 1..9_000_u64, 0..40),
            has_bytes: bool,
        ) {
            let slots = slots.into_iter().map(|(at, bytes)| (Duration::from_nanos(at), bytes));
            let opportunities = Opportunities::with_bytes(slots, Duration::from_secs(1)).unwrap();
            let capacity = match has_bytes {
                true => Capacity::Opportunities(opportunities),
                false => Capacity::Rates(rates),
            };
            let trace = Trace::new(capacity, delay, loss);
            let read = parse(&format_csv(&trace)).unwrap();
            prop_assert_eq!(read.length(), trace.length());
            prop_assert_eq!(read.capacity().mean_rate(), trace.capacity().mean_rate());
            let rates_at = |trace: &Trace, at| match &**trace.capacity() {
                Capacity::Rates(rates) => Some(rates.at(at)),
                Capacity::Opportunities(_) => None,
            };
            for ms in 0..1_100 {
                let at = Duration::from_millis(ms);
                prop_assert_eq!(rates_at(&read, at), rates_at(&trace, at));
                prop_assert_eq!(read.delay().at(at), trace.delay().at(at));
                prop_assert_eq!(read.loss().at(at), trace.loss().at(at));
            }
            if has_bytes {
                prop_assert_eq!(read.capacity(), trace.capacity());
            }
        }

        #[test]
        fn any_text_parses_or_is_refused(text in "(t_ms|bytes|delay_ms|loss|,|\n|[0-9]|\\.|e|-){0,60}") {
            let _ = parse(&text);
        }
    }
}
