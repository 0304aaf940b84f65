//! What the leg from a proxy to an anchor costs on top of client and server, in one run.
//!
//! ```text
//! client ═ 2 paths ═► server ─► nothing | GENEVE framing | QUIC with window and pacer | QUIC without
//! ```
//!
//! `ROADWEAVE_NESTED=1` prints what each congestion control on the leg adds to the delay of video
//! instead.

#![allow(clippy::unwrap_used, reason = "a bench")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roadweave_emulate::{Link, LinkSettings, Trace};
use roadweave_identity::{Identity, PeerPolicy, PublicKey, Refusal};
use roadweave_quic::{
    CongestionControl, Connection, ConnectionId, Endpoint, EndpointEvent, Epoch, Event, Local,
    Source, TransportConfig,
};
use roadweave_types::{Instant, Pacing, PathId, UplinkId};
use roadweave_wire::{Geneve, GeneveContent, GeneveSequence};

mod world;
use world::{BATCH, Tunnel};

struct Anyone;
impl PeerPolicy for Anyone {
    fn check(&self, _: &PublicKey) -> Result<(), Refusal> {
        Ok(())
    }
}

struct Quic {
    proxy: Endpoint,
    anchor: Endpoint,
    id: ConnectionId,
    far: Option<ConnectionId>,
    up: Link<Vec<u8>>,
    down: Link<Vec<u8>>,
    open: bool,
    queue: VecDeque<(Instant, Bytes)>,
    arrived: Vec<(Instant, Bytes)>,
    drops: u64,
}

fn anchor_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 9], 4433))
}
fn proxy_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 5000))
}

impl Quic {
    #[allow(clippy::disallowed_methods, reason = "virtual time")]
    fn new(cc: CongestionControl, open: bool, rate: u64, delay: u64, loss: f64) -> Self {
        let epoch = Epoch::new(std::time::Instant::now());
        let key = Identity::from_seed([8; 32]);
        let mut config = TransportConfig::new([7; 32]);
        config.congestion = cc;
        let mut proxy =
            Endpoint::client(epoch, &config, Arc::new(Identity::from_seed([9; 32]))).unwrap();
        let anchor_key = key.public_key();
        let anchor = Endpoint::server(epoch, &config, Arc::new(key), Arc::new(Anyone)).unwrap();
        let id = proxy.connect(Instant::ZERO, UplinkId(0), anchor_address(), anchor_key).unwrap();
        let link = |seed| Link::new(LinkSettings::new(trace(rate, delay, loss), seed));
        let mut quic = Self {
            proxy,
            anchor,
            id,
            far: None,
            up: link(1),
            down: link(2),
            open,
            queue: VecDeque::new(),
            arrived: Vec::new(),
            drops: 0,
        };
        for at in 0..1000 {
            quic.step(Instant::from_millis(at));
        }
        quic
    }

    fn send(&mut self, now: Instant, packet: &[u8]) {
        let mut out = BytesMut::with_capacity(packet.len() + 5);
        out.put_u8(6);
        out.put_u32(77);
        out.put_slice(packet);
        self.queue.push_back((now, out.freeze()));
    }

    fn flush_queue(&mut self, now: Instant) {
        let Some(connection) = self.proxy.connection_mut(self.id) else { return };
        connection.set_pacing(Pacing::Window);
        while self.queue.front().is_some_and(|(at, _)| now - *at > Duration::from_millis(500)) {
            self.queue.pop_front();
            self.drops += 1;
        }
        while let Some((at, datagram)) = self.queue.pop_front() {
            let result = match self.open {
                true => connection.send_through(now, PathId(0), datagram, 0),
                false => connection.send_on(now, PathId(0), datagram, 0),
            };
            if let Err(error) = result {
                self.queue.push_front((at, error.into_datagram()));
                connection.on_backlog(now);
                break;
            }
        }
        while connection.poll_event().is_some() {}
    }

    fn step(&mut self, now: Instant) {
        while let Some(packet) = self.down.poll(now) {
            let source = Source {
                remote: anchor_address(),
                local: Local::Uplink(UplinkId(0)),
                ecn: None,
                received: None,
            };
            self.proxy.handle_packet(now, source, BytesMut::from(&packet[..]));
        }
        self.proxy.handle_timeout(now);
        self.flush_queue(now);
        if let Some(c) = self.proxy.connection_mut(self.id) {
            c.flush(now);
        }
        while let Some(packets) = self.proxy.poll_transmit() {
            for (_, packet) in packets.packets() {
                let _ = self.up.push(now, packet.len() + 28, packet.to_vec());
            }
        }
        while let Some(packet) = self.up.poll(now) {
            let source = Source {
                remote: proxy_address(),
                local: Local::Address(None),
                ecn: None,
                received: None,
            };
            self.anchor.handle_packet(now, source, BytesMut::from(&packet[..]));
        }
        self.anchor.handle_timeout(now);
        while let Some(event) = self.anchor.poll_event() {
            if let EndpointEvent::Incoming(id) = event {
                self.far = Some(id);
            }
        }
        if let Some(id) = self.far
            && let Some(connection) = self.anchor.connection_mut(id)
        {
            while let Some(event) = Connection::poll_event(connection) {
                if let Event::Received { datagram, .. } = event
                    && datagram.len() > 5
                {
                    self.arrived.push((now, datagram.slice(5..)));
                }
            }
            connection.flush(now);
        }
        while let Some(packets) = self.anchor.poll_transmit() {
            for (_, packet) in packets.packets() {
                let _ = self.down.push(now, packet.len() + 28, packet.to_vec());
            }
        }
    }
}

