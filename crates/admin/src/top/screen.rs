//! The screen: figures above, uplinks or clients in the middle, events below. Made for 80 columns
//! and 24 rows. A smaller one has fewer columns and no sparklines.

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Sparkline, Wrap};
use roadweave_node::history::{History, Link};
use roadweave_node::status::{ClientStatus, RoleStatus, Status};
use roadweave_proto::{PathStatus, peer_text};
use roadweave_tunnel::SessionStatus;

use super::cursor::Cursor;
use super::row::row;

const WIDE: u16 = 72;
const ROUND_TRIP_FULL: u64 = 100;
const STALE: Duration = Duration::from_secs(2);

pub(super) fn draw(frame: &mut Frame<'_>, history: &History, cursor: Cursor, now: Instant) {
    let area = frame.area();
    let events = if area.height < 16 { 3 } else { (area.height / 4).max(5) };
    let parts = [Constraint::Length(3), Constraint::Min(3), Constraint::Length(events)];
    let [head, middle, events] = Layout::vertical(parts).areas(area);
    text(frame, head, headline(history, now, area.width));
    match history.status.as_ref().map(|status| &status.role) {
        Some(RoleStatus::Client(_)) => uplinks(frame, middle, history, cursor.place(history)),
        Some(role @ (RoleStatus::Server(_) | RoleStatus::Proxy(_))) => {
            clients(frame, middle, history, role.sessions());
        }
        Some(role) => {
            let line = format!("`roadweave show` has the figures of a role as {}", role.name());
            text(frame, middle, vec![line.into()]);
        }
        None => {}
    }
    let chosen = history.links.iter().nth(cursor.place(history));
    let modem = chosen.and_then(|(name, link)| Some((name, link.modem.as_ref()?)));
    let modem = modem.map(|(name, facts)| {
        Line::from(format!("modem of {}: {}", harmless(name), harmless(&facts.summary())))
    });
    let rows = history.events.iter().map(|(at, event)| {
        let ago = now.saturating_duration_since(*at).as_secs();
        Line::from(format!("{ago:>5} s ago  {}", harmless(event)))
    });
    let keys = match (history.links.is_empty(), area.width < WIDE) {
        (true, _) => " q ends ",
        (false, true) => " arrows, p pauses, q ends ",
        (false, false) => " arrows choose an uplink, p pauses or resumes it, q ends ",
    };
    let block = Block::new().borders(Borders::TOP).title(" events ");
    let block = block.title_top(Line::from(keys).right_aligned());
    let rows = Paragraph::new(modem.into_iter().chain(rows).collect::<Vec<_>>()).block(block);
    frame.render_widget(rows.wrap(Wrap { trim: false }), events);
}

fn headline(history: &History, now: Instant, width: u16) -> Vec<Line<'static>> {
    let Some(Status { name, uptime_seconds, role, .. }) = &history.status else {
        return vec![Line::from("asking the instance")];
    };
    let title = format!("{} {}, up {} s", role.name(), harmless(name), *uptime_seconds as u64);
    let title = Line::from(title).style(Modifier::BOLD);
    let age = history.read_at.map(|at| now.saturating_duration_since(at)).unwrap_or_default();
    let away = match &history.away {
        Some(why) => Some(why.clone()),
        None if age > STALE => Some(format!("no answer for {} s", age.as_secs())),
        None => None,
    };
    if let Some(why) = away {
        let as_before = "the figures below are old".into();
        return vec![title, Line::from(harmless(&why)).style(bad()), as_before];
    }
    match role {
        RoleStatus::Client(client) => {
            vec![
                title,
                goodput(history, client.encoder_target(), width),
                minute(history, client, width),
            ]
        }
        RoleStatus::Server(server) => {
            let (here, gone) = (server.sessions.len(), server.absent.len());
            let [to, from] = rates(history);
            let (goodput, line) = match width < WIDE {
                true => (
                    format!("Mbit/s: {to} to clients, {from} back"),
                    format!("clients: {here}, {gone} left"),
                ),
                false => (
                    format!("goodput Mbit/s: {to} to clients, {from} from them"),
                    format!("clients: {here} with a session, {gone} left since the start"),
                ),
            };
            vec![title, goodput.into(), line.into()]
        }
        RoleStatus::Proxy(proxy) => {
            let line = format!("clients: {} with a session", proxy.sessions.len());
            vec![title, line.into()]
        }
        _ => vec![title],
    }
}

