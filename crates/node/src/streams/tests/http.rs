//! The sniffer of plain HTTP: what it finds, and that the bytes pass unchanged.

use roadweave_proto::SplitMix64;
use roadweave_proto::wire::{
    Acknowledged, Destination, STREAM_TAG, StreamFrame, StreamFrames, StreamPriority, StreamsEpoch,
    StreamsOffer,
};

use super::*;

fn host(asked: usize, answer: Vec<u8>) -> (JoinHandle<Vec<u8>>, String, u16) {
    let (listener, to) = destination();
    let port = listener.local_addr().expect("bound").port();
    let host = std::thread::spawn(move || {
        let mut socket = listener.accept().expect("a caller").0;
        let mut got = vec![0; asked];
        socket.read_exact(&mut got).expect("all of it");
        socket.write_all(&answer).expect("there is room");
        got
    });
    (host, to, port)
}

fn takes_priorities() -> StreamsOffer {
    StreamsOffer { epoch: StreamsEpoch(1), takes_priorities: true, takes_early: false }
}

fn say(text: Vec<u8>, answer: Vec<u8>, piece: usize) -> (World, Vec<PlayerReport>) {
    let (host, to, port) = host(text.len(), answer.clone());
    let mut world = World::new(|settings| settings.fields.http_ports = vec![port]);
    world.hears = true;
    world.client.set_peer_takes(Some(takes_priorities()));
    let (proxy, said) = (world.proxy(), text.clone());
    let application = std::thread::spawn(move || {
        let (mut socket, reply) = socks(proxy, &to);
        assert_eq!(reply, 0);
        socket.set_nodelay(true).expect("a socket");
        for bytes in said.chunks(piece) {
            socket.write_all(bytes).expect("there is room");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut got = Vec::new();
        socket.read_to_end(&mut got).expect("no reset");
        got
    });
    let mut reports = Vec::new();
    world.run(|world| {
        reports.extend(world.listener.take_reports());
        application.is_finished()
    });
    assert_eq!(application.join().expect("no panic"), answer);
    assert_eq!(host.join().expect("no panic"), text);
    (world, reports)
}

#[test]
fn players_report_by_the_requests_that_pass() {
    let text = b"GET /1.m4s?CMCD=bl%3D2300%2Cbr%3D800%2Csid%3D%22a%22 HTTP/1.1\r\nHost: h\r\n\r\n\
                 GET /2.m4s HTTP/1.1\r\nCMCD-Request: su,bl=9000\r\nCMCD-Session: sid=\"b\"\r\n\r\n\
                 GET /3.m4s HTTP/1.1\r\nCMCD-Request: bl=400\r\n\r\n\
                 GET /nothing HTTP/1.1\r\n\r\n";
    for piece in [7, usize::MAX] {
        let (world, reports) = say(text.to_vec(), Vec::new(), piece);
        let left: Vec<u128> =
            reports.iter().map(|reports| reports.qoe.play_time_left().as_millis()).collect();
        assert_eq!(left, [2300, 0, 400]);
        assert_eq!((reports[0].qoe.bps, reports[0].qoe.cached_bytes), (800_000, 230_000));
        let players: std::collections::BTreeSet<u64> =
            reports.iter().map(|reports| reports.player).collect();
        assert_eq!(players.len(), 3, "who has no name is told apart by its address");
        let findings: Vec<_> = world.listener.findings().collect();
        assert_eq!(findings, [("players", 3), ("requests", 4)]);
        assert_eq!(world.findings.counts.get("requests"), Some(&4));
    }
}

#[test]
fn garbage_passes_and_reports_nothing() {
    let mut random = SplitMix64::new(7);
    let noise: Vec<u8> = (0..300_000).map(|_| random.below(256) as u8).collect();
    let late = [&b"GET / HTTP/1.1\r\n\r\n"[..], &noise, b"GET /?CMCD=su HTTP/1.1\r\n\r\n"].concat();
    let endless = [&b"GET /?CMCD=su&"[..], &[b'a'; 100_000]].concat();
    for (text, why) in [(noise, "not-http"), (late, "not-http"), (endless, "too-long")] {
        let (world, reports) = say(text, b"HTTP/1.1 nonsense".to_vec(), usize::MAX);
        assert_eq!(reports, []);
        let findings: BTreeMap<_, _> = world.listener.findings().collect();
        assert_eq!(findings.get(why), Some(&1), "{findings:?}");
        assert!(findings.values().sum::<u64>() <= 2);
    }
}

#[test]
fn reports_of_many_players_are_bounded() {
    let one = |number: usize| {
        format!("GET /?CMCD=bl%3D0,sid%3D%22{number}%22 HTTP/1.1\r\n\r\n").into_bytes()
    };
    let text: Vec<u8> = (0..1_000).flat_map(one).collect();
    let mut requests = HttpFindings::default();
    let mut http_sniffer = HttpSniffer::of_application(1);
    let mut streams = Streams::new(Config::for_streams(Side::Client, 1));
    http_sniffer.on_sent(Instant::ZERO, &mut streams, StreamId(0), &text, &mut requests);
    assert_eq!(requests.take_reports().len(), http_sniffer::REPORTS_MAX);
    assert_eq!(requests.counts["players"], 1_000);
}

#[test]
fn a_request_says_by_which_priority_its_answer_comes() {
    let text = b"GET /poster HTTP/1.1\r\nPriority: u=1, i\r\n\r\n".to_vec();
    let (listener, to) = destination();
    let port = listener.local_addr().expect("bound").port();
    let mut world = World::new(|settings| settings.fields.http_ports = vec![port]);
    world.client.set_peer_takes(Some(takes_priorities()));
    let proxy = world.proxy();
    let application = std::thread::spawn(move || {
        let (mut socket, _) = socks(proxy, &to);
        socket.write_all(&text).expect("there is room");
        socket
    });
    let socket = world.join(application);
    let id = *world.far.keys().next().expect("it is connected");
    let expected = StreamPriority::new(1, true);
    world.run(|world| world.server.asked_priority(id) == Ok(expected));
    drop((socket, listener));
}

fn segment(length: u32) -> Vec<u8> {
    let boxed = |kind: &[u8; 4], content: &[u8]| {
        [&(content.len() as u32 + 8).to_be_bytes()[..], kind, content].concat()
    };
    let words = |words: &[u32]| words.iter().flat_map(|it| it.to_be_bytes()).collect::<Vec<u8>>();
    let moof = |offset| {
        let tfhd = boxed(b"tfhd", &words(&[0x2_0000, 1]));
        let trun = boxed(b"trun", &words(&[0x201, 1, offset, length]));
        boxed(b"moof", &boxed(b"traf", &[tfhd, trun].concat()))
    };
    let moof = moof(moof(0).len() as u32 + 8);
    [moof, boxed(b"mdat", &vec![7; length as usize + 200_000])].concat()
}

/// The order, in runs, in which two waiting answers leave the server; the sniffer saw the second.
fn order(answer: &[u8]) -> Vec<(bool, usize)> {
    let now = Instant::from_millis(1);
    let mut streams = Streams::new(Config::for_streams(Side::Server, 4));
    let ids = [(); 2].map(|()| {
        let to = Destination::of_address([192, 0, 2, 1].into(), 80).expect("a port");
        streams.open(now, to, StreamPriority::default()).expect("room")
    });
    while streams.poll_transmit(now, 1200).is_some() {}
    let mut frames = vec![StreamFrame::SessionCredit(8 << 20)];
    frames.extend(ids.map(|id| {
        let (begun, fin, contiguous, credit, ranges) = (true, false, 0, 4 << 20, vec![]);
        StreamFrame::Acknowledged(Acknowledged { id, begun, fin, contiguous, credit, ranges })
    }));
    let mut body = vec![STREAM_TAG];
    frames.iter().for_each(|frame| frame.write(&mut body));
    streams.handle_symbol(now, body.into()).expect("frames");
    let (mut http_sniffer, mut findings) = (HttpSniffer::of_host(), HttpFindings::default());
    http_sniffer.on_received(&b"GET /7.m4s HTTP/1.1\r\n\r\n".repeat(2), &mut findings);
    assert_eq!(streams.write(now, ids[0], &[1; 300_000]), Ok(300_000));
    for bytes in answer.chunks(10_000) {
        assert_eq!(streams.write(now, ids[1], bytes), Ok(bytes.len()));
        http_sniffer.on_sent(now, &mut streams, ids[1], bytes, &mut findings);
    }
    let mut runs: Vec<(bool, usize)> = Vec::new();
    while let Some(body) = streams.poll_transmit(now, 1200) {
        for frame in StreamFrames::new(body).expect("frames") {
            let StreamFrame::Data(data) = frame.expect("a frame") else { continue };
            let is_heard = data.id == ids[1];
            match runs.last_mut().filter(|(of, _)| *of == is_heard) {
                Some((_, length)) => *length += data.data.len(),
                None => runs.push((is_heard, data.data.len())),
            }
        }
    }
    runs
}

fn take_turns(runs: &[(bool, usize)]) -> bool {
    runs.len() > 20 && runs[..runs.len() - 1].iter().all(|(_, length)| *length < 2_400)
}

#[test]
fn the_first_picture_of_an_answer_goes_before_everything() {
    let content = segment(50_000);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\nContent-Length: {}\r\n\r\n",
        content.len()
    );
    let answer = [head.as_bytes(), &content].concat();
    let picture = answer.len() - 200_000;
    let runs = order(&answer);
    let (true, first) = runs[0] else { panic!("{runs:?}") };
    assert!((picture..picture + 2_400).contains(&first), "{first} of {picture}");
    assert!(take_turns(&runs[1..]), "{runs:?}");
    let sum = |of| runs.iter().filter(|(is, _)| *is == of).map(|(_, it)| it).sum::<usize>();
    assert_eq!((sum(false), sum(true)), (300_000, answer.len()));
    let plain = String::from_utf8_lossy(&answer).replace("video/mp4", "text/html");
    assert!(take_turns(&order(plain.as_bytes())));
}

