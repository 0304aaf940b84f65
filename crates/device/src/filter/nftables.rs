//! Looks at packet filters over netlink, without running `nft`: what a table holds, its counters,
//! and that something has changed.
//!
//! Every transaction of anybody raises the generation; a table is read again only then.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::{
    DecodeError, NLA_HEADER_SIZE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
    NlasIterator,
};
use rustix::net::{RecvFlags, SendFlags};

use crate::DeviceError;
use crate::netlink::{open_socket_of, take_message, with_timeout};

/// A connection to the kernel's tables of packet filters.
#[derive(Debug)]
pub(super) struct Nftables {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// What a table held at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    /// How many rules there were in all chains.
    pub(super) rules: usize,
    /// A digest of table, chains, sets, elements and rules; not of counters, nor of what packets
    /// have put into sets.
    digest: u64,
}

impl Nftables {
    /// Connects, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel lacks netfilter's netlink or the process file descriptors.
    pub(super) fn open() -> Result<Self, DeviceError> {
        let socket = open_socket_of(Some(rustix::net::netlink::NETFILTER), 0)
            .and_then(with_timeout)
            .map_err(|error| DeviceError::system("look at the packet filters", error))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; RECEIVE_BUFFER] })
    }

    /// The number of the last change, by anybody.
    pub(super) fn generation(&mut self) -> io::Result<u32> {
        let answer = self.ask(GET_GENERATION, 0, Vec::new())?;
        let bytes =
            answer.iter().find_map(|message| message.attribute(GENERATION_ID)?.try_into().ok());
        bytes.map(u32::from_be_bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// What `table` of the family `inet` holds now; one that is not there holds nothing.
    pub(super) fn contents(&mut self, table: &str) -> io::Result<Contents> {
        let mut digest = DefaultHasher::new();
        let mut rules = 0;
        let sets = self.dump(GET_SETS, table, None)?;
        for kind in [GET_TABLES, GET_CHAINS, GET_RULES] {
            let found = self.dump(kind, table, None)?;
            if kind == GET_RULES {
                rules = found.len();
            }
            found.hash(&mut digest);
        }
        for set in &sets {
            if set.is_dynamic() {
                set.attribute(SET_NAME).hash(&mut digest);
                continue;
            }
            set.hash(&mut digest);
            if let Some(name) = set.attribute(SET_NAME) {
                let name = name.to_vec();
                self.dump(GET_ELEMENTS, table, Some((ELEMENTS_SET, name)))?.hash(&mut digest);
            }
        }
        Ok(Contents { rules, digest: digest.finish() })
    }

    /// The packets that each named counter of `table` has seen.
    pub(super) fn counters(&mut self, table: &str) -> io::Result<BTreeMap<String, u64>> {
        let kind = (OBJECT_TYPE, COUNTER.to_be_bytes().to_vec());
        let found = self.dump(GET_OBJECTS, table, Some(kind))?;
        let packets = |message: &Message| {
            let name = std::str::from_utf8(message.attribute(OBJECT_NAME)?).ok()?;
            let data = message.attribute(OBJECT_DATA)?;
            let count = find(data, COUNTER_PACKETS)?.try_into().ok().map(u64::from_be_bytes)?;
            Some((name.trim_end_matches('\0').to_owned(), count))
        };
        Ok(found.iter().filter_map(packets).collect())
    }

    /// All of a kind that belong to `table`. A change meanwhile makes it begin again.
    fn dump(
        &mut self,
        kind: u8,
        table: &str,
        more: Option<(u16, Vec<u8>)>,
    ) -> io::Result<Vec<Message>> {
        let name = [table.as_bytes(), b"\0"].concat();
        let mut attributes = attribute(TABLE, &name);
        if let Some((kind, value)) = more {
            attributes.extend(attribute(kind, &value));
        }
        for _ in 0..TRIES {
            match self.ask(kind, NLM_F_DUMP, attributes.clone()) {
                Ok(mut found) => {
                    found.retain(|message| message.attribute(TABLE) == Some(&name[..]));
                    return Ok(found);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    /// Sends a request and takes what comes in answer.
    fn ask(&mut self, kind: u8, flags: u16, attributes: Vec<u8>) -> io::Result<Vec<Message>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let payload = NetlinkPayload::InnerMessage(Message { kind, attributes });
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        rustix::net::send(&self.socket, &bytes, SendFlags::empty())?;
        let (mut found, mut changed) = (Vec::new(), false);
        loop {
            let (length, _) =
                rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty())?;
            let mut rest = &self.buffer[..length];
            while let Some(bytes) = take_message(&mut rest) {
                let Ok(message) = NetlinkMessage::<Message>::deserialize(bytes) else { continue };
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                changed |= message.header.flags & NLM_F_DUMP_INTR != 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => found.push(inner),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::Done(_) if changed => {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                    NetlinkPayload::Done(_) => return Ok(found),
                    _ => {}
                }
            }
            // Only dumps have an end.
            if flags == 0 && !found.is_empty() {
                return Ok(found);
            }
        }
    }
}

/// A socket that becomes readable when somebody changes packet filters.
///
/// # Errors
/// As [`Nftables::open`].
pub(super) fn open_notices() -> Result<OwnedFd, DeviceError> {
    open_socket_of(Some(rustix::net::netlink::NETFILTER), GROUP_NFTABLES)
        .map_err(|error| DeviceError::system("watch the packet filters", error))
}

/// Takes all notices; returns whether there were any.
pub(super) fn drain_notices(notices: &OwnedFd) -> bool {
    let mut buffer = [0; 8192];
    let mut any = false;
    loop {
        match rustix::net::recv(notices, &mut buffer[..], RecvFlags::DONTWAIT) {
            // Those that were lost count too.
            Ok(_) | Err(rustix::io::Errno::NOBUFS) => any = true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return any,
        }
    }
}

/// A message of nf_tables: what it is about, and its attributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Message {
    kind: u8,
    attributes: Vec<u8>,
}

impl Message {
    fn attribute(&self, kind: u16) -> Option<&[u8]> {
        find(&self.attributes, kind)
    }

    /// Whether it is about a set whose elements packets put there.
    fn is_dynamic(&self) -> bool {
        let flags = self.attribute(SET_FLAGS).and_then(|bytes| bytes.try_into().ok());
        flags.is_some_and(|bytes| u32::from_be_bytes(bytes) & SET_EVAL != 0)
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        SUBSYSTEM << 8 | u16::from(self.kind)
    }

    fn buffer_len(&self) -> usize {
        HEADER + self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        // The family, the version and the resource, which are zero.
        buffer[..HEADER].copy_from_slice(&[FAMILY_INET, 0, 0, 0]);
        buffer[HEADER..].copy_from_slice(&self.attributes);
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let attributes = payload.get(HEADER..).unwrap_or_default().to_vec();
        Ok(Self { kind: (header.message_type & 0xff) as u8, attributes })
    }
}

/// The value of the first attribute of this kind.
fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut found = NlasIterator::new(attributes).map_while(Result::ok);
    let found = found.find(|attribute| attribute.kind() == kind)?;
    let length = usize::from(found.length());
    found.into_inner().get(NLA_HEADER_SIZE..length)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + NLA_HEADER_SIZE).expect("names and numbers are short");
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

// linux/netfilter/nfnetlink.h and nf_tables.h.
const SUBSYSTEM: u16 = 10;
const FAMILY_INET: u8 = 1;
/// NFNLGRP_NFTABLES is 7; groups are bits that count from 1.
const GROUP_NFTABLES: u32 = 1 << 6;
/// The size of `struct nfgenmsg`.
const HEADER: usize = 4;
const GET_TABLES: u8 = 1;
const GET_CHAINS: u8 = 4;
const GET_RULES: u8 = 7;
const GET_SETS: u8 = 10;
const GET_ELEMENTS: u8 = 13;
const GET_GENERATION: u8 = 16;
const GET_OBJECTS: u8 = 19;
/// The attribute that names the table is the first of every kind.
const TABLE: u16 = 1;
const GENERATION_ID: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_EVAL: u32 = 0x20;
const ELEMENTS_SET: u16 = 2;
const OBJECT_NAME: u16 = 2;
const OBJECT_TYPE: u16 = 3;
const OBJECT_DATA: u16 = 4;
const COUNTER: u32 = 1;
const COUNTER_PACKETS: u16 = 2;
const TRIES: usize = 8;
const RECEIVE_BUFFER: usize = 64 * 1024;
