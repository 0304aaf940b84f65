//! One end of a call: pacer, probes, bandwidth estimation and feedback of `str0m`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant as StdInstant};

use bytes::{BufMut, Bytes, BytesMut};
use roadweave_proto::{Instant, Rate};
use str0m::bwe::Bitrate;
use str0m::format::Codec;
use str0m::ice::IceCreds;
use str0m::media::{KeyframeRequestKind, MediaKind, Mid, Pt};
use str0m::net::{Protocol, Receive};
use str0m::rtp::RtpWrite;
use str0m::{Candidate, Event, Input, Output, Rtc};

use super::null_crypto;
use crate::video::rtp::RtpPacket;

/// One end of a call.
pub struct Peer {
    rtc: Rtc,
    is_sender: bool,
    payload_type: Pt,
    /// RTP packets sent as they were written, or arrived.
    packets: u64,
    estimate: Rate,
    wants_key_frame: bool,
    due: Instant,
    outgoing: VecDeque<Bytes>,
}

/// The payload of an RTP packet that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub payload: Bytes,
    /// It was sent again, on request or to measure the link.
    pub is_retransmission: bool,
}

impl Peer {
    /// Both ends of a call that begins at `now`: the one that sends video of up to `rate_max`, and
    /// the one that receives it. They exchange ICE's checks, but are already signalled.
    pub fn pair(now: Instant, rate_max: Rate) -> [Self; 2] {
        let mut peers = [true, false].map(|is_sender| Self::new(now, is_sender));
        let descriptions = peers.each_mut().map(|peer| {
            let direct = peer.rtc.direct_api();
            (direct.local_dtls_fingerprint().clone(), direct.local_ice_credentials())
        });
        for (peer, (fingerprint, credentials)) in
            peers.iter_mut().zip(descriptions.into_iter().rev())
        {
            let mut direct = peer.rtc.direct_api();
            direct.set_remote_fingerprint(fingerprint);
            direct.set_remote_ice_credentials(credentials);
            direct.set_ice_controlling(peer.is_sender);
            direct.start_dtls(peer.is_sender).expect("NullCrypto never fails");
            direct.declare_media(mid(), MediaKind::Video);
            if peer.is_sender {
                let stream = direct.declare_stream_tx(SSRC.into(), Some(RTX.into()), mid(), None);
                stream.set_rtx_cache(KEPT_PACKETS, KEPT_FOR, None);
                peer.rtc.bwe().set_bitrate(Bitrate::ZERO, Bitrate::bps(rate_max.as_bps()));
            } else {
                let stream = direct.expect_stream_rx(SSRC.into(), Some(RTX.into()), mid(), None);
                stream.suppress_nack(true);
                direct.enable_twcc_feedback();
            }
            peer.drain();
        }
        peers
    }

    fn new(now: Instant, is_sender: bool) -> Self {
        let mut rtc = Rtc::builder()
            .set_rtp_mode(true)
            .set_crypto_provider(Arc::new(null_crypto::provider()))
            .set_local_ice_credentials(credentials(is_sender))
            .enable_bwe(is_sender.then_some(Bitrate::bps(RATE_FIRST.as_bps())))
            .set_stats_interval(is_sender.then_some(ESTIMATE_INTERVAL))
            .build(to_std(now));
        let host = |of_sender| Candidate::host(address(of_sender), "udp").expect("it is valid");
        rtc.add_local_candidate(host(is_sender));
        rtc.add_remote_candidate(host(!is_sender));
        let vp8 = rtc.codec_config().find(|codec| codec.spec().codec == Codec::Vp8);
        let payload_type = vp8.expect("VP8 is on by default").pt();
        Self {
            rtc,
            is_sender,
            payload_type,
            packets: 0,
            estimate: RATE_FIRST,
            wants_key_frame: true,
            due: now,
            outgoing: VecDeque::new(),
        }
    }

