//! DNS messages: one question, and what an answer says (RFC 1035 section 4).
//!
//! A forger who does not see the question has to guess its ID, the port that it left from, and
//! which of the name's letters are capitals: the question must come back as it was asked, letter by
//! letter.

use std::net::IpAddr;
use std::time::Duration;

use domain::base::iana::{Class, Opcode, Rcode};
use domain::base::{Message, MessageBuilder, Name, Rtype};
use domain::rdata::{A, Aaaa};

use super::ADDRESSES_MAX;

/// Random bytes that a query takes: two for the ID, the rest for the case of 255 letters.
pub(super) const ENTROPY: usize = 2 + 32;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A: addresses of IPv4.
    V4,
    /// AAAA: addresses of IPv6.
    V6,
}

/// A question as it goes to one server.
#[derive(Clone, Debug)]
pub(super) struct Query {
    bytes: Vec<u8>,
}

/// What a message turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Not the answer to this question, or none that can be read.
    Foreign,
    /// The answer was too long for a datagram; it is to be had over TCP.
    Truncated,
    /// The server cannot say, for this reason; another may.
    Failed(String),
    /// The answer.
    Answer(AddressRecords),
}

/// The addresses of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AddressRecords {
    /// At most [`ADDRESSES_MAX`]; none when the name has none of the kind.
    pub(super) addresses: Vec<IpAddr>,
    /// How long they hold; zero without any.
    pub(super) lasts: Duration,
}

impl Query {
    /// Asks for the addresses of `name`.
    pub(super) fn new(name: &Name<Vec<u8>>, kind: Kind, entropy: &[u8; ENTROPY]) -> Self {
        let rtype = match kind {
            Kind::V4 => Rtype::A,
            Kind::V6 => Rtype::AAAA,
        };
        let mut builder = MessageBuilder::new_vec();
        builder.header_mut().set_id(u16::from_be_bytes([entropy[0], entropy[1]]));
        builder.header_mut().set_rd(true);
        let mut question = builder.question();
        question.push((name, rtype, Class::IN)).expect("a name and a header fit any buffer");
        let mut bytes = question.finish();
        let letters = bytes[HEADER..].iter_mut().take(name.as_slice().len()).enumerate();
        for (position, letter) in letters {
            // Lengths of labels are at most 63, below all letters.
            if entropy[2 + position / 8] >> (position % 8) & 1 == 1 {
                letter.make_ascii_uppercase();
            }
        }
        Self { bytes }
    }

    /// The message.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads what came back for it.
    pub(super) fn read(&self, bytes: &[u8]) -> Reading {
        let Ok(message) = Message::from_slice(bytes) else { return Reading::Foreign };
        let header = message.header();
        let is_ours = header.qr()
            && header.opcode() == Opcode::QUERY
            && bytes[..2] == self.bytes[..2]
            && message.header_counts().qdcount() == 1
            && bytes.get(HEADER..self.bytes.len()) == Some(&self.bytes[HEADER..]);
        if !is_ours {
            return Reading::Foreign;
        }
        match header.rcode() {
            _ if header.tc() => Reading::Truncated,
            Rcode::NOERROR => match addresses(message) {
                Some(answer) => Reading::Answer(answer),
                None => Reading::Failed("its answer is malformed".to_owned()),
            },
            Rcode::NXDOMAIN => Reading::Answer(AddressRecords::default()),
            other => Reading::Failed(format!("it says {other}")),
        }
    }
}

/// The addresses at the end of the answer's chain of aliases; `None` when it is malformed.
fn addresses(message: &Message<[u8]>) -> Option<AddressRecords> {
    let name = message.canonical_name()?;
    let mut answer = AddressRecords::default();
    let mut lasts = Duration::MAX;
    let mut add = |address: IpAddr, ttl: Duration| {
        if answer.addresses.len() < ADDRESSES_MAX
            && is_possible(address)
            && !answer.addresses.contains(&address)
        {
            answer.addresses.push(address);
            lasts = lasts.min(ttl);
        }
    };
    for record in message.answer().ok()?.limit_to_in::<A>() {
        let record = record.ok()?;
        if *record.owner() == name {
            add(record.data().addr().into(), record.ttl().into_duration());
        }
    }
    for record in message.answer().ok()?.limit_to_in::<Aaaa>() {
        let record = record.ok()?;
        if *record.owner() == name {
            add(record.data().addr().into(), record.ttl().into_duration());
        }
    }
    answer.lasts = if answer.addresses.is_empty() { Duration::ZERO } else { lasts };
    Some(answer)
}

/// Whether a server on the other side of an uplink may have this address.
fn is_possible(address: IpAddr) -> bool {
    let special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !special
        && match address {
            IpAddr::V4(v4) => !v4.is_broadcast() && !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
        }
}

/// Bytes of a message before its question.
const HEADER: usize = 12;

#[cfg(test)]
mod tests;
