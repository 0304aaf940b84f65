//! The cost of one decision, by scheduler and number of paths.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use roadweave_proto::{Instant, PathId, PathOffer, PathSnapshot, UplinkId};
use roadweave_schedule::{
    AcknowledgedDatagram, Ecf, Lola, MinRtt, Ordered, PacketInfo, Raven, RavenConfig, Scheduler,
};

type Make = fn() -> Box<dyn Scheduler>;

const SCHEDULERS: [(&str, Make); 6] = [
    ("minrtt", || Box::new(MinRtt::default())),
    ("expected-rtt", || Box::new(MinRtt::expected_rtt())),
    ("ordered", || Box::new(Ordered)),
    ("ecf", || Box::new(Ecf::default())),
    ("raven", || Box::new(Raven::new(RavenConfig::default()))),
    ("lola", || Box::new(Lola::new(Duration::from_millis(150)))),
];
const PATHS: [u32; 2] = [2, 4];

fn paths(count: u32) -> Vec<PathSnapshot> {
    let path = |id: u32| {
        let rtt = Duration::from_millis(20 + 15 * u64::from(id));
        let mut path = PathSnapshot::idle(PathId(id), rtt, 120_000);
        path.uplink = Some(UplinkId(id));
        path.bytes_in_flight = 60_000;
        path.rtt_deviation = rtt / 8;
        path
    };
    (0..count).map(path).collect()
}

fn select(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("select");
    for (name, make) in SCHEDULERS {
        for count in PATHS {
            let paths = paths(count);
            let mut scheduler = make();
            let mut now = Instant::from_millis(1);
            for (turn, path) in (0..200).zip(paths.iter().cycle()) {
                now += Duration::from_millis(1);
                let (sent, rtt) = (now, path.smoothed_rtt + Duration::from_micros(turn));
                scheduler.on_sent(now, path.id, 1200, turn);
                let acknowledged = AcknowledgedDatagram { path: path.id, sent, bytes: 1200, rtt };
                scheduler.on_acknowledged(now + rtt, &acknowledged, turn);
            }
            let packet = |flow| PacketInfo {
                bytes: 1200,
                backlog_bytes: 12_000,
                flow,
                flow_bytes: 1200,
                waited: Duration::ZERO,
                is_of_streams: false,
            };
            let offers: Vec<PathOffer<'_>> = paths.iter().map(PathOffer::free).collect();
            let mut flow = 0;
            group.bench_function(BenchmarkId::new(name, count), |bencher| {
                bencher.iter(|| {
                    flow += 1;
                    now += Duration::from_micros(100);
                    scheduler.select(now, black_box(&packet(flow)), black_box(&offers))
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, select);
criterion_main!(benches);
