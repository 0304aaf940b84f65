//! Adds a client to a server's file: addresses, entry, and the client's own file.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};
use zeroize::Zeroizing;

use crate::peers::PeerFields;
use crate::reader::{FileError, check, read_text};
use crate::secret::{WriteError, create_secret, replace_secret};
use crate::server::ServerFile;

/// A server's file cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The file is unreadable, or would be invalid after the change.
    #[error(transparent)]
    File(#[from] FileError),
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The change cannot be made.
    #[error("{0}")]
    Refused(String),
}

impl From<String> for ChangeError {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

/// Changes the locked server's file at `path` by `change`, which gets the file and its text and
/// returns the new text. Returns the new file. On an error the old one stays.
pub fn change_server_file(
    path: &Path,
    change: impl FnOnce(&ServerFile, &str) -> Result<String, ChangeError>,
) -> Result<ServerFile, ChangeError> {
    let path = &fs::canonicalize(path).map_err(|source| read_failed(path, source))?;
    let lock = lock(path).map_err(|source| read_failed(path, source))?;
    let text = read_text(path, true)?;
    let before: ServerFile = check(path, &text)?;
    let text = Zeroizing::new(change(&before, &text)?);
    let after = check(path, &text)?;
    replace_secret(path, &text)?;
    drop(lock);
    Ok(after)
}

fn read_failed(path: &Path, source: io::Error) -> FileError {
    FileError::Read { path: path.to_owned(), source }
}

/// Only users who may read it can lock it; retries if the file was replaced meanwhile.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = File::open(path)?;
        file.lock()?;
        let (locked, there) = (file.metadata()?, fs::metadata(path)?);
        if (locked.dev(), locked.ino()) == (there.dev(), there.ino()) {
            return Ok(file);
        }
    }
}

/// A server's file with a peer at its end. Fails if `peers` is a list on one line.
pub fn with_peer(text: &str, peer: &PeerFields) -> Result<String, String> {
    #[derive(serde::Serialize)]
    struct Addition<'a> {
        peers: [&'a PeerFields; 1],
    }
    let table: toml::Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let entry = toml::to_string(&Addition { peers: [peer] }).map_err(|error| error.to_string())?;
    let text = format!("{}\n\n{entry}", text.trim_end());
    match toml::from_str::<toml::Table>(&text) {
        Ok(_) => Ok(text),
        Err(_) if table.contains_key("peers") => Err(
            "peers is written as a list in one place; write each as [[peers]], so that others can \
             be added"
                .to_owned(),
        ),
        Err(error) => Err(error.to_string()),
    }
}

fn next_addresses(server: &ServerFile) -> Result<Vec<IpNet>, String> {
    let taken: Vec<IpNet> = server.peers.iter().flat_map(|peer| peer.addresses.clone()).collect();
    let next = |network: &IpNet| {
        next_address(network, &taken)
            .map(IpNet::from)
            .ok_or_else(|| format!("there is no free address left in {}", network.trunc()))
    };
    server.addresses.iter().map(next).collect()
}

fn next_address(network: &IpNet, taken: &[IpNet]) -> Option<IpAddr> {
    let own = IpNet::from(network.addr());
    let (first, last) = (number(network.network()), number(network.broadcast()));
    let mut candidate = first.checked_add(1)?;
    while candidate < last {
        let address = address(candidate, network.addr());
        let in_the_way = taken.iter().chain([&own]).filter(|taken| taken.contains(&address));
        match in_the_way.map(|taken| number(taken.broadcast())).max() {
            None => return Some(address),
            Some(end) => candidate = end.checked_add(1)?,
        }
    }
    None
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn address(number: u128, like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::V4((number as u32).into()),
        IpAddr::V6(_) => IpAddr::V6(number.into()),
    }
}

/// Adds a client whose key was made here: writes its file to `target`, and its entry to the
/// server's file at `path`. On an error neither file is changed.
pub fn add_client(
    path: &Path,
    client: &NewClient<'_>,
    target: Option<&Path>,
    entry: impl FnOnce(&ServerFile) -> Result<PeerFields, String>,
) -> Result<(PeerFields, Zeroizing<String>), ChangeError> {
    let mut made = None;
    let mut is_written = false;
    let changed = change_server_file(path, |server, text| {
        if server.private_key.is_empty() {
            return Err(
                "this file does not hold the server's key, which its join of a fleet created: let \
                 the box make its own key (`roadweave keygen`), and add it by `roadweave peer add \
                 --public-key`"
                    .to_owned()
                    .into(),
            );
        }
        let peer = entry(server)?;
        let text = with_peer(text, &peer)?;
        let file = client.text(server.private_key.identity()?.public_key());
        // The client's file comes first, so that no client is added whose key is lost.
        if let Some(target) = target {
            create_secret(target, &file)?;
            is_written = true;
        }
        made = Some((peer, file));
        Ok(text)
    });
    if let (Err(_), Some(target), true) = (&changed, target, is_written) {
        let _ = fs::remove_file(target);
    }
    changed?;
    Ok(made.expect("the change was made"))
}

