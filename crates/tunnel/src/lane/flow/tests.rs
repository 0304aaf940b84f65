use super::*;

fn packet(protocol: u8, dscp: u8, flow: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, dscp << 2];
    packet.extend((28 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, flow, 10, 1, 0, 2]);
    packet.extend([0, 80, 1, 187, 0, 0, 0, 0]);
    packet.extend(payload);
    packet
}

fn rtp(ssrc: u32, sequence: u16, timestamp: u32, marker: bool) -> Vec<u8> {
    let mut payload = vec![0x80, if marker { 0xe0 } else { 0x60 }];
    payload.extend(sequence.to_be_bytes());
    payload.extend(timestamp.to_be_bytes());
    payload.extend(ssrc.to_be_bytes());
    payload.extend([7; 1000]);
    payload
}

#[derive(Default)]
struct Bench(FlowTable);

impl Bench {
    fn view(&mut self, millis: u64, bytes: &[u8]) -> FlowView {
        let packet = InnerPacket::parse(bytes).expect("well-formed");
        self.0.on_packet(Instant::from_millis(millis), packet.flow_hash(), &packet)
    }

    fn udp(&mut self, millis: u64, payload: &[u8]) -> FlowClass {
        self.view(millis, &packet(protocol::UDP, 0, 1, payload)).class
    }

    fn tcp(&mut self, millis: u64, payload: &[u8]) -> FlowClass {
        self.view(millis, &packet(protocol::TCP, 0, 1, payload)).class
    }
}

#[test]
fn a_call_is_real_time_from_its_fourth_packet_on_and_takes_the_rest_along() {
    let mut bench = Bench::default();
    let stun = [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..], &[9; 12]].concat();
    assert_eq!(bench.udp(0, &stun), FlowClass::Interactive);
    assert_eq!(bench.udp(1, &[22, 0xfe, 0xfd, 0]), FlowClass::Interactive, "DTLS");
    // Audio and video share the flow; both wrap, and one packet was lost.
    let classes: Vec<_> = [65_534_u16, 65_535, 1, 2]
        .into_iter()
        .flat_map(|sequence| [(1, sequence), (2, sequence.wrapping_add(9))])
        .map(|(ssrc, sequence)| bench.udp(20, &rtp(ssrc, sequence, 0, false)))
        .collect();
    assert_eq!(classes[..6], [FlowClass::Interactive; 6]);
    assert_eq!(classes[6..], [FlowClass::RealTime; 2]);
    for rest in [&stun[..], &[22, 0xfe, 0xfd, 0], &[0x81, 200, 0, 6, 0, 0, 0, 1]] {
        assert_eq!(bench.udp(30, rest), FlowClass::RealTime);
    }
    for at in 0..200 {
        assert_eq!(bench.udp(40 + at, &[0x16; 1200]), FlowClass::RealTime, "data of the call");
    }
}

