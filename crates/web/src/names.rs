//! The names by which browsers may call this server. A page under DNS rebinding sends its own.

use std::net::IpAddr;

use anyhow::Result;
use hyper::http::uri::Authority;
use roadweave_terminal::exit::BadInput;

/// Without ports: an ssh tunnel may end at any port.
#[derive(Debug)]
pub(crate) struct Names {
    listen: IpAddr,
    hosts: Vec<String>,
}

impl Names {
    pub(crate) fn new(listen: IpAddr, hosts: &[String]) -> Result<Self> {
        for host in hosts {
            let good = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
            if host.is_empty() || !host.chars().all(good) {
                let message = format!("--host {host}: write only a name, without scheme and port");
                return Err(BadInput::new(message).into());
            }
        }
        Ok(Self { listen: listen.to_canonical(), hosts: hosts.to_vec() })
    }

    pub(crate) fn has(&self, authority: &str) -> bool {
        let Ok(authority) = authority.parse::<Authority>() else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host();
        if self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host)) {
            return true;
        }
        let is_everywhere = self.listen.is_unspecified();
        if host.eq_ignore_ascii_case("localhost") {
            return is_everywhere || self.listen.is_loopback();
        }
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        // An IP address needs no name that an attacker could redirect.
        host.parse::<IpAddr>().is_ok_and(|address| is_everywhere || address == self.listen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(listen: &str, hosts: &[&str], right: &[&str], wrong: &[&str]) {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let names = Names::new(listen.parse().expect("an address"), &hosts).expect("names");
        right.iter().for_each(|name| assert!(names.has(name), "{listen}: {name}"));
        wrong.iter().for_each(|name| assert!(!names.has(name), "{listen}: {name}"));
    }

    #[test]
    fn only_the_address_and_names_that_were_said_are_served() {
        let evil =
            ["evil.example", "evil.example:808", "", "127.0.0.1.evil.example", "a@127.0.0.1"];
        let loopback = ["127.0.0.1:808", "127.0.0.1", "localhost:9000", "LOCALHOST"];
        check("127.0.0.1", &[], &loopback, &[&evil[..], &["192.168.50.1:808", "[::1]"]].concat());
        check("::1", &[], &["[::1]:808", "localhost"], &[&evil[..], &["127.0.0.1"]].concat());
        let lan = ["192.168.50.1:808", "box.lan", "BOX.lan:443"];
        check("192.168.50.1", &["box.lan"], &lan, &[&evil[..], &["localhost", "ox.lan"]].concat());
        check("0.0.0.0", &[], &["10.0.0.1:808", "[fe80::1]", "localhost"], &evil);
        for wrong in ["", "http://box", "box:80", "a b"] {
            let listen = "127.0.0.1".parse().expect("an address");
            assert!(Names::new(listen, &[wrong.to_owned()]).is_err(), "{wrong:?}");
        }
    }
}
