//! The messages of the stream between a controller and a box, proxy or anchor.
//!
//! ```text
//! length: u32, big endian | JSON, at most 64 KiB
//! ```
//!
//! The stream is TCP with TLS 1.3; both ends have proved their keys before the first message.

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
/// Bytes of the length before each message.
const LENGTH: usize = 4;

/// A message from the controller to a member of its fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "type")]
pub enum Down {
    /// The list of trust, if it is newer than the one that this side has.
    Trust {
        /// The list.
        list: Signed<TrustList>,
    },
    /// Keys are withdrawn.
    Revoke {
        /// The entries, in order.
        entries: Vec<Revocation>,
        /// With the last of them: what their end is signed by.
        #[serde(default)]
        head: Option<Signed<Head>>,
    },
    /// A document is to hold.
    Desired {
        /// The document's kind.
        kind: Kind,
        /// The document.
        document: Envelope,
    },
    /// The table of who may connect changes.
    Members(TableChange),
    /// Somebody watches: send figures often for so long, ms.
    Watch {
        /// How long, ms; 0 ends it.
        lease_ms: u32,
    },
    /// The answer to [`Up::Join`]: this side belongs to the fleet.
    Welcome {
        /// What admits it.
        chain: Chain,
        /// Its tenant.
        tenant: Name,
    },
    /// Something that was asked for is refused.
    Refused {
        /// Why, for a person.
        reason: String,
        /// Whether the controller may be asked again later.
        retry: bool,
    },
    /// The controller wants this proxy or anchor to take no new sessions and let go of those it
    /// has, until it takes that back.
    Drain,
    /// Takes [`Down::Drain`] back. Only who has said by [`HeldVersions::drained`] that it is
    /// drained is sent this: others do not know the message, and would end the stream.
    Undrain,
    /// The answer to [`Up::Alive`], after all that was to be sent before.
    Alive,
}

/// To the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "type")]
pub enum Up {
    /// A new key asks to belong to the fleet.
    Join {
        /// The secret of its token.
        secret: Secret,
        /// The tenant of its token.
        tenant: Name,
        /// The role of whoever asks.
        role: Role,
        /// The name it would like.
        name: Name,
        /// What a delegate in the token has said of it, where the controller cannot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chain: Option<Chain>,
        /// Where a proxy or an anchor listens, `host:port` each; the controller takes the address
        /// that it sees, if there is none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        addresses: Vec<String>,
    },
    /// What this side has: first on every stream, and whenever it changed otherwise than by the
    /// stream.
    Have(HeldVersions),
    /// What became of a document.
    Report(Report),
    /// All revocations up to here are in force: live sessions of those keys have ended.
    Revoked {
        /// Where the revocations end; a chain that has forked has another hash there.
        head: Head,
    },
    /// Revocations that this side holds and the controller does not: it has an older database.
    Surplus {
        /// The entries, in order.
        entries: Vec<Revocation>,
        /// With the last of them: what their end was signed by.
        #[serde(default)]
        head: Option<Signed<Head>>,
    },
    /// Figures of the last seconds.
    Samples {
        /// One for each session and uplink, or one for the whole proxy.
        samples: Vec<Sample>,
    },
    /// How far a proxy is from the anchors of its tenants, where that has changed.
    Anchors {
        /// The round trip to each, microseconds, by the tenant; at most [`Up::ANCHORS_MAX`].
        round_trips: BTreeMap<Name, u32>,
    },
    /// Something that a person should know.
    Event {
        /// What, for a person.
        text: String,
    },
    /// Is the controller there? It answers [`Down::Alive`], to strangers too.
    Alive,
}

impl Up {
    /// Anchors in one message: with the longest names it fits.
    pub const ANCHORS_MAX: usize = 512;
}

/// What one side of a stream has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldVersions {
    /// The version of its program.
    pub software: String,
    /// The number of its list of trust.
    pub trust: u64,
    /// Up to where it has heard of revocations, and of which chain.
    pub revocations: Head,
    /// The documents that it has taken, whether they are in force or were refused.
    pub documents: BTreeMap<Kind, Version>,
    /// Sessions that it has, as a proxy or anchor.
    #[serde(default)]
    pub sessions: u32,
    /// Whether the controller has drained it, as a proxy or an anchor that knows [`Down::Undrain`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<bool>,
    /// The proxy that it is on, as a box: its word counts where the proxy itself is not heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<PublicKey>,
}

/// What became of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The document's kind.
    pub kind: Kind,
    /// The document's version.
    pub version: Version,
    /// What became of the document.
    pub outcome: Outcome,
    /// Fields that the file of the box sets otherwise.
    #[serde(default)]
    pub pinned: Vec<String>,
}

/// What became of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// The document is in force, on trial.
    InForce,
    /// The document has held, and is on trial no more.
    Confirmed,
    /// The box works without it and not with it: the former one is in force again.
    TakenBack {
        /// What did not come up.
        why: String,
    },
    /// The document cannot be used.
    Refused {
        /// What is wrong.
        why: String,
    },
}

impl Outcome {
    /// The longest reason, bytes.
    const WHY_MAX: usize = 500;

    /// This outcome with no more of its reason than a person reads: 500 bytes at most.
    pub(crate) fn shortened(mut self) -> Self {
        if let Self::TakenBack { why } | Self::Refused { why } = &mut self {
            let end = (0..=Self::WHY_MAX.min(why.len())).rev();
            let end = end.into_iter().find(|end| why.is_char_boundary(*end));
            why.truncate(end.unwrap_or_default());
        }
        self
    }
}

/// Figures of one session's uplink, of one session, or of a whole proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The box, `None` for the proxy itself.
    #[serde(default)]
    pub device: Option<PublicKey>,
    /// The uplink, `None` for the session as a whole.
    #[serde(default)]
    pub uplink: Option<String>,
    /// Over how long, ms.
    pub over_ms: u32,
    /// The smoothed round trip, microseconds.
    #[serde(default)]
    pub rtt_us: Option<u32>,
    /// Packets lost, in a million.
    #[serde(default)]
    pub loss_ppm: Option<u32>,
    /// Bytes from the box.
    pub up_bytes: u64,
    /// Bytes to the box.
    pub down_bytes: u64,
    /// The load of a proxy, thousandths of what it can bear.
    #[serde(default)]
    pub load: Option<u16>,
    /// How many sessions a proxy or an anchor has.
    #[serde(default)]
    pub sessions: Option<u32>,
}

/// A message with its length before it.
///
/// # Errors
/// When the message is too large.
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

/// Cuts a stream of bytes into messages.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    /// Of the buffer, what was read already.
    read: usize,
}

impl FrameDecoder {
    /// Takes what came. Read all messages before the next call: what is held is bounded by that.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.read);
        self.read = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, if there is one.
    ///
    /// # Errors
    /// When the peer speaks something else: the stream must end.
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
    #[error("a message of {0} bytes, {FRAME_MAX} are the most")]
    TooLarge(usize),
    /// A message cannot be read.
    #[error("a message cannot be read")]
    Malformed,
}

#[cfg(test)]
mod tests;
