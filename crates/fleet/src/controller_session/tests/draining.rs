//! Proxies that are to let go of their boxes.

use super::*;

fn drains(stream: &mut TestStream) -> Vec<bool> {
    let drain = |event| if let AgentEvent::Drain(drained) = event { Some(drained) } else { None };
    std::mem::take(&mut stream.events).into_iter().filter_map(drain).collect()
}

#[test]
fn a_drain_is_a_state_that_every_stream_says_again() {
    let published = published(0, &[]);
    let mut stream = TestStream::of(PROXY, &published);
    let mut check = |drained: bool, expected: &[bool]| {
        stream.session.drain(drained);
        stream.turn(1);
        assert_eq!(drains(&mut stream), expected, "{drained}");
    };
    check(false, &[]);
    check(true, &[true]);
    check(true, &[]);
    check(false, &[false]);
    check(false, &[]);
    check(true, &[true]);
    stream.session.drain(false);
    stream.session.drain(true);
    stream.turn(2);
    assert_eq!(drains(&mut stream), [false; 0]);

    let TestStream { agent, .. } = stream;
    let mut stream = TestStream::new(agent, PROXY, true, &published);
    assert_eq!(drains(&mut stream), [false; 0], "a session that knows nothing yet says nothing");
    stream.session.drain(false);
    stream.turn(3);
    assert_eq!(drains(&mut stream), [false]);
    stream.session.drain(true);
    stream.turn(4);
    assert_eq!(drains(&mut stream), [true]);

    for drained in [true, false] {
        let agent = restart(&stream.agent, PROXY);
        let mut again = TestStream::new(agent, PROXY, true, &published);
        again.session.drain(drained);
        again.turn(5);
        assert_eq!(drains(&mut again), if drained { vec![true] } else { vec![] });
    }
}

#[test]
fn who_knows_no_end_of_a_drain_is_not_sent_one() {
    let published = published(0, &[]);
    let mut session = ControllerSession::new(at(0), key(PROXY), true, published);
    session.drain(true);
    assert_eq!(session.poll_frame(), None, "it has not said what it has");
    session
        .handle_frame(at(0), Up::Have(HeldVersions { drained: None, ..HeldVersions::default() }));
    let is_drain = |frame: &Down| matches!(frame, Down::Drain | Down::Undrain);
    assert!(frames(&mut session).into_iter().filter(is_drain).eq([Down::Drain]));
    session.drain(false);
    assert!(!frames(&mut session).iter().any(is_drain));
}

#[test]
fn a_box_cannot_be_drained() {
    let mut stream = TestStream::of(BOX, &published(0, &[]));
    stream.session.drain(true);
    stream.turn(1);
    assert_eq!(drains(&mut stream), [false; 0]);
    assert_eq!(stream.session.had().and_then(|had| had.drained), None);
}
