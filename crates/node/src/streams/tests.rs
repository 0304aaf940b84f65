//! Two ends of streams joined in memory, with real sockets on the loopback at both.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Wall};

use bytes::Bytes;
use roadweave_config::TcpWay;
use roadweave_linux::{Interest, Poller, Token};
use roadweave_proto::wire::{ResetCode, StreamId};
use roadweave_proto::{Instant, Marks, ServerHost};
use roadweave_stream::{Config, Event as StreamEvent, Side, Streams};

use super::http_sniffer::{HttpFindings, HttpSniffer};
use super::splice::{self, Splice, SpliceEnd, SpliceTurn};
use super::*;

mod http;

const LISTENER: Token = Token(1 << 60);
const DELAY: Duration = Duration::from_millis(2);
const LIMIT: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

struct World {
    start: Wall,
    poller: Poller,
    listener: StreamListener,
    client: Streams,
    server: Streams,
    under_way: Vec<(Instant, bool, Bytes)>,
    far: BTreeMap<StreamId, (Splice, bool)>,
    overs: Vec<SpliceEnd>,
    hears: bool,
    findings: HttpFindings,
    scratch: Vec<u8>,
}

impl World {
    fn new(change: impl FnOnce(&mut ListenerSettings)) -> Self {
        let loopback = "127.0.0.0/8".parse().expect("a network");
        let listen = "127.0.0.1:0".parse().expect("an address");
        let fields = roadweave_config::ClientStreams {
            listen: Some(listen),
            from: vec![loopback],
            tcp: TcpWay::Tunnel,
            http_ports: Vec::new(),
            ..Default::default()
        };
        let mut settings = ListenerSettings::new(fields, Marks::default());
        change(&mut settings);
        let poller = Poller::new().expect("a poller");
        let mut listener = StreamListener::open(settings, LISTENER);
        listener.set_inside(vec![loopback_index()]);
        listener.register(&poller).expect("room");
        let streams = |side| Streams::new(Config::for_streams(side, 2000));
        Self {
            start: Wall::now(),
            poller,
            listener,
            client: streams(Side::Client),
            server: streams(Side::Server),
            under_way: Vec::new(),
            far: BTreeMap::new(),
            overs: Vec::new(),
            hears: false,
            findings: HttpFindings::default(),
            scratch: vec![0; SCRATCH],
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.start.elapsed()
    }

    fn proxy(&self) -> SocketAddr {
        self.listener.local_address().expect("bound")
    }

    fn connect(&mut self) -> (TcpStream, TcpStream) {
        let ((listener, to), proxy) = (destination(), self.proxy());
        let (application, reply) = self.join(std::thread::spawn(move || socks(proxy, &to)));
        assert_eq!(reply, 0);
        (application, listener.accept().expect("a caller").0)
    }

    fn run(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) {
        let begin = Wall::now();
        while !is_done(self) {
            assert!(begin.elapsed() < LIMIT, "it does not end: {:?}", self.listener.ends());
            self.step();
        }
    }

    fn join<T>(&mut self, thread: JoinHandle<T>) -> T {
        self.run(|_| thread.is_finished());
        thread.join().expect("no panic")
    }

    fn step(&mut self) {
        let ready = self.poller.wait(Some(Duration::from_millis(1))).expect("a living process");
        for event in ready.iter() {
            if self.listener.owns(event.token) {
                self.listener.on_ready(event);
            } else if let Some((splice, is_ready)) = self.far.get_mut(&StreamId(event.token.0)) {
                splice.on_ready(event);
                *is_ready = true;
            }
        }
        let now = self.now();
        let (arrived, later): (Vec<_>, Vec<_>) =
            self.under_way.drain(..).partition(|(at, ..)| *at <= now);
        self.under_way = later;
        for (_, to_server, body) in arrived {
            let to = if to_server { &mut self.server } else { &mut self.client };
            to.handle_symbol(now, body).expect("a peer that keeps to the rules");
        }
        self.client.handle_timeout(now);
        self.server.handle_timeout(now);
        self.listener.handle_events(now, &mut self.client);
        self.listener.turn(now, &self.poller, &mut self.client);
        self.turn_far(now);
        for (from, to_server) in [(&mut self.client, true), (&mut self.server, false)] {
            while let Some(body) = from.poll_transmit(now, 1200) {
                self.under_way.push((now + DELAY, to_server, body));
            }
        }
    }

    fn turn_far(&mut self, now: Instant) {
        while let Some(event) = self.server.poll_event(now) {
            match event {
                StreamEvent::Opened { id, destination, .. } => {
                    let result = match destination.host() {
                        ServerHost::Address(address) => {
                            TcpStream::connect((*address, destination.port()))
                                .map_err(|_| ResetCode::Refused)
                        }
                        ServerHost::Name(name) if name.starts_with("silent") => continue,
                        ServerHost::Name(name) if name.starts_with("slow") => {
                            Err(ResetCode::TimedOut)
                        }
                        ServerHost::Name(_) => Err(ResetCode::Forbidden),
                    };
                    match result {
                        Ok(socket) => {
                            splice::prepare(&socket).expect("a socket");
                            let small = socket2::SockRef::from(&socket);
                            small.set_send_buffer_size(64 << 10).expect("a socket");
                            let token = Token(id.0);
                            self.poller.add(&socket, token, Interest::Edges).expect("room");
                            self.server.accept(now, id).expect("the peer's");
                            let splice = Splice::new(socket, id, false);
                            let splice = splice.with_sniffer(self.hears.then(HttpSniffer::of_host));
                            self.far.insert(id, (splice, true));
                        }
                        Err(code) => self.server.reset(now, id, code).expect("open"),
                    }
                }
                StreamEvent::Reset { id, code, .. } => {
                    if let Some((splice, _)) = self.far.remove(&id) {
                        splice::break_off(&splice.socket);
                        self.overs.push(SpliceEnd::Reset(code));
                    }
                }
                StreamEvent::Readable(id)
                | StreamEvent::Writable(id)
                | StreamEvent::Finished(id)
                | StreamEvent::Stopped { id, .. } => {
                    let Some((splice, is_ready)) = self.far.get_mut(&id) else { continue };
                    *is_ready = true;
                    splice.on_stream(&event);
                }
                StreamEvent::Connected(_) | StreamEvent::Acknowledged(_) => {}
            }
        }
        let Self { far, server, scratch, findings, overs, .. } = self;
        far.retain(|_, (splice, is_ready)| {
            if *is_ready {
                match splice.turn(now, server, scratch, findings) {
                    SpliceTurn::Over(how) => {
                        overs.push(how);
                        return false;
                    }
                    SpliceTurn::More => {}
                    SpliceTurn::Idle => *is_ready = false,
                }
            }
            true
        });
    }

    /// Runs until no connection is left, and checks that each was counted once.
    fn settle(&mut self) {
        self.run(|world| {
            let streams = world.client.open_streams() + world.server.open_streams();
            world.listener.connections() + world.far.len() + streams == 0
        });
        assert_eq!(self.listener.accepted(), self.listener.ends().0.values().sum::<u64>());
        let connections = &self.listener.connections;
        assert!(connections.streams.is_empty() && connections.callers.is_empty());
    }

    fn check_ends(&mut self, expected: &[(ListenerEnd, u64)]) {
        self.settle();
        assert_eq!(self.listener.ends().iter().collect::<Vec<_>>(), expected);
    }
}

fn socks(proxy: SocketAddr, to: &str) -> (TcpStream, u8) {
    let (host, port) = to.rsplit_once(':').expect("host:port");
    let port: u16 = port.parse().expect("a port");
    let mut socket = TcpStream::connect(proxy).expect("it listens");
    socket.set_read_timeout(Some(LIMIT)).expect("not zero");
    socket.write_all(&[5, 1, 0]).expect("there is room");
    let mut method = [0; 2];
    socket.read_exact(&mut method).expect("an answer");
    assert_eq!(method, [5, 0]);
    let head = [5, 1, 0, 3, host.len() as u8];
    let request = [&head[..], host.as_bytes(), &port.to_be_bytes()].concat();
    socket.write_all(&request).expect("there is room");
    let mut reply = [0; 10];
    socket.read_exact(&mut reply).expect("an answer");
    (socket, reply[1])
}

fn destination() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    (listener, address)
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|place| (((place + seed) * 2_654_435_761) >> 11) as u8).collect()
}

