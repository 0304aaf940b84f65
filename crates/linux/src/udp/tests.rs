//! Sockets on the loopback: batches, addresses, failures.

use std::time::Duration;

use super::*;
use crate::clock::since_boot;
use crate::wait_readable;

fn server(bind: &str) -> UplinkSocket {
    UplinkSocket::open(&UdpOptions::server(bind.parse().unwrap())).unwrap()
}

fn outgoing(destination: SocketAddr, contents: &[u8], segment_size: usize) -> Outgoing<'_> {
    Outgoing { destination, source: None, ecn: None, contents, segment_size }
}

type Received = (SocketAddr, Option<IpAddr>, Option<Ecn>, Vec<u8>);

fn receive(socket: &mut UplinkSocket, count: usize) -> Vec<Received> {
    let mut found = Vec::new();
    while found.len() < count {
        assert!(wait_readable(&*socket, Duration::from_secs(20)).unwrap(), "{}", found.len());
        socket
            .recv(|incoming| {
                let Incoming { remote, local, ecn, payload, .. } = incoming;
                found.push((remote, local, ecn, payload.to_vec()));
            })
            .unwrap();
    }
    found
}

fn check_round_trip(bind: &str, target: &str) {
    let mut server = server(bind);
    let target = SocketAddr::new(target.parse().unwrap(), server.local_address().port());
    let client = if target.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let mut client = self::server(client);
    let contents: Vec<u8> = (0..100_050).map(|at| (at / 1200) as u8).collect();
    let run = Outgoing { ecn: Some(Ecn::Ect0), ..outgoing(target, &contents, 1200) };
    assert_eq!(client.send(&run), SendOutcome::Sent);
    let received = receive(&mut server, 84);
    assert_eq!(received.len(), 84);
    for ((remote, local, ecn, payload), sent) in received.iter().zip(contents.chunks(1200)) {
        let expected = (client.local_address(), Some(target.ip()), Some(Ecn::Ect0));
        assert_eq!((*remote, *local, *ecn), expected);
        assert!(payload == sent);
    }
    let statistics = client.statistics();
    assert_eq!((statistics.datagrams_sent, statistics.bytes_sent), (84, 100_050));
    assert!(statistics.sends < 84, "GSO is used: {statistics:?}");

    let (remote, local, ..) = received[0];
    let answer = Outgoing { source: local, ..outgoing(remote, b"answer", usize::MAX) };
    assert_eq!(server.send(&answer), SendOutcome::Sent);
    let ip = Some(client.local_address().ip());
    let expected = [(target, ip, None::<Ecn>, b"answer".to_vec())];
    assert_eq!(receive(&mut client, 1), expected);
}

#[test]
fn what_lay_for_a_while_was_received_when_it_came() {
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let (mut server, mut client) = (server(bind), server(bind));
        let run = outgoing(server.local_address(), &[7; 3_000], 1_000);
        assert_eq!(server.recv(|_| panic!("nothing has come")).unwrap(), 0);
        let before = since_boot();
        assert_eq!(client.send(&Outgoing { ecn: Some(Ecn::Ect1), ..run }), SendOutcome::Sent);
        assert!(wait_readable(&server, Duration::from_secs(20)).unwrap());
        let after = since_boot();
        while since_boot() < after + Duration::from_millis(20) {}
        let mut times = Vec::new();
        server.recv(|incoming| times.push((incoming.received, incoming.ecn))).unwrap();
        // The clocks are read one after the other.
        let slack = Duration::from_millis(1);
        for (received, ecn) in &times {
            let received = received.expect("the kernel tells");
            assert!((before - slack..=after + slack).contains(&received), "{received:?}");
            assert_eq!(*ecn, Some(Ecn::Ect1), "the ECN bits");
        }
        assert_eq!(times.len(), 3);
    }
}

#[test]
fn runs_of_datagrams_arrive_one_by_one_and_are_answered_from_where_they_went() {
    for (bind, target) in [
        ("127.0.0.1:0", "127.0.0.1"),
        ("0.0.0.0:0", "127.0.0.9"),
        ("[::1]:0", "::1"),
        ("[::]:0", "127.0.0.1"),
        ("[::]:0", "::1"),
    ] {
        check_round_trip(bind, target);
    }
}

#[test]
fn a_foreign_address_and_a_missing_interface_are_errors() {
    let error = UplinkSocket::open(&UdpOptions::server("192.0.2.7:0".parse().unwrap()));
    assert!(matches!(error.unwrap_err(), DeviceError::AddressNotHere { .. }));
    let error = UplinkSocket::open(&UdpOptions::uplink("wwan77", true)).unwrap_err();
    // Without CAP_NET_RAW older kernels refuse before they look.
    let names_interface =
        matches!(error, DeviceError::NoInterface { .. } | DeviceError::NoPermission { .. });
    assert!(names_interface, "{error}");
}

#[test]
fn a_closed_port_and_an_unreachable_net_do_not_end_the_socket() {
    let mut client = server("127.0.0.1:0");
    let closed = server("127.0.0.1:0").local_address();
    let mut living = server("127.0.0.1:0");
    let send = |client: &mut UplinkSocket, to| client.send(&outgoing(to, b"hello", 5));
    for _ in 0..10 {
        send(&mut client, closed);
        assert_eq!(client.recv(|_| panic!("nobody answers")).unwrap(), 0);
    }
    // The source 127.0.0.1 cannot leave the machine.
    let outcome = send(&mut client, "192.0.2.1:9".parse().unwrap());
    assert!(matches!(outcome, SendOutcome::Failed(_)), "{outcome:?}");
    assert_eq!(send(&mut client, living.local_address()), SendOutcome::Sent);
    assert_eq!(receive(&mut living, 1)[0].3, b"hello");
}

#[test]
fn an_empty_datagram_disturbs_nothing() {
    let mut living = server("127.0.0.1:0");
    let plain = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    plain.send_to(&[], living.local_address()).unwrap();
    plain.send_to(b"x", living.local_address()).unwrap();
    assert_eq!(receive(&mut living, 1)[0].3, b"x");
}
