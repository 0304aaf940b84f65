//! `roadweave show`: paths, lanes and statistics of a running client, server or router.

mod fleet;
mod tables;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use roadweave_device::local;
use roadweave_device::status::{
    AnchorRoleStatus, RoleStatus, RouterSession, SplitStatus, Status, StreamsStatus,
};
use roadweave_terminal::out;
use roadweave_tunnel::SessionStatus;
use serde_json::Value;

use self::fleet::fleet;
use self::tables::{candidates, counts, drops, lanes, links, passing, paths, shards, ways};

/// Shows paths, lanes and statistics of a running client, server or router.
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The socket of the running client, server or router
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// Print everything as one JSON object
    #[arg(long)]
    json: bool,
    /// Show it again every so many seconds
    #[arg(long, value_name = "SECONDS")]
    watch: Option<f64>,
}

impl ShowArgs {
    /// # Errors
    /// When nothing runs behind the socket.
    pub fn run(&self) -> Result<()> {
        loop {
            if self.json {
                let status = local::request(&self.socket, "status", &Value::Null)?;
                out::line(format_args!("{status:#}"))?;
            } else {
                out::print(render(&local::status(&self.socket)?))?;
            }
            let Some(seconds) = self.watch else { return Ok(()) };
            std::thread::sleep(Duration::from_secs_f64(seconds.clamp(0.1, 3600.0)));
        }
    }
}

fn render(status: &Status) -> String {
    let Status { name, tun, uptime_seconds, .. } = status;
    let role = match &status.role {
        RoleStatus::Client(_) => "client",
        RoleStatus::Server(_) => "server",
        RoleStatus::Router(_) => "router",
        RoleStatus::Proxy(_) => "proxy",
        RoleStatus::Anchor(_) => "anchor",
    };
    let device = if tun.is_empty() { "no device".to_owned() } else { format!("device {tun}") };
    let mut text = format!("{role} {name}, up {} s, {device}\n", *uptime_seconds as u64);
    if let RoleStatus::Server(server) = &status.role {
        text += &shards(&server.shards);
    }
    let sessions: Vec<String> = match &status.role {
        RoleStatus::Client(client) => client.sessions.iter().map(session).collect(),
        RoleStatus::Server(server) => server.sessions.iter().map(session).collect(),
        RoleStatus::Router(router) => router.sessions.iter().map(router_session).collect(),
        RoleStatus::Proxy(proxy) => {
            text +=
                &passing(proxy.passing.legs.iter().map(|leg| ("", leg)), &proxy.passing.tenants);
            proxy.sessions.iter().map(session).collect()
        }
        RoleStatus::Anchor(AnchorRoleStatus { passing: anchor, .. }) => {
            let legs = anchor.legs.iter().map(|(name, leg)| (name.as_str(), leg));
            text += &passing(legs, &anchor.tenants);
            Vec::new()
        }
    };
    if sessions.is_empty() && !matches!(status.role, RoleStatus::Anchor(_)) {
        text += "no session";
        if let RoleStatus::Client(client) = &status.role {
            text += &client.no_session.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            text += "\n";
            text += &ways(&client.uplinks);
        } else {
            text += "\n";
        }
    }
    text += &sessions.concat();
    if let RoleStatus::Client(client) = &status.role {
        text += &candidates(&client.candidates);
        if !client.paused.is_empty() {
            text += &format!("paused: {}\n", client.paused.join(", "));
        }
    }
    text += &match &status.role {
        RoleStatus::Client(client) => client.streams.as_ref().map(streams),
        RoleStatus::Server(server) => server.streams.as_ref().map(streams),
        RoleStatus::Anchor(anchor) => anchor.streams.as_ref().map(streams),
        _ => None,
    }
    .unwrap_or_default();
    text += &status.fleet.as_ref().map(fleet).unwrap_or_default();
    text += &drops("dropped outside any session", &status.drops);
    let refusals = match &status.role {
        RoleStatus::Server(server) => Some(&server.refusals),
        RoleStatus::Proxy(proxy) => Some(&proxy.refusals),
        RoleStatus::Anchor(anchor) => Some(&anchor.passing.refusals),
        RoleStatus::Client(_) | RoleStatus::Router(_) => None,
    };
    if let Some(refusals) = refusals {
        let refusals = refusals.iter().map(|(kind, count)| (kind.as_str(), *count));
        text += &counts("refused", refusals);
    }
    match status.log.lines_lost {
        0 => text,
        lost => text + &format!("lines of the log that could not be written: {lost}\n"),
    }
}

/// Connections that go as streams, and how those ended that are over.
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

/// Connections that were taken without having asked.
fn split(SplitStatus { taken, obstacle }: &SplitStatus) -> String {
    match obstacle {
        None => format!("split: {taken} of them\n"),
        Some(why) => format!("split: {taken} of them; new ones go by the tunnel: {why}\n"),
    }
}

fn session(session: &SessionStatus) -> String {
    let SessionStatus { peer, addresses, stats, .. } = session;
    let title = format!("\nsession with {peer}: {}\n", addresses.join(", "));
    title + &paths(&session.paths) + &lanes(stats)
}

fn router_session(session: &RouterSession) -> String {
    let RouterSession { peer, addresses, status } = session;
    let title = format!("\nsession with {peer}: {}\n", addresses.join(", "));
    title + &links(status) + &lanes(&status.stats)
}

#[cfg(test)]
mod tests;
