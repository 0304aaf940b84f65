//! The leg between a proxy and an anchor: packets, stream frames and attachments of many clients.
//!
//! ```text
//! proxy ── attach: handle, device, binding ──► anchor      (for each client of the anchor's tenants)
//! proxy ◄───────────────── attached: handle ── anchor
//! proxy ◄─ detached: handle, why, the newest ─ anchor      (refused, or superseded later)
//! proxy ── detach: handle ───────────────────► anchor      (the client's session is over)
//!
//! proxy ◄── 06 | handle:4 | inner packet ────► anchor      (a datagram of the leg)
//! proxy ─── 06 | handle:4 | stream frames ───► anchor      (the way back: `frames`)
//! ```
//!
//! A handle is the proxy's name for an attachment; the binding names tenant and device.

mod frames;

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub use self::frames::{LEG_FRAMES_HEADER, LegFrames, LegRoom};
use crate::wire::binding::Binding;
use crate::wire::control::ControlError;
use crate::wire::control::fields::{Fields, put_field, put_streams};
use crate::wire::stream::StreamsOffer;

/// Bytes before the inner packet in a datagram of the leg.
pub const PASSED_HEADER: usize = 5;

const KIND_PASSED: u8 = 6;

const KIND_ATTACH: u8 = 16;
const KIND_ATTACHED: u8 = 17;
const KIND_DETACHED: u8 = 18;
const KIND_DETACH: u8 = 19;

const FIELD_HANDLE: u16 = 18;
const FIELD_DEVICE: u16 = 19;
const FIELD_DETACHED: u16 = 20;

/// An inner packet between proxy and anchor; or stream frames of a client, which begin with
/// [`STREAM_TAG`](crate::wire::STREAM_TAG).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Its attachment.
    pub handle: u32,
    /// The packet or the frames, unchecked.
    pub packet: Bytes,
}

impl Passed {
    /// The datagram that carries `packet`.
    pub fn datagram(handle: u32, packet: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(PASSED_HEADER + packet.len());
        out.put_u8(KIND_PASSED);
        out.put_u32(handle);
        out.put_slice(packet);
        out.freeze()
    }

    /// Reads a datagram; `None` if it is of another kind.
    pub fn parse(mut datagram: Bytes) -> Option<Self> {
        if datagram.len() < PASSED_HEADER || datagram.get_u8() != KIND_PASSED {
            return None;
        }
        let handle = datagram.get_u32();
        Some(Self { handle, packet: datagram })
    }
}

/// A message about an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LegMessage {
    /// The proxy has a session of this device, which signed the binding.
    Attach {
        /// The proxy's name for it.
        handle: u32,
        /// The device's public key.
        device: [u8; 32],
        /// The binding that the device signed.
        binding: Binding,
        /// The device's offer of streams with the anchor, if any.
        streams: Option<StreamsOffer>,
    },
    /// The anchor now sends the device's packets to this attachment.
    Attached {
        /// The proxy's name for it.
        handle: u32,
        /// The anchor's offer of streams with the device, if both take some.
        streams: Option<StreamsOffer>,
    },
    /// The anchor does not, or no longer, send the device's packets to this attachment.
    Detached {
        /// The proxy's name for it.
        handle: u32,
        /// The reason.
        why: Detached,
        /// The anchor's newest binding of the device, if that is why: the device signs a newer one.
        newest: Option<Box<Binding>>,
    },
    /// The session of the attachment is over.
    Detach {
        /// The proxy's name for it.
        handle: u32,
    },
}

crate::named! {
    /// Why an anchor has no attachment.
    Detached {
        /// A number unknown here.
        Other = "other",
        /// The anchor has the same or a newer binding.
        Old = "old-binding",
        /// The device is at another proxy now.
        Superseded = "superseded",
        /// The anchor does not know the tenant, or the tenant's device.
        Unknown = "unknown-device",
        /// The binding is for another anchor or proxy, or its signature is wrong.
        Forged = "forged-binding",
        /// Too many attachments on the leg, or too many at once.
        Busy = "busy",
    }
}