fn trace(rate: u64, delay: u64, loss: f64) -> Trace {
    let trace = Trace::constant(
        roadweave_types::Rate::from_kbps(rate * 1000),
        Duration::from_millis(delay),
    );
    trace.with_loss(roadweave_emulate::Timeline::constant(loss))
}

fn geneve(number: &mut u32, packet: &[u8]) -> usize {
    *number += 1;
    let header = Geneve::inner_header(77, packet[0], GeneveSequence { epoch: 1, number: *number });
    let mut sent = Vec::with_capacity(packet.len() + header.len());
    sent.extend_from_slice(&header);
    sent.extend_from_slice(packet);
    let received = sent.clone();
    match Geneve::parse(&received).unwrap().content {
        GeneveContent::Inner { packet, .. } => Bytes::copy_from_slice(packet).len(),
        GeneveContent::Hello(_) => 0,
    }
}

/// `boxes` streams of 30 Mbit/s in frames of 33 ms, for 10 s.
fn nested() {
    println!(
        "leg: boxes, leg Mbit/s, RTT ms, loss: added delay over the link's p50 p99 max ms; dropped, lost"
    );
    for (boxes, rate, delay, loss) in [
        (1, 1000, 1, 0.0),
        (10, 1000, 10, 0.0),
        (10, 1000, 10, 0.01),
        (10, 10_000, 40, 0.0),
        (30, 1000, 10, 0.0),
        (40, 1000, 10, 0.0),
        (1, 1000, 40, 0.0),
        (1, 1000, 40, 0.01),
        (10, 1000, 40, 0.01),
    ] {
        for (name, cc, open) in [
            ("bbr", CongestionControl::Bbr, false),
            ("cubic", CongestionControl::Cubic, false),
            ("none", CongestionControl::Bbr, true),
        ] {
            let mut quic = Quic::new(cc, open, rate, delay, loss);
            let mut sent = 0_u64;
            // Frames begin spread over 33 ms; a packet each 50 us while a frame lasts.
            for tick in 20_000..120_000_u64 {
                let now = Instant::from_nanos(tick * 50_000);
                for stream in 0..boxes {
                    let phase = (tick + stream * 660 / boxes) % 660;
                    // As uplinks bring it: a frame of 104 packets, spread over some 10 ms.
                    if phase < 208 && phase % 2 == 0 {
                        let mut packet = vec![0x45; 1200];
                        packet[8..16].copy_from_slice(&tick.to_be_bytes());
                        quic.send(now, &packet);
                        sent += 1;
                    }
                }
                quic.step(now);
            }
            let mut delays: Vec<f64> = quic
                .arrived
                .iter()
                .map(|(at, packet)| {
                    let tick = u64::from_be_bytes(packet[8..16].try_into().unwrap());
                    (at.since(Instant::from_nanos(tick * 50_000))).as_secs_f64() * 1e3
                        - delay as f64
                })
                .collect();
            delays.sort_by(f64::total_cmp);
            let q = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
            println!(
                "{boxes:3} {rate:6} {:3} {loss:5} {name:6} {:7.2} {:7.2} {:7.2} dropped {} of {sent}, arrived {}",
                2 * delay,
                q(0.5),
                q(0.99),
                q(1.0),
                quic.drops,
                delays.len()
            );
        }
    }
}

fn leg(criterion: &mut Criterion) {
    if std::env::var_os("ROADWEAVE_NESTED").is_some() {
        nested();
        return;
    }
    let mut group = criterion.benchmark_group("leg");
    group.throughput(Throughput::Elements(BATCH));
    let strategy = "xnc";
    for kind in ["today", "geneve", "quic-window", "quic-open"] {
        let mut tunnel = Tunnel::new(strategy);
        tunnel.far.kept = Some(Vec::new());
        let mut quic = Quic::new(CongestionControl::Bbr, kind == "quic-open", 10_000, 2, 0.0);
        let mut number = 0;
        group.bench_function(BenchmarkId::new("packets", kind), |bencher| {
            bencher.iter(|| {
                tunnel.step(BATCH);
                let kept = std::mem::take(tunnel.far.kept.as_mut().unwrap());
                let now = tunnel.far.io.now;
                match kind {
                    "today" => {}
                    "geneve" => kept.iter().for_each(|packet| _ = geneve(&mut number, packet)),
                    _ => {
                        kept.iter().for_each(|packet| quic.send(now, packet));
                        quic.step(now);
                        quic.arrived.clear();
                    }
                }
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = leg
}
criterion_main!(benches);
