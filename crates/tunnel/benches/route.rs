//! What it costs to find the client that an inner packet goes to, by the number of clients.
//!
//! Each client has an IPv4 and an IPv6 address, every tenth a network behind it. Half of the
//! packets go to clients, half to where nobody is.

use std::hint::black_box;
use std::net::IpAddr;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};
use roadweave_tunnel::{Peer, PeerTable};

const CLIENTS: [u32; 4] = [1, 100, 4_000, 40_000];
/// Addresses that are asked for in turn, so that not all lie in the processor's caches.
const ASKED: u32 = 4_096;

fn v4(number: u32) -> IpAddr {
    IpAddr::from((0x0a40_0002 + number).to_be_bytes())
}

fn v6(number: u32) -> IpAddr {
    IpAddr::from((0xfd77_u128 << 112 | u128::from(number + 2)).to_be_bytes())
}

fn client(number: u32) -> (PublicKey, Peer) {
    let mut seed = [0; 32];
    seed[..4].copy_from_slice(&number.to_be_bytes());
    let mut addresses = vec![IpNet::from(v4(number)), IpNet::from(v6(number))];
    if number.is_multiple_of(10) {
        let behind = IpAddr::from((0xac10_0000 + number / 10 * 256).to_be_bytes());
        addresses.push(IpNet::new(behind, 24).expect("24 is a length"));
    }
    let peer = Peer {
        name: format!("box-{number}"),
        tenant: String::new(),
        addresses,
        expires_unix: None,
        rate_limit: None,
        offline_max: None,
    };
    (Identity::from_seed(seed).public_key(), peer)
}

fn route(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("route");
    for clients in CLIENTS {
        let table = PeerTable::new((0..clients).map(client));
        for (family, address) in [("ipv4", v4 as fn(u32) -> IpAddr), ("ipv6", v6)] {
            // A multiplier without common factors scatters them.
            let place =
                |number: u32| (u64::from(number) * 2_654_435_761 % u64::from(2 * clients)) as u32;
            let asked: Vec<IpAddr> = (0..ASKED).map(|number| address(place(number))).collect();
            let mut next = 0;
            group.bench_function(BenchmarkId::new(family, clients), |bencher| {
                bencher.iter(|| {
                    next = (next + 1) % asked.len();
                    table.route(black_box(asked[next]))
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, route);
criterion_main!(benches);
