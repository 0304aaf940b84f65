//! Strangers, repetitions and garbage: a server is no amplifier, and nothing panics or grows.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::message::tests::{packet, report};
use crate::message::{Message, Open, Packet, REQUEST_BYTES, Report};

fn address(port: u16) -> RecordPeer {
    address_of(1, port)
}

fn address_of(host: u8, port: u16) -> RecordPeer {
    RecordPeer { remote: SocketAddr::from(([192, 0, 2, host], port)), local: None }
}

fn server(limits: RecordLimits) -> RecordServer {
    let mut secret = 10;
    RecordServer::new(limits, Duration::ZERO, move || {
        secret += 1;
        secret
    })
}

fn answers(server: &mut RecordServer, now: Instant) -> Vec<(RecordPeer, Vec<u8>)> {
    std::iter::from_fn(|| server.poll_transmit(now)).take(10_000).collect()
}

fn open(token: u64, plan: RecordPlan) -> Vec<u8> {
    Message::Open(Open { token, resume: 0, elapsed_us: 0, plan, proof: [0; 32] }).encode()
}

fn challenge(server: &mut RecordServer, now: Instant, peer: RecordPeer) -> u64 {
    server.handle_datagram(now, peer, &Message::Hello { nonce: 5 }.encode());
    let (to, challenge) = server.poll_transmit(now).unwrap();
    let Some(Message::Challenge { nonce: 5, token }) = Message::decode(&challenge) else {
        panic!("no challenge but {challenge:?}");
    };
    assert_eq!(to, peer);
    token
}

fn open_session_at(
    server: &mut RecordServer,
    now: Instant,
    peer: RecordPeer,
    plan: RecordPlan,
) -> Option<Message> {
    let token = challenge(server, now, peer);
    server.handle_datagram(now, peer, &open(token, plan));
    answers(server, now).iter().find_map(|(_, answer)| Message::decode(answer))
}

fn open_session(server: &mut RecordServer, peer: RecordPeer, plan: RecordPlan) -> Option<Message> {
    open_session_at(server, Instant::ZERO, peer, plan)
}

fn is_welcome(answer: &Option<Message>) -> bool {
    matches!(answer, Some(Message::Welcome(_)))
}

#[test]
fn an_address_that_answers_no_challenge_gets_less_than_it_sends() {
    let mut server = server(RecordLimits::default());
    let (mut sent, mut got) = (0, 0);
    for round in 0..1_000_u64 {
        let now = Instant::from_millis(round * 10);
        for request in [
            Message::Hello { nonce: round }.encode(),
            open(round, RecordPlan::default()),
            Message::Close { token: round }.encode(),
        ] {
            sent += request.len();
            server.handle_datagram(now, address(7), &request);
        }
        got += answers(&mut server, now).iter().map(|(_, answer)| answer.len()).sum::<usize>();
    }
    assert!(got * 4 < sent, "{got} for {sent}");
    assert_eq!(server.statistics().sessions, 0);
}

#[test]
fn a_secret_is_good_for_its_own_address_only() {
    let mut server = server(RecordLimits::default());
    let token = challenge(&mut server, Instant::ZERO, address(1));
    server.handle_datagram(Instant::ZERO, address(2), &open(token, RecordPlan::default()));
    assert_eq!(answers(&mut server, Instant::ZERO), []);
    assert_eq!((server.statistics().sessions, server.statistics().ignored), (0, 1));
    server.handle_datagram(Instant::ZERO, address(1), &open(token, RecordPlan::default()));
    assert_eq!(server.statistics().sessions, 1);
}

#[test]
fn a_client_that_falls_silent_gets_no_flood() {
    let mut server = server(RecordLimits::default());
    let plan = RecordPlan {
        mode: RecordMode::Constant(Rate::from_kbps(100_000)),
        ..RecordPlan::default()
    };
    assert!(is_welcome(&open_session(&mut server, address(1), plan)));
    let mut bytes = [0; 130];
    for ms in 0..130_000 {
        let now = Instant::from_millis(ms);
        server.poll_timeout(now);
        let sent = answers(&mut server, now);
        bytes[ms as usize / 1_000] += sent.iter().map(|(_, sent)| sent.len()).sum::<usize>();
    }
    // The first two seconds are probes; in the third the client still counts as present.
    assert!(bytes[2] > 100_000, "{bytes:?}");
    assert!(bytes[4..].iter().all(|&bytes| bytes < 1_500), "{bytes:?}");
    assert_eq!((bytes[125], server.statistics().sessions), (0, 0));
}

