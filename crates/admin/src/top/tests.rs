//! What a crew sees.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::*;
use crate::tests;

fn client(seconds: f64, bytes: u64, status: &str) -> Value {
    let mut client = tests::client(&[]);
    client["uptime_seconds"] = seconds.into();
    client["device"]["bytes_read"] = bytes.into();
    client["sessions"] = json!([session("192.0.2.1:4433", bytes, status, 0.25)]);
    client["uplinks"] = json!([tests::uplink("wwan0"), tests::uplink("eth\u{1b}[2J")]);
    client
}

fn session(peer: &str, bytes: u64, status: &str, loss: f64) -> Value {
    let mut session = tests::session(&[(0, "wwan0", status)]);
    (session["peer"], session["public_key"]) = (peer.into(), peer.into());
    let path = &mut session["paths"][0];
    (path["loss"], path["counters"]["bytes_sent"]) = (loss.into(), bytes.into());
    path["month_bytes"] = 1_000_000_000.into();
    path["monthly_cap_bytes"] = 5_000_000_000_u64.into();
    session
}

fn take(history: &mut History, now: Instant, status: Value) {
    history.take(now, serde_json::from_value(status).expect("a status"));
}

fn history_of(status: Value) -> (History, Instant) {
    let (mut history, now) = (History::new(INTERVAL), Instant::now());
    take(&mut history, now, status);
    (history, now)
}

fn screen_of(history: &History, now: Instant, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a backend");
    terminal
        .draw(|frame| screen::draw(frame, history, Cursor::default(), now))
        .expect("it is drawn");
    let cells = terminal.backend().buffer().content().chunks(width.into());
    let row = |cells: &[ratatui::buffer::Cell]| {
        let symbols: String = cells.iter().map(|cell| cell.symbol()).collect();
        symbols.trim_end().to_owned()
    };
    cells.map(row).collect()
}

fn check(history: &History, now: Instant, size: (u16, u16), expected: &[&str]) {
    let mut rows = screen_of(history, now, size);
    assert_eq!(rows.len(), usize::from(size.1));
    assert!(rows.iter().all(|row| !row.chars().any(char::is_control)), "{rows:#?}");
    while rows.last().is_some_and(String::is_empty) {
        rows.pop();
    }
    assert!(rows == expected, "it is\n{}\nnot\n{}", rows.join("\n"), expected.join("\n"));
}

fn under_way() -> (History, impl Fn(u32) -> Instant) {
    let (mut history, begun) = history_of(client(10.0, 0, "usable"));
    let at = move |half_seconds: u32| begun + INTERVAL * half_seconds;
    take(&mut history, at(1), client(10.5, 500_000, "usable"));
    take(&mut history, at(2), client(11.0, 1_000_000, "suspect"));
    (history, at)
}

#[test]
fn a_crew_sees_rates_delay_loss_data_left_and_what_happened() {
    let (history, at) = under_way();
    #[rustfmt::skip]
    let expected = [
        "client bus, up 11 s",
        "goodput Mbit/s: 8.00 up, 0.00 down",
        "last minute: p99 of the best round trip 61 ms; 1 stall, 0.5 s",
        "  uplink               status     out Mbit/s in Mbit/s  rtt ms loss %   left MB",
        "> eth\\u{1b}[2J         no path             -         -       -      -         -",
        "  rate                       rtt                       loss",
        "  wwan0                suspect          8.00      0.00      61   25.0      4000",
        "  rate                  ██   rtt                 ▄▄▄   loss                 ▂▂▂",
        "", "", "", "", "", "", "", "", "", "",
        " events ─────────────── arrows choose an uplink, p pauses or resumes it, q ends",
        "    1 s ago  wwan0 is suspect",
        "    2 s ago  session with 192.0.2.1:4433",
    ];
    check(&history, at(4), (80, 24), &expected);
}

#[test]
fn a_small_terminal_has_the_figures_that_matter() {
    let (history, at) = under_way();
    #[rustfmt::skip]
    let expected = [
        "client bus, up 11 s",
        "goodput Mbit/s: 8.00 up, 0.00 down",
        "minute: p99 61 ms, 1 stall, 0.5 s",
        "  uplink   status     Mbit/s   rtt loss%",
        "> eth\\u{1b no path         -     -     -",
        "  wwan0    suspect      8.00    61  25.0",
        "",
        " events ────── arrows, p pauses, q ends",
        "    1 s ago  wwan0 is suspect",
        "    2 s ago  session with 192.0.2.1:4433",
    ];
    check(&history, at(4), (40, 10), &expected);
    for size in [(200, 60), (20, 5), (1, 1), (80, 1), (1, 24)] {
        screen_of(&history, at(4), size);
    }
}

