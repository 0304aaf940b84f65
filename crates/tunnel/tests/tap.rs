//! What a session shows to whoever watches: each inner packet with the path that it took and what
//! it was, at both ends, and nothing while nobody watches.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::time::Duration;

use bytes::Bytes;
use roadweave_tunnel::{
    Carrier, DatagramContent, InnerRole, LaneDatagram, Seen, SeenKind, SendError, Session,
    SessionConfig, Strategy, Tap, View,
};
use roadweave_types::{Instant, Pacing, PacketId, PathId, PathSnapshot};

/// Paths that take all, and whose losses the test chooses.
struct Paths {
    paths: Vec<PathSnapshot>,
    sent: Vec<(PathId, LaneDatagram)>,
}

impl Paths {
    fn new() -> Self {
        let path = |id| PathSnapshot::idle(PathId(id), Duration::from_millis(50), 1 << 20);
        Self { paths: vec![path(3), path(5)], sent: Vec::new() }
    }
}

impl Carrier for Paths {
    fn paths(&mut self, _now: Instant) -> &[PathSnapshot] {
        &self.paths
    }

    fn max_datagram_size(&self) -> usize {
        1_200
    }

    fn set_pacing(&mut self, _pacing: Pacing) {}

    fn on_backlog(&mut self, _now: Instant) {}

    fn send_on(
        &mut self,
        _now: Instant,
        path: PathId,
        datagram: LaneDatagram,
    ) -> Result<(), SendError> {
        self.sent.push((path, datagram));
        Ok(())
    }

    fn send_message(&mut self, _message: Bytes) -> bool {
        true
    }

    fn feedback_due(&self, _now: Instant) -> Option<PathId> {
        None
    }

    fn send_feedback_on(&mut self, _now: Instant, _path: PathId, _datagram: Bytes) {}

    fn acknowledge_on(&mut self, _now: Instant, _path: PathId, _datagram: Bytes) {}
}

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn session(strategy: Strategy, tap: &Tap, peer: &str) -> Session {
    let mut session = Session::new(SessionConfig::new(strategy, 1), false).unwrap();
    session.set_tap(tap.clone(), peer);
    session.name_path(PathId(3), "wwan0");
    session
}

/// An inner packet of so many bytes, numbered.
fn inner(bytes: u16, number: u8) -> Vec<u8> {
    let mut packet = vec![number; bytes.into()];
    packet[..20].fill(0);
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&bytes.to_be_bytes());
    packet[12..16].copy_from_slice(&[192, 168, 50, 9]);
    packet
}

/// Direction, path, uplink, and what each packet was.
fn told(seen: &[Seen]) -> Vec<(bool, u32, Option<String>, InnerRole)> {
    let told = |seen: &Seen| match &seen.what {
        SeenKind::Inner { path, uplink, role, .. } => (seen.is_out, path.0, uplink.clone(), *role),
        SeenKind::Outer { .. } => panic!("{seen:?}"),
    };
    seen.iter().map(told).collect()
}

#[test]
fn copies_are_told_from_packets_at_both_ends_and_nothing_is_seen_unasked() {
    let (near, far) = (Tap::default(), Tap::default());
    let mut sender = session(Strategy::redundant(), &near, "the server");
    let mut receiver = session(Strategy::redundant(), &far, "bus");
    let mut paths = Paths::new();
    sender.handle_inner(at(0), &inner(100, 0));
    sender.handle_timeout(at(0), &mut paths);
    let (seen, got) = (near.watch(View::Inner, 60).unwrap(), far.watch(View::Inner, 60).unwrap());
    assert_eq!(seen.next(Duration::ZERO), None, "it left before anybody watched");
    sender.handle_inner(at(1), &inner(100, 1));
    sender.handle_timeout(at(1), &mut paths);
    for (path, datagram) in paths.sent {
        receiver.handle_datagram(at(20), path, datagram.bytes);
    }
    let seen: Vec<Seen> = std::iter::from_fn(|| seen.next(Duration::ZERO)).collect();
    let (source, copy) = (InnerRole::Source(PacketId(1)), InnerRole::Copy(PacketId(1)));
    let wwan0 = Some("wwan0".to_owned());
    assert_eq!(told(&seen), [(true, 3, wwan0.clone(), source), (true, 5, None, copy)],);
    for seen in &seen {
        assert_eq!((seen.length, seen.bytes.len(), seen.at), (100, 60, at(1)));
        assert_eq!(seen.bytes, inner(100, 1)[..60]);
    }
    let got: Vec<Seen> = std::iter::from_fn(|| got.next(Duration::ZERO)).collect();
    let (first, again) = (InnerRole::Source(PacketId(0)), InnerRole::Copy(PacketId(0)));
    let expected = [
        (false, 3, wwan0.clone(), first),
        (false, 5, None, again),
        (false, 3, wwan0, source),
        (false, 5, None, copy),
    ];
    assert_eq!(told(&got), expected);
    let peers =
        got.iter().all(|seen| matches!(&seen.what, SeenKind::Inner { peer, .. } if peer == "bus"));
    assert!(peers, "{got:?}");
}

