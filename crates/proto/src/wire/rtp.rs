//! The fixed header of RTP, which SRTP leaves in cleartext (RFC 3711 section 3.1).

use crate::wire::inner::InnerPacket;

const RTP_HEADER: usize = 12;

/// The fixed header of an RTP packet (RFC 3550 section 5.1), or of bytes that look like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtpHeader {
    /// The last packet of a video frame, by the profile's convention.
    pub marker: bool,
    /// Counts packets, and wraps.
    pub sequence: u16,
    /// Equal for all packets of a frame.
    pub timestamp: u32,
    /// The synchronization source (RFC 3550 section 5.1).
    pub ssrc: u32,
}

impl RtpHeader {
    /// The RTP header of a packet, if it can be RTP in UDP, directly or through a relay.
    ///
    /// The first byte excludes STUN, ZRTP, DTLS, TURN channels and QUIC on the same port (RFC 7983
    /// section 7, RFC 9443 section 3: RTP and RTCP have 128 to 191), the second RTCP (RFC 5761
    /// section 4). QUIC with a greased fixed bit (RFC 9287) and other protocols may match too: only
    /// several packets together show that it is RTP.
    pub fn of(packet: &InnerPacket<'_>) -> Option<Self> {
        let payload = packet.udp_payload()?;
        let rtp = relayed(payload).unwrap_or(payload);
        let header = rtp.first_chunk::<RTP_HEADER>()?;
        let is_rtcp = (192..=223).contains(&header[1]);
        let contributors = usize::from(header[0] & 0x0f) * 4;
        if header[0] >> 6 != 2 || is_rtcp || rtp.len() < RTP_HEADER + contributors {
            return None;
        }
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        Some(Self {
            marker: header[1] & 0x80 != 0,
            sequence: u16::from_be_bytes([header[2], header[3]]),
            timestamp: word(4),
            ssrc: word(8),
        })
    }
}

/// `channel:2 | length:2 | payload | padding` (RFC 8656 section 12.4).
fn relayed(payload: &[u8]) -> Option<&[u8]> {
    let (head, rest) = payload.split_first_chunk::<4>()?;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let is_channel = (0x40..=0x4f).contains(&head[0]) && rest.len().abs_diff(length) < 4;
    rest.get(..length).filter(|_| is_channel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::inner::tests::udp_v4;

    fn read(payload: &[u8]) -> Option<RtpHeader> {
        RtpHeader::of(&InnerPacket::parse(&udp_v4(payload)).expect("well-formed"))
    }

    #[test]
    fn a_header_is_read() {
        for (second, marker) in [(0xe0, true), (0x60, false)] {
            let header = read(&[0x80, second, 1, 2, 0, 0, 0, 9, 0, 0, 0, 7, 1]);
            let expected = RtpHeader { marker, sequence: 0x102, timestamp: 9, ssrc: 7 };
            assert_eq!(header, Some(expected));
        }
    }

    #[test]
    fn a_relay_wraps_it() {
        let rtp = [0x80, 0xe0, 1, 2, 0, 0, 0, 9, 0, 0, 0, 7, 1];
        let wrapped = [&[0x40, 1, 0, 13][..], &rtp, &[0; 3]].concat();
        assert_eq!(read(&wrapped), read(&rtp));
        assert_eq!(read(&[&[0x40, 1, 0, 40][..], &rtp].concat()), None, "another length");
    }

    #[test]
    fn other_protocols_on_the_port_of_rtp_are_not_rtp() {
        // STUN, ZRTP, DTLS, TURN and QUIC's short header, QUIC's long header.
        for first in [0, 16, 22, 64, 0xc3] {
            let mut payload = [1_u8; 40];
            payload[0] = first;
            assert_eq!(read(&payload), None, "{first}");
        }
        assert_eq!(read(&[0x81, 200, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0]), None, "RTCP");
        assert_eq!(read(&[0x8f, 96, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0]), None, "shorter than it says");
        assert_eq!(read(&[0x80; 11]), None);
    }
}
