//! The address of a controller in its URL.

use anyhow::Result;
use roadweave_terminal::exit::BadInput;

/// Host and port of `https://host:port`; equal for equal controllers.
pub fn host_and_port(url: &str) -> Result<(String, u16)> {
    let bad = || BadInput::new(format!("\"{url}\": write https://fleet.example.org:4400"));
    let rest = url.strip_prefix("https://").ok_or_else(bad)?.trim_end_matches('/');
    if rest.is_empty() || rest.contains(['/', '@', '?', '#']) {
        return Err(bad().into());
    }
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| bad())?),
        _ => (rest, 443),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((host.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_https_with_a_port_or_443() {
        let of = |url: &str| host_and_port(url).ok();
        let place = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(of("https://fleet.example.org"), place("fleet.example.org", 443));
        assert_eq!(of("https://fleet.example.org:4400/"), place("fleet.example.org", 4400));
        assert_eq!(of("https://[2001:db8::1]:4400"), place("2001:db8::1", 4400));
        assert_eq!(of("https://[2001:db8::1]"), place("2001:db8::1", 443));
        for bad in ["http://x", "x:4400", "https://", "https://a/b", "https://u@h", "https://h:x"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
