//! DNS messages: one question, and the addresses in its answer (RFC 1035 section 4). An off-path
//! attacker has to guess the ID, the source port, and the random case of the name's letters.

use std::net::IpAddr;
use std::time::Duration;

use domain::base::iana::{Class, Opcode, Rcode};
use domain::base::{Message, MessageBuilder, Name, Rtype};
use domain::rdata::{A, Aaaa};

use super::ADDRESSES_MAX;

/// Two for the ID, the others for the case of 255 letters.
pub(super) const ENTROPY: usize = 2 + 32;

#[derive(Clone, Debug)]
pub(super) struct Query {
    pub(super) bytes: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParsedReply {
    Foreign,
    /// Too long for a datagram; TCP gives the whole answer.
    Truncated,
    Failed(String),
    Answer(AddressRecords),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AddressRecords {
    /// At most [`ADDRESSES_MAX`]; empty if the name has none of the kind.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) lasts: Duration,
}

impl Query {
    pub(super) fn new(name: &Name<Vec<u8>>, kind: Rtype, entropy: &[u8; ENTROPY]) -> Self {
        let mut builder = MessageBuilder::new_vec();
        builder.header_mut().set_id(u16::from_be_bytes([entropy[0], entropy[1]]));
        builder.header_mut().set_rd(true);
        let mut question = builder.question();
        question.push((name, kind, Class::IN)).expect("a name and a header fit any buffer");
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

    pub(super) fn read(&self, bytes: &[u8]) -> ParsedReply {
        let Ok(message) = Message::from_slice(bytes) else { return ParsedReply::Foreign };
        let header = message.header();
        let is_ours = header.qr()
            && header.opcode() == Opcode::QUERY
            && bytes[..2] == self.bytes[..2]
            && message.header_counts().qdcount() == 1
            && bytes.get(HEADER..self.bytes.len()) == Some(&self.bytes[HEADER..]);
        if !is_ours {
            return ParsedReply::Foreign;
        }
        match header.rcode() {
            _ if header.tc() => ParsedReply::Truncated,
            Rcode::NOERROR => match addresses(message) {
                Some(answer) => ParsedReply::Answer(answer),
                None => ParsedReply::Failed("its answer is malformed".to_owned()),
            },
            Rcode::NXDOMAIN => ParsedReply::Answer(AddressRecords::default()),
            other => ParsedReply::Failed(format!("it answers {other}")),
        }
    }
}

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

fn is_possible(address: IpAddr) -> bool {
    let special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !special
        && match address {
            IpAddr::V4(v4) => !v4.is_broadcast() && !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
        }
}

const HEADER: usize = 12;

#[cfg(test)]
mod tests;
