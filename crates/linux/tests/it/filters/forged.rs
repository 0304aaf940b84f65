//! An answer is accepted only where its connection went out.

use std::net::{SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use roadweave_linux::{Answers, Instance, TableTurn, Uplink};
use roadweave_proto::{DropReason, Instant, UplinkId};

use super::*;

fn uplink(id: u32, name: &str) -> Uplink {
    Uplink::new(UplinkId(id), name, 1000 + id, Vec::new())
}

struct Begun(Exchange);

impl Begun {
    fn new(from: &NetNs, to: &NetNs, address: &str) -> Self {
        let exchange = Exchange::open(from, to, address);
        assert!(exchange.passes(), "it is let through");
        Self(exchange)
    }

    fn takes_from(&self, liar: &NetNs, near: &str) -> bool {
        let to = SocketAddr::new(near.parse().unwrap(), self.0.sender.local_addr().unwrap().port());
        let name = self.0.at;
        let bits = if name.is_ipv4() { 32 } else { 128 };
        liar.ip(&format!("address add {}/{bits} dev lo nodad", name.ip())).unwrap();
        let socket = liar.enter(|| UdpSocket::bind(name).unwrap()).unwrap();
        socket.send_to(b"forged", to).unwrap();
        // An answer of the other end may have been late.
        let mut buffer = [0; 9];
        let mut received = std::iter::from_fn(|| self.0.sender.recv(&mut buffer).ok());
        let taken = received.any(|length| length == b"forged".len());
        drop(socket);
        liar.ip(&format!("address del {}/{bits} dev lo", name.ip())).unwrap();
        taken
    }
}

#[test]
fn an_answer_comes_in_where_its_connection_went_out() {
    on_crossing(|crossing| {
        let Crossing { machine, tunnel, lan, wifi, modem } = crossing;
        let instance = Instance::new("rw0").unwrap();
        let mut keeper = keep(machine, "rw0", a_box(false));
        let other = NetNs::create("other").unwrap();
        cable((machine, "lan1", &["10.5.0.1/24"]), (&other, "eth0", &["10.5.0.2/24"]));
        other.ip("route add default via 10.5.0.1").unwrap();
        let unmarked = Begun::new(lan, &other, "10.5.0.2");
        assert!(unmarked.takes_from(wifi, "10.2.0.2"), "the test can fail");

        let mut answers = Answers::new(&instance);
        machine
            .enter(|| {
                for (id, name) in [(0, "wlan0"), (1, "wwan0")] {
                    answers.add_uplink(&uplink(id, name)).unwrap();
                }
                while !answers.are_ready() {
                    let turn = answers.turn(Instant::ZERO);
                    assert!(!matches!(turn, TableTurn::Failed(_)), "{turn:?}");
                    sleep(Duration::from_millis(5));
                }
            })
            .unwrap();
        let mut refused = 0;
        for (to, address, near, liars) in [
            (&other, "10.5.0.2", "10.2.0.2", [wifi, modem, tunnel]),
            (tunnel, "10.1.0.2", "10.2.0.2", [wifi, modem, wifi]),
            (tunnel, "fd01::2", "fd02::2", [wifi, modem, wifi]),
            (wifi, "10.3.0.2", "10.2.0.2", [modem, tunnel, modem]),
            (wifi, "fd03::2", "fd02::2", [modem, tunnel, modem]),
        ] {
            let begun = Begun::new(lan, to, address);
            for liar in liars {
                assert!(!begun.takes_from(liar, near), "{address} from {}", liar.name());
                refused += 1;
            }
            assert!(begun.0.passes(), "{address}: its own answers");
        }
        let begun = Begun::new(machine, wifi, "10.3.0.2");
        assert!(!begun.takes_from(modem, "10.3.0.1"));
        assert!(begun.0.passes());
        assert_eq!(keeper.drops().get(DropReason::ForwardRefused), refused + 1);
        crossing.check(wifi, machine, "10.3.0.1", true);
    });
}