    /// When [`Peer::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Instant {
        self.due
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        if self.due <= now {
            self.input(Input::Timeout(to_std(now)));
        }
    }

    /// Handles a datagram of the other end, and returns the payload of an RTP packet.
    ///
    /// `str0m` does not count a packet as received that arrives 100 packets late. Since requests
    /// are made outside of it, it may see all RTP packets as one stream in the order of arrival:
    /// its feedback has numbers of its own.
    pub fn handle_datagram(&mut self, now: Instant, datagram: &Bytes) -> Option<Arrived> {
        let is_rtp = matches!(datagram[..], [128..=191, kind, ..] if !RTCP_TYPES.contains(&kind));
        if !is_rtp || datagram.len() < RTP_HEADER + TAG {
            self.receive(now, datagram);
            return None;
        }
        let is_retransmission = datagram[8..12] == RTX.to_be_bytes();
        let mut packet = BytesMut::from(&datagram[..]);
        packet[1] = (packet[1] & 0x80) | *self.payload_type;
        packet[2..4].copy_from_slice(&(self.packets as u16).to_be_bytes());
        packet[8..12].copy_from_slice(&SSRC.to_be_bytes());
        self.packets += 1;
        self.receive(now, &packet);
        packet.truncate(packet.len() - TAG);
        let payload = RtpPacket::parse(&packet.freeze()).ok()?.payload;
        let skipped = if is_retransmission { ORIGINAL_NUMBER } else { 0 };
        (payload.len() > skipped)
            .then(|| Arrived { payload: payload.slice(skipped..), is_retransmission })
    }

    /// The next datagram for the other end.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        self.outgoing.pop_front()
    }

    /// The available rate by Google's congestion control.
    pub fn estimate(&self) -> Rate {
        self.estimate
    }

    /// Whether the first frame is due or the receiver has requested a key frame since the last one.
    pub fn wants_key_frame(&self) -> bool {
        self.wants_key_frame
    }

    /// Queues the RTP packets of a frame for the pacer, numbered from 0 over all frames.
    pub fn send_frame(
        &mut self,
        now: Instant,
        frame: u32,
        is_key: bool,
        payloads: impl Iterator<Item = Bytes>,
    ) {
        self.wants_key_frame &= !is_key;
        let timestamp = frame.wrapping_mul(TICKS_PER_FRAME);
        let mut direct = self.rtc.direct_api();
        let stream = direct.stream_tx(&SSRC.into()).expect("it was declared");
        for payload in payloads {
            let number = self.packets.into();
            let packet =
                RtpWrite::new(self.payload_type, number, timestamp, to_std(now), &payload[..]);
            stream.write_rtp(packet.nackable(true));
            self.packets += 1;
        }
        self.drain();
    }

    /// Requests the packets with these numbers again (NACK, RFC 4585 section 6.2.1).
    pub fn request_again(&mut self, numbers: &[u64]) {
        for some in numbers.chunks(NACK_ENTRIES) {
            let mut packet = BytesMut::with_capacity(NACK_BYTES + 4 * some.len());
            packet.put_slice(&[0x81, NACK_TYPE]);
            packet.put_u16(2 + some.len() as u16);
            packet.put_u32(0);
            packet.put_u32(SSRC);
            some.iter().for_each(|number| packet.put_u32((*number as u32) << 16));
            packet.put_bytes(0, TAG);
            packet.put_u32(SRTCP_ENCRYPTED);
            self.outgoing.push_back(packet.freeze());
        }
    }

    /// Requests a key frame (PLI, RFC 4585 section 6.3.1).
    pub fn request_key_frame(&mut self) {
        let mut direct = self.rtc.direct_api();
        if let Some(stream) = direct.stream_rx(&SSRC.into()) {
            stream.request_keyframe(KeyframeRequestKind::Pli);
        }
        self.drain();
    }

    fn receive(&mut self, now: Instant, datagram: &[u8]) {
        if let Ok(contents) = datagram.try_into() {
            let (source, destination) = (address(!self.is_sender), address(self.is_sender));
            let receive = Receive { proto: Protocol::Udp, source, destination, contents };
            self.input(Input::Receive(to_std(now), receive));
        }
    }

    fn input(&mut self, input: Input<'_>) {
        self.rtc.handle_input(input).expect("the other end is this program");
        self.drain();
    }

    fn drain(&mut self) {
        self.due = loop {
            match self.rtc.poll_output() {
                Ok(Output::Timeout(due)) => break from_std(due),
                Ok(Output::Transmit(datagram)) => {
                    self.outgoing.push_back(Bytes::copy_from_slice(&datagram.contents));
                }
                // `EgressBitrateEstimate` is the mean of some seconds.
                Ok(Output::Event(Event::PeerStats(stats))) => {
                    let estimate = stats.bwe_tx.map(|estimate| Rate::from_bps(estimate.as_u64()));
                    self.estimate = estimate.unwrap_or(self.estimate);
                }
                Ok(Output::Event(Event::KeyframeRequest(_))) => self.wants_key_frame = true,
                Ok(Output::Event(_)) => {}
                Err(error) => panic!("str0m: {error}"),
            }
        }
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("estimate", &self.estimate).finish_non_exhaustive()
    }
}

fn to_std(now: Instant) -> StdInstant {
    *ORIGIN + now.since(Instant::ZERO)
}

fn from_std(at: StdInstant) -> Instant {
    Instant::ZERO + at.saturating_duration_since(*ORIGIN)
}

/// A moment of the operating system's clock that stands for [`Instant::ZERO`]: `str0m` only has
/// this type of time, and no figure depends on which moment it is.
#[expect(clippy::disallowed_methods, reason = "an arbitrary origin, not a time")]
static ORIGIN: LazyLock<StdInstant> = LazyLock::new(StdInstant::now);

fn mid() -> Mid {
    "0".into()
}

fn address(of_sender: bool) -> SocketAddr {
    ([192, 0, 2, 1 + u8::from(of_sender)], PORT).into()
}

/// Fixed, since they would be random.
fn credentials(of_sender: bool) -> IceCreds {
    let half = if of_sender { "send" } else { "recv" };
    IceCreds { ufrag: half.into(), pass: half.repeat(6) }
}

const SSRC: u32 = 2;
const RTX: u32 = 3;
/// The port of both ends, which only `str0m` sees.
const PORT: u16 = 5_000;
/// libwebrtc's first estimate.
const RATE_FIRST: Rate = Rate::from_kbps(300);
const TICKS_PER_FRAME: u32 = 3_000;
/// How often the estimate is read.
const ESTIMATE_INTERVAL: Duration = Duration::from_millis(25);
/// `RtpPacketHistory` of libwebrtc keeps packets for a second.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// More than a second of packets has.
const KEPT_PACKETS: usize = 4_000;
const RTP_HEADER: usize = 12;
/// Authentication tag of SRTP and SRTCP.
const TAG: usize = 16;
/// RTP and RTCP share a port (RFC 5761 section 4).
const RTCP_TYPES: std::ops::RangeInclusive<u8> = 192..=223;
/// Bytes before the payload of a retransmission (RFC 4588 section 4).
const ORIGINAL_NUMBER: usize = 2;
const NACK_TYPE: u8 = 205;
const NACK_BYTES: usize = 32;
/// `str0m` reads at most so many of a packet.
const NACK_ENTRIES: usize = 31;
/// The flag and an index (RFC 3711 section 3.4).
const SRTCP_ENCRYPTED: u32 = 0x8000_0001;
