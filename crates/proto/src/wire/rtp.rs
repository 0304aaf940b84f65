//! What the tunnel reads of RTP: the fixed header, which SRTP leaves in the clear (RFC 3711 section
//! 3.1).

use crate::wire::inner::InnerPacket;

const RTP_HEADER: usize = 12;

/// The fixed header of an RTP packet (RFC 3550 section 5.1), or of what looks like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtpHeader {
    /// The last packet of a video frame, by the custom of its profile.
    pub marker: bool,
    /// Counts packets, and wraps.
    pub sequence: u16,
    /// Equal for all packets of a frame.
    pub timestamp: u32,
    /// The synchronization source: whose packets these are (RFC 3550 section 5.1).
    pub ssrc: u32,
}

impl InnerPacket<'_> {
    /// The RTP header, if this can be RTP in UDP.
    ///
    /// Of what shares a port with RTP, the first byte tells apart STUN, ZRTP, DTLS, TURN channels
    /// and QUIC (RFC 7983 section 7, RFC 9443 section 3: RTP and RTCP have 128 to 191), and the
    /// second RTCP (RFC 5761 section 4). QUIC whose fixed bit is greased (RFC 9287) may begin so as
    /// well, and other protocols may: only several packets together tell that it is RTP. What a
    /// relay's client wraps is looked into.
    pub fn rtp(&self) -> Option<RtpHeader> {
        let payload = self.udp_payload()?;
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
        Some(RtpHeader {
            marker: header[1] & 0x80 != 0,
            sequence: u16::from_be_bytes([header[2], header[3]]),
            timestamp: word(4),
            ssrc: word(8),
        })
    }
}

/// What a client and its relay wrap: `channel:2 | length:2 | payload | padding` (RFC 8656 section
/// 12.4).
fn relayed(payload: &[u8]) -> Option<&[u8]> {
    let (head, rest) = payload.split_first_chunk::<4>()?;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let is_channel = (0x40..=0x4f).contains(&head[0]) && rest.len().abs_diff(length) < 4;
    rest.get(..length).filter(|_| is_channel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::inner::protocol;

    fn read(payload: &[u8]) -> Option<RtpHeader> {
        let mut packet = vec![0x45, 0];
        packet.extend((28 + payload.len() as u16).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, protocol::UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend([0; 8]);
        packet.extend(payload);
        InnerPacket::parse(&packet).expect("well-formed").rtp()
    }

    #[test]
    fn a_header_is_read() {
        let header = read(&[0x80, 0xe0, 1, 2, 0, 0, 0, 9, 0, 0, 0, 7, 1]);
        let expected = RtpHeader { marker: true, sequence: 0x102, timestamp: 9, ssrc: 7 };
        assert_eq!(header, Some(expected));
    }

    #[test]
    fn a_relay_wraps_it() {
        let rtp = [0x80, 0xe0, 1, 2, 0, 0, 0, 9, 0, 0, 0, 7, 1];
        let wrapped = [&[0x40, 1, 0, 13][..], &rtp, &[0; 3]].concat();
        assert_eq!(read(&wrapped), read(&rtp));
        assert_eq!(read(&[&[0x40, 1, 0, 40][..], &rtp].concat()), None, "another length");
    }

    #[test]
    fn what_shares_a_port_with_rtp_is_told_apart() {
        for (first, what) in [
            (0, "STUN"),
            (16, "ZRTP"),
            (22, "DTLS"),
            (64, "TURN, QUIC's short header"),
            (0xc3, "QUIC's long header"),
        ] {
            let mut payload = [1_u8; 40];
            payload[0] = first;
            assert_eq!(read(&payload), None, "{what}");
        }
        assert_eq!(read(&[0x81, 200, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0]), None, "RTCP");
        assert_eq!(read(&[0x8f, 96, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0]), None, "shorter than it says");
        assert_eq!(read(&[0x80; 11]), None);
    }
}
