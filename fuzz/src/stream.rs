//! Stream frames: parsed frames are equal after being written and read again.

use bytes::Bytes;
use roadweave_proto::wire::{
    Acknowledged, Data, Destination, Open, ResetCode, STREAM_TAG, StreamFrame, StreamFrames,
    StreamId, StreamPriority,
};

/// Parses the bytes up to the first broken frame.
pub fn run(data: &[u8]) {
    let Ok(frames) = StreamFrames::new(Bytes::copy_from_slice(data)) else { return };
    let parsed: Vec<StreamFrame> = frames.map_while(Result::ok).collect();
    let written = write(&parsed);
    let again = StreamFrames::new(written.into()).expect("the tag is there");
    assert_eq!(again.collect::<Result<Vec<_>, _>>(), Ok(parsed));
}

fn write(frames: &[StreamFrame]) -> Vec<u8> {
    let mut out = vec![STREAM_TAG];
    for frame in frames {
        let before = out.len();
        frame.write(&mut out);
        assert_eq!(out.len() - before, frame.encoded_len());
    }
    out
}

pub fn seeds() -> Vec<Vec<u8>> {
    let id = StreamId(4);
    let data = || Bytes::from_static(b"data");
    let priority = StreamPriority::default();
    let by_name = Destination::of_name("a.example", 80);
    let by_address = Destination::of_address([192, 0, 2, 1].into(), 443);
    let opens = by_name.into_iter().chain(by_address);
    let open = |destination| Open { id, priority, destination, fin: false, data: data() };
    let mut frames: Vec<StreamFrame> = opens.map(open).map(StreamFrame::Open).collect();
    let (begun, fin, contiguous, credit) = (true, false, 9, 70_000);
    let ranges = vec![10..20, 300..20_000];
    let code = ResetCode::Aborted;
    frames.extend([
        StreamFrame::Data(Data { id, offset: 1 << 33, fin: true, data: data() }),
        StreamFrame::Acknowledged(Acknowledged { id, begun, fin, contiguous, credit, ranges }),
        StreamFrame::SessionCredit(1 << 20),
        StreamFrame::Reset { id, code, final_size: 1000, is_answer: false },
        StreamFrame::Stop { id, code },
        StreamFrame::Opened(id),
        StreamFrame::Priority { id, change: 300, priority },
    ]);
    let mut seeds: Vec<Vec<u8>> = frames.chunks(1).map(write).collect();
    seeds.push(write(&frames));
    seeds
}
