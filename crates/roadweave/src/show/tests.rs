//! What a person reads of a status.

use roadweave_device::status::{
    ClientStatus, DeviceCounters, DocumentStatus, FleetStatus, LogCounters, RouterRoleStatus,
    ServerStatus, ShardStatus,
};
use roadweave_proto::{DropCounters, DropReason, PathStatus, Priority};
use roadweave_tunnel::{
    LaneStats, LinkCounters, LinkStatus, PairReport, PairState, PathStatusReport, RouterStatus,
    SessionStats, UplinkReport,
};

use super::*;

fn dropped(reason: DropReason, packets: u64) -> DropCounters {
    let mut drops = DropCounters::default();
    drops.add(reason, packets);
    drops
}

fn status(name: &str, role: RoleStatus) -> Status {
    Status {
        name: name.to_owned(),
        version: "0.1.0".to_owned(),
        uptime_seconds: 12.5,
        tun: "rw0".to_owned(),
        device: DeviceCounters::default(),
        log: LogCounters::default(),
        drops: DropCounters::default(),
        fleet: None,
        role,
    }
}

fn page(status: &Status) -> String {
    page_of(status, &[])
}

fn page_of(status: &Status, words: &[&str]) -> String {
    use clap::Parser as _;
    #[derive(clap::Parser)]
    struct Words {
        #[command(flatten)]
        show: ShowArgs,
    }
    let words = Words::parse_from([&["show"], words].concat());
    fit(&render(status, &Rates::default(), &words.show.selection))
}

fn check(status: &Status, parts: &[&str]) {
    let page = page(status);
    // As it was before it was folded.
    let unfolded = page.replace("\n  ", " ");
    for part in parts {
        assert!(unfolded.contains(part), "{part} is not in:\n{page}");
    }
}

fn path() -> PathStatusReport {
    let mut counters = roadweave_quic::PathStats::default();
    counters.bytes_sent = 2_500_000;
    PathStatusReport {
        id: 2,
        uplink: Some("wwan0".to_owned()),
        remote: None,
        status: PathStatus::Suspect,
        smoothed_rtt_ms: 61.25,
        min_rtt_ms: 60.0,
        rtt_deviation_ms: 1.0,
        loss: 0.0,
        congestion_window_bytes: 0,
        bytes_in_flight: 0,
        pacing_rate_bps: None,
        mtu_bytes: 1_200,
        ecn: roadweave_quic::EcnMarking::Lost,
        priority: Priority::Backup,
        weight: 7,
        rate_limit_bps: None,
        day_bytes: Some(23_450_000),
        daily_cap_bytes: None,
        month_bytes: Some(123_450_000),
        monthly_cap_bytes: Some(5_000_000_000),
        redundancy_left_bytes: Some(77_000),
        round_trips: Default::default(),
        counters,
    }
}

#[test]
fn a_status_becomes_a_page_with_its_paths_lanes_and_drops() {
    let mut lane = LaneStats { name: "default".to_owned(), ..LaneStats::default() };
    lane.redundancy = 0.034;
    lane.received.order.order = "even".to_owned();
    lane.received.order.wait_us = 62_340;
    lane.received.order.late_packets = 41;
    lane.sent.drops = dropped(DropReason::QueueExpired, 7);
    let mut stats = SessionStats { lanes: vec![lane], ..SessionStats::default() };
    stats.memory.decoder_bytes = 3_210_000;
    stats.memory.reorder_bytes = 654_000;
    let session = SessionStatus {
        peer: "192.0.2.1:4433".to_owned(),
        public_key: String::new(),
        addresses: vec!["10.77.0.2/32".to_owned()],
        paths: vec![path()],
        stats,
    };
    let client = ClientStatus { sessions: vec![session], ..ClientStatus::default() };
    let mut client = status("bus", RoleStatus::Client(client));
    client.drops = dropped(DropReason::NoSession, 3);
    client.log.lines_lost = 29;
    check(
        &client,
        &[
            "client bus, up 12 s",
            "10.77.0.2/32",
            "wwan0",
            "suspect",
            "61.2",
            "backup",
            "123.5",
            "5000",
            "77",
            "2.5",
            "3.40",
            "packets with ECN vanish on wwan0, and leave without",
            "queue-expired 7",
            "lane default is delivered evenly, 62.3 ms after the quickest; 41 packets were late",
            "3.2 in decoders, 0.7 for their order",
            "no-session 3",
            "could not be written: 29",
        ],
    );
}

