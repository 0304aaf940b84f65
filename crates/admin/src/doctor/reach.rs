//! Whether a server answers over an uplink. A [`Prober`] sends a QUIC packet of an unknown version,
//! which any QUIC server answers without a connection. Probes of several lengths leave with "do not
//! fragment", one at a time, as our servers answer an address ten times a second at most. The
//! longest answered one gives the path's MTU. Answers must be well formed, from the probed address,
//! with both connection IDs; an attacker on the path could forge one.

use std::net::SocketAddr;
use std::time::Duration;

use roadweave_linux::{
    Clock, Outgoing, SendFailure, SendOutcome, UdpOptions, UplinkSocket, random_bytes,
    wait_readable,
};
use roadweave_proto::{Instant, UplinkId};
use roadweave_quic::{Local, Prober, Source};

use super::facts::ProbeOutcome;

/// Lengths of IP packets: the minimum of IPv6, then what tunnels and modems leave.
const SIZES: [u32; 8] = [1280, 1340, 1380, 1400, 1420, 1460, 1480, 1492];
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(120);
const HEADERS: [u32; 2] = [28, 48];

/// Probes with packets of at most `mtu` bytes; takes two seconds if no answer comes.
pub(super) fn probe(interface: Option<&str>, server: SocketAddr, mtu: u32) -> ProbeOutcome {
    let options = match interface {
        Some(interface) => UdpOptions::uplink(interface, server.is_ipv4()),
        None => UdpOptions::server(match server {
            SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
            SocketAddr::V6(_) => SocketAddr::from(([0_u16; 8], 0)),
        }),
    };
    match (UplinkSocket::open(&options), random_bytes()) {
        (Ok(socket), Ok(seed)) => {
            Probing { socket, seed, server, clock: Clock::start(), next: Instant::ZERO }.run(mtu)
        }
        _ => ProbeOutcome::NoSocket,
    }
}

fn sizes(mtu: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = SIZES.into_iter().filter(|size| *size < mtu).collect();
    sizes.push(mtu.clamp(SIZES[0], 1500));
    sizes
}

struct Probing {
    socket: UplinkSocket,
    seed: [u8; 32],
    server: SocketAddr,
    clock: Clock,
    next: Instant,
}

impl Probing {
    fn run(mut self, mtu: u32) -> ProbeOutcome {
        let sizes = sizes(mtu);
        let mut failed = None;
        let Some(round_trip) = self.ask(sizes[0], Prober::TIMEOUT / 3, &mut failed) else {
            return failed.map_or(ProbeOutcome::NoAnswer, ProbeOutcome::NotSent);
        };
        let timeout = (round_trip * 3).clamp(PAUSE, Prober::TIMEOUT / 3);
        let (mut good, mut bad) = (0, sizes.len());
        while good + 1 < bad {
            let next = if bad == sizes.len() { bad - 1 } else { good.midpoint(bad) };
            match self.ask(sizes[next], timeout, &mut None) {
                Some(_) => good = next,
                None => bad = next,
            }
        }
        ProbeOutcome::Answered { round_trip, mtu: sizes[good] }
    }

    /// Sends IP packets of `size` bytes and waits `timeout` after each; returns the round trip.
    fn ask(
        &mut self,
        size: u32,
        timeout: Duration,
        failed: &mut Option<SendFailure>,
    ) -> Option<Duration> {
        self.seed[0] = self.seed[0].wrapping_add(1);
        let mut prober = Prober::new(&self.seed);
        (0..TRIES).find_map(|_| {
            std::thread::sleep(self.next.since(self.clock.now()));
            self.next = self.clock.now() + PAUSE;
            if let SendOutcome::Failed(failure) = self.send(&mut prober, size) {
                *failed = Some(failure);
            }
            self.listen(&mut prober, timeout)
        })
    }

    fn send(&mut self, prober: &mut Prober, size: u32) -> SendOutcome {
        prober.probe(self.clock.now(), UPLINK, self.server);
        let headers = HEADERS[usize::from(self.server.is_ipv6())];
        let length = (size - headers) as usize;
        let mut outcome = SendOutcome::Blocked;
        let Some(packets) = prober.poll_transmit() else { return outcome };
        for (route, packet) in packets.packets() {
            let mut contents = packet.to_vec();
            contents.resize(length.max(packet.len()), 0);
            outcome = self.socket.send(&Outgoing {
                destination: route.destination,
                source: None,
                ecn: None,
                contents: &contents,
                segment_size: contents.len(),
            });
        }
        outcome
    }

