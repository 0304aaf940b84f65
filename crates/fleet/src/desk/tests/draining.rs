//! Proxies that are to let go of their boxes.

use super::*;

/// What the agent was told of drains since the last time.
fn drains(stream: &mut Stream) -> Vec<bool> {
    let events = std::mem::take(&mut stream.events).into_iter();
    let drains = events.filter_map(|event| match event {
        AgentEvent::Drain(drained) => Some(drained),
        _ => None,
    });
    drains.collect()
}

#[test]
fn a_drain_is_a_state_that_every_stream_says_again() {
    let published = published(0, &[]);
    let mut stream = Stream::new(member(PROXY, Role::Proxy, &published), PROXY, true, &published);
    // Nothing is said twice, and nothing that is so already.
    let mut check = |drained: bool, expected: &[bool]| {
        stream.desk.drain(drained);
        stream.turn(1);
        assert_eq!(drains(&mut stream), expected, "{drained}");
    };
    check(false, &[]);
    check(true, &[true]);
    check(true, &[]);
    check(false, &[false]);
    check(false, &[]);
    check(true, &[true]);
    // Of what waits the last counts.
    stream.desk.drain(false);
    stream.desk.drain(true);
    stream.turn(2);
    assert_eq!(drains(&mut stream), [false; 0]);

    // It was taken back while the stream was away.
    let Stream { agent, .. } = stream;
    let mut stream = Stream::new(agent, PROXY, true, &published);
    assert_eq!(drains(&mut stream), [false; 0], "a desk that knows nothing yet says nothing");
    stream.desk.drain(false);
    stream.turn(3);
    assert_eq!(drains(&mut stream), [false]);
    stream.desk.drain(true);
    stream.turn(4);
    assert_eq!(drains(&mut stream), [true]);

    // After a new start it is as the controller says.
    for drained in [true, false] {
        let agent = restart(&stream.agent, PROXY, Role::Proxy);
        let mut again = Stream::new(agent, PROXY, true, &published);
        again.desk.drain(drained);
        again.turn(5);
        assert_eq!(drains(&mut again), if drained { vec![true] } else { vec![] });
    }
}

#[test]
fn who_knows_no_end_of_a_drain_is_not_sent_one() {
    let published = published(0, &[]);
    let mut desk = Desk::new(at(0), key(PROXY), true, published);
    desk.drain(true);
    assert_eq!(desk.poll_frame(), None, "it has not said what it has");
    desk.handle_frame(at(0), Up::Have(HeldVersions { drained: None, ..HeldVersions::default() }));
    let drains = |desk: &mut Desk| {
        let frames = std::iter::from_fn(|| desk.poll_frame());
        frames.filter(|frame| matches!(frame, Down::Drain | Down::Undrain)).collect::<Vec<_>>()
    };
    assert_eq!(drains(&mut desk), [Down::Drain]);
    desk.drain(false);
    assert_eq!(drains(&mut desk), []);
}

#[test]
fn nobody_drains_a_box() {
    let published = published(0, &[]);
    let mut stream = Stream::new(member(BOX, Role::Box, &published), BOX, true, &published);
    stream.desk.drain(true);
    stream.turn(1);
    assert_eq!(
        (drains(&mut stream), stream.desk.had().and_then(|had| had.drained)),
        (vec![], None)
    );
}