fn exchange(socket: TcpStream, bytes: Vec<u8>, pause: Duration) -> Vec<u8> {
    let mut writer = socket.try_clone().expect("a descriptor");
    let writer = std::thread::spawn(move || {
        writer.write_all(&bytes).expect("the peer reads");
        writer.shutdown(Shutdown::Write).expect("open");
    });
    let (mut socket, mut got) = (socket, Vec::new());
    let mut chunk = vec![0; 64 << 10];
    loop {
        match socket.read(&mut chunk).expect("no reset") {
            0 => break,
            length => got.extend_from_slice(&chunk[..length]),
        }
        std::thread::sleep(pause);
    }
    writer.join().expect("no panic");
    got
}

#[test]
fn much_passes_both_ways_at_once_between_slow_readers() {
    let (length, pause) = (24 * MIB, Duration::from_millis(1));
    let mut world = World::new(|_| {});
    let (application, host) = world.connect();
    let host = std::thread::spawn(move || exchange(host, bytes(1, length), pause));
    let application = std::thread::spawn(move || exchange(application, bytes(2, length), pause));
    assert!(world.join(application) == bytes(1, length), "what came down is right");
    assert!(world.join(host) == bytes(2, length), "what came up is right");
    assert!(world.client.memory() <= world.client.memory_max());
    world.check_ends(&[(ListenerEnd::Closed, 1)]);
    assert_eq!(world.overs, [SpliceEnd::Closed]);
}