    fn listen(&mut self, prober: &mut Prober, timeout: Duration) -> Option<Duration> {
        let end = self.clock.now() + timeout;
        loop {
            let left = end.since(self.clock.now());
            if left.is_zero() {
                return None;
            }
            if !matches!(wait_readable(&self.socket, left), Ok(true)) {
                continue;
            }
            let (now, clock, mut answered) = (self.clock.now(), self.clock, None);
            let taken = self.socket.recv(|incoming| {
                let source = Source {
                    remote: incoming.remote,
                    local: Local::Uplink(UPLINK),
                    ecn: None,
                    received: incoming.received.map(|received| clock.at(received)),
                };
                let outcome = prober.handle_packet(now, &source, incoming.payload);
                answered = answered.or(outcome.and_then(|outcome| outcome.rtt));
            });
            if taken.is_err() || answered.is_some() {
                return answered;
            }
        }
    }
}

const UPLINK: UplinkId = UplinkId(0);

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::thread::spawn;

    use super::*;

    fn answer(probe: &[u8]) -> Vec<u8> {
        let (server_id, own_id) = (&probe[6..22], &probe[23..31]);
        [&[0x80, 0, 0, 0, 0, 8][..], own_id, &[16], server_id, &[0, 0, 0, 1]].concat()
    }

    fn server(longest: usize, answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        spawn(move || {
            let mut buffer = [0; 2048];
            let mut before: Option<std::time::Instant> = None;
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let rested = before.is_none_or(|at| at.elapsed() >= Duration::from_millis(100));
                if length <= longest && rested {
                    before = Some(std::time::Instant::now());
                    let _ = socket.send_to(&answer(&buffer[..length]), from);
                }
            }
        });
        address
    }

    #[test]
    fn a_server_that_answers_shows_its_round_trip_and_the_paths_mtu() {
        for (longest, mtu, expected) in [(2048, 1500, 1500), (2048, 1358, 1358), (1400, 1500, 1420)]
        {
            let outcome = probe(None, server(longest, answer), mtu);
            let ProbeOutcome::Answered { round_trip, mtu } = outcome else { panic!("{outcome:?}") };
            assert!(round_trip < Prober::TIMEOUT && mtu == expected, "{outcome:?}");
        }
    }

    #[test]
    fn only_the_answer_to_the_probe_counts() {
        type Lie = fn(&[u8]) -> Vec<u8>;
        let lies: [Lie; 5] = [
            |probe| probe.to_vec(),
            |probe| answer(probe)[..30].to_vec(),
            |probe| {
                let mut packet = answer(probe);
                packet[6] ^= 1;
                packet
            },
            |_| Vec::new(),
            |_| vec![0xff; 1200],
        ];
        let outcomes = lies.map(|lie| spawn(move || probe(None, server(2048, lie), 1300)));
        for outcome in outcomes {
            assert_eq!(outcome.join().unwrap(), ProbeOutcome::NoAnswer);
        }
    }

    #[test]
    fn what_cannot_be_sent_is_reported() {
        let nowhere = SocketAddr::from(([255, 255, 255, 255], 4433));
        let forbidden = ProbeOutcome::NotSent(SendFailure::Forbidden);
        assert_eq!(probe(None, nowhere, 1500), forbidden);
        assert_eq!(probe(Some("no-such-iface"), nowhere, 1500), ProbeOutcome::NoSocket);
    }

    #[test]
    fn lengths_go_up_to_what_the_uplink_takes() {
        assert_eq!(sizes(1500), [1280, 1340, 1380, 1400, 1420, 1460, 1480, 1492, 1500]);
        assert_eq!(sizes(1400), [1280, 1340, 1380, 1400]);
        assert_eq!(sizes(1280), [1280]);
        assert_eq!(sizes(576), [1280]);
        assert_eq!(sizes(9000).last(), Some(&1500));
    }
}
