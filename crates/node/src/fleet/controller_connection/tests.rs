//! Controllers that are false, hang or are hostile: each costs its stream and nothing else.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use roadweave_fleet::{FrameDecoder, Role, encode};
use roadweave_identity::tls::{self, HandshakeRefusal, Pinned, TlsSide};
use roadweave_linux::{Gateway, Uplink};
use rustls::{ServerConnection, StreamOwned};

use super::*;
use crate::fleet::stream::{ALPN, EARLY_MAX, NoTime};
use crate::fleet::testing::{AcceptAny, CONTROLLER, identity, key};
use crate::fleet::worker::keep_alive;

type Tls = StreamOwned<ServerConnection, TcpStream>;

const BOX: u8 = 5;
const TIMEOUT: Duration = Duration::from_secs(20);

fn listen(then: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    let then = Arc::new(then);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let then = then.clone();
            std::thread::spawn(move || then(stream));
        }
    });
    address
}

fn controller(
    seed: u8,
    policy: Arc<dyn PeerPolicy>,
    alpn: &'static [u8],
    then: impl Fn(Tls) + Send + Sync + 'static,
) -> SocketAddr {
    let identity = identity(seed);
    let refusal = Arc::new(HandshakeRefusal::default());
    let side = TlsSide { identity: &identity, policy, refusal, alpn, time: Arc::new(NoTime) };
    let mut config = tls::server(side).expect("TLS");
    if alpn.is_empty() {
        config.alpn_protocols.clear();
    }
    let config = Arc::new(config);
    listen(move |socket| {
        let tls = ServerConnection::new(config.clone()).expect("TLS");
        then(StreamOwned::new(tls, socket));
    })
}

fn friendly(then: impl Fn(Tls) + Send + Sync + 'static) -> SocketAddr {
    controller(CONTROLLER, Arc::new(AcceptAny), ALPN, then)
}

fn quiet(seed: u8, policy: Arc<dyn PeerPolicy>, alpn: &'static [u8]) -> SocketAddr {
    controller(seed, policy, alpn, |tls| answer(tls, |_| None))
}

fn good() -> SocketAddr {
    quiet(CONTROLLER, Arc::new(AcceptAny), ALPN)
}

fn closed() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port")
}

fn answer(mut tls: Tls, then: impl Fn(&Up) -> Option<Vec<u8>>) {
    let (mut decoder, mut bytes) = (FrameDecoder::default(), [0; 4096]);
    while let Ok(length @ 1..) = tls.read(&mut bytes) {
        decoder.push(&bytes[..length]);
        while let Ok(Some(up)) = decoder.poll::<Up>() {
            let alive = (up == Up::Alive).then(|| encode(&Down::Alive).expect("small"));
            let Some(answer) = then(&up).or(alive) else { continue };
            if tls.write_all(&answer).and_then(|()| tls.flush()).is_err() {
                return;
            }
        }
    }
}

struct Rig {
    connection: ControllerConnection,
    now: Instant,
    events: Vec<ConnectionEvent>,
}

impl Rig {
    fn new(addresses: &[SocketAddr]) -> Self {
        Self::of(addresses, Role::Box)
    }

    fn of(addresses: &[SocketAddr], role: Role) -> Self {
        let controllers = Arc::new(Controllers::default());
        controllers.set([key(CONTROLLER)].into());
        let options = ConnectionOptions {
            identity: Arc::new(identity(BOX)),
            controllers,
            names: addresses.iter().map(|to| to.to_string().parse().expect("a name")).collect(),
            seed: 7,
            keep_alive: keep_alive(role),
        };
        let connection =
            ControllerConnection::new(Instant::ZERO, options, vec![ControllerRoute::System])
                .expect("a waker");
        Self { connection, now: Instant::ZERO, events: Vec::new() }
    }

    fn until(&mut self, is_done: impl Fn(&Self) -> bool) {
        let started = std::time::Instant::now();
        while !is_done(self) {
            assert!(started.elapsed() < TIMEOUT, "nothing came: {:?}", self.events);
            self.turn();
            self.connection.wait(self.now, Some(self.now + Duration::from_millis(10)));
        }
    }