impl LegMessage {
    /// Parses one whole message.
    pub fn parse(bytes: Bytes) -> Result<Self, ControlError> {
        let (kind, fields) = Fields::parse(bytes)?;
        let handle = || fields.array(FIELD_HANDLE).map(u32::from_be_bytes);
        match kind {
            KIND_ATTACH => Ok(Self::Attach {
                handle: handle()?,
                device: fields.array(FIELD_DEVICE)?,
                binding: Binding::parse(&fields)?,
                streams: fields.streams()?,
            }),
            KIND_ATTACHED => Ok(Self::Attached { handle: handle()?, streams: fields.streams()? }),
            KIND_DETACHED => {
                let [why] = fields.array(FIELD_DETACHED)?;
                let why = Detached::ALL.get(usize::from(why)).copied().unwrap_or(Detached::Other);
                let newest = Binding::parse_optional(&fields)?.map(Box::new);
                Ok(Self::Detached { handle: handle()?, why, newest })
            }
            KIND_DETACH => Ok(Self::Detach { handle: handle()? }),
            other => Err(ControlError::UnknownKind(other)),
        }
    }

    /// The message as bytes.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        let mut begin = |kind: u8, handle: u32| {
            out.put_u8(kind);
            put_field(&mut out, FIELD_HANDLE, &handle.to_be_bytes());
        };
        match self {
            Self::Attach { handle, device, binding, streams } => {
                begin(KIND_ATTACH, *handle);
                put_field(&mut out, FIELD_DEVICE, device);
                binding.put(&mut out);
                put_streams(&mut out, *streams);
            }
            Self::Attached { handle, streams } => {
                begin(KIND_ATTACHED, *handle);
                put_streams(&mut out, *streams);
            }
            Self::Detached { handle, why, newest } => {
                begin(KIND_DETACHED, *handle);
                put_field(&mut out, FIELD_DETACHED, &[*why as u8]);
                newest.iter().for_each(|newest| newest.put(&mut out));
            }
            Self::Detach { handle } => begin(KIND_DETACH, *handle),
        }
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::stream::StreamsEpoch;

    fn binding(number: u64) -> Binding {
        let (anchor, proxy, signature) = ([1; 32], [2; 32], [3; 64]);
        Binding { tenant: "acme".into(), anchor, proxy, number, signature }
    }

    #[test]
    fn every_message_survives() {
        let newest = Some(Box::new(binding(u64::MAX)));
        let detached = Detached::ALL.map(|why| [None, newest.clone()].map(|newest| (why, newest)));
        let detached = detached.into_iter().flatten();
        let detached =
            detached.map(|(why, newest)| LegMessage::Detached { handle: 9, why, newest });
        let offer = |epoch| {
            let (epoch, takes_priorities) = (StreamsEpoch(epoch), epoch == 7);
            Some(StreamsOffer { epoch, takes_priorities, takes_early: takes_priorities })
        };
        let attach = |streams| {
            let (handle, device) = (u32::MAX, [9; 32]);
            LegMessage::Attach { handle, device, binding: binding(0), streams }
        };
        let messages = [
            attach(None),
            attach(offer(7)),
            LegMessage::Attached { handle: 0, streams: None },
            LegMessage::Attached { handle: 0, streams: offer(u64::MAX) },
            LegMessage::Detach { handle: 0x0102_0304 },
        ];
        for message in messages.into_iter().chain(detached) {
            assert_eq!(LegMessage::parse(message.to_bytes()), Ok(message));
        }
    }

    #[test]
    fn what_is_cut_off_or_of_a_session_is_no_message_of_the_leg() {
        let attach =
            LegMessage::Attach { handle: 1, device: [9; 32], binding: binding(5), streams: None };
        let whole = attach.to_bytes();
        for length in 0..whole.len() {
            assert!(LegMessage::parse(whole.slice(..length)).is_err(), "{length}");
        }
        let refuse = crate::wire::Control::PathName { path: crate::PathId(1), uplink: "a".into() };
        assert_eq!(LegMessage::parse(refuse.to_bytes()), Err(ControlError::UnknownKind(4)));
        assert_eq!(crate::wire::Control::parse(whole), Err(ControlError::UnknownKind(KIND_ATTACH)));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = Bytes::from(bytes);
            if let Ok(message) = LegMessage::parse(bytes.clone()) {
                prop_assert_eq!(LegMessage::parse(message.to_bytes()), Ok(message));
            }
            if let Some(Passed { handle, packet }) = Passed::parse(bytes.clone()) {
                prop_assert_eq!(Passed::datagram(handle, &packet), bytes);
            }
        }
    }
}
