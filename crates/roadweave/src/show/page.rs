//! The size of a page, and the clients on it.

use std::cmp::Ordering;

use roadweave_tunnel::SessionStatus;
use serde::Deserialize as _;
use serde_json::Value;

pub(super) const WIDTH: usize = 80;
pub(super) const CLIENTS_ON_A_PAGE: u32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sort {
    /// Worst first: no usable path, then loss, then round trip of the best path
    Worst,
    /// By name
    Name,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Selection {
    /// Only clients whose name contains this, each with its paths and lanes
    #[arg(long, value_name = "NAME")]
    pub(super) client: Option<String>,
    /// The maximum number of clients on a page
    #[arg(long, value_name = "CLIENTS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) limit: Option<u32>,
    /// The page to show, from 1
    #[arg(
        long, value_name = "PAGE", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(super) page: u32,
    /// The order of clients
    #[arg(long, value_enum, default_value_t = Sort::Worst)]
    pub(super) sort: Sort,
}

impl Selection {
    pub(super) fn of<'a>(&self, sessions: &'a [SessionStatus]) -> (Vec<&'a SessionStatus>, usize) {
        let mut all: Vec<_> = sessions.iter().filter(|it| self.admits(&it.peer)).collect();
        all.sort_by(|a, b| self.order(a, b));
        let (count, range) = (all.len(), self.range(all.len(), Some(CLIENTS_ON_A_PAGE)));
        (all.drain(range).collect(), count)
    }

    pub(super) fn apply(&self, status: &mut Value) {
        let Some(Value::Array(sessions)) = status.get_mut("sessions") else { return };
        if self.client.is_none() && self.limit.is_none() {
            return;
        }
        let name = |value: &Value| value.get("peer").and_then(Value::as_str).map(str::to_owned);
        sessions.retain(|value| name(value).is_some_and(|name| self.admits(&name)));
        let mut read: Vec<_> = std::mem::take(sessions)
            .into_iter()
            .map(|value| (SessionStatus::deserialize(&value).ok(), value))
            .collect();
        read.sort_by(|(a, _), (b, _)| match (a, b) {
            (Some(a), Some(b)) => self.order(a, b),
            // Sessions that this version cannot read come last.
            (a, b) => a.is_none().cmp(&b.is_none()),
        });
        let range = self.range(read.len(), None);
        sessions.extend(read.drain(range).map(|(_, value)| value));
    }

    pub(super) fn admits(&self, name: &str) -> bool {
        self.client.as_ref().is_none_or(|part| name.contains(part.as_str()))
    }

    pub(super) fn pages(&self, count: usize) -> usize {
        count.div_ceil(self.limit.unwrap_or(CLIENTS_ON_A_PAGE) as usize)
    }

    fn range(&self, count: usize, limit: Option<u32>) -> std::ops::Range<usize> {
        let Some(limit) = self.limit.or(limit) else { return 0..count };
        let begin = (self.page as usize - 1).saturating_mul(limit as usize).min(count);
        begin..begin.saturating_add(limit as usize).min(count)
    }

    fn order(&self, a: &SessionStatus, b: &SessionStatus) -> Ordering {
        match self.sort {
            Sort::Name => a.peer.cmp(&b.peer),
            Sort::Worst => a.worst_first(b),
        }
    }
}

/// Folds wide lines, and escapes control characters, which a peer's name may hold.
pub(super) fn fit(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        let mut rest: Vec<char> = line.trim_end().chars().flat_map(harmless).collect();
        let mut indent = "";
        loop {
            let room = WIDTH - indent.len();
            text += indent;
            if rest.len() <= room {
                text.extend(&rest);
                break;
            }
            let space =
                rest[..room].iter().rposition(|letter| *letter == ' ').filter(|at| *at > 20);
            let tail = rest.split_off(space.unwrap_or(room));
            text.extend(&rest);
            text.push('\n');
            rest = tail.into_iter().skip_while(|letter| *letter == ' ').collect();
            indent = "  ";
        }
        text.push('\n');
    }
    text
}

fn harmless(letter: char) -> Vec<char> {
    match letter.is_control() {
        true => letter.escape_debug().collect(),
        false => vec![letter],
    }
}

/// A page that overwrites the former one on a terminal of `rows` rows.
pub(super) fn in_place(page: &str, rows: usize) -> String {
    let lines: Vec<&str> = page.lines().collect();
    let room = rows.max(2) - 1;
    let mut text = "\x1b[H".to_owned();
    let shown = if lines.len() <= room { lines.len() } else { room - 1 };
    for line in &lines[..shown] {
        text += &format!("{line}\x1b[K\r\n");
    }
    if shown < lines.len() {
        text += &format!("({} more lines do not fit)\x1b[K\r\n", lines.len() - shown);
    }
    text + "\x1b[J"
}