#[test]
fn a_lane_whose_deadline_no_path_meets_has_a_line() {
    let page = |deadline_ms, status| {
        let lane = LaneStats { name: "video".to_owned(), deadline_ms, ..LaneStats::default() };
        let session = SessionStatus {
            peer: "192.0.2.1:4433".to_owned(),
            public_key: String::new(),
            addresses: Vec::new(),
            paths: vec![PathStatusReport { status, ..path() }],
            stats: SessionStats { lanes: vec![lane], ..SessionStats::default() },
        };
        tables::out_of_reach(&session)
    };
    let line = "lane video: deadline_ms is 30 and must exceed half the round trip, 30 ms on the \
                nearest path\n";
    assert_eq!(page(Some(30), PathStatus::Usable), line);
    assert_eq!(page(Some(31), PathStatus::Usable), "");
    assert_eq!(page(Some(30), PathStatus::Suspect), "", "no path answers");
    assert_eq!(page(None, PathStatus::Usable), "");
}

#[test]
fn a_member_of_a_fleet_tells_since_when_it_is_on_its_own() {
    let document = |outcome: &str, why: Option<&str>| DocumentStatus {
        kind: "configuration".to_owned(),
        version: "1.7".to_owned(),
        outcome: outcome.to_owned(),
        why: why.map(str::to_owned),
    };
    let fleet = FleetStatus {
        name: "bus-12".to_owned(),
        role: "box".to_owned(),
        tenant: "north".to_owned(),
        away_seconds: Some(73.9),
        away_why: Some("no answer".to_owned()),
        documents: vec![document("refused", Some("line 3")), document("on trial", None)],
        pinned: vec!["lanes".to_owned()],
        revocations: 2,
        ..FleetStatus::default()
    };
    let mut client = status("bus", RoleStatus::Client(ClientStatus::default()));
    client.fleet = Some(fleet);
    check(
        &client,
        &[
            "fleet of north: box bus-12, controller away for 73 s: no answer\n",
            "configuration 1.7 refused: line 3\n",
            "configuration 1.7 on trial\n",
            "set otherwise by the file here: lanes\n",
            "keys revoked: 2\n",
        ],
    );
    if let Some(fleet) = &mut client.fleet {
        fleet.away_at_least = true;
    }
    check(&client, &["bus-12, controller away since this start at least, 73 s: no answer\n"]);
}

#[test]
fn a_server_tells_whom_it_refused() {
    let refusals = [("unknown-key".to_owned(), 31), ("unused".to_owned(), 0)].into();
    let server = ServerStatus { refusals, ..ServerStatus::default() };
    let server = status("192.0.2.1:4433", RoleStatus::Server(server));
    check(&server, &["server 192.0.2.1:4433", "refused: unknown-key 31\n", "no session\n"]);
}

#[test]
fn both_ends_tell_of_streams() {
    let ends = [("closed".to_owned(), 7), ("refused".to_owned(), 2)].into();
    let source = Some("client".to_owned());
    let http = [("requests".to_owned(), 5)].into();
    let (connections, accepted, split) = (3, 12, None);
    let streams = Some(StreamsStatus { connections, accepted, ends, http, source, split });
    let server = ServerStatus { streams, ..ServerStatus::default() };
    let line = "streams: 3 connections of 12, from the client's address: closed 7, refused 2\n\
                HTTP: requests 5\n";
    check(&status("192.0.2.1:4433", RoleStatus::Server(server)), &[line]);
    let streams = Some(StreamsStatus::default());
    let client = ClientStatus { streams, ..ClientStatus::default() };
    check(&status("bus", RoleStatus::Client(client)), &["streams: 0 connections of 0\n"]);
    let split = |obstacle: Option<&str>| {
        let split = SplitStatus { taken: 4, obstacle: obstacle.map(str::to_owned) };
        let streams = Some(StreamsStatus { split: Some(split), ..StreamsStatus::default() });
        status("bus", RoleStatus::Client(ClientStatus { streams, ..ClientStatus::default() }))
    };
    check(&split(None), &["split: 4 of them\n"]);
    let line = "split: 4 of them; new ones go by the tunnel: no session that answers\n";
    check(&split(Some("no session that answers")), &[line]);
}

#[test]
fn a_server_tells_of_its_shards() {
    let shard = |sessions, failures| ShardStatus { runs: true, sessions, failures, handed_over: 9 };
    let shards = vec![shard(3, 0), ShardStatus { runs: false, ..shard(0, 7) }];
    let server = ServerStatus { shards, ..ServerStatus::default() };
    let page = page(&status("192.0.2.1:4433", RoleStatus::Server(server)));
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for row in ["0 runs 3 9 0", "1 does not answer 0 9 7"] {
        assert!(words.contains(row), "{page}");
    }
}