#[test]
fn a_session_ends_with_its_plan_however_long_its_client_talks() {
    let limits = RecordLimits { sessions: 1, ..RecordLimits::default() };
    let mut server = server(limits);
    let plan = plan(2);
    let Some(Message::Welcome(welcome)) = open_session(&mut server, address(1), plan.clone())
    else {
        panic!("no session");
    };
    let report = Report { token: welcome.token, ..Report::default() };
    let talk = Message::Report(report).encode();
    let last = Instant::ZERO + plan.duration() + SECOND * 29;
    let mut now = Instant::ZERO;
    while now < last {
        now += SECOND;
        server.handle_datagram(now, address(1), &talk);
        server.poll_timeout(now);
        answers(&mut server, now);
        assert_eq!((server.statistics().sessions, server.statistics().ignored), (1, 0), "{now}");
    }
    // The only session has ended; the next client gets it.
    let next = open_session_at(&mut server, now + SECOND, address_of(2, 1), plan);
    assert!(is_welcome(&next), "{next:?}");
    server.handle_datagram(now + SECOND, address(1), &talk);
    assert_eq!((server.statistics().sessions, server.statistics().ignored), (1, 1));
}

#[test]
fn one_address_leaves_sessions_to_others() {
    let mut server = server(RecordLimits::default());
    let mut opens =
        |host, port| is_welcome(&open_session(&mut server, address_of(host, port), plan(10)));
    assert_eq!((1..40).filter(|port| opens(1, *port)).count(), 16);
    assert!(opens(2, 1));
}

#[test]
fn one_address_that_asks_for_many_challenges_voids_none_of_others() {
    // Many addresses of one IPv6 network count as one address.
    let v6: fn(u16) -> RecordPeer = |host| {
        let address = [0x2001, 0xdb8, 0, 0, 0, 0, 0, host];
        RecordPeer { remote: SocketAddr::from((address, 9)), local: None }
    };
    let mut server = server(RecordLimits::default());
    for (sessions, greedy) in [(1, address as fn(u16) -> RecordPeer), (2, v6)] {
        let peer = address_of(2, sessions);
        let token = challenge(&mut server, Instant::ZERO, peer);
        for number in 1..5_000 {
            challenge(&mut server, Instant::ZERO, greedy(number));
        }
        server.handle_datagram(Instant::ZERO, peer, &open(token, plan(10)));
        assert_eq!(server.statistics().sessions, usize::from(sessions));
        answers(&mut server, Instant::ZERO);
    }
}

