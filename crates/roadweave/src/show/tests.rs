//! The pages of `show`.

use roadweave_node::status::{ClientStatus, FleetStatus, ServerStatus};
use roadweave_proto::{DropCounters, DropReason, PathStatus};
use roadweave_tunnel::{
    LaneStats, PairReport, PairState, PathStatusReport, SessionStats, UplinkReport,
};

use super::*;
use crate::golden::assert_golden;

fn dropped(reason: DropReason, packets: u64) -> DropCounters {
    let mut drops = DropCounters::default();
    drops.add(reason, packets);
    drops
}

fn status(role: RoleStatus) -> Status {
    Status { role, ..Status::default() }
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
    let unfolded = page.replace("\n  ", " ");
    for part in parts {
        assert!(unfolded.contains(part), "{part} is not in:\n{page}");
    }
}

fn path() -> PathStatusReport {
    PathStatusReport {
        id: 2,
        uplink: Some("wwan0".to_owned()),
        status: PathStatus::Suspect,
        smoothed_rtt_ms: 61.25,
        min_rtt_ms: 60.0,
        month_bytes: Some(123_450_000),
        redundancy_left_bytes: Some(77_000),
        ..PathStatusReport::default()
    }
}

#[test]
fn the_page_of_each_role_is_in_the_golden_file() {
    let text = include_str!("../../../node/tests/golden/show.json");
    let all = serde_json::Deserializer::from_str(text).into_iter::<Status>();
    let pages = all.map(|status| page(&status.expect("a status")) + "========\n");
    assert_golden("show.txt", &pages.collect::<String>());
}

#[test]
fn what_an_example_has_may_be_missing() {
    let streams = StreamsStatus {
        split: Some(SplitStatus { taken: 4, obstacle: None }),
        ..StreamsStatus::default()
    };
    let client = ClientStatus { streams: Some(streams), ..ClientStatus::default() };
    let mut client = status(RoleStatus::Client(client));
    let away = FleetStatus { away_seconds: Some(73.9), ..FleetStatus::default() };
    client.fleet = Some(away.clone());
    check(&client, &["streams: 0 connections of 0\n", "split: 4 of them\n", "away for 73 s"]);
    client.fleet = Some(FleetStatus { away_at_least: true, ..away });
    check(&client, &["controller away for at least 73 s (since start)"]);
    let server = status(RoleStatus::Server(ServerStatus::default()));
    check(&server, &["no session\n"]);
}

#[test]
fn a_lane_whose_deadline_no_path_meets_has_a_line() {
    let page = |deadline_ms, status| {
        let lane = LaneStats { name: "video".to_owned(), deadline_ms, ..LaneStats::default() };
        let session = SessionStatus {
            paths: vec![PathStatusReport { status, ..path() }],
            stats: SessionStats { lanes: vec![lane], ..SessionStats::default() },
            ..SessionStatus::default()
        };
        tables::out_of_reach(&session)
    };
    let line = "lane video: deadline_ms is 30; raise it above half the round trip, 30 ms on the \
                nearest path\n";
    assert_eq!(page(Some(30), PathStatus::Usable), line);
    assert_eq!(page(Some(31), PathStatus::Usable), "");
    assert_eq!(page(Some(30), PathStatus::Suspect), "", "no path answers");
    assert_eq!(page(None, PathStatus::Usable), "");
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
    let uplink = |name: &str, heard, servers| UplinkReport {
        name: name.to_owned(),
        heard,
        servers,
        ..UplinkReport::default()
    };
    let portal = Some(roadweave_tunnel::Portal { url: Some("http://login.example/".to_owned()) });
    let captive = UplinkReport { portal, ..uplink("hotel0", true, Vec::new()) };
    let client = ClientStatus {
        no_session: Some("no attempt has been accepted yet".to_owned()),
        uplinks: vec![
            uplink("wwan0", true, vec![resting]),
            uplink("wlan0", false, Vec::new()),
            captive,
        ],
        ..ClientStatus::default()
    };
    let page = page(&status(RoleStatus::Client(client)));
    assert!(page.contains("no session: no attempt has been accepted yet"), "{page}");
    assert!(
        page.contains(
            "behind a portal, log in first: hotel0
"
        ),
        "{page}"
    );
    assert!(!page.contains("login.example"), "{page}");
    let row = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(name)).expect("a row");
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("wwan0"), "wwan0 yes 192.0.2.1:4433 resting 3 8.2 refused by the server");
    assert_eq!(row("wlan0"), "wlan0 no no address known - - - -");
    assert!(row("hotel0").starts_with("hotel0 portal no address known"), "{page}");
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
    let server = status(RoleStatus::Server(server));
    let pages = [page(&status(RoleStatus::Client(client))), page_of(&server, &["--client", ""])];
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
            paths: vec![path],
            ..SessionStatus::default()
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
    let server = status(RoleStatus::Server(server));
    let names = |page: &str| -> Vec<String> {
        let rows = page.lines().filter(|line| line.starts_with("bus-"));
        rows.map(|line| line[..7].to_owned()).collect()
    };
    let first = page(&server);
    assert_eq!(names(&first)[..4], ["bus-500", "bus-077", "bus-999", "bus-998"]);
    assert_eq!(names(&first).len(), 20);
    assert!(first.contains("page 1 of 50, 1000 clients"), "{first}");
    assert!(first.contains("absent: bus-12x, for 61 s: it said goodbye\n"), "{first}");
    let words = ["--sort", "name", "--limit", "3", "--page", "2"];
    assert_eq!(names(&page_of(&server, &words)), ["bus-003", "bus-004", "bus-005"]);
    let one = page_of(&server, &["--client", "bus-077"]);
    assert!(one.contains("session with bus-077") && !one.contains("bus-12x"), "{one}");
    let RoleStatus::Server(role) = &server.role else { unreachable!() };
    let mut json = serde_json::json!({ "sessions": role.sessions });
    let selection =
        Selection { client: None, limit: Some(2), page: 1, sort: super::page::Sort::Worst };
    selection.apply(&mut json);
    assert_eq!(json["sessions"][1]["peer"], "bus-077");
}

#[test]
fn rates_are_between_two_readings_and_none_after_a_restart() {
    let reading = |uptime_seconds, sent, received| {
        let mut path = path();
        (path.counters.bytes_sent, path.counters.bytes_received) = (sent, received);
        let public_key = "key".to_owned();
        let session = SessionStatus { public_key, paths: vec![path], ..SessionStatus::default() };
        let client = ClientStatus { sessions: vec![session], ..ClientStatus::default() };
        Status { uptime_seconds, ..status(RoleStatus::Client(client)) }
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
