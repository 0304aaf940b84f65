#![allow(clippy::unwrap_used, reason = "tests")]

use roadweave_proto::wire::StreamPriority;

use super::*;

const NOW: Instant = Instant::from_millis(1_000);

struct Nobody;

impl EndsStreams for Nobody {
    /// Owners 1, 11, 21 and so on are sessions of one client.
    fn stream_address(&self, owner: StreamsOwner, ipv4: bool) -> Option<IpAddr> {
        ipv4.then(|| IpAddr::from([10, 77, 0, (owner.0 % 10) as u8]))
    }
}

fn exit(sockets_max: usize) -> Exit {
    let sources = Sources { clients: false, own: true };
    let settings =
        ExitSettings { sockets_max, ..ExitSettings::new(ExitRules::default(), sources, 100) };
    Exit::start(settings, Token(1 << 40), &Waker::new().unwrap()).unwrap()
}

fn open(exit: &mut Exit, owner: u64, stream: u64) {
    let event = StreamEvent::Opened {
        id: StreamId(stream),
        destination: Destination::of_name("host.invalid", 80).unwrap(),
        priority: StreamPriority::default(),
    };
    exit.handle_event(NOW, StreamsOwner(owner), event, &mut Nobody);
}

fn counts(exit: &Exit) -> (usize, u64) {
    let too_many = exit.ends.0.get(&ExitEnd::TooMany).copied();
    (exit.connections.len(), too_many.unwrap_or_default())
}

#[test]
fn an_exit_with_its_part_of_the_sockets_takes_no_more() {
    let mut exit = exit(9);
    exit.share_sockets(3);
    open(&mut exit, 1, 0);
    open(&mut exit, 2, 0);
    assert_eq!(counts(&exit), (1, 1));
}

#[test]
fn connections_that_are_being_made_count_for_all_their_sockets() {
    let mut exit = exit(5);
    open(&mut exit, 1, 0);
    open(&mut exit, 2, 0);
    open(&mut exit, 3, 0);
    assert_eq!(counts(&exit), (2, 1));

    exit.on_streams_over(StreamsOwner(1));
    open(&mut exit, 3, 4);
    assert_eq!(counts(&exit), (2, 1));
    open(&mut exit, 4, 0);
    assert_eq!(counts(&exit), (2, 2));
}

#[test]
fn who_comes_again_and_again_has_no_more_names_looked_up() {
    let mut exit = exit(100);
    for session in 0..20 {
        for stream in 0..4 {
            open(&mut exit, 10 * session + 1, stream);
        }
        exit.on_streams_over(StreamsOwner(10 * session + 1));
    }
    assert_eq!(exit.asked.len(), ASKING_MAX, "nobody has answered");
    open(&mut exit, 2, 0);
    assert_eq!(exit.asked.len(), ASKING_MAX + 1);
}