fn rates(history: &History) -> [String; 2] {
    history.goodput.map_or_else(|| [dash(), dash()], |rates| rates.map(megabits))
}

fn megabits(bps: f64) -> String {
    format!("{:.2}", bps / 1e6)
}

fn goodput(history: &History, target: Option<u64>, width: u16) -> Line<'static> {
    let [up, down] = rates(history);
    let target = target.map(|bps| megabits(bps as f64));
    let text = match (target, width < WIDE) {
        (None, _) => format!("goodput Mbit/s: {up} up, {down} down"),
        (Some(target), true) => format!("Mbit/s: {up} up of {target}, {down} down"),
        (Some(target), false) => {
            format!("goodput Mbit/s: {up} up, {down} down; the encoder's target is {target}")
        }
    };
    text.into()
}

fn minute(history: &History, client: &ClientStatus, width: u16) -> Line<'static> {
    if client.sessions.is_empty() {
        let why = client.no_session.as_ref().map(|why| format!(": {}", harmless(why)));
        return Line::from(format!("no session{}", why.unwrap_or_default())).style(bad());
    }
    let delay = history.delay_p99_ms().map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
    let (stalls, lasted) = history.stalls();
    let lasted = lasted.as_secs_f64();
    let stalls_in_words = match stalls {
        0 => "no stall".to_owned(),
        1 => format!("1 stall, {lasted:.1} s"),
        _ => format!("{stalls} stalls, {lasted:.1} s"),
    };
    let text = match width < WIDE {
        true => format!("minute: p99 {delay} ms, {stalls_in_words}"),
        false => {
            format!("last minute: p99 of the best round trip {delay} ms; {stalls_in_words}")
        }
    };
    Line::from(text).style(if stalls > 0 { bad() } else { Style::new() })
}

fn uplinks(frame: &mut Frame<'_>, area: Rect, history: &History, cursor: usize) {
    let [head, rows] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let has_caps = history.links.values().any(|link| link.left_bytes.is_some());
    let columns = if has_caps { 7 } else { 6 };
    let titles = match area.width < WIDE {
        true => ["uplink", "status", "Mbit/s", "", "rtt", "loss%", ""],
        false => ["uplink", "status", "out Mbit/s", "in Mbit/s", "rtt ms", "loss %", "left MB"],
    };
    let title = line(" ", UPLINKS, &titles.map(str::to_owned)[..columns], area.width);
    frame.render_widget(Paragraph::new(title).style(Modifier::UNDERLINED), head);
    let count = u16::try_from(history.links.len()).unwrap_or(u16::MAX);
    let height = if count.saturating_mul(2) <= rows.height { 2 } else { 1 };
    let room = usize::from(rows.height / height).max(1);
    let skip = (cursor + 1).saturating_sub(room);
    let shown = history.links.iter().enumerate().skip(skip).take(room);
    for ((at, (name, link)), y) in shown.zip((rows.y..).step_by(height.into())) {
        let area = Rect { y, height, ..rows }.intersection(rows);
        let [numbers, lines] =
            Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
        let mark = if at == cursor { ">" } else { " " };
        let cells = figures(name, link);
        let line = line(mark, UPLINKS, &cells[..columns], area.width);
        frame.render_widget(Paragraph::new(line).style(style(link)), numbers);
        if height == 2 {
            sparklines(frame, lines, link);
        }
    }
}

fn figures(name: &str, link: &Link) -> [String; 7] {
    let status = match link.status {
        _ if link.is_paused => "paused",
        _ if link.has_portal => "portal",
        Some(status) => status.name(),
        None => "no path",
    };
    let of_path = |text: String| if link.status.is_some() { text } else { "-".to_owned() };
    let [sent, received] = link.rates.map(|rate| of_path(megabits(rate)));
    let left = link.left_bytes.map(|left| (left / 1_000_000).to_string());
    [
        harmless(name),
        status.to_owned(),
        sent,
        received,
        of_path(format!("{:.0}", link.round_trip_ms)),
        of_path(format!("{:.1}", link.loss * 100.0)),
        left.unwrap_or_else(|| "-".to_owned()),
    ]
}

