//! A client that a server's file is to name: its addresses, its entry, and its own file.

use std::fs::File;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};
use zeroize::Zeroizing;

use crate::peers::PeerFields;
use crate::reader::{FileError, Validate as _, parse, read_text};
use crate::secret::{WriteError, write_secrets};
use crate::server::ServerFile;

/// A server's file cannot be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// It cannot be read, or would be wrong after the change.
    #[error(transparent)]
    File(#[from] FileError),
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The change cannot be made.
    #[error("{0}")]
    Refused(String),
}

/// Changes the server's file at `path` by `change`, which gets what it says and its text, and
/// returns the new text. Nobody else changes it meanwhile, and a text that the server would refuse
/// is not written. Returns the file as it is now.
///
/// # Errors
/// [`ChangeError`]; the file is as before.
pub fn change_server_file(
    path: &Path,
    change: impl FnOnce(&ServerFile, &str) -> Result<String, String>,
) -> Result<ServerFile, ChangeError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // The file itself is replaced, so that its lock would be that of the former one.
    let lock = File::open(folder.unwrap_or(Path::new("."))).and_then(|it| it.lock().map(|()| it));
    let lock = lock.map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    let text = read_text(path, true)?;
    let before: ServerFile = checked(path, &text)?;
    let text = Zeroizing::new(change(&before, &text).map_err(ChangeError::Refused)?);
    let after = checked(path, &text)?;
    write_secrets(&[(path, &text)])?;
    drop(lock);
    Ok(after)
}

fn checked(path: &Path, text: &str) -> Result<ServerFile, FileError> {
    let file: ServerFile = parse(path, text)?;
    file.validate().map_err(|fault| fault.in_file(path, text))?;
    Ok(file)
}

/// The text of a server's file with another peer at its end.
///
/// # Errors
/// When peers stand in one line there, to which none can be added at the end.
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

/// The next free address of each inner network of a server.
///
/// # Errors
/// Which network is full.
pub fn next_addresses(server: &ServerFile) -> Result<Vec<IpNet>, String> {
    let taken: Vec<IpNet> = server.peers.iter().flat_map(|peer| peer.addresses.clone()).collect();
    let next = |network: &IpNet| {
        next_address(network, &taken)
            .map(IpNet::from)
            .ok_or_else(|| format!("there is no free address left in {}", network.trunc()))
    };
    server.addresses.iter().map(next).collect()
}

/// The first address of `network` that neither its owner nor anybody in `taken` has. The first and
/// the last one of it are nobody's.
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

/// The address with this number, of the family of `like`.
fn address(number: u128, like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::V4((number as u32).into()),
        IpAddr::V6(_) => IpAddr::V6(number.into()),
    }
}

/// What a client's file is written from.
#[derive(Clone, Debug)]
pub struct NewClient<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its key pair.
    pub identity: &'a Identity,
    /// Where the server is reached, host:port.
    pub server: &'a str,
    /// The server's key.
    pub server_key: PublicKey,
    /// Interfaces that are uplinks; none: every one with a default route.
    pub uplinks: &'a [String],
}

impl NewClient<'_> {
    /// The text of `client.toml`, which holds the private key.
    pub fn text(&self) -> Zeroizing<String> {
        let Self { name, identity, server, server_key, uplinks } = self;
        let uplinks: Vec<String> = uplinks.iter().map(|name| format!("{name:?}")).collect();
        Zeroizing::new(format!(
            "# Roadweave client, for the vehicle. Every field: docs/configuration.md\n\
             name = {name:?}\n\
             private_key = \"{private}\"\n\n\
             [server]\n\
             addresses = [{server:?}]\n\
             public_key = \"{server_key}\"\n\n\
             [uplinks]\n\
             # Names of interfaces, * stands for anything. Empty: every one with a default route.\n\
             include = [{uplinks}]\n\n\
             [routes]\n\
             # What goes into the tunnel: everything.\n\
             into_tunnel = [\"0.0.0.0/0\", \"::/0\"]\n",
            private = identity.to_base64(),
            uplinks = uplinks.join(", "),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(prefixes: &[&str]) -> Vec<IpNet> {
        prefixes.iter().map(|text| text.parse().expect("a prefix")).collect()
    }

    fn next(network: &str, taken: &[&str]) -> Option<String> {
        let network = network.parse().expect("a prefix");
        next_address(&network, &nets(taken)).map(|address| address.to_string())
    }

    #[test]
    fn the_next_address_is_the_first_that_nobody_has() {
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
        let file: ServerFile = parse(Path::new("x"), &text).expect("readable");
        assert_eq!(file.peers.len(), 1);
        assert_eq!(file.peers[0].name, name);
        let inline = "peers = []\n";
        let refused = with_peer(inline, &peer("b", &["10.77.0.2/32"])).expect_err("a list");
        assert!(refused.contains("[[peers]]"), "{refused}");
    }

    #[test]
    fn a_change_that_the_server_would_refuse_is_not_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("server.toml");
        write_secrets(&[(&path, SERVER)]).expect("written");
        let add = |peer: &PeerFields| {
            change_server_file(&path, |_, text| with_peer(text, peer)).map(|file| file.peers.len())
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
}
