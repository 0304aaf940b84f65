//! Sending and counting load, over a path with a given window.

use roadweave_proto::wire::Datagram;
use roadweave_proto::{DropReason, Rate};

use super::super::tests::{inner, session};
use super::*;
use crate::Session;
use crate::lane::TwoPaths;
use crate::testing::at;

fn one_path(window: u64) -> TwoPaths {
    TwoPaths::new([window, 0])
}

fn order(carrier: &TwoPaths) -> Vec<bool> {
    let parsed = carrier.datagrams().into_iter().map(|it| Datagram::parse(it).expect("sound"));
    parsed.map(|datagram| matches!(datagram, Datagram::Load(_))).collect()
}

fn said(carrier: &TwoPaths) -> Vec<TestWord> {
    let said = carrier.messages().iter().filter_map(|message| match message {
        Control::Speedtest(said) => Some(said.word.clone()),
        _ => None,
    });
    said.collect()
}

fn plan(bytes: u64) -> LoadPlan {
    LoadPlan { test: TestId(1), paths: vec![PathId(0)], until: at(1_000), bytes }
}

fn expected(bytes: u64) -> LoadExpected {
    let duration = Duration::from_secs(4);
    LoadExpected { test: TestId(1), duration, bytes, until: at(20_000) }
}

fn unasked(session: &Session) -> u64 {
    session.receiving.output.drops.get(DropReason::UnaskedLoad)
}

#[test]
fn load_leaves_behind_all_that_lanes_have() {
    let (mut session, mut carrier) = (session(), one_path(2_500));
    // So little that it would fit beside what waits.
    session.loads.begin(plan(400));
    (0..6).for_each(|_| session.handle_inner(at(0), &inner(1_000)));
    session.handle_timeout(at(0), &mut carrier);
    session.send_load(at(0), &mut carrier, None);
    assert_eq!(order(&carrier), [false; 2], "four packets wait, and load with them");
    carrier.set_window(0, 9_000);
    session.handle_timeout(at(10), &mut carrier);
    assert!(session.has_backlog(), "acknowledgements bring it room");
    session.send_load(at(10), &mut carrier, None);
    assert_eq!(order(&carrier), [[false; 6].as_slice(), &[true]].concat());
}

#[test]
fn load_ends_with_its_bytes_its_time_or_its_path_and_its_sum_is_sent() {
    let (mut session, mut carrier) = (session(), one_path(1 << 20));
    session.loads.begin(plan(10_000));
    session.send_load(at(0), &mut carrier, None);
    let [TestWord::Sent(counts)] = said(&carrier)[..] else { panic!("{:?}", said(&carrier)) };
    let taken = counts.bytes + counts.packets * LOAD_OVERHEAD;
    assert!((9_900..=10_000).contains(&taken), "{counts:?}");
    assert_eq!(session.loads.take_sent(), Some((TestId(1), counts)));
    assert_eq!((session.loads.is_under_way(), session.loads.poll_timeout()), (false, None));
    assert_eq!(session.loads.stats.sent_bytes, counts.bytes);

    session.loads.begin(LoadPlan { test: TestId(2), ..plan(1 << 30) });
    session.send_load(at(0), &mut carrier, None);
    assert_eq!(session.loads.poll_timeout(), Some(at(1_000)));
    session.loads.on_acknowledged(Duration::from_millis(20));
    session.loads.on_acknowledged(Duration::from_millis(40));
    session.send_load(at(1_000), &mut carrier, None);
    let Some(TestWord::Sent(counts)) = said(&carrier).pop() else { panic!("it was told") };
    assert_eq!(counts.rtt_micros, 30_000);

    session.loads.begin(LoadPlan { paths: vec![PathId(9)], ..plan(1 << 30) });
    session.send_load(at(0), &mut carrier, None);
    assert_eq!(said(&carrier).pop(), Some(TestWord::Sent(LoadCounts::default())), "no such path");
}