#[test]
fn what_is_no_rtp_is_not_taken_for_it() {
    let mut random = 7_u64;
    let mut next = || {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
        (random >> 33) as u32
    };
    let mut bench = Bench::default();
    for at in 0..400 {
        let mut dns = vec![0x80 | next() as u8, next() as u8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
        dns.extend([3; 30]);
        assert_ne!(bench.udp(at * 50, &dns), FlowClass::RealTime, "DNS");
    }
    let mut bench = Bench::default();
    for at in 0..2000 {
        let mut quic = vec![0x80 | next() as u8 & 0x3f];
        quic.extend(std::iter::repeat_with(|| next() as u8).take(60));
        assert_ne!(bench.udp(at * 10, &quic), FlowClass::RealTime, "QUIC");
    }
    let mut bench = Bench::default();
    for sequence in 0..100 {
        let repeated = rtp(1, 5 + sequence % 2 * 100, 0, true);
        assert_ne!(bench.udp(u64::from(sequence), &repeated), FlowClass::RealTime, "no counting");
    }
}

#[test]
fn frames_without_markers_are_found_by_their_timestamps() {
    let mut bench = Bench::default();
    let mut begins = Vec::new();
    for sequence in 0..12_u16 {
        let frame = u32::from(sequence / 3);
        let bytes = packet(protocol::UDP, 0, 1, &rtp(1, sequence, frame * 3000, false));
        if bench.view(u64::from(sequence), &bytes).begins_frame {
            begins.push(sequence);
        }
    }
    assert_eq!(begins, [3, 6, 9]);
    let marked = packet(protocol::UDP, 0, 1, &rtp(1, 12, 9000, true));
    assert!(!bench.view(20, &marked).begins_frame);
    let next = packet(protocol::UDP, 0, 1, &rtp(1, 13, 12_000, false));
    assert!(!bench.view(20, &next).begins_frame, "its marker has told it before");
}

#[test]
fn code_points_give_the_class_of_a_flow() {
    let mut bench = Bench::default();
    let mut class = |protocol, dscp| bench.view(0, &packet(protocol, dscp, dscp, b"x")).class;
    assert_eq!(class(protocol::UDP, 46), FlowClass::RealTime);
    assert_eq!(class(protocol::UDP, 8), FlowClass::Other);
    assert_eq!(class(protocol::TCP, 34), FlowClass::Interactive);
    assert_eq!(class(protocol::TCP, 1), FlowClass::Tcp);
}

#[test]
fn keystrokes_stay_interactive_and_transfers_do_not() {
    let mut bench = Bench::default();
    for at in 0..600 {
        assert_eq!(bench.tcp(at * 100, &[0; 100]), FlowClass::Interactive);
    }
    let mut bench = Bench::default();
    let classes: Vec<_> = (0..60).map(|at| bench.tcp(at / 10 * 50, &[0; 1400])).collect();
    let moved = classes.iter().position(|class| *class == FlowClass::Tcp);
    assert_eq!(moved, Some(20), "behind the pause that follows the packet that emptied the bucket");
    assert!(classes[20..].iter().all(|class| *class == FlowClass::Tcp));
    assert_eq!(bench.tcp(5_000, &[0; 100]), FlowClass::Interactive, "quiet again");
}

#[test]
fn a_flow_that_makes_no_pause_moves_all_the_same() {
    let mut bench = Bench::default();
    let classes: Vec<_> = (0..200).map(|at| bench.udp(at, &[0x40; 1200])).collect();
    let moved = classes.iter().position(|class| *class == FlowClass::Other).expect("it moves");
    assert!((PACKETS_TO_MOVE as usize..PACKETS_TO_MOVE as usize + 20).contains(&moved), "{moved}");
    assert!(classes[moved..].iter().all(|class| *class == FlowClass::Other));
}

#[test]
fn memory_is_bounded_and_the_most_silent_flows_are_forgotten() {
    let mut table = FlowTable::default();
    let bytes = packet(protocol::UDP, 0, 1, b"x");
    let view = InnerPacket::parse(&bytes).expect("well-formed");
    for hash in 0..3 * FLOWS_MAX as u64 {
        table.on_packet(Instant::from_millis(hash), 1, &view);
        table.on_packet(Instant::from_millis(hash), 2 + hash, &view);
        assert!(table.flows.len() <= FLOWS_MAX && table.ages.len() == table.flows.len());
    }
    assert!(table.flows.contains_key(&1), "it was never silent");
    let idle = Instant::from_millis(3 * FLOWS_MAX as u64) + IDLE_MAX * 2;
    table.on_packet(idle, 5, &view);
    table.on_packet(idle, 6, &view);
    assert_eq!(table.flows.len(), 2);
}

#[test]
fn a_flow_is_real_time_only_while_there_is_media_in_it() {
    let mut datagram = vec![0; 7 * 188];
    datagram.iter_mut().step_by(188).for_each(|byte| *byte = 0x47);
    let expedited = packet(protocol::UDP, 46, 1, &[9; 100]);
    let beginnings: [&dyn Fn(&mut Bench); 3] =
        [&|bench| _ = bench.udp(0, &datagram), &|bench| _ = bench.view(0, &expedited), &|bench| {
            (0..4).for_each(|sequence| _ = bench.udp(0, &rtp(1, sequence, 0, false)))
        }];
    for (at, begin) in beginnings.iter().enumerate() {
        let mut bench = Bench::default();
        begin(&mut bench);
        // A quarter looks like an RTP header, each of another source.
        let bulk = |at: u64| {
            let mut bytes = [at as u8; 1200];
            bytes[0] = (at * 67) as u8;
            bytes
        };
        let classes: Vec<_> = (0..400).map(|at| bench.udp(at, &bulk(at))).collect();
        assert_eq!(classes[200], FlowClass::RealTime, "{at}: it may go along with media");
        assert_eq!(classes.last(), Some(&FlowClass::Other), "{at}");
        begin(&mut bench);
        assert_eq!(bench.udp(401, &bulk(2)), FlowClass::RealTime, "{at}: again");
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn srt(sequence: u32) -> Vec<u8> {
    let mut bytes = words(&[sequence & 0x7fff_ffff, 0xe800_0001, sequence.wrapping_mul(400), 4711]);
    bytes.extend([7; 1316]);
    bytes
}

#[test]
fn a_call_is_real_time_from_its_first_connectivity_check_on() {
    let mut bench = Bench::default();
    let check = [&[0, 1, 0, 8, 0x21, 0x12, 0xa4, 0x42][..], &[9; 12], &[0, 0x24, 0, 4, 1, 2, 3, 4]]
        .concat();
    assert_eq!(bench.udp(0, &check), FlowClass::RealTime);
    assert_eq!(bench.udp(1, &[22; 1200]), FlowClass::RealTime, "DTLS");
    assert_eq!(bench.udp(2, &rtp(1, 1, 0, false)), FlowClass::RealTime);
    let mut bench = Bench::default();
    bench.udp(0, &check);
    let classes: Vec<_> = (0..200).map(|at| bench.udp(at, &[23; 1200])).collect();
    assert_eq!(classes.last(), Some(&FlowClass::Other));
}

#[test]
fn srt_is_real_time_by_its_handshake_or_by_what_it_counts() {
    let induction = words(&[0x8000_0000, 0, 7, 0, 4, 2, 12345, 1500, 8192, 1, 4711, 0, 1, 0, 0, 0]);
    let mut bench = Bench::default();
    assert_eq!(bench.udp(0, &induction), FlowClass::RealTime);
    // After a restart of the tunnel in mid-stream; the numbers wrap.
    let mut bench = Bench::default();
    let classes: Vec<_> =
        (0x7fff_fffe..0x8000_0008_u32).map(|sequence| bench.udp(0, &srt(sequence))).collect();
    assert_eq!(classes[2..5], [FlowClass::Interactive, FlowClass::RealTime, FlowClass::RealTime]);
    let mut bench = Bench::default();
    let classes: Vec<_> = (0..6)
        .map(|at| bench.udp(10 * u64::from(at), &words(&[0x8002_0000, at, at * 10_000, 42, 9])))
        .collect();
    assert_eq!(classes.last(), Some(&FlowClass::RealTime));
    // An acknowledgement every 10 ms is answered, with two packets of 2 Mbit/s between.
    let mut bench = Bench::default();
    let classes: Vec<_> = (0..40_u32)
        .map(|at| match at % 3 {
            2 => bench.udp(0, &words(&[0x8006_0000, at, at * 3_500, 4711, 0])),
            _ => bench.udp(0, &srt(at - at / 3)),
        })
        .collect();
    assert_eq!(classes[3..6], [FlowClass::Interactive, FlowClass::RealTime, FlowClass::RealTime]);
    assert!(classes[4..].iter().all(|class| *class == FlowClass::RealTime));
    // The file mode has the same handshake.
    let mut bench = Bench::default();
    bench.udp(0, &induction);
    let file = words(&[5, 0x2000_0001, 400, 4711]).into_iter().chain([7; 1316]);
    let file: Vec<u8> = file.collect();
    let classes: Vec<_> = (0..200).map(|at| bench.udp(at, &file)).collect();
    assert_eq!(classes.last(), Some(&FlowClass::Other));
}

#[test]
fn a_transport_stream_is_real_time_from_its_first_datagram_on() {
    let mut datagram = vec![0; 7 * 188];
    datagram.iter_mut().step_by(188).for_each(|byte| *byte = 0x47);
    let mut bench = Bench::default();
    assert_eq!(bench.udp(0, &datagram), FlowClass::RealTime);
    let mut bench = Bench::default();
    let classes: Vec<_> = (0..6).map(|at| bench.udp(at, &datagram[..188])).collect();
    assert_eq!(classes[4..], [FlowClass::Interactive, FlowClass::RealTime]);
}

#[test]
fn what_goes_beside_rtp_on_a_port_of_its_own_is_real_time() {
    let mut bench = Bench::default();
    assert_eq!(bench.udp(0, &[0x80, 201, 0, 1, 0, 0, 0, 7]), FlowClass::RealTime);
}

#[test]
fn quic_is_never_taken_for_media() {
    let mut bench = Bench::default();
    let mut initial = vec![0xc0, 0, 0, 0, 1, 8];
    initial.resize(1200, 0);
    assert_eq!(bench.udp(0, &initial), FlowClass::Interactive, "a handshake is small");
    let classes: Vec<_> =
        (1..100).map(|at| bench.udp(u64::from(at), &rtp(1, at, 0, false))).collect();
    assert!(!classes.contains(&FlowClass::RealTime));
    assert_eq!(classes.last(), Some(&FlowClass::Other));
}