#[test]
fn an_address_that_another_program_has_is_listened_at_once_it_is_free() {
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = holder.local_addr().expect("bound");
    let mut world = World::new(|settings| settings.fields.listen = Some(address));
    world.step();
    assert_eq!(world.listener.local_address(), None);
    drop(holder);
    world.run(|world| world.listener.local_address().is_some());
    let _caller = TcpStream::connect(address).expect("it listens");
    world.run(|world| world.listener.accepted() == 1);
}

#[test]
fn a_reader_that_stands_still_holds_its_sender_back() {
    let mut world = World::new(|_| {});
    let (application, host) = world.connect();
    application.set_nonblocking(true).expect("a socket");
    let (mut sent, chunk) = (0, vec![7; 64 << 10]);
    let mut last = Wall::now();
    world.run(|_| {
        while let Ok(length) = (&application).write(&chunk) {
            (sent, last) = (sent + length, Wall::now());
        }
        last.elapsed() > Duration::from_millis(700)
    });
    assert!(sent < 64 * MIB, "{sent} bytes went nowhere");
    assert!(world.server.memory() <= world.server.memory_max());
    assert_ne!(world.listener.poll_timeout(), Some(Instant::ZERO));
    let reader = std::thread::spawn(move || exchange(host, vec![], Duration::ZERO).len());
    application.set_nonblocking(false).expect("a socket");
    application.shutdown(Shutdown::Write).expect("open");
    assert_eq!(world.join(reader), sent);
    world.check_ends(&[(ListenerEnd::Closed, 1)]);
}

#[test]
fn a_connection_that_is_broken_off_is_broken_off_at_the_other_end() {
    let mut world = World::new(|_| {});
    for by_application in [true, false] {
        let (application, host) = world.connect();
        let (broken, mut other) =
            if by_application { (application, host) } else { (host, application) };
        splice::break_off(&broken);
        drop(broken);
        let error_kind =
            std::thread::spawn(move || other.read(&mut [0]).expect_err("a reset").kind());
        assert_eq!(world.join(error_kind), std::io::ErrorKind::ConnectionReset);
    }
    world.check_ends(&[(ListenerEnd::Aborted, 1), (ListenerEnd::Reset, 1)]);
}

#[test]
fn an_rst_behind_the_fin_takes_nothing_of_what_was_sent_before() {
    let mut world = World::new(|_| {});
    let (mut application, mut host) = world.connect();
    let application = std::thread::spawn(move || {
        application.write_all(&bytes(3, MIB)).expect("there is room");
    });
    let host = std::thread::spawn(move || {
        // It answers before it reads, which provokes the RST after the application has closed.
        std::thread::sleep(Duration::from_millis(200));
        host.write_all(b"welcome").expect("there is room");
        std::thread::sleep(Duration::from_millis(200));
        let mut got = Vec::new();
        host.read_to_end(&mut got).expect("its end");
        got
    });
    world.join(application);
    assert!(world.join(host) == bytes(3, MIB), "all has come");
    world.check_ends(&[(ListenerEnd::Aborted, 1)]);
}

