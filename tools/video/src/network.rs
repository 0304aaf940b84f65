//! One UDP socket for RTP and RTCP (RFC 5761), shared by the elements that read and write it.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result};
use gstreamer as gst;
use gstreamer::prelude::*;
use gstreamer_net::gio;
use roadweave_terminal::exit::BadInput;

use crate::plugins::make;

/// A socket that GStreamer's elements can share.
#[derive(Clone, Debug)]
pub struct Socket(gio::Socket);

impl Socket {
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let shared = || -> io::Result<_> {
            let socket = UdpSocket::bind(address)?;
            socket.set_nonblocking(true)?;
            Ok(OwnedFd::from(socket))
        };
        let socket = shared()
            .map_err(|error| BadInput::new(format!("cannot listen on UDP {address}: {error}")))?;
        Ok(Self(gio::Socket::from_fd(socket).context("GLib does not take a socket")?))
    }

    pub fn towards(host: &str, port: u16) -> Result<(Self, SocketAddr)> {
        let found = (host, port).to_socket_addrs().map(|mut addresses| addresses.next());
        let there = match found {
            Ok(Some(address)) => address,
            Ok(None) => return Err(BadInput::new(format!("{host} has no address")).into()),
            Err(error) => {
                return Err(BadInput::new(format!("cannot find {host}: {error}")).into());
            }
        };
        let any = if there.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        Ok((Self::bind(any.parse()?)?, there))
    }

    pub fn source(&self) -> Result<gst::Element> {
        let source = make("udpsrc")?;
        source.set_property("socket", &self.0);
        source.set_property("close-socket", false);
        // In bytes: a key frame arrives in one burst.
        source.set_property("buffer-size", 4_000_000_i32);
        Ok(source)
    }

    pub fn sink(&self, to: SocketAddr) -> Result<gst::Element> {
        let sink = make("udpsink")?;
        sink.set_property("socket", &self.0);
        sink.set_property("close-socket", false);
        sink.set_property("host", to.ip().to_string());
        sink.set_property("port", i32::from(to.port()));
        sink.set_property("sync", false);
        sink.set_property("async", false);
        Ok(sink)
    }
}

/// The kind of a packet by its first two bytes (RFC 5761 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    Rtp(u8),
    Rtcp,
    Other,
}

impl PacketKind {
    pub fn of(packet: &[u8]) -> Self {
        match packet {
            [first, 192..=223, ..] if first >> 6 == 2 => Self::Rtcp,
            [first, second, ..] if first >> 6 == 2 => Self::Rtp(second & 0x7f),
            _ => Self::Other,
        }
    }

    pub fn of_buffer(buffer: &gst::BufferRef) -> Self {
        let mut head = [0; 2];
        // Copying beyond the end would panic.
        if buffer.size() < head.len() {
            return Self::Other;
        }
        match buffer.copy_to_slice(0, &mut head) {
            Ok(()) => Self::of(&head),
            Err(_) => Self::Other,
        }
    }
}

/// The source (SSRC) and sequence number of an RTP packet (RFC 3550 section 5.1).
pub fn sender(packet: &gst::BufferRef) -> Option<(u32, u16)> {
    let mut head = [0; 12];
    let is_there = packet.size() >= head.len() && packet.copy_to_slice(0, &mut head).is_ok();
    let [_, _, high, low, .., a, b, c, d] = head;
    is_there.then(|| (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([high, low])))
}

pub fn renumber(packet: &mut gst::BufferRef, number: u16) {
    // Fails for shorter packets.
    let _ = packet.copy_from_slice(2, &number.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rtp_and_rtcp_are_distinguished() {
        let check =
            |packet: &[u8], expected| assert_eq!(PacketKind::of(packet), expected, "{packet:?}");
        check(&[], PacketKind::Other);
        check(&[0x80], PacketKind::Other);
        check(&[0x80, 96], PacketKind::Rtp(96));
        check(&[0x90, 0x80 | 98], PacketKind::Rtp(98));
        check(&[0x80, 200], PacketKind::Rtcp);
        check(&[0x81, 206], PacketKind::Rtcp);
        check(&[0x00, 200], PacketKind::Other);
        check(&[0xc0, 96], PacketKind::Other);
    }
}
