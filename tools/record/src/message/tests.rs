use proptest::prelude::*;

use super::*;

fn entry() -> impl Strategy<Value = LogEntry> {
    prop_oneof![
        (any::<u16>(), any::<u32>(), any::<u32>())
            .prop_map(|(cycle, at_ms, bytes)| LogEntry::Delivery { cycle, at_ms, bytes }),
        (any::<u16>(), any::<u64>(), any::<u64>(), any::<u16>()).prop_map(
            |(cycle, sent_us, received_us, probes)| LogEntry::Probe {
                cycle,
                sent_us,
                received_us,
                probes
            }
        ),
    ]
}

pub fn packet() -> impl Strategy<Value = Packet> {
    let kind = prop::sample::select(vec![PacketKind::Data, PacketKind::Tail, PacketKind::Probe]);
    (kind, any::<[u32; 2]>(), any::<[u64; 2]>(), any::<[u16; 2]>(), 31..1_500_usize).prop_map(
        |(kind, [number, confirmed], [token, sent_us], [cycle, probes], payload_bytes)| {
            let finishing = number % 11 == 0;
            Packet {
                token,
                kind,
                finishing,
                number,
                cycle,
                sent_us,
                confirmed,
                probes,
                payload_bytes,
            }
        },
    )
}

pub fn report() -> impl Strategy<Value = Report> {
    (any::<[u64; 4]>(), any::<[u32; 6]>(), prop::collection::vec(entry(), 0..50)).prop_map(
        |(long, short, entries)| Report {
            token: long[0],
            highest: short[0],
            sent_us: long[1],
            received_us: long[2],
            held_us: short[1],
            bytes: long[3],
            confirmed: short[2],
            log_end: short[3],
            log_discarded: short[4],
            log_first: short[5],
            entries,
        },
    )
}

fn handshake() -> impl Strategy<Value = Message> {
    (any::<[u64; 3]>(), any::<bool>(), 0..5_u8).prop_map(|([a, b, c], flag, which)| match which {
        0 => Message::Hello { nonce: a },
        1 => Message::Challenge { nonce: a, token: b },
        2 => Message::Open(Open {
            token: a,
            resume: b,
            elapsed_us: c,
            plan: RecordPlan { up: flag, ..RecordPlan::default() },
            proof: [b as u8; 32],
        }),
        3 => Message::Welcome(Welcome { token: a, resumed: flag, start_unix_us: c }),
        _ => Message::Refuse { to: a, why: RecordRefusal::Busy },
    })
}

proptest! {
    #[test]
    fn what_is_written_reads_the_same(
        message in prop_oneof![
            packet().prop_map(Message::Packet),
            report().prop_map(Message::Report),
            handshake(),
        ],
    ) {
        prop_assert_eq!(Message::decode(&message.encode()), Some(message));
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        kind: u8, rest in prop::collection::vec(any::<u8>(), 0..200), ours: bool,
    ) {
        let mut bytes = vec![if ours { MAGIC } else { kind }, kind];
        bytes.extend(rest);
        let _ = Message::foreign_hello(&bytes);
        if let Some(Message::Report(report)) = Message::decode(&bytes) {
            prop_assert!(report.entries.len() <= bytes.len());
        }
    }

    #[test]
    fn a_message_cut_short_is_refused(packet in packet(), keep in 0..31_usize) {
        prop_assert_eq!(Message::decode(&packet.encode()[..keep]), None);
    }
}

#[test]
fn answers_to_strangers_are_shorter_than_their_questions() {
    let plan = RecordPlan::default();
    let hello = Message::Hello { nonce: 1 }.encode();
    let open =
        Message::Open(Open { token: 1, resume: 2, elapsed_us: 3, plan, proof: [4; 32] }).encode();
    assert_eq!((hello.len(), open.len()), (REQUEST_BYTES, REQUEST_BYTES));
    for answer in [
        Message::Challenge { nonce: 1, token: 2 },
        Message::Welcome(Welcome { token: 1, resumed: true, start_unix_us: 7 }),
        Message::Refuse { to: 1, why: RecordRefusal::Version },
    ] {
        assert!(answer.encode().len() < REQUEST_BYTES);
    }
    assert_eq!(Message::decode(&hello[..REQUEST_BYTES - 1]), None);
    assert_eq!(Message::decode(&open[..REQUEST_BYTES - 1]), None);
}
