//! Plain HTTP: results do not depend on how the bytes are split.

use roadweave_proto::media::{Cmcd, FRAME_MAX, FirstFrame, FrameEnd, Request, Requests, Responses};

/// Reads the bytes after the first as boxes, whole and in pieces whose length is the first byte.
pub fn boxes(data: &[u8]) {
    let Some((&piece, bytes)) = data.split_first() else { return };
    let mut whole = FirstFrame::new(0);
    whole.feed(bytes);
    let mut split = FirstFrame::new(0);
    bytes.chunks(usize::from(piece).max(1)).for_each(|bytes| split.feed(bytes));
    assert_eq!((whole.end(), whole.offset()), (split.end(), split.offset()));
    assert!(!matches!(whole.end(), FrameEnd::At(end) if end > FRAME_MAX));
    let mut late = FirstFrame::of_file(u64::MAX - u64::from(piece));
    late.feed(bytes);
}

/// Reads the bytes after the first as requests, as answers to three, and as a report.
pub fn http(data: &[u8]) {
    let Some((&piece, bytes)) = data.split_first() else { return };
    let piece = usize::from(piece).max(1);
    let requests = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut requests, mut found) = (Requests::default(), Vec::new());
        pieces.for_each(|bytes| requests.feed(bytes, |request| found.push(request)));
        // In pieces, the reason for the end may be known later: with the end of a line.
        found
    };
    let whole = requests(&mut std::iter::once(bytes));
    assert_eq!(whole, requests(&mut bytes.chunks(piece)));
    let answers = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut responses = Responses::default();
        for told in [None, Some("su"), Some("bl=9000")] {
            let cmcd = told.map(Cmcd::of_items);
            responses.expect(Request { cmcd, ..Request::default() });
        }
        let (mut heads, mut frames) = (0, 0);
        for bytes in pieces {
            let seen = responses.feed(bytes);
            assert!(seen.urgent <= bytes.len());
            (heads, frames) = (heads + seen.heads, frames + seen.frames);
        }
        // Bytes marked urgent before a presumed video turns out not to be one depend on the pieces.
        (heads, frames)
    };
    let whole = answers(&mut std::iter::once(bytes));
    assert_eq!(whole, answers(&mut bytes.chunks(piece)));
    let _ = Cmcd::of_items(&String::from_utf8_lossy(bytes)).left_ms();
}

pub fn box_seeds() -> Vec<Vec<u8>> {
    let track = |tables: Vec<u8>| {
        let tkhd = boxed(b"tkhd", &words(&[7, 0, 0, 1]));
        let hdlr = boxed(b"hdlr", &[words(&[0, 0]), b"vide".to_vec()].concat());
        let minf = boxed(b"minf", &boxed(b"stbl", &tables));
        boxed(b"trak", &[tkhd, boxed(b"mdia", &[hdlr, minf].concat())].concat())
    };
    let tables = [
        boxed(b"stsz", &words(&[0, 0, 2, 700, 60])),
        boxed(b"stss", &words(&[0, 1, 1])),
        boxed(b"stsc", &words(&[0, 1, 1, 2, 1])),
        boxed(b"stco", &words(&[0, 1, 400])),
    ];
    let ftyp = boxed(b"ftyp", b"isom");
    let file = [vec![9], ftyp.clone(), boxed(b"moov", &track(tables.concat()))].concat();
    let mvex = boxed(b"mvex", &boxed(b"trex", &words(&[0, 1, 1, 0, 50, 0])));
    let moov = boxed(b"moov", &[track(Vec::new()), mvex].concat());
    let tfhd = boxed(b"tfhd", &words(&[0x2_0000, 1]));
    let trun = boxed(b"trun", &words(&[0x205, 2, 90, 0, 700, 60]));
    let moof = boxed(b"moof", &boxed(b"traf", &[tfhd, trun].concat()));
    let mdat = boxed(b"mdat", &[0; 80]);
    let film = [vec![200], ftyp, moov, moof.clone(), mdat.clone()].concat();
    let segment = [vec![3], boxed(b"styp", b"msdh"), boxed(b"sidx", &[]), moof, mdat].concat();
    vec![file, film, segment]
}

pub fn http_seeds() -> Vec<Vec<u8>> {
    let requests = b"\x07GET /1?CMCD=bl%3D2300%2Csid%3D%22a%22 HTTP/1.1\r\nPriority: u=1, i\r\n\r\n\
        POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nCMCD-Request: su\r\n\r\n3;x\r\nabc\r\n0\r\n\r\n";
    let segment = &box_seeds()[2][1..];
    let head = b"\xc8HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 206 Partial\r\nContent-Type: video/mp4\r\n\
        Content-Range: bytes 0-99/900\r\nPriority: u=6\r\nContent-Length: ";
    let length = format!("{}\r\n\r\n", segment.len());
    let answers = [head, length.as_bytes(), segment, b"HTTP/1.1 200 OK\r\n\r\nall"].concat();
    vec![requests.to_vec(), answers, b"\x01bl=(2300),br=800,bs,sid=\"a\",su=?0,v=2".to_vec()]
}

fn boxed(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32 + 8).to_be_bytes()[..], kind, content].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}
