//! Reads packet filters over netlink, without `nft`: a table's contents, counters and changes.
//! Every transaction raises the generation; a table is read again only then.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::NLM_F_DUMP;

use super::netfilter::{Netfilter, NetfilterMessage, attribute, find};
use crate::DeviceError;
use crate::netlink::{drain, open_socket_of};

#[derive(Debug)]
pub(super) struct Nftables(Netfilter);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) rules: usize,
    /// Of table, chains, sets, elements and rules, without counters and elements added by packets.
    digest: u64,
}

impl Nftables {
    pub(super) fn open() -> Result<Self, DeviceError> {
        let opened = Netfilter::open().map(Self);
        opened.map_err(|error| DeviceError::system("look at the packet filters", error))
    }

    pub(super) fn generation(&mut self) -> io::Result<u32> {
        let answer = self.ask(GET_GENERATION, 0, Vec::new())?;
        let bytes =
            answer.iter().find_map(|message| message.attribute(GENERATION_ID)?.try_into().ok());
        bytes.map(u32::from_be_bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

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
            if is_dynamic(set) {
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

    pub(super) fn counters(&mut self, table: &str) -> io::Result<BTreeMap<String, u64>> {
        let kind = (OBJECT_TYPE, COUNTER.to_be_bytes().to_vec());
        let found = self.dump(GET_OBJECTS, table, Some(kind))?;
        let packets = |message: &NetfilterMessage| {
            let name = std::str::from_utf8(message.attribute(OBJECT_NAME)?).ok()?;
            let data = message.attribute(OBJECT_DATA)?;
            let count = find(data, COUNTER_PACKETS)?.try_into().ok().map(u64::from_be_bytes)?;
            Some((name.trim_end_matches('\0').to_owned(), count))
        };
        Ok(found.iter().filter_map(packets).collect())
    }

    fn dump(
        &mut self,
        kind: u8,
        table: &str,
        more: Option<(u16, Vec<u8>)>,
    ) -> io::Result<Vec<NetfilterMessage>> {
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

    fn ask(
        &mut self,
        kind: u8,
        flags: u16,
        attributes: Vec<u8>,
    ) -> io::Result<Vec<NetfilterMessage>> {
        let request =
            NetfilterMessage { subsystem: SUBSYSTEM, family: FAMILY_INET, kind, attributes };
        let mut found = Vec::new();
        self.0.ask(request, flags, |message| found.push(message))?;
        Ok(found)
    }
}

pub(super) fn open_notices() -> Result<OwnedFd, DeviceError> {
    open_socket_of(Some(rustix::net::netlink::NETFILTER), GROUP_NFTABLES)
        .map_err(|error| DeviceError::system("watch the packet filters", error))
}

pub(super) fn drain_notices(notices: &OwnedFd) -> bool {
    let mut any = false;
    drain(notices, |_| any = true);
    any
}

fn is_dynamic(set: &NetfilterMessage) -> bool {
    let flags = set.attribute(SET_FLAGS).and_then(|bytes| bytes.try_into().ok());
    flags.is_some_and(|bytes| u32::from_be_bytes(bytes) & SET_EVAL != 0)
}

// linux/netfilter/nfnetlink.h and nf_tables.h.
const SUBSYSTEM: u8 = 10;
const FAMILY_INET: u8 = 1;
/// NFNLGRP_NFTABLES is 7; groups are bits that count from 1.
const GROUP_NFTABLES: u32 = 1 << 6;
const GET_TABLES: u8 = 1;
const GET_CHAINS: u8 = 4;
const GET_RULES: u8 = 7;
const GET_SETS: u8 = 10;
const GET_ELEMENTS: u8 = 13;
const GET_GENERATION: u8 = 16;
const GET_OBJECTS: u8 = 19;
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