#[test]
fn each_fact_of_a_client_has_its_row() {
    let check = |change: fn(&mut Value), size: (u16, u16), row: &str| {
        let mut status = client(10.0, 0, "usable");
        change(&mut status);
        let (history, now) = history_of(status);
        let rows = screen_of(&history, now, size);
        assert!(rows.iter().any(|it| it == row), "{row:?} is not in {rows:#?}");
    };
    let encoder = |status: &mut Value| {
        let mut lane = json!(roadweave_tunnel::LaneStats::default());
        lane["encoder"] = json!({ "frame_bytes": 1, "bitrate_bps": 6_000_000 });
        status["sessions"][0]["lanes"] = json!([lane]);
    };
    let wide = (80, 24);
    check(encoder, wide, "goodput Mbit/s: - up, - down; the encoder's target is 6.00");
    check(encoder, (40, 10), "Mbit/s: - up of 6.00, - down");
    let away = |status: &mut Value| {
        status["sessions"] = json!([]);
        status["no_session"] = "192.0.2.1:4433 does not answer\u{1b}[2J".into();
    };
    check(away, wide, "no session: 192.0.2.1:4433 does not answer\\u{1b}[2J");
    let cap = |status: &mut Value| {
        let path = &mut status["sessions"][0]["paths"][0];
        (path["day_bytes"], path["daily_cap_bytes"]) = (1_000_000.into(), 3_000_000.into());
    };
    check(
        cap,
        wide,
        "  wwan0                usable           0.00      0.00      61   25.0         2",
    );
    let modem = |status: &mut Value| {
        status["uplinks"] = json!([tests::uplink("wwan0")]);
        status["modems"] = json!({ "wwan0": { "operator": "Some\u{1b}", "rsrp_dbm": -95.0 } });
    };
    check(modem, wide, "modem of wwan0: Some\\u{1b}, RSRP -95 dBm");
}

#[test]
fn the_end_of_an_instance_its_silence_and_its_return_are_shown() {
    let (mut history, now) = history_of(client(10.0, 9_000_000, "usable"));
    let rows = screen_of(&history, now + Duration::from_secs(3), (80, 24));
    assert_eq!(rows[1], "no answer for 3 s");
    history.miss(now, "nothing runs at it".to_owned());
    history.miss(now, "nothing runs at it".to_owned());
    let rows = screen_of(&history, now, (80, 24));
    assert_eq!(
        rows[..3],
        ["client bus, up 10 s", "nothing runs at it", "the figures below are old"]
    );
    assert_eq!(history.events.len(), 2, "once each: {:?}", history.events);
    take(&mut history, now, client(1.0, 0, "usable"));
    let rows = screen_of(&history, now, (80, 24));
    assert_eq!(rows[1], "goodput Mbit/s: - up, - down");
    assert!(rows.iter().any(|row| row == "    0 s ago  it answers again"), "{rows:#?}");
}

#[test]
fn a_reader_waits_for_an_instance_that_is_away() {
    let reader = StatusReader::start("/nowhere/rw0.sock".into()).expect("a thread");
    for _ in 0..2 {
        let word = reader.messages.recv().expect("it goes on");
        assert!(
            matches!(&word, reader::ReaderMessage::Away(why) if why.contains("nothing runs")),
            "{word:?}"
        );
    }
}

#[test]
fn an_uplink_that_is_unplugged_is_shown() {
    let (mut history, now) = history_of(client(10.0, 0, "usable"));
    let mut status = client(11.0, 0, "usable");
    status["uplinks"] = json!([]);
    take(&mut history, now, status);
    assert_eq!(history.events[0].1, "eth\u{1b}[2J is gone");
    assert_eq!(Cursor::default().uplink(&history), Some(("wwan0".to_owned(), false)));
}