#[test]
fn a_server_refuses_what_is_beyond_its_limits() {
    let limits = RecordLimits {
        sessions: 2,
        length: SECOND * 60,
        rate: Rate::from_kbps(80_000),
        ..RecordLimits::default()
    };
    let mut server = server(limits);
    let fits = RecordPlan { rate_max: Rate::from_kbps(80_000), ..plan(60) };
    let longer = RecordPlan { length: SECOND * 61, ..fits.clone() };
    let faster = RecordPlan { rate_max: Rate::from_kbps(80_001), ..fits.clone() };
    let broken = RecordPlan { packet_bytes: 10, ..fits.clone() };
    // The rate towards the server is not limited.
    let up_only = RecordPlan { down: false, ..faster.clone() };
    for (port, plan, refusal) in [
        (1, longer, Some(RecordRefusal::Plan)),
        (2, faster, Some(RecordRefusal::Plan)),
        (3, broken, Some(RecordRefusal::Plan)),
        (4, up_only, None),
        (5, fits.clone(), None),
        (6, fits, Some(RecordRefusal::Busy)),
    ] {
        match open_session(&mut server, address(port), plan) {
            Some(Message::Welcome(_)) => assert_eq!(refusal, None, "{port}"),
            Some(Message::Refuse { why, .. }) => assert_eq!(refusal, Some(why), "{port}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn all_clients_together_are_promised_no_more_than_the_rate_in_all() {
    let limits = RecordLimits { rate_all: Rate::from_kbps(100_000), ..RecordLimits::default() };
    let mut server = server(limits);
    let mut opens = |host, kbps, down| {
        let plan = RecordPlan { down, rate_max: Rate::from_kbps(kbps), ..plan(60) };
        match open_session(&mut server, address_of(host, 1), plan) {
            Some(Message::Welcome(_)) => true,
            Some(Message::Refuse { why: RecordRefusal::Busy, .. }) => false,
            other => panic!("{other:?}"),
        }
    };
    assert!(opens(1, 60_000, true));
    assert!(!opens(2, 60_000, true), "whoever they are");
    assert!(opens(3, 40_000, true));
    assert!(opens(4, 200_000, false), "what clients send costs the server nothing to send");
    assert!(!opens(5, 100, true));
}

#[test]
fn a_server_with_a_token_wants_proof_that_fits_the_address() {
    let token = |text: &str| RecordToken::new(text).unwrap();
    let mut server =
        server(RecordLimits::default()).with_token(Some(token("the token of this lab\n")));
    let mut answer = |peer: RecordPeer, token: Option<RecordToken>, replay: Option<[u8; 32]>| {
        let challenge = challenge(&mut server, Instant::ZERO, peer);
        let proof = replay.unwrap_or_default();
        let mut open = Open { token: challenge, resume: 0, elapsed_us: 0, plan: plan(60), proof };
        if let Some(token) = token {
            open.proof = token.prove(&open.request());
        }
        let proof = open.proof;
        server.handle_datagram(Instant::ZERO, peer, &Message::Open(open).encode());
        let answer = answers(&mut server, Instant::ZERO).into_iter().next().unwrap().1;
        (Message::decode(&answer).unwrap(), proof)
    };
    let refused = |message| matches!(message, Message::Refuse { why: RecordRefusal::Token, .. });
    assert!(refused(answer(address(1), None, None).0));
    assert!(refused(answer(address(2), Some(token("another token of a lab")), None).0));
    let (welcome, proof) = answer(address(3), Some(token("the token of this lab")), None);
    assert!(matches!(welcome, Message::Welcome(_)), "{welcome:?}");
    assert!(refused(answer(address(4), None, Some(proof)).0), "a proof that was overheard");
    assert!(RecordToken::new("too short").is_err());
    assert!(!format!("{:?}", token("the token of this lab")).contains("lab"));
}

#[test]
fn a_client_hears_of_a_refusal_and_of_another_version() {
    let mut world = usual(7_000);
    world.run();
    let error = world.recording(0, DelayClock::HalfRoundTrip).unwrap_err();
    assert_eq!(error, RecordError::Refused(RecordRefusal::Plan));

    let mut server = server(RecordLimits::default());
    let mut hello = Message::Hello { nonce: 5 }.encode();
    hello[1] = 0x21;
    server.handle_datagram(Instant::ZERO, address(1), &hello);
    let (_, answer) = server.poll_transmit(Instant::ZERO).unwrap();
    let version = Message::Refuse { to: 5, why: RecordRefusal::Version };
    assert_eq!(Message::decode(&answer), Some(version));
}

#[test]
fn a_server_that_never_answers_ends_in_an_error() {
    let trace = constant(10_000, 20).with_loss(Timeline::constant(1.0));
    let world = recorded(&plan(2), &[(trace.clone(), trace)]);
    let error = world.recording(0, DelayClock::HalfRoundTrip).unwrap_err();
    assert_eq!(error, RecordError::NoAnswer);
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    let tokens = 9..14_u64;
    let packet = (tokens.clone(), packet()).prop_map(|(token, packet)| {
        let (cycle, confirmed) = (packet.cycle % 20, packet.confirmed % 100);
        Message::Packet(Packet { token, cycle, confirmed, ..packet })
    });
    let report = (tokens.clone(), report()).prop_map(|(token, report)| {
        let (highest, log_first) = (report.highest % 1_000, report.log_first % 10);
        Message::Report(Report { token, highest, log_first, ..report })
    });
    let open =
        (tokens.clone(), tokens.clone(), any::<u64>()).prop_map(|(token, resume, elapsed_us)| {
            let plan = RecordPlan::default();
            Message::Open(Open { token, resume, elapsed_us, plan, proof: [9; 32] })
        });
    let other = (tokens, any::<bool>()).prop_map(|(token, hello)| match hello {
        true => Message::Hello { nonce: token },
        false => Message::Close { token },
    });
    let known = prop_oneof![packet, report, open, other].prop_map(|message| message.encode());
    prop_oneof![8 => known, 1 => prop::collection::vec(any::<u8>(), 0..REQUEST_BYTES)]
}

proptest! {
    #[test]
    fn any_datagrams_leave_a_server_and_a_client_in_order(
        datagrams in prop::collection::vec((message(), 0..2_000_u64, 1..3_u16), 1..120)
    ) {
        let mut server = server(RecordLimits { sessions: 2, ..RecordLimits::default() });
        let mut client = RecordClient::new(plan(20), true, 9, Duration::ZERO);
        let mut now = Instant::ZERO;
        client.start(now);
        for (datagram, wait_ms, port) in datagrams {
            now += MS * wait_ms as u32;
            server.handle_datagram(now, address(port), &datagram);
            client.handle_datagram(now, &datagram);
            prop_assert!(answers(&mut server, now).len() < 10_000);
            prop_assert!(std::iter::from_fn(|| client.poll_transmit(now)).take(10_000).count() < 10_000);
            prop_assert!(client.poll_timeout(now) > now, "the client spins");
            prop_assert!(server.poll_timeout(now) > now, "the server spins");
            prop_assert!(server.statistics().sessions <= 2);
        }
        client.finish(now);
        let _ = client.recording(DelayClock::Synchronized);
    }
}
