//! A client and a server in one process, in virtual time: an inner packet each way.
//!
//! ```text
//! client ◄─ turn ─► MemoryIo ◄── a millisecond ──► MemoryIo ◄─ turn ─► server
//! ```

use std::net::SocketAddr;
use std::sync::Arc;

use roadweave_identity::Identity;
use roadweave_proto::{Instant, UplinkId};
use roadweave_quic::{Epoch, TransportConfig};
use roadweave_tunnel::{
    Candidate, Client, ClientConfig, ClientEvent, MemoryIo, Node, Peer, PeerTable, RecvMeta,
    Server, ServerConfig, turn,
};

/// Carries a packet each way.
///
/// # Errors
/// When an end cannot be made.
#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let epoch = Epoch::new(std::time::Instant::now());
    let (near, far): (SocketAddr, _) = ("192.0.2.2:5000".parse()?, "192.0.2.1:4433".parse()?);
    let [client_key, server_key] = [1, 2].map(|seed| Identity::from_seed([seed; 32]));
    let peer = Peer::new("vehicle", vec!["10.77.0.2/32".parse()?]);
    let peers = PeerTable::new([(client_key.public_key(), peer)]);
    let candidate = Candidate::only(server_key.public_key(), vec![far]);
    let config = ClientConfig::new("vehicle", TransportConfig::new([1; 32]), candidate);
    let mut client = Client::new(epoch, config, Arc::new(client_key))?;
    client.add_uplink(Instant::ZERO, UplinkId(0), "wwan0");
    let config = ServerConfig::new(TransportConfig::new([2; 32]), vec!["10.77.0.1/16".parse()?]);
    let mut server = Server::new(epoch, config, Arc::new(server_key), Arc::new(peers))?;

    // Headers of IPv4 packets without contents, from 10.77.0.2 to 198.51.100.1 and back.
    let header = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0];
    let [request, response] = [[10, 77, 0, 2, 198, 51, 100, 1], [198, 51, 100, 1, 10, 77, 0, 2]]
        .map(|addresses| [&header[..], &addresses].concat());
    let (mut client_io, mut server_io) = (MemoryIo::default(), MemoryIo::default());
    for now in (1..5_000).map(Instant::from_millis) {
        (client_io.now, server_io.now) = (now, now);
        for (_, payload) in client_io.transmitted.drain(..) {
            server.handle_packet(now, &RecvMeta::new(UplinkId(0), near), &payload);
        }
        for (_, payload) in server_io.transmitted.drain(..) {
            client.handle_packet(now, &RecvMeta::new(UplinkId(0), far), &payload);
        }
        while let Some(event) = client.poll_event() {
            println!("{now}: {event:?}");
            if matches!(event, ClientEvent::Joined { .. }) {
                client.handle_inner(now, &request);
            }
        }
        for packet in server_io.delivered.drain(..) {
            println!("{now}: the server delivered {} bytes", packet.len());
            server.handle_inner(now, &response);
        }
        turn(&mut client, &mut client_io);
        turn(&mut server, &mut server_io);
    }
    assert_eq!(client_io.delivered, [response]);
    Ok(())
}
