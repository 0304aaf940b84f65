//! Names of tenants, devices, tags, sites and pools.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A name of 1 to 64 letters, digits, `.`, `_` and `-`, safe in logs, URLs and metrics.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Name(Box<str>);

impl Name {
    /// The longest name, bytes.
    pub const MAX: usize = 64;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        match (1..=Self::MAX).contains(&text.len()) && text.bytes().all(is_fit) {
            true => Ok(Self(text.into())),
            false => Err(InvalidName),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.into()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a name: 1 to 64 letters, digits, '.', '_' or '-' are expected")]
pub struct InvalidName;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_steer_a_terminal_or_a_path_is_no_name() {
        for text in ["", "a b", "a/b", "a\n", "\u{1b}[2J", "bus-ä", &"a".repeat(65)] {
            assert_eq!(text.parse::<Name>(), Err(InvalidName), "{text:?}");
        }
        for text in ["bus-12", "a", &"a".repeat(64), "fra.3_x"] {
            assert_eq!(text.parse::<Name>().map(String::from), Ok(text.to_owned()));
        }
    }
}
