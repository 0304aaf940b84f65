//! A thread that removes connections of departed clients from the kernel's table.

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};

use super::netfilter::{Netfilter, NetfilterMessage, attribute, find};
use crate::threads::spawn;
use crate::{Apart, DeviceError};

/// The thread, which ends with this.
#[derive(Debug)]
pub struct FlowRemover(Sender<Departed>);

type Departed = Box<dyn Fn(IpAddr) -> bool + Send>;

impl FlowRemover {
    /// Removes connections in the zone of `apart`, or in the default zone.
    pub fn start(apart: Option<Apart>) -> Result<Self, DeviceError> {
        let (sender, requests) = channel();
        let zone = apart.map_or(0, Apart::zone);
        spawn("flows", move || run(&requests, zone))?;
        Ok(Self(sender))
    }

    /// Removes the connections that began at, or are answered from, an address of `departed`.
    pub fn remove(&self, departed: Box<dyn Fn(IpAddr) -> bool + Send>) {
        let _ = self.0.send(departed);
    }
}

fn run(requests: &Receiver<Departed>, zone: u16) {
    while let Ok(first) = requests.recv() {
        // One dump serves all waiting requests.
        let departed: Vec<Departed> = [first].into_iter().chain(requests.try_iter()).collect();
        match remove(&departed, zone) {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(removed, "removed connections of departed clients"),
            Err(error) => tracing::warn!(
                "connections of departed clients stay in the kernel's table until they time out: \
                 {error}"
            ),
        }
    }
}

fn remove(departed: &[Departed], zone: u16) -> io::Result<usize> {
    let mut netfilter = Netfilter::open()?;
    let mut removed = 0;
    for family in [FAMILY_IPV4, FAMILY_IPV6] {
        let mut found = Vec::new();
        let all =
            NetfilterMessage { subsystem: SUBSYSTEM, family, kind: GET, attributes: Vec::new() };
        let dumped = netfilter.ask(all, NLM_F_DUMP, |message| {
            found.extend(key_of(&message, departed, zone));
        });
        // An interrupted dump misses only connections that began since.
        dumped.or_else(|error| match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        })?;
        for attributes in found {
            let delete =
                NetfilterMessage { subsystem: SUBSYSTEM, family, kind: DELETE, attributes };
            match netfilter.ask(delete, NLM_F_ACK, drop) {
                Ok(()) => removed += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(removed)
}

fn key_of(message: &NetfilterMessage, departed: &[Departed], zone: u16) -> Option<Vec<u8>> {
    let original = message.attribute(TUPLE_ORIGINAL)?;
    let sources = [Some(original), message.attribute(TUPLE_REPLY)].into_iter().flatten();
    if !sources.filter_map(source_of).any(|source| departed.iter().any(|has| has(source))) {
        return None;
    }
    let both = message.attribute(ZONE);
    let of_zone = both.or_else(|| find(original, TUPLE_ZONE)).and_then(|it| it.try_into().ok());
    if of_zone.map_or(0, u16::from_be_bytes) != zone {
        return None;
    }
    let mut key = attribute(TUPLE_ORIGINAL | NESTED, original);
    key.extend(both.into_iter().flat_map(|zone| attribute(ZONE, zone)));
    key.extend(message.attribute(ID).into_iter().flat_map(|id| attribute(ID, id)));
    Some(key)
}

fn source_of(tuple: &[u8]) -> Option<IpAddr> {
    let ip = find(tuple, TUPLE_IP)?;
    let v4 = || find(ip, IPV4_SOURCE).and_then(|it| <[u8; 4]>::try_from(it).ok());
    let v6 = || find(ip, IPV6_SOURCE).and_then(|it| <[u8; 16]>::try_from(it).ok());
    v4().map(IpAddr::from).or_else(|| v6().map(IpAddr::from))
}

// linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h.
const SUBSYSTEM: u8 = 1;
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;
const GET: u8 = 1;
const DELETE: u8 = 2;
const NESTED: u16 = 1 << 15;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const TUPLE_IP: u16 = 1;
const TUPLE_ZONE: u16 = 3;
const IPV4_SOURCE: u16 = 1;
const IPV6_SOURCE: u16 = 3;

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::netns::{NetNs, run_sandboxed};

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test of sockets")]
    fn connections_of_a_client_that_left_are_removed() {
        run_sandboxed(|| {
            let machine = NetNs::create("machine").unwrap();
            machine.ip("link set lo up").unwrap();
            let clients = ["10.9.0.2", "10.9.0.3", "fd09::2", "fd09::3"];
            for address in clients.into_iter().chain(["10.9.0.9", "fd09::9"]) {
                machine.ip(&format!("address add {address} dev lo nodad")).unwrap();
            }
            let tracked = "table inet x { chain y { type filter hook output priority 0; \
                           ct state new accept; }; }";
            assert!(machine.command("nft").arg(tracked).status().unwrap().success());
            let entries = |of: &str| {
                let of: IpAddr = of.parse().unwrap();
                let source = match of {
                    IpAddr::V4(v4) => format!("src={v4} "),
                    IpAddr::V6(v6) => {
                        let words = v6.segments().map(|word| format!("{word:04x}"));
                        format!("src={} ", words.join(":"))
                    }
                };
                let text = std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
                text.lines().filter(|line| line.contains(&source)).count()
            };
            let left = ["10.9.0.2", "fd09::2"].map(|text| text.parse::<IpAddr>().unwrap());
            machine
                .enter(|| {
                    for client in clients {
                        let to = if client.contains('.') { "10.9.0.9" } else { "fd09::9" };
                        for _ in 0..300 {
                            let socket = UdpSocket::bind((client, 0)).unwrap();
                            let _ = socket.send_to(b"there", (to, 9));
                        }
                    }
                    assert!(clients.iter().all(|client| entries(client) >= 250));
                    let remover = FlowRemover::start(None).unwrap();
                    remover.remove(Box::new(move |address| left.contains(&address)));
                    let begun = Instant::now();
                    while entries("10.9.0.2") + entries("fd09::2") > 0 {
                        assert!(begun.elapsed() < Duration::from_secs(60));
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    assert!(entries("10.9.0.3") >= 250 && entries("fd09::3") >= 250);
                })
                .unwrap();
        });
    }
}
