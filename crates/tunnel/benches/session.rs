//! What a packet costs on its way through a client and a server, with TLS, in virtual time.
//!
//! ```text
//! 4 packets each ms ─► client ═ 2 paths of 10 ms ═► server ─► device
//! ```
//!
//! There is nothing but the two nodes: what one sends waits in a queue until the other gets it. So
//! the time is that of both ends together, their acknowledgements and timers among it.

mod world;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use world::{BATCH, Tunnel};

fn session(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("session");
    group.throughput(Throughput::Elements(BATCH));
    for strategy in ["minrtt", "xnc", "redundant"] {
        let mut tunnel = Tunnel::new(strategy);
        group.bench_function(BenchmarkId::new("packets", strategy), |bencher| {
            bencher.iter(|| tunnel.step(BATCH));
        });
        let (sent, delivered) = (tunnel.near.io.now, tunnel.far.delivered);
        assert!(delivered > 480 * BATCH, "{delivered} arrived by {sent}");
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = session
}
criterion_main!(benches);