#[test]
fn load_keeps_to_the_limit_of_a_client() {
    let (mut session, mut carrier) = (session(), one_path(1 << 30));
    session.loads.begin(plan(1 << 30));
    let mut limit = Limit::new(Rate::from_kbps(8_000));
    for ms in 500..1_000 {
        session.send_load(at(ms), &mut carrier, Some(&mut limit));
        assert!(session.loads.poll_timeout() > Some(at(ms)), "it waits");
    }
    let bytes = session.loads.stats.sent_bytes;
    assert!((590_000..=601_000).contains(&bytes), "100 kB at once, and 1 MB a second: {bytes}");
}

#[test]
fn what_was_not_agreed_is_counted_and_no_load() {
    let mut session = session();
    let load = |test| Load::datagram(TestId(test), 0, 920);
    session.handle_datagram(at(0), load(1));
    assert_eq!(unasked(&session), 1, "nobody asked");
    session.loads.expect(at(0), expected(10_000));
    session.handle_datagram(at(10), load(2));
    assert_eq!(unasked(&session), 2, "not this one");
    (0..50).for_each(|_| session.handle_datagram(at(20), load(1)));
    assert_eq!(session.loads.stats.received_datagrams, 10, "of 1,000 bytes each with headers");
    assert_eq!(unasked(&session), 42, "too much");
    session.loads.expect(at(100), expected(1 << 30));
    session.handle_datagram(at(100), load(1));
    session.handle_datagram(at(100) + Duration::from_secs(4) + LATE_MAX, load(1));
    assert_eq!(unasked(&session), 43, "too late");
    assert_eq!(session.poll_inner(), None);
    assert!(session.stats().lanes.iter().all(|lane| lane.received.source_datagrams == 0));
}

#[test]
fn an_upload_that_is_broken_off_takes_up_no_place() {
    let mut session = session();
    session.loads.expect(at(0), expected(1 << 30));
    session.loads.stop(at(10), TestId(2));
    assert!(session.loads.is_under_way(), "that was the end of another one");
    session.loads.stop(at(20), TestId(1));
    assert!(!session.loads.is_under_way());
    session.handle_datagram(at(30), Load::datagram(TestId(1), 0, 1_000));
    assert_eq!(unasked(&session), 1, "nobody waits for it any more");
}

#[test]
fn received_load_is_reported_once_complete_or_stalled() {
    let mut session = session();
    let load = || Load::datagram(TestId(1), 0, 1_000);
    session.loads.expect(at(0), expected(1 << 30));
    for ms in [100, 600, 1_100, 1_200, 2_100] {
        session.handle_datagram(at(ms), load());
    }
    assert!(session.loads.poll_received(at(3_000)).is_none());
    let sent = LoadCounts { packets: 6, ..LoadCounts::default() };
    session.loads.on_sent(at(3_000), TestId(2), sent);
    session.loads.on_sent(at(3_000), TestId(1), sent);
    session.loads.on_sent(at(3_400), TestId(1), LoadCounts::default());
    assert_eq!(session.loads.poll_timeout(), Some(at(3_500)));
    assert!(session.loads.poll_received(at(3_499)).is_none(), "one is missing");
    let received = session.loads.poll_received(at(3_500)).expect("nothing more comes");
    let counts = LoadCounts {
        packets: 5,
        bytes: 5_000,
        micros: 2_000_000,
        steady_bytes: 2_000,
        steady_micros: 1_000_000,
        rtt_micros: 0,
    };
    assert_eq!((received.counts, received.sent), (counts, Some(sent)));
    session.loads.expect(at(0), expected(1 << 30));
    session.handle_datagram(at(10), load());
    session.loads.on_sent(at(20), TestId(1), LoadCounts { packets: 1, ..sent });
    assert!(session.loads.poll_received(at(20)).is_some(), "all is there");
    session.loads.expect(at(0), expected(1 << 30));
    assert!(session.loads.poll_received(at(19_999)).is_none());
    assert!(
        session.loads.poll_received(at(20_000)).is_some_and(|it| it.counts.packets == 0),
        "silence"
    );
}