#[test]
fn a_host_says_by_which_priority_its_answer_goes() {
    let answer = |fields: &str| {
        let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 90000\r\n\r\n");
        [head.as_bytes(), &[3; 90_000]].concat()
    };
    assert!(take_turns(&order(&answer(""))));
    assert!(matches!(order(&answer("Priority: u=1\r\n"))[..], [(true, _), (false, _)]));
    assert!(matches!(order(&answer("Priority: u=5\r\n"))[..], [(false, _), (true, _)]));
    // The next answer names no priority, so the client's counts.
    let both = [answer("Priority: u=1\r\n"), answer("")].concat();
    assert!(take_turns(&order(&both)));
}

/// What a host and the application get if the application sends `text` to the proxy.
fn forwarded(text: impl FnOnce(&str) -> String, answer: &'static [u8]) -> (String, Vec<u8>, World) {
    let (listener, to) = destination();
    let port = listener.local_addr().expect("bound").port();
    let host = std::thread::spawn(move || {
        let mut socket = listener.accept().expect("a caller").0;
        socket.set_read_timeout(Some(Duration::from_millis(300))).expect("not zero");
        let (mut got, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(length) = socket.read(&mut chunk) {
            assert_ne!(length, 0, "it is told of the end before it has answered");
            got.extend_from_slice(&chunk[..length]);
        }
        socket.write_all(answer).expect("there is room");
        drop(socket);
        String::from_utf8(got).expect("text")
    });
    let mut world = World::new(|settings| settings.fields.http_ports = vec![port]);
    let (proxy, text) = (world.proxy(), text(&to));
    let application = std::thread::spawn(move || {
        let mut socket = TcpStream::connect(proxy).expect("it listens");
        socket.write_all(text.as_bytes()).expect("there is room");
        let mut got = Vec::new();
        let _ = socket.read_to_end(&mut got);
        got
    });
    let got = world.join(application);
    (world.join(host), got, world)
}

#[test]
fn a_request_for_another_host_goes_there_alone() {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    let head = |to: &str| format!("POST http://{to}/a?CMCD=su HTTP/1.1\r\nCookie: 1\r\n");
    let (said, got, mut world) = forwarded(
        |to| {
            let length = "Content-Length: 7\r\nConnection: keep-alive\r\n\r\ncontent";
            let other = "GET http://192.0.2.1/ HTTP/1.1\r\nCookie: secret\r\n\r\n";
            head(to) + length + other
        },
        ANSWER,
    );
    let (first, rest) = said.split_once("\r\nHost: 127.0.0.1:").expect("a host");
    assert_eq!(first, "POST /a?CMCD=su HTTP/1.1");
    let expected = "\r\nCookie: 1\r\nContent-Length: 7\r\nVia: 1.1 roadweave\r\n\
                    Connection: close\r\n\r\ncontent";
    assert!(rest.ends_with(expected), "{said}");
    assert_eq!(got, ANSWER);
    assert_eq!(world.listener.take_reports().len(), 1, "its player is heard");
    world.settle();
    let (said, got, mut world) = forwarded(|to| head(to) + "\r\n", ANSWER);
    assert!(said.starts_with("POST /a?CMCD=su HTTP/1.1\r\n"), "{said}");
    assert_eq!(got, ANSWER);
    world.check_ends(&[(ListenerEnd::Closed, 1)]);
}

#[test]
fn an_answer_comes_whole_whatever_follows_the_request() {
    let (listener, to) = destination();
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n";
    let answer = [head.as_bytes(), &vec![b'a'; 1_000_000]].concat();
    let expected = answer.len();
    let host = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("somebody comes");
        let length = socket.read(&mut [0; 4096]).expect("a request");
        socket.write_all(&answer).expect("somebody reads");
        length
    });
    let mut world = World::new(|_| {});
    let (proxy, request) = (world.proxy(), format!("GET http://{to}/ HTTP/1.1\r\n\r\n"));
    let application = std::thread::spawn(move || {
        let mut socket = TcpStream::connect(proxy).expect("it listens");
        socket.write_all(request.repeat(2).as_bytes()).expect("there is room");
        let (mut got, mut chunk) = (0, [0; 8192]);
        while let Ok(length) = socket.read(&mut chunk)
            && length > 0
        {
            got += length;
            std::thread::sleep(Duration::from_micros(500));
        }
        got
    });
    assert_eq!(world.join(application), expected);
    world.join(host);
    world.check_ends(&[(ListenerEnd::Closed, 1)]);
}