#[test]
fn without_a_session_it_says_why() {
    let resting = PairReport {
        server: "192.0.2.1:4433".to_owned(),
        state: PairState::Resting,
        attempts: 3,
        rest_seconds: Some(8.25),
        last: Some("refused by the server".to_owned()),
    };
    let uplink = |name: &str, heard, servers| {
        let name = name.to_owned();
        UplinkReport { name, heard, rank: 0, portal: None, servers }
    };
    let client = ClientStatus {
        no_session: Some("no attempt has been welcomed yet".to_owned()),
        uplinks: vec![uplink("wwan0", true, vec![resting]), uplink("wlan0", false, Vec::new())],
        ..ClientStatus::default()
    };
    let page = page(&status("bus", RoleStatus::Client(client)));
    assert!(page.contains("no session: no attempt has been welcomed yet"), "{page}");
    let row = |name: &str| {
        let line = page.lines().find(|line| line.contains(name)).expect("a row");
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("wwan0"), "wwan0 yes 192.0.2.1:4433 resting 3 8.2 refused by the server");
    assert_eq!(row("wlan0"), "wlan0 no no address known - - - -");
}

#[test]
fn an_uplink_with_a_portal_is_named_and_the_address_of_its_page_is_not() {
    let portal = Some(roadweave_tunnel::Portal { url: Some("http://login.example/".to_owned()) });
    let uplink = UplinkReport {
        name: "wlan0".to_owned(),
        heard: true,
        rank: 0,
        portal,
        servers: Vec::new(),
    };
    let client = ClientStatus { uplinks: vec![uplink], ..ClientStatus::default() };
    let client = status("bus", RoleStatus::Client(client));
    let page = page(&client);
    assert!(page.contains("portal, somebody has to log in: wlan0\n"), "{page}");
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("wlan0 portal no address known"), "{page}");
    assert!(!page.contains("login.example"), "{page}");
}

#[test]
fn a_router_shows_its_links_and_what_each_brought() {
    let link = LinkStatus {
        id: 0,
        uplink: "lte".to_owned(),
        remote: Some("10.1.0.1:6081".to_owned()),
        status: PathStatus::Usable,
        smoothed_rtt_ms: Some(40.04),
        min_rtt_ms: None,
        rtt_deviation_ms: None,
        round_trips: Default::default(),
        lost: 3542,
        adopted_ratio: 0.7253,
        counters: LinkCounters { adopted: 123_619, duplicates: 11, ..LinkCounters::default() },
    };
    let mut lane = LaneStats { name: "default".to_owned(), ..LaneStats::default() };
    lane.received.order.waited_packets = 77;
    lane.received.order.timeouts = 706;
    let session = RouterSession {
        peer: "the other router".to_owned(),
        addresses: vec!["10.88.0.2/30".to_owned()],
        status: RouterStatus {
            paths: vec![link],
            peer_packets: 170_445,
            peer_packets_lost: 4,
            peer_restarts: 1,
            stats: SessionStats { lanes: vec![lane], ..SessionStats::default() },
        },
    };
    let router = RouterRoleStatus { sessions: vec![session], sockets: Vec::new() };
    let mut router = status("rw0", RoleStatus::Router(router));
    router.drops = dropped(DropReason::UnknownPeer, 5);
    check(
        &router,
        &[
            "router rw0",
            "lte",
            "10.1.0.1:6081",
            "40.0",
            "124k",
            "72.53",
            "3542",
            "170445 packets, 4 came by no link",
            "77 packets had to wait, 706 waits",
            "unknown-peer 5",
        ],
    );
}

#[test]
fn a_page_fits_80_columns_whatever_is_on_it() {
    let mut path = path();
    path.uplink = Some("wwan0123456789a".to_owned());
    path.status = PathStatus::Validating;
    (path.congestion_window_bytes, path.bytes_in_flight) = (12_000_000, 9_000_000);
    path.pacing_rate_bps = Some(123_400_000);
    path.counters.bytes_sent = 99_999_900_000;
    path.counters.bytes_received = 99_999_900_000;
    path.counters.datagrams_lost = u64::MAX;
    path.counters.packets_sent = u64::MAX;
    let mut lane = LaneStats { name: "x".repeat(40), ..LaneStats::default() };
    lane.strategy = "single:wwan0123456789a".to_owned();
    lane.sent.inner_packets = 1 << 50;
    lane.sent.drops = dropped(DropReason::QueueExpired, u64::MAX);
    let session = |peer: &str| SessionStatus {
        peer: peer.to_owned(),
        public_key: peer.to_owned(),
        addresses: vec!["fd77:1234:5678:9abc::1234:5678/128".to_owned(); 3],
        paths: vec![path.clone()],
        stats: SessionStats { lanes: vec![lane.clone()], ..SessionStats::default() },
    };
    let client = ClientStatus { sessions: vec![session("a server")], ..ClientStatus::default() };
    let absent = AbsentClient { reason: "it was silent ".repeat(20), ..AbsentClient::default() };
    let sessions = vec![session(&"bus ".repeat(30)), session("\x1b[2Jtram")];
    let server = ServerStatus { sessions, absent: vec![absent], ..ServerStatus::default() };
    let server = status("192.0.2.1:4433", RoleStatus::Server(server));
    let pages =
        [page(&status("bus", RoleStatus::Client(client))), page_of(&server, &["--client", ""])];
    for page in pages {
        for line in page.lines() {
            assert!(line.chars().count() <= 80, "{line}\nof\n{page}");
            assert!(!line.contains('\x1b'), "{line}");
        }
        let row = page.lines().find(|line| line.contains("validating")).expect("a row");
        assert!(row.ends_with("99999.9"), "its row is in one piece: {row}");
    }
}

