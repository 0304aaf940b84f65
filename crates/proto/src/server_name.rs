//! The address of a server, as a user writes it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// `host:port`, by address or name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerName {
    text: String,
    host: ServerHost,
    port: u16,
}

/// The host of a [`ServerName`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerHost {
    /// By its address.
    Address(IpAddr),
    /// By its name in the DNS (RFC 1035 section 2.3.4).
    Name(String),
}

/// Not `host:port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a server: write \"host:port\", \"192.0.2.1:port\" or \"[2001:db8::1]:port\"; a name with \
     other letters than a to z has a form that begins with xn--"
)]
pub struct InvalidServerName;

impl ServerHost {
    /// A host by `name`; `None` if hosts cannot have that name: letters, digits, hyphens and
    /// underscores, in labels of at most 63 bytes, 253 in all (RFC 1123 section 2.1).
    pub fn named(name: &str) -> Option<Self> {
        is_host_name(name).then(|| Self::Name(name.to_owned()))
    }
}

impl ServerName {
    /// The host.
    pub fn host(&self) -> &ServerHost {
        &self.host
    }

    /// The UDP port, never 0.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether it is an IPv4 address; `None` for a name.
    pub fn is_ipv4(&self) -> Option<bool> {
        match &self.host {
            ServerHost::Address(address) => Some(address.is_ipv4()),
            ServerHost::Name(_) => None,
        }
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for ServerName {
    type Err = InvalidServerName;

    fn from_str(text: &str) -> Result<Self, InvalidServerName> {
        let (host, port) = text.rsplit_once(':').ok_or(InvalidServerName)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or(InvalidServerName)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let host = match bare.parse() {
            Ok(address) => ServerHost::Address(address),
            Err(_) if is_host_name(host) => ServerHost::Name(host.to_owned()),
            Err(_) => return Err(InvalidServerName),
        };
        Ok(Self { text: text.to_owned(), host, port })
    }
}

fn is_host_name(host: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.chars().all(good);
    // A numeric last label is a mistyped address.
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.chars().all(|c| c.is_ascii_digit());
    name.len() <= 253 && name.split('.').all(is_label) && !is_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_names_are_addresses_or_names_with_a_port() {
        let names = ["edge.example.org:4433", "192.0.2.1:1", "[2001:db8::1]:65535", "a_b-c.:53"];
        for good in names.into_iter().chain(["x9:1"]) {
            assert_eq!(good.parse::<ServerName>().expect("good").to_string(), good);
        }
        let long = format!("{}:1", "a.".repeat(200));
        let label = format!("{}.example:1", "a".repeat(64));
        let wrong = "edge|edge:0|edge:70000|:1|a b:1|a..b:1|ü.example:1|192.0.2.256:1|.:1";
        for wrong in wrong.split('|').chain([&long[..], &label]) {
            assert_eq!(wrong.parse::<ServerName>(), Err(InvalidServerName), "{wrong}");
        }
    }
}
