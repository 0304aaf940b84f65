//! Sockets bound to an interface, and their errors.

use std::net::UdpSocket;
use std::time::Duration;

use roadweave_linux::netns::{NetNs, cable, run_sandboxed};
use roadweave_linux::{DeviceError, Outgoing, SendFailure, SendOutcome, UdpOptions, UplinkSocket};

struct World {
    vehicle: NetNs,
    socket: UplinkSocket,
    server: UdpSocket,
}

impl World {
    fn new() -> Self {
        let (vehicle, far) = (NetNs::create("box").unwrap(), NetNs::create("far").unwrap());
        cable((&vehicle, "eth1", &["10.1.0.2/24"]), (&far, "eth1", &["10.1.0.1/24"]));
        let server = far.enter(|| UdpSocket::bind("10.1.0.1:4433").unwrap()).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let options = UdpOptions::uplink("eth1", true);
        let socket = vehicle.enter(|| UplinkSocket::open(&options).unwrap()).unwrap();
        Self { vehicle, socket, server }
    }

    fn send(&mut self, size: usize, count: usize) -> SendOutcome {
        self.socket.send(&Outgoing {
            destination: "10.1.0.1:4433".parse().unwrap(),
            source: None,
            ecn: None,
            contents: &vec![7; size * count],
            segment_size: size,
        })
    }

    fn check_received(&self, size: usize, count: usize) {
        let mut buffer = [0; 2000];
        for _ in 0..count {
            assert_eq!(self.server.recv_from(&mut buffer).unwrap().0, size);
        }
    }
}

#[test]
fn a_run_too_large_for_the_interface_does_not_end_batching() {
    run_sandboxed(|| {
        let mut world = World::new();
        world.vehicle.ip("link set dev eth1 mtu 1300").unwrap();
        assert_eq!(world.send(1400, 3), SendOutcome::Failed(SendFailure::TooLarge));
        assert_eq!(world.socket.statistics().failed[SendFailure::TooLarge as usize], 3);
        let before = world.socket.statistics().sends;
        assert_eq!(world.send(1200, 30), SendOutcome::Sent);
        world.check_received(1200, 30);
        assert_eq!(world.socket.statistics().sends, before + 1);
    });
}

#[test]
fn an_interface_that_goes_down_and_comes_back_does_not_end_the_socket() {
    run_sandboxed(|| {
        let mut world = World::new();
        world.vehicle.ip("link set dev eth1 down").unwrap();
        let outcome = world.send(1200, 3);
        assert_eq!(outcome, SendOutcome::Failed(SendFailure::Unreachable));
        assert_eq!(world.socket.recv(|_| panic!("nobody sends")).unwrap(), 0);
        world.vehicle.ip("link set dev eth1 up").unwrap();
        let sent = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            world.send(1200, 3) == SendOutcome::Sent
        });
        assert!(sent, "{:?}", world.socket.statistics());
        world.check_received(1200, 3);
    });
}

#[test]
fn a_missing_interface_is_no_lack_of_rights() {
    run_sandboxed(|| {
        let error = UplinkSocket::open(&UdpOptions::uplink("wwan77", true)).unwrap_err();
        assert!(matches!(error, DeviceError::NoInterface { .. }), "{error}");
    });
}