#[test]
fn errors_of_the_far_end_are_reported_as_they_are() {
    let mut world = World::new(|settings| settings.connect_max = Duration::from_millis(300));
    let (listener, closed) = destination();
    drop(listener);
    let cases = [
        (closed.as_str(), 5, "502 Bad Gateway"),
        ("forbidden.example:80", 2, "403 Forbidden"),
        ("slow.example:80", 6, "504 Gateway Timeout"),
        ("silent.example:80", 6, "504 Gateway Timeout"),
    ];
    let proxy = world.proxy();
    for (to, reply, status) in cases {
        let target = to.to_owned();
        let by_socks = std::thread::spawn(move || socks(proxy, &target).1);
        assert_eq!(world.join(by_socks), reply, "{to}");
        for request in [
            format!("CONNECT {to} HTTP/1.1\r\n\r\nwhat comes too early"),
            format!("GET http://{to}/ HTTP/1.1\r\nHost: a\r\n\r\n"),
        ] {
            let answer = ask(&mut world, request.into_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{to}: {answer}");
        }
    }
    world.check_ends(&[(ListenerEnd::Unconnected, 12)]);
}

fn ask(world: &mut World, bytes: Vec<u8>) -> String {
    let proxy = world.proxy();
    let caller = std::thread::spawn(move || {
        let mut socket = TcpStream::connect(proxy).expect("it listens");
        socket.set_read_timeout(Some(LIMIT)).expect("not zero");
        let _ = socket.write_all(&bytes);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        answer.iter().map(|byte| char::from(*byte)).collect()
    });
    world.join(caller)
}

#[test]
fn a_request_that_is_not_served_is_refused_and_closed() {
    let mut world = World::new(|settings| settings.handshake_max = Duration::from_millis(300));
    assert_eq!(ask(&mut world, vec![]), "");
    assert_eq!(ask(&mut world, vec![5, 1]), "");
    assert!(ask(&mut world, b"CONN".to_vec()).starts_with("HTTP/1.1 408 "));
    assert_eq!(world.listener.ends().0[&ListenerEnd::Slow], 3);
    assert_eq!(ask(&mut world, vec![5, 1, 2]), "\u{5}\u{ff}");
    assert!(ask(&mut world, vec![5, 1, 0, 5, 2, 0, 1, 0, 0, 0, 0, 0, 9]).contains("\u{5}\u{7}"));
    let endless = [b"GET / HTTP/1.1\r\nF: ".as_slice(), &[b'a'; 20_000]].concat();
    assert!(ask(&mut world, endless).starts_with("HTTP/1.1 431 "));
    assert!(ask(&mut world, b"\x04\x01".to_vec()).starts_with("HTTP/1.1 400 "));
    assert_eq!(world.listener.ends().0[&ListenerEnd::BadRequest], 4);
    let other = ask(&mut world, b"POST /v1/other HTTP/1.1\r\n\r\n".to_vec());
    assert!(other.starts_with("HTTP/1.1 404 "), "{other}");
    let report = "POST /v1/qoe HTTP/1.1\r\nContent-Type: application/cmcd\r\n\
                  Content-Length: 18\r\n\r\nbl=1200,sid=\"6e2f\"";
    let answer = ask(&mut world, report.into());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let reports = world.listener.take_reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].qoe.play_time_left(), Duration::from_millis(1200));
    let slow = (ListenerEnd::Slow, 3);
    world.check_ends(&[(ListenerEnd::BadRequest, 4), (ListenerEnd::Served, 2), slow]);
}

fn loopback_index() -> u32 {
    roadweave_linux::Netlink::open().and_then(|mut it| it.link("lo")).expect("a loopback").index
}

#[test]
fn strangers_and_those_who_are_too_many_are_closed_at_once() {
    let far = "192.0.2.0/24".parse().expect("a network");
    let mut world = World::new(|settings| settings.fields.from = vec![far]);
    assert_eq!(ask(&mut world, vec![5, 1, 0]), "");
    world.check_ends(&[(ListenerEnd::Stranger, 1)]);

    let mut world = World::new(|settings| settings.connections_of_one_max = 2);
    world.listener.set_inside(vec![loopback_index() + 1]);
    assert_eq!(ask(&mut world, vec![5, 1, 0]), "");
    world.listener.set_inside(vec![loopback_index()]);
    let proxy = world.proxy();
    let waiting: Vec<_> = (0..2).map(|_| TcpStream::connect(proxy)).collect();
    world.run(|world| world.listener.connections() == 2);
    assert_eq!(ask(&mut world, vec![5, 1, 0]), "");
    assert_eq!(world.listener.ends().0[&ListenerEnd::TooMany], 1);
    drop(waiting);
    let (left, too_many) = ((ListenerEnd::Left, 2), (ListenerEnd::TooMany, 1));
    world.check_ends(&[left, (ListenerEnd::Stranger, 1), too_many]);
}