#[test]
fn a_thousand_clients_are_pages_with_the_worst_first() {
    let session = |number: usize| {
        let mut path = path();
        path.status = if number == 500 { PathStatus::Suspect } else { PathStatus::Usable };
        path.loss = if number == 77 { 0.3 } else { 0.0 };
        path.smoothed_rtt_ms = number as f64;
        SessionStatus {
            peer: format!("bus-{number:03}"),
            public_key: number.to_string(),
            addresses: Vec::new(),
            paths: vec![path],
            stats: SessionStats::default(),
        }
    };
    let gone = AbsentClient {
        peer: "bus-12x".to_owned(),
        left_seconds_ago: 61.5,
        reason: "it said goodbye".to_owned(),
        ..AbsentClient::default()
    };
    let sessions = (0..1_000).map(session).collect();
    let server = ServerStatus { sessions, absent: vec![gone], ..ServerStatus::default() };
    let server = status("192.0.2.1:4433", RoleStatus::Server(server));
    let names = |page: &str| -> Vec<String> {
        let rows = page.lines().filter(|line| line.starts_with("bus-"));
        rows.map(|line| line[..7].to_owned()).collect()
    };
    let first = page(&server);
    assert_eq!(names(&first)[..4], ["bus-500", "bus-077", "bus-999", "bus-998"]);
    assert_eq!(names(&first).len(), 20);
    assert!(first.contains("page 1 of 50, 1000 clients"), "{first}");
    assert!(first.contains("absent: bus-12x, since 61 s: it said goodbye\n"), "{first}");
    let words = ["--sort", "name", "--limit", "3", "--page", "2"];
    assert_eq!(names(&page_of(&server, &words)), ["bus-003", "bus-004", "bus-005"]);
    let one = page_of(&server, &["--client", "bus-077"]);
    assert!(one.contains("session with bus-077") && !one.contains("bus-12x"), "{one}");
    let mut json = serde_json::json!({ "sessions": [] });
    let RoleStatus::Server(role) = &server.role else { unreachable!() };
    json["sessions"] = serde_json::json!(role.sessions);
    let selection =
        Selection { client: None, limit: Some(2), page: 1, sort: super::page::Sort::Worst };
    selection.apply(&mut json);
    assert_eq!(
        (&json["sessions"][0]["peer"], &json["sessions"][1]["peer"]),
        (&serde_json::json!("bus-500"), &serde_json::json!("bus-077"))
    );
}

#[test]
fn rates_are_between_two_readings_and_none_are_told_of_what_began_anew() {
    let reading = |uptime_seconds, sent, received| {
        let mut path = path();
        (path.counters.bytes_sent, path.counters.bytes_received) = (sent, received);
        let session = SessionStatus {
            peer: String::new(),
            public_key: "key".to_owned(),
            addresses: Vec::new(),
            paths: vec![path],
            stats: SessionStats::default(),
        };
        let client = ClientStatus { sessions: vec![session], ..ClientStatus::default() };
        Status { uptime_seconds, ..status("bus", RoleStatus::Client(client)) }
    };
    let rates = Rates::between(&reading(10.0, 1_000_000, 500), &reading(12.0, 2_000_000, 0));
    assert_eq!(rates.of("key", 2), [Some(4e6), None]);
    assert_eq!(rates.of("key", 3), [None, None]);
    let restarted = Rates::between(&reading(10.0, 0, 0), &reading(1.0, 5, 5));
    assert_eq!(restarted.of("key", 2), [None, None]);
}

#[test]
fn a_watched_page_stays_in_its_place_and_says_what_does_not_fit() {
    let page = in_place("a\nb\nc\n", 24);
    assert!(page.starts_with("\x1b[Ha\x1b[K\r\n") && page.ends_with("c\x1b[K\r\n\x1b[J"));
    let page = in_place(&"line\n".repeat(50), 24);
    assert_eq!(page.matches("\r\n").count(), 23);
    assert!(page.contains("(28 more lines do not fit)"), "{page}");
}
