//! `roadweave show`: paths, lanes and statistics of a running client, server or router.

mod fleet;
mod page;
mod rates;
mod tables;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use roadweave_node::local;
use roadweave_node::status::{
    AbsentClient, AnchorRoleStatus, ProxyRoleStatus, RoleStatus, RouterSession, SplitStatus,
    Status, StreamsStatus,
};
use roadweave_terminal::out;
use roadweave_terminal::seconds::parse_seconds;
use roadweave_tunnel::SessionStatus;
use serde_json::Value;

use self::fleet::fleet;
use self::page::{CLIENTS_ON_A_PAGE, Selection, fit, in_place};
use self::rates::Rates;
use self::tables::{
    candidates, clients, counts, drops, lanes, links, out_of_reach, passing, paths, shards, ways,
};

/// Shows paths, lanes and statistics of a running client, server or router.
#[derive(Debug, clap::Args)]
#[command(after_help = LEGEND)]
pub struct ShowArgs {
    /// The socket of the running client, server or router
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// Print everything as one JSON object; with --watch one object per line
    #[arg(long)]
    json: bool,
    /// Refresh every so many seconds; on a terminal, in place
    #[arg(long, value_name = "SECONDS", value_parser = parse_interval)]
    watch: Option<Duration>,
    #[command(flatten)]
    selection: Selection,
}

const LEGEND: &str = "\
Units: 1 MB is 1,000,000 bytes, 1 Mbit/s is 1,000,000 bits a second. `out` is what this
end sends and `in` what it receives: UDP payload, between two readings half a second
apart, or --watch seconds apart. `rtt` is the smoothed round trip, `loss` the share of
packets lost recently, `lost` the number of packets lost in all.

Paths: `usable` carries data; `suspect` did not answer, and carries data only if no
other path can; `validating` has not answered yet; `standby` is kept in reserve.
An uplink with a `portal` is not used until a person logs in at the address in --json.
`window`: bytes that may be in flight; `pacing`: the rate at which packets leave;
`budget`: bytes of repairs that it may carry now. Uplinks with a cap: bytes used today
and since the billing day, and the caps beyond which the uplink is a backup.

Lanes: `taken` inner packets were sent as `sent` packets, `again` copies and `coded`
repairs; `extra`: bytes beyond the inner packets; `queue`: bytes waiting to be sent;
`delivered`: packets from the other end, `repaired`: those of them that only a repair
brought.

Drops are counted by reason. A server shows a row for each client, worst first; --client
adds their paths and lanes. Field names of --json say what each field means; counters
start at zero with the session, or with the instance.";

impl ShowArgs {
    pub fn run(&self) -> Result<()> {
        let interval = self.watch;
        if self.json {
            return self.print_json(interval);
        }
        let in_its_place = self.watch.is_some() && std::io::stdout().is_terminal();
        if in_its_place {
            out::print("\x1b[2J")?;
        }
        let mut before = local::status(&self.socket)?;
        std::thread::sleep(interval.unwrap_or(BETWEEN_READINGS).min(BETWEEN_READINGS));
        loop {
            let status = local::status(&self.socket)?;
            let page = fit(&render(&status, &Rates::between(&before, &status), &self.selection));
            out::print(if in_its_place { in_place(&page, terminal_rows()) } else { page })?;
            let Some(interval) = interval else { return Ok(()) };
            before = status;
            std::thread::sleep(interval);
        }
    }

    fn print_json(&self, interval: Option<Duration>) -> Result<()> {
        loop {
            let mut status = local::request(&self.socket, "status", &Value::Null)?;
            self.selection.apply(&mut status);
            let Some(interval) = interval else {
                return Ok(out::line(format_args!("{status:#}"))?);
            };
            out::line(status)?;
            std::thread::sleep(interval);
        }
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_seconds(text, &(0.1..=3600.0))
}

const BETWEEN_READINGS: Duration = Duration::from_millis(500);

fn terminal_rows() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.ok().map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0).unwrap_or(24)
}

