//! Prints the clients of a server and whether they are connected.

use std::collections::BTreeSet;

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use roadweave_config::{PeerFields, ServerFile, load};
use roadweave_device::local;
use roadweave_device::status::RoleStatus;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use serde_json::{Value, json};

use super::{ServerPlace, file};

pub fn list(place: &ServerPlace, as_json: bool) -> Result<()> {
    let server: ServerFile = load(&place.config).map_err(BadInput::new)?;
    let connected = Connected::ask(place);
    if as_json {
        let all: Vec<Value> = server.peers.iter().map(|peer| object(peer, &connected)).collect();
        return out::json_line(&Value::Array(all));
    }
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(["name", "connected", "addresses", "expires", "public key"]);
    for peer in &server.peers {
        table.add_row([
            peer.name.clone(),
            connected.word(&peer.name).to_owned(),
            addresses(peer),
            expires(peer),
            peer.public_key.to_string(),
        ]);
    }
    for line in table.lines() {
        out::line(line.trim_end())?;
    }
    Ok(())
}

pub fn show(place: &ServerPlace, name: &str, as_json: bool) -> Result<()> {
    let server: ServerFile = load(&place.config).map_err(BadInput::new)?;
    let Some(peer) = server.peers.iter().find(|peer| peer.name == name) else {
        return Err(BadInput::new(file::no_such(&server, name)).into());
    };
    let connected = Connected::ask(place);
    if as_json {
        return out::json_line(&object(peer, &connected));
    }
    for (title, text) in [
        ("name", peer.name.clone()),
        ("public key", peer.public_key.to_string()),
        ("addresses", addresses(peer)),
        ("expires", expires(peer)),
        ("connected", connected.word(name).to_owned()),
    ] {
        out::line(format_args!("{title:<12}{text}"))?;
    }
    Ok(())
}

/// The names of clients with a session; `None` if no server answers.
struct Connected(Option<BTreeSet<String>>);

impl Connected {
    fn ask(place: &ServerPlace) -> Self {
        let status = place.socket().and_then(|socket| Ok(local::status(&socket)?));
        let status = match status {
            Ok(status) => status,
            Err(error) => {
                out::note(format_args!("who is connected is not known: {error}"));
                return Self(None);
            }
        };
        let RoleStatus::Server(server) = status.role else {
            out::note(format_args!("who is connected is not known: what runs there is no server"));
            return Self(None);
        };
        Self(Some(server.sessions.into_iter().map(|session| session.peer).collect()))
    }

    fn has(&self, name: &str) -> Option<bool> {
        self.0.as_ref().map(|names| names.contains(name))
    }

    fn word(&self, name: &str) -> &'static str {
        match self.has(name) {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        }
    }
}

fn addresses(peer: &PeerFields) -> String {
    peer.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn expires(peer: &PeerFields) -> String {
    peer.expires.as_ref().map_or_else(|| "never".to_owned(), ToString::to_string)
}

fn object(peer: &PeerFields, connected: &Connected) -> Value {
    let mut object = json!(peer);
    object["connected"] = json!(connected.has(&peer.name));
    object
}
