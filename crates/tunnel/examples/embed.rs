//! A client and a server in one process, in virtual time: an inner packet each way.
//!
//! ```text
//! client ◄─ turn ─► End ◄── a millisecond ──► End ◄─ turn ─► server
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use roadweave_identity::Identity;
use roadweave_quic::{Epoch, Outbox, TransportConfig};
use roadweave_tunnel::{
    Client, ClientConfig, ClientEvent, Io, LaneConfig, MEMORY_MAX, Node, Peer, PeerTable, RecvMeta,
    Server, ServerConfig, Strategy, turn,
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

/// The header of an IPv4 packet without contents.
fn packet(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let head = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0];
    [&head[..], &from.octets(), &to.octets()].concat()
}

/// Makes both ends, and carries a packet each way.
///
/// # Errors
/// When an end cannot be made.
#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (vehicle, cloud) = (Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(198, 51, 100, 1));
    let (client_key, server_key) = (Identity::from_seed([1; 32]), Identity::from_seed([2; 32]));
    let (epoch, server_public) = (Epoch::new(std::time::Instant::now()), server_key.public_key());
    let (near, far) = ("192.0.2.2:5000".parse()?, "192.0.2.1:4433".parse()?);
    let lanes = vec![LaneConfig::new("default", Strategy::xnc())];
    let peer = Peer {
        name: "vehicle".to_owned(),
        addresses: vec![std::net::IpAddr::from(vehicle).into()],
        expires_unix: None,
        rate_limit: None,
    };
    let config = ServerConfig {
        transport: TransportConfig::new([2; 32]),
        lanes: lanes.clone(),
        gateways: vec![Ipv4Addr::new(10, 77, 0, 1).into()],
        mtu: 1_360,
        clients_reach_clients: false,
        memory_max: MEMORY_MAX,
        client_memory_max: MEMORY_MAX,
    };
    let peers = Arc::new(PeerTable::new([(client_key.public_key(), peer)]));
    let mut server = Server::new(epoch, config, Arc::new(server_key), peers)?;
    let config = ClientConfig {
        name: "vehicle".to_owned(),
        servers: vec![far],
        server_key: server_public,
        transport: TransportConfig::new([1; 32]),
        lanes,
        memory_max: MEMORY_MAX,
    };
    let mut client = Client::new(epoch, config, Arc::new(client_key))?;
    client.add_uplink(Instant::ZERO, UplinkId(0), "wwan0");

    let meta =
        |remote: SocketAddr| RecvMeta { socket: UplinkId(0), remote, local: None, ecn: None };
    let (mut client_end, mut server_end) = (End::default(), End::default());
    while client_end.delivered.is_empty() {
        let now = client_end.now + Duration::from_millis(1);
        (client_end.now, server_end.now) = (now, now);
        for payload in std::mem::take(&mut client_end.sent) {
            server.handle_packet(now, &meta(near), &payload);
        }
        for payload in std::mem::take(&mut server_end.sent) {
            client.handle_packet(now, &meta(far), &payload);
        }
        while let Some(event) = client.poll_event() {
            println!("{now}: {event:?}");
            if matches!(event, ClientEvent::Joined { .. }) {
                client.handle_inner(now, &packet(vehicle, cloud));
            }
        }
        for delivered in server_end.delivered.drain(..) {
            println!("{now}: the server delivered {} bytes", delivered.len());
            server.handle_inner(now, &packet(cloud, vehicle));
        }
        turn(&mut client, &mut client_end);
        turn(&mut server, &mut server_end);
        assert!(now < Instant::from_millis(5_000), "a session takes less");
    }
    assert_eq!(client_end.delivered, [packet(cloud, vehicle)]);
    println!("{}: the client delivered {} bytes", client_end.now, client_end.delivered[0].len());
    Ok(())
}