/// The entry of a client with the next free addresses. Fails if the name is taken or none is free.
pub fn next_peer(
    server: &ServerFile,
    name: &str,
    public_key: PublicKey,
) -> Result<PeerFields, String> {
    if server.peers.iter().any(|peer| peer.name == name) {
        return Err(format!("there is a peer {name:?}; choose another name, or remove it first"));
    }
    Ok(PeerFields {
        name: name.to_owned(),
        tenant: None,
        public_key,
        addresses: next_addresses(server)?,
        expires: None,
        rate_limit_mbps: None,
    })
}

/// The contents of a client's file.
#[derive(Clone, Debug)]
pub struct NewClient<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its key pair.
    pub identity: &'a Identity,
    /// The server's address, host:port.
    pub server: &'a str,
    /// Its uplinks; empty: every interface with a default route.
    pub uplinks: &'a [String],
    /// The interfaces behind the box; empty: not specified.
    pub inside: &'a [String],
}

impl NewClient<'_> {
    /// The text of `client.toml` with its private key; `server_key` is the server's.
    pub fn text(&self, server_key: PublicKey) -> Zeroizing<String> {
        let Self { name, identity, server, uplinks, inside } = self;
        let list = |names: &[String]| {
            let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            names.join(", ")
        };
        Zeroizing::new(format!(
            "# Roadweave client, for the vehicle. Every field: docs/configuration.md\n\
             name = {name:?}\n\
             private_key = \"{private}\"\n\n\
             [server]\n\
             addresses = [{server:?}]\n\
             public_key = \"{server_key}\"\n\n\
             [uplinks]\n\
             # Names of interfaces, * stands for anything. Empty: every one with a default route.\n\
             include = [{uplinks}]\n\
             # Interfaces behind the box, which may use the tunnel. Name them: a WiFi without a\n\
             # router must not be taken for one.\n\
             inside = [{inside}]\n\n\
             [routes]\n\
             # What goes into the tunnel: everything.\n\
             into_tunnel = [\"0.0.0.0/0\", \"::/0\"]\n",
            private = identity.to_base64(),
            uplinks = list(uplinks),
            inside = list(inside),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::PathBuf;

    use super::*;
    use crate::write_secrets;

    fn nets(prefixes: &[&str]) -> Vec<IpNet> {
        prefixes.iter().map(|text| text.parse().expect("a prefix")).collect()
    }

    fn next(network: &str, taken: &[&str]) -> Option<String> {
        let network = network.parse().expect("a prefix");
        next_address(&network, &nets(taken)).map(|address| address.to_string())
    }

    #[test]
    fn the_next_address_is_the_first_free_one() {
        let check = |network, taken: &[&str], expected: Option<&str>| {
            assert_eq!(next(network, taken).as_deref(), expected, "{network} {taken:?}");
        };
        check("10.77.0.1/16", &[], Some("10.77.0.2"));
        check("10.77.0.1/16", &["10.77.0.2/32", "10.77.0.4/32"], Some("10.77.0.3"));
        check("10.77.0.9/16", &[], Some("10.77.0.1"));
        check("10.77.0.1/16", &["10.77.0.0/24"], Some("10.77.1.0"));
        check("10.77.0.1/30", &["10.77.0.2/32"], None);
        check("10.77.0.1/24", &["10.0.0.0/8"], None);
        check("255.255.255.1/24", &["255.255.255.0/24"], None);
        check("fd77::1/64", &["fd77::2/128", "192.168.1.0/24"], Some("fd77::3"));
        check("fd77::1/64", &["::/0"], None);
    }

    const SERVER: &str = "listen = \"[::]:4433\" # mine\naddresses = [\"10.77.0.1/16\", \"fd77::1/64\"]\n\n\
                          [tun]\nname = \"rws\"\n";

    fn folder_with(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("server.toml");
        write_secrets(&[(&path, text)]).expect("written");
        (folder, path)
    }

    fn peer(name: &str, addresses: &[&str]) -> PeerFields {
        PeerFields {
            name: name.to_owned(),
            tenant: None,
            public_key: Identity::from_seed([7; 32]).public_key(),
            addresses: nets(addresses),
            expires: None,
            rate_limit_mbps: None,
        }
    }

    #[test]
    fn a_peer_is_added_at_the_end_and_nothing_else_of_the_file_changes() {
        let name = "bus \"12\"\n[[peers]]";
        let text = with_peer(SERVER, &peer(name, &["10.77.0.2/32"])).expect("added");
        assert!(text.starts_with(SERVER.trim_end()), "{text}");
        let file: ServerFile = crate::parse(Path::new("x"), &text).expect("readable");
        assert_eq!(file.peers.len(), 1);
        assert_eq!(file.peers[0].name, name);
        let inline = "peers = []\n";
        let refused = with_peer(inline, &peer("b", &["10.77.0.2/32"])).expect_err("a list");
        assert!(refused.contains("[[peers]]"), "{refused}");
    }

    #[test]
    fn a_change_that_the_server_would_refuse_is_not_written() {
        let (folder, path) = folder_with(SERVER);
        let add = |peer: &PeerFields| {
            change_server_file(&path, |_, text| Ok(with_peer(text, peer)?))
                .map(|file| file.peers.len())
        };
        assert_eq!(add(&peer("a", &["10.77.0.2/32"])).expect("added"), 1);
        let error = add(&peer("b", &["10.77.0.3/32"])).expect_err("the same key").to_string();
        assert!(error.contains("have the same public_key"), "{error}");
        let text = std::fs::read_to_string(&path).expect("readable");
        assert_eq!(text.matches("[[peers]]").count(), 1, "{text}");
        assert!(text.contains("# mine"), "{text}");
        let names: Vec<_> = std::fs::read_dir(folder.path()).expect("readable").collect();
        assert_eq!(names.len(), 1, "nothing is left behind");
    }

    #[test]
    fn a_file_that_is_changed_stays_where_it_lies_and_whose_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, link) = (folder.path().join("kept.toml"), folder.path().join("server.toml"));
        write_secrets(&[(&path, SERVER)]).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
        symlink(&path, &link).expect("a link");
        let add = |text: &str| with_peer(text, &peer("a", &["10.77.0.2/32"]));
        change_server_file(&link, |_, text| Ok(add(text)?)).expect("changed");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert!(fs::read_to_string(&path).expect("readable").contains("[[peers]]"));
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn all_that_change_the_file_at_once_are_in_it() {
        let (_folder, path) = folder_with(SERVER);
        std::thread::scope(|scope| {
            for number in 0..8_u8 {
                let path = &path;
                scope.spawn(move || {
                    let public_key = Identity::from_seed([number; 32]).public_key();
                    let add = |server: &ServerFile, text: &str| {
                        let addresses = next_addresses(server)?;
                        let name = format!("bus-{number}");
                        let new = PeerFields { name, public_key, addresses, ..peer("", &[]) };
                        Ok(with_peer(text, &new)?)
                    };
                    change_server_file(path, add).expect("added");
                });
            }
        });
        let file: ServerFile = crate::load(&path).expect("readable");
        assert_eq!(file.peers.len(), 8);
    }

    #[test]
    fn a_client_is_added_whole_or_not_at_all() {
        let identity = Identity::from_seed([9; 32]);
        let key = Identity::from_seed([8; 32]).to_base64();
        let (folder, path) = folder_with(&format!("private_key = \"{}\"\n", key.as_str()));
        let target = folder.path().join("a.toml");
        let add = |name: &str, key: PublicKey| {
            let server = "192.0.2.1:4433";
            let new = NewClient { name, identity: &identity, server, uplinks: &[], inside: &[] };
            add_client(&path, &new, Some(&target), |server| next_peer(server, name, key))
                .map_err(|error| error.to_string())
        };
        let own = Identity::from_base64(&key).expect("a key").public_key();
        add("a", own).expect_err("its own key");
        assert!(!target.exists(), "a key that opens nothing");
        add("a", identity.public_key()).expect("added");
        let text = fs::read_to_string(&target).expect("written");
        let refused = add("b", Identity::from_seed([5; 32]).public_key()).expect_err("it exists");
        assert!(refused.contains("a.toml"), "{refused}");
        assert_eq!(fs::read_to_string(&target).expect("there"), text);
        let server: ServerFile = crate::load(&path).expect("readable");
        assert_eq!(server.peers.len(), 1);
    }

    #[test]
    fn no_error_contains_a_key() {
        let key = Identity::from_seed([3; 32]).to_base64().to_string();
        for text in [
            format!("private_key = \"{key}\n"),
            format!("private_key = {key}\n"),
            format!("{key}\n"),
            format!("private_key = [\"{key}\"]\n"),
            format!("name = \"{key}\"\nshards = \"{key}\"\n"),
        ] {
            let error = check::<ServerFile>(Path::new("server.toml"), &text);
            let error = error.expect_err("wrong").to_string();
            assert!(!error.contains(&key[..16]), "{error}");
            assert!(error.contains("line "), "{error}");
        }
    }
}
