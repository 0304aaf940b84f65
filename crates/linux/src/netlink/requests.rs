//! Requests to the kernel over netlink, one at a time.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Protocol, RecvFlags, SendFlags};

use super::{open_socket_of, take_message};

#[derive(Debug)]
pub(crate) struct Requests {
    pub(super) socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Requests {
    pub(crate) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let socket = open_socket_of(protocol, 0)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; RECEIVE_BUFFER] })
    }

    /// Returns whether something changed during a dump.
    pub(crate) fn ask<M>(
        &mut self,
        request: M,
        flags: u16,
        wanted: impl Fn(&[u8]) -> bool,
        mut each: impl FnMut(M),
    ) -> io::Result<bool>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        self.sequence = self.sequence.wrapping_add(1);
        self.send(request, flags)?;
        let has_no_end = flags & (NLM_F_DUMP | NLM_F_ACK) == 0;
        let (mut is_answered, mut changed) = (false, false);
        loop {
            let (length, _) =
                rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty())?;
            let mut datagram = &self.buffer[..length];
            while let Some(bytes) = take_message(&mut datagram) {
                if !wanted(bytes) {
                    continue;
                }
                let Ok(message) = NetlinkMessage::<M>::deserialize(bytes) else { continue };
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                changed |= message.header.flags & NLM_F_DUMP_INTR != 0;
                is_answered = true;
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => each(inner),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(changed),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::Done(_) => return Ok(changed),
                    _ => is_answered = false,
                }
            }
            // Without a dump or a wish for an acknowledgement, the answer is the last message.
            if has_no_end && is_answered {
                return Ok(changed);
            }
        }
    }

    fn send(&self, message: impl NetlinkSerializable, flags: u16) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        rustix::net::send(&self.socket, &bytes, SendFlags::empty())?;
        Ok(())
    }
}

const TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel's dumps come in datagrams of at most 32 KiB.
const RECEIVE_BUFFER: usize = 64 * 1024;