/// Column widths on a small (0: left out) and a wide terminal; and how many are left-aligned.
type Columns = (&'static [[u16; 2]], usize);
const UPLINKS: Columns = (&[[8, 12], [10, 10], [6, 10], [0, 9], [5, 7], [5, 6], [0, 9]], 2);
const CLIENTS: Columns = (&[[11, 14], [5, 7], [6, 11], [0, 10], [6, 11], [6, 11]], 1);

fn line(mark: &str, (widths, lefts): Columns, texts: &[String], width: u16) -> String {
    let mut spare = width.saturating_sub(WIDE).min(24);
    let mut cells = vec![(mark, 1, false)];
    for (at, ([small, wide], text)) in widths.iter().zip(texts).enumerate() {
        let width = if width < WIDE { *small } else { wide + std::mem::take(&mut spare) };
        if width > 0 {
            cells.push((text.as_str(), width, at >= lefts));
        }
    }
    row(&cells)
}

fn style(link: &Link) -> Style {
    match link.status {
        Some(PathStatus::Usable) if !link.is_paused => Style::new().fg(Color::Green),
        Some(PathStatus::Standby) => Style::new(),
        _ => bad(),
    }
}

fn sparklines(frame: &mut Frame<'_>, area: Rect, link: &Link) {
    let parts = [
        ("rate", &link.kbps, 0),
        ("rtt", &link.round_trips_ms, ROUND_TRIP_FULL),
        ("loss", &link.loss_permille, 1_000),
    ];
    let areas = Layout::horizontal([Constraint::Fill(1); 3]).split(area);
    for ((label, samples, full), area) in parts.into_iter().zip(areas.iter()) {
        let [word, line] =
            Layout::horizontal([Constraint::Length(7), Constraint::Min(0)]).areas(*area);
        frame.render_widget(Paragraph::new(format!("  {label:<4} ")), word);
        let room = usize::from(line.width).saturating_sub(1);
        let shown = samples.iter().skip(samples.len().saturating_sub(room)).copied();
        let missing = room.saturating_sub(samples.len());
        let shown = std::iter::repeat_n(0, missing).chain(shown);
        let full = samples.iter().copied().max().unwrap_or(0).max(full).max(1);
        let sparkline = Sparkline::default().data(shown).max(full);
        frame.render_widget(sparkline, line);
    }
}

fn clients(frame: &mut Frame<'_>, area: Rect, history: &History, sessions: &[SessionStatus]) {
    let titles = match area.width < WIDE {
        true => ["client", "paths", "Mbit/s", "", "rtt ms", "loss %"],
        false => ["client", "paths", "out Mbit/s", "in Mbit/s", "best rtt ms", "best loss %"],
    };
    let title = line("", CLIENTS, &titles.map(str::to_owned), area.width);
    let mut lines = vec![Line::from(title).style(Modifier::UNDERLINED)];
    let mut all: Vec<_> = sessions.iter().collect();
    all.sort_by(|a, b| a.worst_first(b));
    let rows = usize::from(area.height).saturating_sub(1);
    let room = if all.len() > rows { rows.saturating_sub(1) } else { rows };
    for session in all.iter().take(room) {
        let rates = history.clients.get(&session.public_key);
        let [sent, received] =
            [0, 1].map(|at| rates.map_or_else(dash, |rates| megabits(rates[at])));
        let best = session.best();
        let cells = [
            harmless(&session.peer),
            format!("{}/{}", session.usable().count(), session.paths.len()),
            sent,
            received,
            best.map_or_else(dash, |path| format!("{:.0}", path.smoothed_rtt_ms)),
            best.map_or_else(dash, |path| format!("{:.1}", path.loss * 100.0)),
        ];
        let style = if best.is_none() { bad() } else { Style::new() };
        lines.push(Line::from(line("", CLIENTS, &cells, area.width)).style(style));
    }
    if all.len() > room {
        lines.push(format!("  {} more fare better", all.len() - room).into());
    }
    text(frame, area, lines);
}

fn text(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'_>>) {
    frame.render_widget(Paragraph::new(lines), area);
}

fn dash() -> String {
    "-".to_owned()
}

fn bad() -> Style {
    Style::new().fg(Color::Red)
}

fn harmless(text: &str) -> String {
    peer_text(text.as_bytes())
}
