//! The TUN device.

use serde::{Deserialize, Serialize};

use crate::values::MtuBytes;

/// The name of a TUN device and of its instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TunName(String);

impl Default for TunName {
    fn default() -> Self {
        Self("rw0".into())
    }
}

impl TryFrom<String> for TunName {
    type Error = String;
    fn try_from(name: String) -> Result<Self, String> {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if (1..=TUN_NAME_MAX).contains(&name.len()) && name.chars().all(good) {
            Ok(Self(name))
        } else {
            Err(format!(
                "\"{name}\" is no name for a device and its instance; \
                 write 1 to {TUN_NAME_MAX} lower-case letters, digits and underscores"
            ))
        }
    }
}

impl TunName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<TunName> for String {
    fn from(name: TunName) -> Self {
        name.0
    }
}

/// The TUN device; `M` is the type of its MTU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TunFields<M = MtuBytes<1360>> {
    /// The TUN device and the instance: lower-case letters, digits and underscores; its socket is
    /// `/run/roadweave/<name>.sock`.
    pub name: TunName,
    /// The largest inner packet; all but `router` fragment those that a path does not carry.
    pub mtu_bytes: M,
    /// Whether the kernel may pass segments of up to 64 KB.
    pub offload: bool,
}

impl<M: Default> Default for TunFields<M> {
    fn default() -> Self {
        Self { name: TunName::default(), mtu_bytes: M::default(), offload: true }
    }
}

impl<M: Copy + Into<i64>> TunFields<M> {
    /// The largest inner packet, bytes.
    pub fn mtu(&self) -> u16 {
        Into::<i64>::into(self.mtu_bytes) as u16
    }
}

const TUN_NAME_MAX: usize = 15;