#[test]
fn a_packet_in_fragments_is_seen_once_with_its_true_length() {
    let tap = Tap::default();
    let mut sender = session("minrtt".parse().unwrap(), &tap, "the server");
    let watch = tap.watch(View::Inner, 65_535).unwrap();
    sender.handle_inner(at(0), &inner(3_000, 7));
    let mut paths = Paths::new();
    sender.handle_timeout(at(0), &mut paths);
    assert!(paths.sent.len() >= 3, "{}", paths.sent.len());
    let seen: Vec<Seen> = std::iter::from_fn(|| watch.next(Duration::ZERO)).collect();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(told(&seen)[0].3, InnerRole::Fragment(PacketId(0)));
    assert_eq!(seen[0].length, 3_000);
    assert!(seen[0].bytes.len() > 500 && seen[0].bytes.len() < 1_200);
    assert_eq!(seen[0].bytes, inner(3_000, 7)[..seen[0].bytes.len()]);
}

#[test]
fn what_coded_packets_bring_back_is_seen_and_they_are_if_asked_for() {
    for view in [View::Inner, View::InnerAndCoded] {
        let (near, far) = (Tap::default(), Tap::default());
        let mut sender = session(Strategy::xnc(), &near, "the server");
        let mut receiver = session(Strategy::xnc(), &far, "bus");
        let (seen, got) = (near.watch(view, 100).unwrap(), far.watch(view, 100).unwrap());
        let mut paths = Paths::new();
        (0..4).for_each(|number| sender.handle_inner(at(0), &inner(200, number)));
        sender.handle_timeout(at(0), &mut paths);
        // Two of them are lost, and said to be.
        for (path, datagram) in paths.sent.split_off(0) {
            match datagram.content {
                DatagramContent::Source { id: PacketId(1 | 2), .. } => {
                    sender.on_lost(at(60), path, datagram.token());
                }
                _ => receiver.handle_datagram(at(30), path, datagram.bytes),
            }
        }
        for ms in (60..200).step_by(5) {
            sender.handle_timeout(at(ms), &mut paths);
            for (path, datagram) in paths.sent.split_off(0) {
                receiver.handle_datagram(at(ms), path, datagram.bytes);
            }
        }
        let all = |watch: &roadweave_tunnel::Watch<'_>| -> Vec<Seen> {
            std::iter::from_fn(|| watch.next(Duration::ZERO)).collect()
        };
        let (seen, got) = (told(&all(&seen)), told(&all(&got)));
        let coded = |seen: &[(bool, u32, Option<String>, InnerRole)]| {
            seen.iter().filter(|it| matches!(it.3, InnerRole::Coded { .. })).count()
        };
        let restored = got.iter().filter(|it| matches!(it.3, InnerRole::Restored(_))).count();
        assert_eq!(restored, 2, "{got:?}");
        assert_eq!(coded(&seen) >= 2 && coded(&got) >= 2, view == View::InnerAndCoded, "{seen:?}");
        assert_eq!(coded(&seen) == 0 && coded(&got) == 0, view == View::Inner, "{seen:?}");
    }
}
