//! A client and a server in one process, in virtual time: an inner packet each way.
//!
//! ```text
//! client ◄─ turn ─► End ◄── a millisecond ──► End ◄─ turn ─► server
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use roadweave_identity::Identity;
use roadweave_quic::{Epoch, Outbox, TransportConfig};
use roadweave_tunnel::{
    Candidate, Client, ClientConfig, ClientEvent, Io, LaneConfig, MEMORY_MAX, Node, Peer,
    PeerTable, RecvMeta, Server, ServerConfig, Strategy, turn,
};
use roadweave_types::{Instant, UplinkId};

/// The clock, the device and the network of one end.
#[derive(Default)]
struct End {
    now: Instant,
    sent: Vec<Vec<u8>>,
    delivered: Vec<Bytes>,
}

impl Io for End {
    fn now(&self) -> Instant {
        self.now
    }

    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
        self.delivered.extend(packets);
    }

    fn transmit(&mut self, packets: &Outbox) {
        self.sent.extend(packets.packets().map(|(_, packet)| packet.to_vec()));
    }
}

/// Carries a packet each way.
///
/// # Errors
/// When an end cannot be made.
#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let epoch = Epoch::new(std::time::Instant::now());
    let (near, far): (SocketAddr, _) = ("192.0.2.2:5000".parse()?, "192.0.2.1:4433".parse()?);
    let [client_key, server_key] = [1, 2].map(|seed| Identity::from_seed([seed; 32]));
    let (client_public, lanes) =
        (client_key.public_key(), vec![LaneConfig::new("default", Strategy::xnc())]);
    let config = ClientConfig {
        name: "vehicle".to_owned(),
        candidates: vec![Candidate::only(server_key.public_key(), vec![far])],
        transport: TransportConfig::new([1; 32]),
        lanes: lanes.clone(),
        memory_max: MEMORY_MAX,
    };
    let mut client = Client::new(epoch, config, Arc::new(client_key))?;
    client.add_uplink(Instant::ZERO, UplinkId(0), "wwan0");
    let config = ServerConfig {
        transport: TransportConfig::new([2; 32]),
        lanes,
        gateways: vec!["10.77.0.1".parse()?],
        mtu: 1_360,
        clients_reach_clients: false,
        memory_max: MEMORY_MAX,
        client_memory_max: MEMORY_MAX,
    };
    let (name, addresses) = ("vehicle".to_owned(), vec!["10.77.0.2/32".parse()?]);
    let tenant = String::new();
    let peer =
        Peer { name, tenant, addresses, expires_unix: None, rate_limit: None, offline_max: None };
    let peers = Arc::new(PeerTable::new([(client_public, peer)]));
    let mut server = Server::new(epoch, config, Arc::new(server_key), peers)?;

    // Headers of IPv4 packets without contents, from 10.77.0.2 to 198.51.100.1 and back.
    let header = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0];
    let [request, response] = [[10, 77, 0, 2, 198, 51, 100, 1], [198, 51, 100, 1, 10, 77, 0, 2]]
        .map(|addresses| [&header[..], &addresses].concat());
    let meta = |remote| RecvMeta { socket: UplinkId(0), remote, local: None, ecn: None };
    let (mut client_end, mut server_end) = (End::default(), End::default());
    while client_end.delivered.is_empty() {
        let now = client_end.now + Duration::from_millis(1);
        (client_end.now, server_end.now) = (now, now);
        assert!(now < Instant::from_millis(5_000), "a session takes less");
        for payload in client_end.sent.drain(..) {
            server.handle_packet(now, &meta(near), &payload);
        }
        for payload in server_end.sent.drain(..) {
            client.handle_packet(now, &meta(far), &payload);
        }
        while let Some(event) = client.poll_event() {
            println!("{now}: {event:?}");
            if matches!(event, ClientEvent::Joined { .. }) {
                client.handle_inner(now, &request);
            }
        }
        for packet in server_end.delivered.drain(..) {
            println!("{now}: the server delivered {} bytes", packet.len());
            server.handle_inner(now, &response);
        }
        turn(&mut client, &mut client_end);
        turn(&mut server, &mut server_end);
    }
    println!("{}: the client delivered {:?}", client_end.now, client_end.delivered);
    assert_eq!(client_end.delivered, [response]);
    Ok(())
}
