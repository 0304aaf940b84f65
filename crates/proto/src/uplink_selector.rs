//! Which interfaces are uplinks and which are behind the box, by patterns of their names.

/// Which interfaces are uplinks. Patterns may hold `*` (any letters) and `?` (one letter).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UplinkSelector {
    /// Patterns of names; empty: all interfaces but the loopback.
    pub include: Vec<String>,
    /// Patterns of names that are none, in any case.
    pub exclude: Vec<String>,
    /// Patterns of the names of interfaces behind the box, which are no uplinks; empty: not named.
    pub inside: Vec<String>,
}

impl UplinkSelector {
    /// Whether an interface of this name is one.
    pub fn matches(&self, name: &str) -> bool {
        let is_named = self.include.is_empty() || any(&self.include, name);
        is_named && !any(&self.exclude, name) && !any(&self.inside, name)
    }

    /// Whether the configuration says that an interface of this name is behind the box: by
    /// `inside`, or without it by naming the uplinks, of which this is none.
    pub fn names_inside(&self, name: &str) -> bool {
        match self.inside.is_empty() {
            false => any(&self.inside, name),
            true => !self.matches(name),
        }
    }

    /// Whether an interface that is no known uplink may count as behind the box by its address and
    /// routes alone.
    pub fn guesses_inside(&self) -> bool {
        self.include.is_empty() && self.inside.is_empty()
    }

    /// Checks that an interface of this name may be an uplink some day: it need not be there now.
    ///
    /// # Errors
    /// Why it never can be.
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

/// Why a name cannot be that of an uplink.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoUplink {
    /// The kernel allows no such name.
    #[error(
        "no interface can be called \"{0}\": names have 1 to 15 bytes, without `/`, `:` and white space"
    )]
    Name(String),
    /// The configuration's patterns leave it out.
    #[error(
        "{0} is no uplink by the configuration: `uplinks.include` does not name it, or `uplinks.exclude` \
         or `uplinks.inside` does"
    )]
    NotSelected(String),
}

/// Whether an interface can have this name, as the kernel has it (`dev_valid_name`).
fn is_interface_name(name: &str) -> bool {
    let is_odd = |letter: char| letter == '/' || letter == ':' || letter.is_ascii_whitespace();
    (1..=15).contains(&name.len()) && !matches!(name, "." | "..") && !name.contains(is_odd)
}

fn any(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| glob(pattern, name))
}

/// Whether the interface `name` fits `pattern`, which may hold `*` and `?`; in time proportional to
/// the product of their lengths.
pub fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut in_name) = (0, 0);
    // Where to go on after the last star: the pattern behind it, and one more letter eaten by it.
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
        let check =
            |pattern, name, expected| assert_eq!(glob(pattern, name), expected, "{pattern} {name}");
        check("eth1", "eth1", true);
        check("eth1", "eth10", false);
        check("wwan*", "wwan", true);
        check("wwan*", "wwan12", true);
        check("*u2*", "wwp0s20u2i4", true);
        check("eth?", "eth", false);
        check("eth?", "ethx", true);
        check("*", "", true);
        check("", "x", false);
        check("a*b*c", "axxbxxbxxc", true);
        check("a*b*c", "axxbxxbxx", false);
    }

    #[test]
    fn exclusion_wins_and_none_named_means_all() {
        let selector = |include: &[&str], exclude: &[&str]| UplinkSelector {
            include: include.iter().map(|pattern| (*pattern).to_owned()).collect(),
            exclude: exclude.iter().map(|pattern| (*pattern).to_owned()).collect(),
            inside: Vec::new(),
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