    fn turn(&mut self) {
        self.connection.turn(self.now);
        while let Some(event) = self.connection.poll_event() {
            self.events.push(event);
        }
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.turn();
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn is_up(&self) -> bool {
        self.connection.peer().is_some()
    }

    fn down(&self) -> Option<&str> {
        self.events.iter().rev().find_map(|event| match event {
            ConnectionEvent::Down { reason } => Some(reason.as_str()),
            _ => None,
        })
    }

    fn reason(&mut self) -> String {
        self.until(|rig| rig.down().is_some());
        assert!(!self.is_up());
        self.down().expect("just seen").to_owned()
    }
}

#[test]
fn messages_cross_both_ways_once_the_controller_has_spoken() {
    let welcome = Down::Refused { reason: "not yet".into(), retry: true };
    let bytes = encode(&welcome).expect("small");
    let address = friendly(move |tls| {
        answer(tls, |up| matches!(up, Up::Event { .. }).then(|| bytes.clone()));
    });
    let mut rig = Rig::new(&[address]);
    rig.until(Rig::is_up);
    assert_eq!(rig.connection.peer(), Some(key(CONTROLLER)));
    let large = Up::Event { text: "x".repeat(roadweave_fleet::FRAME_MAX) };
    assert!(matches!(rig.connection.send(rig.now, &large), Err(FrameError::TooLarge(_))));
    assert!(rig.is_up());
    rig.connection.send(rig.now, &Up::Event { text: "hello".into() }).expect("small");
    rig.until(|rig| {
        rig.events
            .iter()
            .any(|event| matches!(event, ConnectionEvent::Frame(frame) if *frame == welcome))
    });
    rig.pass(600);
    assert!(rig.is_up(), "{:?}", rig.down());
}

#[test]
fn a_controller_that_accepts_and_says_nothing_is_left() {
    let mut rig = Rig::new(&[silent()]);
    rig.until(|rig| match &rig.connection.state {
        ConnectionState::Dialling(dialling) => !dialling.attempts.is_empty(),
        _ => false,
    });
    rig.pass(2);
    assert_eq!(rig.down(), None, "it has some time");
    rig.pass(20);
    assert!(rig.down().is_some_and(|why| why.contains("does not answer")), "{:?}", rig.down());
}

#[test]
fn a_program_that_hangs_behind_its_key_is_left() {
    let hung = friendly(|mut tls| {
        while tls.conn.is_handshaking() {
            if tls.conn.complete_io(&mut tls.sock).is_err() {
                return;
            }
        }
        std::thread::sleep(TIMEOUT);
    });
    let mut rig = Rig::new(&[hung]);
    let greets = |rig: &Rig| match &rig.connection.state {
        ConnectionState::Dialling(dialling) => {
            dialling.attempts.iter().any(ControllerStream::is_greeting)
        }
        _ => false,
    };
    rig.until(greets);
    rig.pass(11);
    assert!(!rig.is_up() && rig.reason().contains("does not answer"));
}

#[test]
fn a_controller_that_hangs_is_left_within_65_s_by_a_box_and_within_30_s_by_others() {
    for (role, asks_after, limit) in
        [(Role::Box, 50, 65), (Role::Proxy, 15, 30), (Role::Anchor, 15, 30)]
    {
        let address = friendly(|tls| {
            let has_answered = std::cell::Cell::new(false);
            answer(tls, |_| has_answered.replace(true).then(Vec::new));
        });
        let mut rig = Rig::of(&[address], role);
        rig.until(Rig::is_up);
        let begun = rig.now;
        while rig.is_up() {
            rig.pass(1);
        }
        let took = rig.now.since(begun).as_secs();
        assert!((asks_after..=limit).contains(&took), "{role:?}: {took} s");
        assert!(
            rig.down().is_some_and(|why| why.contains("no longer answers")),
            "{:?}",
            rig.down()
        );
        let ConnectionState::Resting(until) = rig.connection.state else { panic!("it rests") };
        assert!(until.since(rig.now) <= Duration::from_secs(1));
    }
}

#[test]
fn each_way_to_be_no_controller_has_its_reason() {
    let web = listen(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: http://portal/\r\n\r\n");
        std::thread::sleep(Duration::from_millis(200));
    });
    let other_key = format!("its key is {}, which is not a controller", key(9));
    for (address, says) in [
        (quiet(9, Arc::new(AcceptAny), ALPN), other_key.as_str()),
        (quiet(CONTROLLER, Arc::new(Pinned(key(77))), ALPN), "it rejects this key"),
        (web, "it is not a controller"),
        (quiet(CONTROLLER, Arc::new(AcceptAny), b"h2"), "it is not a controller"),
        (quiet(CONTROLLER, Arc::new(AcceptAny), b""), "does not speak roadweave-control/1"),
        (closed(), "refused"),
    ] {
        let why = Rig::new(&[address]).reason();
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn messages_that_are_none_end_the_stream_and_it_rests() {
    for (bytes, says) in [
        (u32::MAX.to_be_bytes().to_vec(), "a message of 4294967295 bytes"),
        ([&5_u32.to_be_bytes()[..], b"\"no!\""].concat(), "cannot be read"),
        ([&2_u32.to_be_bytes()[..], &[0xff, 0]].concat(), "cannot be read"),
    ] {
        let address = friendly(move |tls| {
            answer(tls, |up| matches!(up, Up::Event { .. }).then(|| bytes.clone()));
        });
        let mut rig = Rig::new(&[address]);
        rig.until(Rig::is_up);
        rig.connection.send(rig.now, &Up::Event { text: "hello".into() }).expect("small");
        let why = rig.reason();
        assert!(why.contains(says), "{why}");
        assert!(matches!(rig.connection.state, ConnectionState::Resting(until) if until > rig.now));
    }
}

#[test]
fn addresses_that_hang_or_lie_do_not_hide_the_good_one() {
    let (other, good) = (quiet(9, Arc::new(AcceptAny), ALPN), good());
    let mut rig = Rig::new(&[silent(), other, good]);
    for _ in 0..40 {
        rig.now += Duration::from_millis(100);
        rig.turn();
        std::thread::sleep(Duration::from_millis(20));
        if rig.is_up() {
            break;
        }
    }
    let is_up = |event: &ConnectionEvent| match event {
        ConnectionEvent::Up { address, .. } => *address == good,
        _ => false,
    };
    assert!(rig.is_up() && rig.events.iter().any(is_up), "{:?}", rig.events);
}

#[test]
fn without_its_way_a_stream_ends_and_another_is_sought_at_once() {
    let mut rig = Rig::new(&[good()]);
    rig.until(Rig::is_up);
    rig.connection.set_ways(rig.now, Vec::new());
    rig.turn();
    assert!(!rig.is_up() && rig.down().is_some_and(|why| why.contains("is gone")));
    rig.connection.set_ways(rig.now, vec![ControllerRoute::System]);
    rig.until(Rig::is_up);
    rig.connection.set_ways(rig.now, Vec::new());
    rig.pass(100);
    assert!(!rig.is_up());
}

fn silent() -> SocketAddr {
    listen(|stream| {
        std::thread::sleep(TIMEOUT);
        drop(stream);
    })
}

fn dialling(rig: &Rig) -> &Dialling {
    let ConnectionState::Dialling(dialling) = &rig.connection.state else { panic!("it seeks") };
    dialling
}

fn begin(rig: &mut Rig, count: usize) {
    rig.until(|rig| match &rig.connection.state {
        ConnectionState::Dialling(it) => !it.attempts.is_empty(),
        _ => false,
    });
    for _ in 1..count {
        rig.now += STAGGER;
        rig.turn();
    }
}

fn loopback(address: &str) -> ControllerRoute {
    let addresses = vec![address.parse().expect("a prefix")];
    let uplink = Uplink::new(roadweave_proto::UplinkId(1), "lo", 1, addresses);
    ControllerRoute::Uplink(Uplink { gateway_v4: Some(Gateway::Direct), ..uplink })
}

#[test]
fn with_more_addresses_than_attempts_it_sleeps_until_one_ends() {
    let addresses: Vec<_> = (0..6).map(|_| silent()).collect();
    let mut rig = Rig::new(&addresses);
    begin(&mut rig, 4);
    rig.now += STAGGER;
    rig.turn();
    assert_eq!(dialling(&rig).attempts.len(), ATTEMPTS_MAX);
    let wakes = rig.connection.poll_timeout().expect("attempts have an end");
    assert!(wakes > rig.now, "{wakes:?} at {:?}", rig.now);
}

#[test]
fn another_way_leaves_what_is_tried_over_those_that_stay() {
    let mut rig = Rig::new(&[silent()]);
    begin(&mut rig, 1);
    let first = dialling(&rig).attempts[0].poll_timeout();
    rig.now += Duration::from_secs(1);
    rig.connection.set_ways(rig.now, vec![ControllerRoute::System, loopback("127.0.0.1/8")]);
    let (attempts, legs) = (&dialling(&rig).attempts, &dialling(&rig).legs);
    assert_eq!((attempts.len(), attempts[0].poll_timeout(), legs.len()), (1, first, 2));
    rig.connection.set_ways(rig.now, vec![loopback("127.0.0.1/8")]);
    assert_eq!((dialling(&rig).attempts.len(), dialling(&rig).legs.len()), (0, 1));
}

#[test]
fn a_way_full_of_addresses_that_hang_does_not_hide_another() {
    let mut rig = Rig::new(&[silent()]);
    begin(&mut rig, 1);
    let other = loopback("127.0.0.1/8");
    rig.connection.set_ways(rig.now, vec![ControllerRoute::System, other.clone()]);
    rig.until(|rig| dialling(rig).legs[1].look_up.is_none());
    // The name servers of the first way give many addresses that hang.
    let hanging = silent();
    let ConnectionState::Dialling(it) = &mut rig.connection.state else { panic!("it seeks") };
    it.legs[1].waiting.clear();
    it.legs[0].look_up = Some(Arc::default());
    it.legs[1].look_up = Some(Arc::default());
    let many = Found { servers: vec![hanging; 100], ..Found::default() };
    it.sender.send((ControllerRoute::System, many)).expect("open");
    it.take_answers(0);
    assert_eq!(it.legs[0].waiting.len(), ADDRESSES_MAX / 2);
    for _ in 0..ATTEMPTS_MAX {
        rig.now += STAGGER;
        rig.turn();
    }
    let ConnectionState::Dialling(it) = &mut rig.connection.state else { panic!("it seeks") };
    let one = Found { servers: vec![good()], ..Found::default() };
    it.sender.send((other, one)).expect("open");
    rig.now += STAGGER;
    rig.until(Rig::is_up);
}

#[test]
fn a_controller_that_speaks_and_does_not_answer_is_left_before_it_fills_the_memory() {
    let frame = encode(&Down::Refused { reason: "no".into(), retry: true }).expect("small");
    let address = friendly(move |tls| answer(tls, |_| Some(frame.repeat(EARLY_MAX + 1))));
    let why = Rig::new(&[address]).reason();
    assert!(why.contains("no answer"), "{why}");
}

#[test]
fn a_box_that_reaches_no_controller_tries_ever_less_often() {
    let mut rig = Rig::new(&[closed()]);
    let mut tries = Vec::new();
    for _ in 0..6 {
        let before = rig.events.len();
        rig.until(|rig| rig.events.len() > before);
        tries.push(rig.now.since(Instant::ZERO));
        let ConnectionState::Resting(until) = rig.connection.state else { panic!("it rests") };
        rig.now = until;
    }
    let rests: Vec<Duration> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(rests[0] >= Duration::from_millis(500) && rests[4] > rests[0] * 2, "{rests:?}");
}
