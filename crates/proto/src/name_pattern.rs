//! Names in tables, with or without a parameter.

/// A name in a table. From a `<` on it is a parameter: `single:<uplink>` matches `single:wwan0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamePattern(pub &'static str);

impl NamePattern {
    /// The parameter in `name`, empty for a pattern without one; `None` if it does not match.
    pub fn parameter(self, name: &str) -> Option<&str> {
        match self.0.split_once('<') {
            Some((prefix, _)) => name.strip_prefix(prefix),
            None => (name == self.0).then_some(""),
        }
    }

    /// The name, if it has no parameter.
    pub fn plain(self) -> Option<&'static str> {
        (!self.0.contains('<')).then_some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_stands_for_its_names_and_no_others() {
        let single = NamePattern("single:<uplink>");
        assert_eq!(single.parameter("single:wwan0"), Some("wwan0"));
        assert_eq!((single.parameter("single"), single.plain()), (None, None));
        let range = NamePattern("xlink:<percent>-<percent>");
        assert_eq!(range.parameter("xlink:95-80"), Some("95-80"));
        let plain = NamePattern("xlink");
        assert_eq!((plain.parameter("xlink"), plain.plain()), (Some(""), Some("xlink")));
        assert_eq!(plain.parameter("xlink:95-80"), None);
    }
}
