//! The page that shows whether a network requires a login, as a user writes it.

use std::fmt;
use std::str::FromStr;

use crate::ServerName;

/// `http://host/path`, fetched over an uplink to see whether its network is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeUrl {
    text: String,
    /// Ends of the scheme and of the host in the text.
    ends: [usize; 2],
    server: ServerName,
}

/// Not `http://host/path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no address of such a page: write \"http://host/path\", with http, since a login page can \
     answer in the place of nothing else"
)]
pub struct InvalidProbeUrl;

impl ProbeUrl {
    /// The host, with port 80 by default.
    pub fn server(&self) -> &ServerName {
        &self.server
    }

    /// The host as written, with its port if any.
    pub fn authority(&self) -> &str {
        &self.text[self.ends[0]..self.ends[1]]
    }

    /// The path of the request.
    pub fn target(&self) -> &str {
        match &self.text[self.ends[1]..] {
            "" => "/",
            target => target,
        }
    }
}

impl fmt::Display for ProbeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for ProbeUrl {
    type Err = InvalidProbeUrl;

    fn from_str(text: &str) -> Result<Self, InvalidProbeUrl> {
        let rest = text.strip_prefix(SCHEME).ok_or(InvalidProbeUrl)?;
        let (authority, target) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        let is_bare = !authority.starts_with('[') && authority.matches(':').count() > 1;
        if text.len() > LENGTH_MAX || is_bare || !target.bytes().all(is_plain) {
            return Err(InvalidProbeUrl);
        }
        let with_port = authority.parse();
        let server = with_port.or_else(|_| format!("{authority}:80").parse());
        let server = server.map_err(|_| InvalidProbeUrl)?;
        let ends = [SCHEME.len(), SCHEME.len() + authority.len()];
        Ok(Self { text: text.to_owned(), ends, server })
    }
}

const SCHEME: &str = "http://";
const LENGTH_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart() {
        let check = |text: &str, server: &str, authority: &str, target: &str| {
            let url: ProbeUrl = text.parse().expect(text);
            let parts = (url.server().to_string(), url.authority(), url.target());
            assert_eq!(parts, (server.to_owned(), authority, target), "{text}");
            assert_eq!(url.to_string(), text);
        };
        check("http://probe.example", "probe.example:80", "probe.example", "/");
        check("http://probe.example/a?b=c", "probe.example:80", "probe.example", "/a?b=c");
        check("http://192.0.2.1:8080/", "192.0.2.1:8080", "192.0.2.1:8080", "/");
        check("http://[2001:db8::1]/x", "[2001:db8::1]:80", "[2001:db8::1]", "/x");
    }

    #[test]
    fn what_could_be_something_else_is_refused() {
        let long = format!("http://probe.example/{}", "x".repeat(LENGTH_MAX));
        for wrong in [
            "",
            "probe.example/a",
            "https://probe.example/",
            "http://",
            "http:///a",
            "http://2001:db8::1/",
            "http://user@probe.example/",
            "http://probe.example:0/",
            "http://probe.example?a",
            "http://probe.example/a b",
            "http://probe.example/\r\nHost: other",
            "http://probe.example/#part",
            &long,
        ] {
            assert_eq!(wrong.parse::<ProbeUrl>(), Err(InvalidProbeUrl), "{wrong}");
        }
    }
}
