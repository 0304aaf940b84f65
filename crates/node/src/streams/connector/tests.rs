#![allow(clippy::unwrap_used, reason = "tests")]

use roadweave_proto::wire::StreamPriority;

use super::*;

const NOW: Instant = Instant::from_millis(1_000);

struct NoClients;

impl EndsStreams for NoClients {
    /// Owners 1, 11, 21 and so on are sessions of one client.
    fn stream_address(&self, owner: StreamsOwner, ipv4: bool) -> Option<IpAddr> {
        ipv4.then(|| IpAddr::from([10, 77, 0, (owner.0 % 10) as u8]))
    }
}

fn connector(sockets_max: usize) -> StreamConnector {
    let sources = Sources { clients: false, own: true };
    let settings = ConnectorSettings {
        sockets_max,
        ..ConnectorSettings::new(ConnectorRules::default(), sources, 100)
    };
    StreamConnector::start(settings, Token(1 << 40), &Waker::new().unwrap()).unwrap()
}

fn open(connector: &mut StreamConnector, owner: u64, stream: u64) {
    let event = StreamEvent::Opened {
        id: StreamId(stream),
        destination: Destination::of_name("host.invalid", 80).unwrap(),
        priority: StreamPriority::default(),
    };
    connector.handle_event(NOW, StreamsOwner(owner), event, &mut NoClients);
}

fn counts(connector: &StreamConnector) -> (usize, u64) {
    let too_many = connector.ends.0.get(&ConnectorEnd::TooMany).copied();
    (connector.connections.len(), too_many.unwrap_or_default())
}

#[test]
fn a_connector_with_its_share_of_the_sockets_takes_no_more() {
    let mut connector = connector(9);
    connector.share_sockets(3);
    open(&mut connector, 1, 0);
    open(&mut connector, 2, 0);
    assert_eq!(counts(&connector), (1, 1));
}

#[test]
fn connections_that_are_being_made_count_for_all_their_sockets() {
    let mut connector = connector(5);
    open(&mut connector, 1, 0);
    open(&mut connector, 2, 0);
    open(&mut connector, 3, 0);
    assert_eq!(counts(&connector), (2, 1));

    connector.on_streams_over(StreamsOwner(1));
    open(&mut connector, 3, 4);
    assert_eq!(counts(&connector), (2, 1));
    open(&mut connector, 4, 0);
    assert_eq!(counts(&connector), (2, 2));
}

#[test]
fn who_comes_again_and_again_has_no_more_names_looked_up() {
    let mut connector = connector(100);
    for session in 0..20 {
        for stream in 0..4 {
            open(&mut connector, 10 * session + 1, stream);
        }
        connector.on_streams_over(StreamsOwner(10 * session + 1));
    }
    assert_eq!(connector.asked.len(), ASKING_MAX, "nobody has answered");
    open(&mut connector, 2, 0);
    assert_eq!(connector.asked.len(), ASKING_MAX + 1);
}
