//! The messages of the stream between a controller and a box, proxy or anchor.
//!
//! ```text
//! length: u32, big endian | JSON, at most 64 KiB
//! ```
//!
//! The stream is TCP with TLS 1.3; both ends have authenticated before the first message.

use std::collections::BTreeMap;

use roadweave_identity::PublicKey;
use serde::{Deserialize, Serialize};

use crate::chain::Chain;
use crate::document::{Kind, Version};
use crate::envelope::{Envelope, Signed};
use crate::name::Name;
use crate::revocation::{Head, Revocation};
use crate::statement::Role;
use crate::table::TableChange;
use crate::token::Secret;
use crate::trust::TrustList;

/// The largest message, bytes.
pub const FRAME_MAX: usize = 64 * 1024;
const LENGTH: usize = 4;

/// A message from the controller to a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "type")]
pub enum Down {
    /// A newer list of trust.
    Trust {
        /// The list.
        list: Signed<TrustList>,
    },
    /// Keys are revoked.
    Revoke {
        /// The entries, in order.
        entries: Vec<Revocation>,
        /// With the last entries: the signed head.
        head: Option<Signed<Head>>,
    },
    /// A document for this side.
    Desired {
        /// The document's kind.
        kind: Kind,
        /// The document.
        document: Envelope,
    },
    /// A change of the table of members.
    Members(TableChange),
    /// Asks for frequent samples.
    Watch {
        /// How long, ms; 0 ends it.
        lease_ms: u32,
    },
    /// The answer to [`Up::Join`]: this side belongs to the fleet.
    Welcome {
        /// The chain that admits it.
        chain: Chain,
        /// Its tenant.
        tenant: Name,
    },
    /// A request is refused.
    Refused {
        /// Why, for a person.
        reason: String,
        /// Whether to ask again later.
        retry: bool,
    },
    /// Take no new sessions and end the present ones, until that is taken back.
    Drain,
    /// Takes [`Down::Drain`] back. Only for members that report [`HeldVersions::drained`]: others
    /// would end the stream at it.
    Undrain,
    /// The answer to [`Up::Alive`], after all frames that waited.
    Alive,
}

/// A message to the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "type")]
pub enum Up {
    /// A new key asks to join the fleet.
    Join(Join),
    /// What this side holds: first on every stream, and after changes with other causes.
    Have(HeldVersions),
    /// The outcome of a document.
    Report(Report),
    /// All revocations up to here are in force: the sessions of the revoked keys have ended.
    Revoked {
        /// The end of the revocations; a forked chain has another hash.
        head: Head,
    },
    /// Revocations that the controller lacks: its database is older.
    Surplus {
        /// The entries, in order.
        entries: Vec<Revocation>,
        /// With the last entries: the signed head.
        head: Option<Signed<Head>>,
    },
    /// Samples of the last seconds.
    Samples {
        /// One for each session and uplink, or one for the whole proxy.
        samples: Vec<Sample>,
    },
    /// Changed round trips of a proxy to anchors.
    Anchors {
        /// Microseconds by tenant; at most [`Up::ANCHORS_MAX`].
        round_trips: BTreeMap<Name, u32>,
    },
    /// An event for a person.
    Event {
        /// The text.
        text: String,
    },
    /// Asks for [`Down::Alive`], also as a stranger.
    Alive,
}

impl Up {
    /// Anchors in one message, which fit with the longest names.
    pub const ANCHORS_MAX: usize = 512;
}

/// A request of a new key to join the fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// The secret of its token.
    pub secret: Secret,
    /// The tenant of its token.
    pub tenant: Name,
    /// The role that it asks for.
    pub role: Role,
    /// The name that it proposes.
    pub name: Name,
    /// The chain of a delegate in the token, where the controller cannot sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Chain>,
    /// The addresses of a proxy or an anchor, `host:port` each; if empty, the one it connects from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// What one side of a stream holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldVersions {
    /// The version of its program.
    pub software: String,
    /// The number of its list of trust.
    pub trust: u64,
    /// The head of its revocations.
    pub revocations: Head,
    /// The documents that it has taken, in force or refused.
    pub documents: BTreeMap<Kind, Version>,
    /// Sessions of a proxy or an anchor.
    #[serde(default)]
    pub sessions: u32,
    /// Whether the controller has drained it; `None` if it does not know [`Down::Undrain`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<bool>,
    /// The proxy that a box is on: evidence that the proxy lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<PublicKey>,
}

/// The outcome of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The document's kind.
    pub kind: Kind,
    /// The document's version.
    pub version: Version,
    /// The outcome.
    pub outcome: Outcome,
    /// Fields that the file of the box overrides.
    #[serde(default)]
    pub pinned: Vec<String>,
}

/// The outcome of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// It is in force, on trial.
    InForce,
    /// It has worked, and is not on trial any more.
    Confirmed,
    /// The box works without it and not with it: the former one is in force again.
    TakenBack {
        /// The reason.
        why: String,
    },
    /// It cannot be used.
    Refused {
        /// The reason.
        why: String,
    },
}

impl Outcome {
    const WHY_MAX: usize = 500;

    pub(crate) fn shortened(mut self) -> Self {
        if let Self::TakenBack { why } | Self::Refused { why } = &mut self {
            let end = (0..=Self::WHY_MAX.min(why.len())).rev();
            let end = end.into_iter().find(|end| why.is_char_boundary(*end));
            why.truncate(end.unwrap_or_default());
        }
        self
    }
}

/// Samples of one session's uplink, of one session, or of a whole proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The box; `None`: the proxy itself.
    pub device: Option<PublicKey>,
    /// The uplink; `None`: the whole session.
    pub uplink: Option<String>,
    /// The period, ms.
    pub over_ms: u32,
    /// The smoothed round trip, microseconds.
    pub rtt_us: Option<u32>,
    /// Packets lost, in a million.
    pub loss_ppm: Option<u32>,
    /// Bytes from the box.
    pub up_bytes: u64,
    /// Bytes to the box.
    pub down_bytes: u64,
    /// The load of a proxy, thousandths of its capacity.
    pub load: Option<u16>,
    /// Sessions of a proxy or an anchor.
    pub sessions: Option<u32>,
}

/// A message with its length before it.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; LENGTH];
    serde_json::to_writer(&mut bytes, message).map_err(|_| FrameError::Malformed)?;
    let length = bytes.len() - LENGTH;
    if length > FRAME_MAX {
        return Err(FrameError::TooLarge(length));
    }
    bytes[..LENGTH].copy_from_slice(&(length as u32).to_be_bytes());
    Ok(bytes)
}

/// Splits a stream of bytes into messages.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    read: usize,
}

impl FrameDecoder {
    /// Appends bytes. Poll all messages before the next call: that bounds the buffer.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.read);
        self.read = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message; after an error the stream must end.
    pub fn poll<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<T>, FrameError> {
        let rest = &self.buffer[self.read..];
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > FRAME_MAX {
            return Err(FrameError::TooLarge(length));
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        self.read += LENGTH + length;
        serde_json::from_slice(message).map(Some).map_err(|_| FrameError::Malformed)
    }
}

/// Why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A message is too large.
    #[error("a message of {0} bytes exceeds the maximum of {FRAME_MAX}")]
    TooLarge(usize),
    /// A message cannot be read.
    #[error("a message cannot be read")]
    Malformed,
}

#[cfg(test)]
mod tests;