#[test]
fn an_uplink_behind_a_portal_is_shown_so_and_so_are_both_its_ends() {
    let (mut history, now) = history_of(client(10.0, 0, "usable"));
    let mut status = client(11.0, 0, "suspect");
    status["uplinks"][0]["portal"] = json!({ "url": "http://login.example/" });
    take(&mut history, now, status);
    assert_eq!(history.events[0].1, "wwan0 is behind a portal: log in to its network");
    let rows = screen_of(&history, now, (80, 24));
    assert!(rows.iter().any(|row| row.starts_with("  wwan0                portal ")), "{rows:#?}");
    take(&mut history, now, client(12.0, 0, "usable"));
    assert_eq!(history.events[0].1, "wwan0 is no longer behind a portal");
}

#[test]
fn a_server_shows_who_fares_worst_first() {
    let mut sessions: Vec<Value> =
        (0..50).map(|bus| session(&format!("bus-{bus:02}"), 0, "usable", 0.0)).collect();
    sessions[30] = session("bus-30", 0, "usable", 0.5);
    sessions[40] = session("bus-\u{1b}[2J\u{202e}", 0, "suspect", 0.0);
    let server = |seconds: f64, sessions: &[Value]| {
        let mut server = tests::server(sessions.to_vec());
        server["uptime_seconds"] = seconds.into();
        server
    };
    let (mut history, now) = history_of(server(10.0, &sessions));
    sessions.truncate(49);
    sessions.push(session("tram", 0, "usable", 0.0));
    take(&mut history, now, server(11.0, &sessions));
    #[rustfmt::skip]
    let expected = [
        "server bus, up 11 s",
        "goodput Mbit/s: 0.00 to clients, 0.00 from them",
        "clients: 50 with a session, 0 left since the start",
        "  client                   paths  out Mbit/s  in Mbit/s best rtt ms best loss %",
        "  bus-\\u{1b}[2J\\u{202e}      0/1        0.00       0.00           -           -",
        "  bus-30                     1/1        0.00       0.00          61        50.0",
        "  bus-00                     1/1        0.00       0.00          61         0.0",
        "  bus-01                     1/1        0.00       0.00          61         0.0",
        "  46 more fare better",
        " events ──────────────────────────────────────────────────────────────── q ends",
        "    0 s ago  bus-49 left",
        "    0 s ago  tram has a session",
    ];
    check(&history, now, (80, 12), &expected);
    let narrow = screen_of(&history, now, (40, 10));
    assert_eq!(narrow[3], "  client      paths Mbit/s rtt ms loss %");
    assert_eq!(narrow[4], "  bus-\\u{1b}[   0/1   0.00      -      -");
    let many = (0..5_000).map(|bus| session(&format!("taxi-{bus}"), 0, "usable", 0.0));
    take(&mut history, now, server(12.0, &many.collect::<Vec<_>>()));
    take(&mut history, now, server(13.0, &sessions));
    assert!(history.events.len() <= 100, "{}", history.events.len());
}

#[test]
fn a_stall_lasts_until_a_path_is_usable_again() {
    let (mut history, begun) = history_of(client(10.0, 0, "usable"));
    let at = |seconds: u64| begun + Duration::from_secs(seconds);
    take(&mut history, at(1), client(11.0, 0, "suspect"));
    history.miss(at(6), "it is silent".to_owned());
    take(&mut history, at(11), client(21.0, 0, "usable"));
    take(&mut history, at(12), client(22.0, 0, "suspect"));
    assert_eq!(history.stalls(), (2, Duration::from_millis(10_500)));
    take(&mut history, at(90), client(100.0, 0, "usable"));
    assert_eq!(history.stalls(), (0, Duration::ZERO), "a minute later");
}

#[test]
fn keys_do_what_the_screen_says() {
    let key = |code, modifiers| action(KeyEvent::new(code, modifiers));
    assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Action::End);
    assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Action::End);
    assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), Action::Nothing);
    assert_eq!(key(KeyCode::Char('p'), KeyModifiers::NONE), Action::Pause);
    assert_eq!(key(KeyCode::Char('p'), KeyModifiers::CONTROL), Action::Nothing);
    let mut cursor = Cursor::default();
    assert_eq!(cursor.uplink(&History::new(INTERVAL)), None);
    let (history, _) = history_of(client(10.0, 0, "usable"));
    for (steps, uplink) in [(1, "wwan0"), (1, "wwan0"), (-5, "eth\u{1b}[2J")] {
        cursor.step(&history, steps);
        assert_eq!(cursor.uplink(&history), Some((uplink.to_owned(), false)));
    }
}