fn render(status: &Status, rates: &Rates, selection: &Selection) -> String {
    let Status { name, tun, uptime_seconds, .. } = status;
    let role = status.role.name();
    let device = if tun.is_empty() { "no device".to_owned() } else { format!("device {tun}") };
    let mut text = format!("{role} {name}, up {} s, {device}\n", *uptime_seconds as u64);
    if let Some([into, out_of]) = rates.device {
        let (into, out_of) = (into / 1e6, out_of / 1e6);
        text +=
            &format!("inner packets: {into:.2} Mbit/s into the tunnel, {out_of:.2} out of it\n");
    }
    let session = |it: &SessionStatus| session(it, rates);
    text += &match &status.role {
        RoleStatus::Client(client) if client.sessions.is_empty() => {
            let why = client.no_session.as_ref().map(|why| format!(": {why}"));
            format!("no session{}\n{}", why.unwrap_or_default(), ways(&client.uplinks))
        }
        RoleStatus::Client(client) => client.sessions.iter().map(session).collect(),
        RoleStatus::Server(server) => {
            let clients = of_clients(&server.sessions, &server.absent, rates, selection);
            shards(&server.shards) + &clients
        }
        RoleStatus::Router(router) if router.sessions.is_empty() => "no session\n".to_owned(),
        RoleStatus::Router(router) => {
            router.sessions.iter().map(|it| router_session(it, rates)).collect()
        }
        RoleStatus::Proxy(ProxyRoleStatus { sessions, passing: proxy, .. }) => {
            let legs = proxy.legs.iter().map(|leg| ("", leg));
            passing(legs, &proxy.tenants) + &of_clients(sessions, &[], rates, selection)
        }
        RoleStatus::Anchor(AnchorRoleStatus { passing: anchor, .. }) => {
            let legs = anchor.legs.iter().map(|(name, leg)| (name.as_str(), leg));
            passing(legs, &anchor.tenants)
        }
    };
    if let RoleStatus::Client(client) = &status.role {
        text += &candidates(&client.candidates);
        let captive = client.uplinks.iter().filter(|uplink| uplink.portal.is_some());
        let captive: Vec<&str> = captive.map(|uplink| uplink.name.as_str()).collect();
        if !captive.is_empty() {
            text += &format!("behind a portal, log in first: {}\n", captive.join(", "));
        }
        for (uplink, facts) in &client.modems {
            text += &format!("modem {uplink}: {}\n", facts.summary());
        }
        if !client.paused.is_empty() {
            text += &format!("paused: {}\n", client.paused.join(", "));
        }
        for (uplink, networks) in &client.outside {
            text += &format!("outside the tunnel over {uplink}: {}\n", networks.join(", "));
        }
        for (uplink, why) in &client.conflicts {
            text += &format!("{uplink} is not used: {why}\n");
        }
    }
    let (connections, refusals) = match &status.role {
        RoleStatus::Client(client) => (client.streams.as_ref(), None),
        RoleStatus::Server(server) => (server.streams.as_ref(), Some(&server.refusals)),
        RoleStatus::Router(_) => (None, None),
        RoleStatus::Proxy(proxy) => (None, Some(&proxy.refusals)),
        RoleStatus::Anchor(anchor) => (anchor.streams.as_ref(), Some(&anchor.passing.refusals)),
    };
    text += &connections.map(streams).unwrap_or_default();
    text += &status.fleet.as_ref().map(fleet).unwrap_or_default();
    text += &drops("dropped outside any session", &status.drops);
    let refusals = refusals.into_iter().flatten();
    text += &counts("refused", refusals.map(|(kind, count)| (kind.as_str(), *count)));
    match status.log.lines_lost {
        0 => text,
        lost => text + &format!("lines of the log that could not be written: {lost}\n"),
    }
}

fn streams(streams: &StreamsStatus) -> String {
    let StreamsStatus { connections, accepted, ends, http, source, split } = streams;
    let source = source.as_ref().map(|source| format!(", from the {source}'s address"));
    let source = source.unwrap_or_default();
    let title = format!("streams: {connections} connections of {accepted}{source}");
    let ends = counts(&title, ends.iter().map(|(end, count)| (end.as_str(), *count)));
    let text = if ends.is_empty() { title + "\n" } else { ends };
    let http = counts("HTTP", http.iter().map(|(what, times)| (what.as_str(), *times)));
    text + &http + &split.as_ref().map(self::split).unwrap_or_default()
}

fn split(SplitStatus { taken, obstacle }: &SplitStatus) -> String {
    match obstacle {
        None => format!("split: {taken} of them\n"),
        Some(why) => format!("split: {taken} of them; new ones go through the tunnel: {why}\n"),
    }
}

fn of_clients(
    all: &[SessionStatus],
    absent: &[AbsentClient],
    rates: &Rates,
    selection: &Selection,
) -> String {
    let (shown, count) = selection.of(all);
    let mut text = match all.len() {
        0 => "no session\n".to_owned(),
        _ if count == 0 => "no such client has a session\n".to_owned(),
        1 => String::new(),
        _ => clients(&shown, rates),
    };
    if shown.len() < count {
        let (page, pages) = (selection.page, selection.pages(count));
        text +=
            &format!("page {page} of {pages}, {count} clients: --page, --limit, --client NAME\n");
    }
    if all.len() == 1 || selection.client.is_some() {
        text += &shown.iter().map(|it| session(it, rates)).collect::<String>();
    }
    let is_here = |key: &str| all.iter().any(|session| session.public_key == key);
    let mut gone =
        absent.iter().filter(|it| selection.admits(&it.peer) && !is_here(&it.public_key));
    let most = selection.limit.unwrap_or(CLIENTS_ON_A_PAGE) as usize;
    for AbsentClient { peer, left_seconds_ago, reason, .. } in gone.by_ref().take(most) {
        text += &format!("absent: {peer}, for {} s: {reason}\n", *left_seconds_ago as u64);
    }
    match gone.count() {
        0 => text,
        more => text + &format!("absent: {more} more\n"),
    }
}

fn session(session: &SessionStatus, rates: &Rates) -> String {
    let SessionStatus { peer, addresses, stats, .. } = session;
    let title = format!("\nsession with {peer}: {}\n", addresses.join(", "));
    title + &paths(session, rates) + &lanes(stats) + &out_of_reach(session)
}

fn router_session(session: &RouterSession, rates: &Rates) -> String {
    let RouterSession { peer, addresses, status } = session;
    let title = format!("\nsession with {peer}: {}\n", addresses.join(", "));
    title + &links(peer, status, rates) + &lanes(&status.stats)
}

#[cfg(test)]
mod tests;
