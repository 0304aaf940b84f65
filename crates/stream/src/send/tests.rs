//! The sending half against a peer that is slow, or lies.

use super::*;

const NOW: Instant = Instant::from_millis(5);

impl SendBuffer {
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.in_flight.iter().chain(self.lost.iter()).map(|range| range.end - range.start).sum()
    }
}

fn filled(bytes: usize, sent: u64) -> SendBuffer {
    let mut send = SendBuffer::new();
    send.write(&vec![7; bytes]);
    if let Some(segment) = send.fresh(sent) {
        send.on_sent(NOW, &segment);
    }
    send
}

fn send_all(send: &mut SendBuffer, room: u64) -> usize {
    let next = || {
        let segment = send.again(room).or_else(|| send.fresh(room))?;
        send.on_sent(NOW, &segment);
        Some(segment)
    };
    std::iter::from_fn(next).count()
}

#[test]
fn what_is_acknowledged_is_never_sent_again() {
    let mut send = filled(1000, 0);
    assert_eq!(send_all(&mut send, 100), 10);
    assert_eq!(send.on_acknowledged(100, &[250..300, 900..1000], false, true), Ok(true));
    assert_eq!(send.unacknowledged(), 750);
    assert!(send.mark_lost(NOW, Duration::ZERO));
    let again = std::iter::from_fn(|| {
        let segment = send.again(u64::MAX)?;
        send.on_sent(NOW, &segment);
        Some(segment.offset..segment.offset + segment.length)
    });
    assert_eq!(again.collect::<Vec<_>>(), [100..250, 300..900]);
    assert_eq!(send.on_acknowledged(1000, &[], false, true), Ok(true));
    assert_eq!((send.unacknowledged(), send.buffered(), send.records()), (0, 0, 0));
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_is_refused() {
    let mut send = filled(1000, 100);
    assert_eq!(send.on_acknowledged(101, &[], false, true), Err(Violation::NeverSent));
    assert_eq!(send.on_acknowledged(0, &[10..20, 50..101], false, true), Err(Violation::NeverSent));
    assert_eq!(
        send.on_acknowledged(100, &[], true, true),
        Err(Violation::NeverSent),
        "no fin was sent"
    );
    send.finish();
    assert_eq!(send.on_acknowledged(100, &[], true, true), Err(Violation::NeverSent), "nor now");
    assert_eq!(send.unacknowledged(), 100, "nothing has changed");
    send_all(&mut send, 500);
    assert_eq!(send.on_acknowledged(1000, &[], true, true), Ok(true));
    assert!(send.is_done());
}

#[test]
fn ranges_split_no_record_without_room_for_it() {
    let mut send = filled(1000, 1000);
    let ranges: Vec<_> = (1..30).map(|at| 2 * at..2 * at + 1).collect();
    assert_eq!(send.on_acknowledged(0, &ranges, false, false), Ok(false));
    assert_eq!(send.records(), 1);
    assert_eq!(send.on_acknowledged(0, &ranges, false, true), Ok(true));
    assert_eq!(send.records(), 30);
}

#[test]
fn the_fin_rides_on_the_last_bytes_and_is_sent_again_alone() {
    let mut send = filled(100, 0);
    send.finish();
    let segment = send.fresh(100).expect("bytes");
    assert!(segment.fin);
    send.on_sent(NOW, &segment);
    assert_eq!(send.again(100), None);
    assert_eq!(send.on_acknowledged(100, &[], false, true), Ok(true));
    assert!(!send.is_done() && send.mark_lost(NOW, Duration::ZERO));
    let alone = send.again(100).expect("the fin");
    assert_eq!(alone, Segment { offset: 100, length: 0, fin: true });
}

#[test]
fn a_stopped_stream_ends_where_it_is() {
    let mut send = filled(1000, 300);
    send.stop();
    assert_eq!(send.again(100), Some(Segment { offset: 300, length: 0, fin: true }));
    assert_eq!((send.fresh(100), send.buffered()), (None, 0));
}
