//! Requests to the kernel's netfilter over netlink.

use std::io;

use netlink_packet_core::{
    DecodeError, NLA_HEADER_SIZE, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable,
    NlasIterator,
};

use crate::netlink::Requests;

#[derive(Debug)]
pub(super) struct Netfilter(Requests);

impl Netfilter {
    pub(super) fn open() -> io::Result<Self> {
        Requests::open(Some(rustix::net::netlink::NETFILTER)).map(Self)
    }

    /// Fails with `Interrupted` if something changed during a dump.
    pub(super) fn ask(
        &mut self,
        request: NetfilterMessage,
        flags: u16,
        each: impl FnMut(NetfilterMessage),
    ) -> io::Result<()> {
        match self.0.ask(request, flags, |_| true, each)? {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NetfilterMessage {
    pub(super) subsystem: u8,
    pub(super) family: u8,
    pub(super) kind: u8,
    pub(super) attributes: Vec<u8>,
}

impl NetfilterMessage {
    pub(super) fn attribute(&self, kind: u16) -> Option<&[u8]> {
        find(&self.attributes, kind)
    }
}

impl NetlinkSerializable for NetfilterMessage {
    fn message_type(&self) -> u16 {
        u16::from(self.subsystem) << 8 | u16::from(self.kind)
    }

    fn buffer_len(&self) -> usize {
        HEADER + self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..HEADER].copy_from_slice(&[self.family, 0, 0, 0]);
        buffer[HEADER..].copy_from_slice(&self.attributes);
    }
}

impl NetlinkDeserializable for NetfilterMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let [subsystem, kind] = header.message_type.to_be_bytes();
        let family = payload.first().copied().unwrap_or_default();
        let attributes = payload.get(HEADER..).unwrap_or_default().to_vec();
        Ok(Self { subsystem, family, kind, attributes })
    }
}

pub(super) fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut found = NlasIterator::new(attributes).map_while(Result::ok);
    let found = found.find(|attribute| attribute.kind() == kind)?;
    let length = usize::from(found.length());
    found.into_inner().get(NLA_HEADER_SIZE..length)
}

pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + NLA_HEADER_SIZE).expect("names and numbers are short");
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// `struct nfgenmsg`.
const HEADER: usize = 4;
