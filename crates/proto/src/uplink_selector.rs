//! Which interfaces are uplinks and which are behind the box, by patterns of names.

/// Selects uplinks. Patterns may hold `*` (any letters) and `?` (one letter).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UplinkSelector {
    /// Patterns of names; empty: all interfaces but the loopback.
    pub include: Vec<String>,
    /// Patterns of names that are never uplinks.
    pub exclude: Vec<String>,
    /// Patterns of interfaces behind the box, which are not uplinks; empty: not configured.
    pub inside: Vec<String>,
}

impl UplinkSelector {
    /// Whether this interface is an uplink.
    pub fn matches(&self, name: &str) -> bool {
        let is_named = self.include.is_empty() || any(&self.include, name);
        is_named && !any(&self.exclude, name) && !any(&self.inside, name)
    }

    /// Whether this interface is configured to be behind the box: by `inside`, or else because the
    /// uplinks are named and it is not among them.
    pub fn names_inside(&self, name: &str) -> bool {
        match self.inside.is_empty() {
            false => any(&self.inside, name),
            true => !self.matches(name),
        }
    }

    /// Whether an interface may count as behind the box by its addresses and routes alone.
    pub fn guesses_inside(&self) -> bool {
        self.include.is_empty() && self.inside.is_empty()
    }

    /// Checks that an interface of this name, present or not, may be an uplink.
    pub fn check_name(&self, name: &str) -> Result<(), NoUplink> {
        if !is_interface_name(name) {
            return Err(NoUplink::Name(name.to_owned()));
        }
        if !self.matches(name) {
            return Err(NoUplink::NotSelected(name.to_owned()));
        }
        Ok(())
    }
}

/// Why a name cannot be an uplink's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoUplink {
    /// The kernel does not allow the name.
    #[error(
        "no interface can be called \"{0}\": names have 1 to 15 bytes, without `/`, `:` and white space"
    )]
    Name(String),
    /// The configuration's patterns exclude it.
    #[error(
        "{0} is no uplink by the configuration: `uplinks.include` does not name it, or `uplinks.exclude` \
         or `uplinks.inside` does"
    )]
    NotSelected(String),
}

/// As in the kernel (`dev_valid_name`).
fn is_interface_name(name: &str) -> bool {
    let is_odd = |letter: char| letter == '/' || letter == ':' || letter.is_ascii_whitespace();
    (1..=15).contains(&name.len()) && !matches!(name, "." | "..") && !name.contains(is_odd)
}

fn any(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| glob(pattern, name))
}

/// Whether `name` matches `pattern`, which may hold `*` and `?`; in quadratic time at most.
pub fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut in_name) = (0, 0);
    // Where to resume after the last star: the pattern after it, and one more letter matched by it.
    let mut retry = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                retry = Some((at + 1, in_name));
                at += 1;
            }
            Some(letter) if *letter == b'?' || *letter == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => match retry {
                Some((behind, eaten)) => {
                    retry = Some((behind, eaten + 1));
                    at = behind;
                    in_name = eaten + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|letter| *letter == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_their_patterns() {
        for (pattern, name) in [
            ("eth1", "eth1"),
            ("wwan*", "wwan"),
            ("wwan*", "wwan12"),
            ("*u2*", "wwp0s20u2i4"),
            ("eth?", "ethx"),
            ("*", ""),
            ("a*b*c", "axxbxxbxxc"),
        ] {
            assert!(glob(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("eth1", "eth10"), ("eth?", "eth"), ("", "x"), ("a*b*c", "axxbxxbxx")]
        {
            assert!(!glob(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn exclusion_wins_and_none_named_means_all() {
        let selector = |include: &[&str], exclude: &[&str]| {
            let [include, exclude] =
                [include, exclude].map(|it| it.iter().map(|it| (*it).to_owned()).collect());
            UplinkSelector { include, exclude, inside: Vec::new() }
        };
        assert!(selector(&[], &[]).matches("eth0"));
        assert!(!selector(&[], &["roadweave*"]).matches("roadweave0"));
        assert!(!selector(&["eth*"], &["eth0"]).matches("eth0"));
        assert!(!selector(&["wwan*"], &[]).matches("eth0"));
    }

    #[test]
    fn what_is_named_inside_is_no_uplink_and_nothing_else_is_inside() {
        let named = UplinkSelector { inside: vec!["lan*".to_owned()], ..UplinkSelector::default() };
        assert!(named.names_inside("lan0") && !named.matches("lan0"));
        assert!(!named.names_inside("wlan0") && named.matches("wlan0") && !named.guesses_inside());
        let both = UplinkSelector { include: vec!["wwan*".to_owned()], ..named };
        assert!(!both.names_inside("eth0") && !both.matches("eth0"), "neither");
        let uplinks = UplinkSelector { inside: Vec::new(), ..both };
        assert!(uplinks.names_inside("eth0") && !uplinks.guesses_inside());
        let nothing = UplinkSelector::default();
        assert!(!nothing.names_inside("eth0") && nothing.guesses_inside());
    }
}
