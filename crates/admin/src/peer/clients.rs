//! The clients of a server: prints them and whether they are connected, and changes its file.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use roadweave_config::{ChangeError, PeerFields, ServerFile, change_server_file, load};
use roadweave_node::local;
use roadweave_node::status::RoleStatus;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use serde_json::{Value, json};
use toml_edit::DocumentMut;

use super::ServerPlace;

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
        return Err(BadInput::new(no_such(&server, name)).into());
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

struct Connected(Option<BTreeSet<String>>);

impl Connected {
    fn ask(place: &ServerPlace) -> Self {
        let status = place.socket().and_then(|socket| Ok(local::status(&socket)?));
        let status = match status {
            Ok(status) => status,
            Err(error) => {
                out::note(format_args!("cannot find out which clients are connected: {error}"));
                return Self(None);
            }
        };
        let RoleStatus::Server(server) = status.role else {
            out::note(format_args!(
                "cannot find out which clients are connected: the running instance is not a server"
            ));
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

/// Fails with [`BadInput`] when the file is wrong, or would be.
pub fn change(
    path: &Path,
    change: impl FnOnce(&ServerFile, &str) -> Result<String, ChangeError>,
) -> Result<ServerFile> {
    change_server_file(path, change).map_err(|error| change_error(path, error))
}

pub fn change_error(path: &Path, error: ChangeError) -> anyhow::Error {
    match error {
        ChangeError::Refused(why) => BadInput::new(format!("{}: {why}", path.display())).into(),
        ChangeError::File(error) => BadInput::new(error).into(),
        other => other.into(),
    }
}

pub fn without_peer(server: &ServerFile, text: &str, name: &str) -> Result<String, String> {
    let named = || (0..).zip(&server.peers).filter(|(_, peer)| peer.name == name);
    let position = match named().collect::<Vec<_>>()[..] {
        [] => return Err(no_such(server, name)),
        [(position, _)] => position,
        _ => return Err(format!("several peers have the name {name:?}: remove one from the file")),
    };
    let mut document: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
    let peers = document.get_mut("peers").ok_or("[[peers]] is missing")?;
    if let Some(tables) = peers.as_array_of_tables_mut() {
        tables.remove(position);
    } else if let Some(array) = peers.as_array_mut() {
        array.remove(position);
    }
    Ok(document.to_string())
}

pub fn no_such(server: &ServerFile, name: &str) -> String {
    let names: Vec<&str> = server.peers.iter().map(|peer| peer.name.as_str()).collect();
    match names.len() {
        0 => format!("there is no peer {name:?}: the server has no peers"),
        1..=20 => format!("there is no peer {name:?}; there are: {}", names.join(", ")),
        count => format!("there is no peer {name:?} among {count}; see `roadweave peer list`"),
    }
}

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;

    use super::*;

    #[test]
    fn a_peer_goes_and_what_stands_around_it_stays() {
        let entry = |name: &str, seed, address: &str| {
            let key = Identity::from_seed([seed; 32]).public_key();
            format!(
                "# of {name}\n[[peers]]\nname = {name:?}\npublic_key = \"{key}\"\n\
                 addresses = [\"{address}\"]\n"
            )
        };
        let head = "# of the bus line\nlisten = \"[::]:4433\"\n\n";
        let one = entry("a", 1, "10.77.0.2/32");
        let two = entry("b", 2, "10.77.0.3/32");
        let three = entry("c", 3, "10.77.0.4/32");
        let text = format!("{head}{one}\n{two}\n{three}");
        let server: ServerFile = toml::from_str(&text).expect("a server's file");
        let left = without_peer(&server, &text, "b").expect("removed");
        assert_eq!(left, format!("{head}{one}\n{three}"));
        let refused = without_peer(&server, &text, "d").expect_err("nobody");
        assert!(refused.ends_with("there are: a, b, c"), "{refused}");
        let twice = text.replace("name = \"c\"", "name = \"b\"");
        let server: ServerFile = toml::from_str(&twice).expect("a server's file");
        let refused = without_peer(&server, &twice, "b").expect_err("which of them?");
        assert!(refused.contains("several"), "{refused}");
    }
}
