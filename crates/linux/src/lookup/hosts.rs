//! Names in /etc/hosts.

use std::net::IpAddr;
use std::path::Path;

use super::ADDRESSES_MAX;
use super::servers::read;

pub(super) fn addresses(root: &Path, name: &str) -> Vec<IpAddr> {
    read(&root.join("etc/hosts")).map(|text| parse(&text, name)).unwrap_or_default()
}

fn parse(text: &str, name: &str) -> Vec<IpAddr> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let address = |line: &str| {
        let line = line.split('#').next()?;
        let mut words = line.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    };
    text.lines().filter_map(address).take(ADDRESSES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_that_know_a_name_count() {
        let text = "127.0.0.1 localhost\n# 192.0.2.9 edge\n192.0.2.1\tedge.example.org Edge # ours\n\
                    2001:db8::1 edge\nfe80::1%eth0 edge\nnonsense edge\n";
        let check = |name, expected: &[&str]| {
            let expected: Vec<IpAddr> = expected.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(parse(text, name), expected, "{name}");
        };
        check("edge", &["192.0.2.1", "2001:db8::1"]);
        check("EDGE.example.org.", &["192.0.2.1"]);
        check("ours", &[]);
        check("dge", &[]);
    }
}
