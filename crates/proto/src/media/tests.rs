//! Conversations as they pass by, whole and in pieces.

mod boxes;

use proptest::prelude::*;

use self::boxes::{Sample, fragment, initialization, movie};
use crate::media::{
    Cmcd, FRAME_MAX, FirstFrame, FrameEnd, HEAD_MAX, Request, Requests, Responses, Unread,
};
use crate::wire::StreamPriority;

fn requests(text: &[u8]) -> (Vec<Request>, Option<Unread>) {
    let (mut requests, mut found) = (Requests::default(), Vec::new());
    requests.feed(text, |request| found.push(request));
    (found, requests.unread())
}

/// Feeds responses in these pieces: end of the urgent part, first pictures, and why reading ended.
fn urgent(asked: &[Request], text: &[u8], pieces: &[usize]) -> (usize, usize, Option<Unread>) {
    let mut responses = Responses::default();
    asked.iter().for_each(|request| responses.expect(*request));
    let (mut at, mut urgent, mut frames) = (0_usize, 0, 0);
    for &piece in pieces.iter().chain([&usize::MAX]) {
        let bytes = &text[at..at.saturating_add(piece).min(text.len())];
        let seen = responses.feed(bytes);
        assert!(seen.urgent <= bytes.len());
        if seen.urgent > 0 {
            urgent = at + seen.urgent;
        }
        frames += seen.frames;
        at += bytes.len();
    }
    (urgent, frames, responses.unread())
}

fn urgent_of(text: &[u8]) -> (usize, usize, Option<Unread>) {
    urgent(&[Request::default()], text, &[])
}

fn response(fields: &str, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n");
    [head.as_bytes(), content].concat()
}

const MP4: &str = "Content-Type: video/mp4\r\n";

#[test]
fn requests_are_read_one_behind_the_other() {
    let text = b"GET /a?CMCD=bl%3D400 HTTP/1.1\r\nHost: a\r\nPriority: u=1, i\r\n\r\n\
                 \r\nPOST /b HTTP/1.1\r\nContent-Length: 5\r\n\r\nGET /\
                 PUT /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
                 3;x=y\r\nabc\r\n0\r\nT: u\r\n\r\n\
                 HEAD /d HTTP/1.1\r\nCMCD-Request: su,bl=9000\r\ncmcd-session: sid=\"x\"\r\n\r\n";
    let (found, unread) = requests(text);
    assert_eq!((found.len(), unread), (4, None));
    assert_eq!(found[0].priority, Some(StreamPriority::new(1, true)));
    assert_eq!(found[0].cmcd, Some(Cmcd { buffer_ms: Some(400), ..Cmcd::default() }));
    assert_eq!([found[1], found[2]], [Request::default(); 2]);
    let cmcd = found[3].cmcd.expect("there is some");
    assert!(found[3].head_only && cmcd.startup && cmcd.session.is_some());
    assert_eq!(cmcd.left_ms(), Some(0));
}

#[test]
fn what_is_no_plain_http_is_read_no_further() {
    let check = |text: &[u8], count, why| {
        let (found, unread) = requests(text);
        assert_eq!((found.len(), unread), (count, Some(why)), "{}", text.escape_ascii());
    };
    let twice = |head: &str| format!("{head}\r\n\r\nGET / HTTP/1.1\r\n\r\n").into_bytes();
    check(b"\x16\x03\x01\x02\x00\x01\x00\x01", 0, Unread::NotHttp);
    check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, Unread::NotHttp);
    check(&twice("CONNECT a:1 HTTP/1.1"), 1, Unread::Upgraded);
    check(&twice("GET / HTTP/1.1\r\nUpgrade: websocket"), 1, Unread::Upgraded);
    for length in ["5\r\nContent-Length: 6", "5\r\nTransfer-Encoding: chunked", "+5", "x", ""] {
        let head = format!("POST / HTTP/1.1\r\nContent-Length: {length}");
        check(&twice(&head), 0, Unread::Ambiguous);
    }
    check(&twice("POST / HTTP/1.1\r\nTransfer-Encoding: gzip"), 0, Unread::Ambiguous);
    let bad = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
    check(bad, 1, Unread::Ambiguous);
    let long = format!("GET / HTTP/1.1\r\nF: {}", "a".repeat(2 * HEAD_MAX));
    check(long.as_bytes(), 0, Unread::TooLong);
    let fields: String = (0..=crate::media::FIELDS_MAX).map(|at| format!("F{at}: x\r\n")).collect();
    check(format!("GET / HTTP/1.1\r\n{fields}\r\n").as_bytes(), 0, Unread::TooLong);
}

#[test]
fn a_head_that_arrives_byte_by_byte_is_buffered_up_to_the_limit() {
    let mut requests = Requests::default();
    let mut found = 0;
    for byte in b"GET /?CMCD=su HTTP/1.1\r\nHost: a\r\n\r\n" {
        requests.feed(&[*byte], |request| found += usize::from(request.cmcd.is_some()));
    }
    assert_eq!((found, requests.unread()), (1, None));
    for _ in 0..HEAD_MAX {
        requests.feed(b"A", |_| found += 1);
    }
    assert_eq!((found, requests.unread()), (1, Some(Unread::TooLong)));
}

#[test]
fn the_first_picture_of_a_file_is_what_comes_before_its_end() {
    for (samples, sync) in [
        ([Sample::sync(5_000), Sample::other(700)], None),
        ([Sample::other(300), Sample::sync(5_000)], Some(2)),
    ] {
        let (file, end) = movie(&samples, sync);
        let text = response(MP4, &file);
        assert_eq!(urgent_of(&text), (text.len() - file.len() + end, 1, None));
    }
}

#[test]
fn chunks_and_ranges_hide_no_picture() {
    let (segment, end) = fragment(1, &[Sample::sync(9_000), Sample::other(40_000)]);
    let mut text = b"HTTP/1.1 206 Partial Content\r\nContent-Type: video/iso.segment\r\n\
                     Content-Range: bytes 7000-60000/99999\r\nTransfer-Encoding: chunked\r\n\r\n"
        .to_vec();
    let mut expected = 0;
    for (number, chunk) in segment.chunks(4_000).enumerate() {
        text.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        if (number * 4_000..(number + 1) * 4_000).contains(&(end - 1)) {
            expected = text.len() + end - number * 4_000;
        }
        text.extend_from_slice(chunk);
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"0\r\n\r\n");
    assert_eq!(urgent_of(&text), (expected, 1, None));
}

#[test]
fn segments_that_go_into_a_buffer_are_not_urgent() {
    let (segment, _) = fragment(1, &[Sample::sync(900)]);
    let first = [response(MP4, &initialization(&[1])), response(MP4, &segment)].concat();
    let both = [first.clone(), response(MP4, &segment)].concat();
    let asked = [Request::default(); 3];
    assert_eq!(urgent(&asked, &both, &[]), urgent(&asked, &first, &[]));
    assert_eq!(urgent(&asked, &both, &[]).1, 1);
    let other = [both.clone(), first.clone()].concat();
    assert_eq!(urgent(&[Request::default(); 5], &other, &[]).1, 2);
    let with = |report| Request { cmcd: Some(Cmcd::of_items(report)), ..Request::default() };
    let text = response(MP4, &segment);
    assert_eq!(urgent(&[with("bl=9000")], &text, &[]).1, 0);
    let twice = [text.clone(), text].concat();
    assert_eq!(urgent(&[with("su"), with("su,bl=1")], &twice, &[]).1, 2);
}

#[test]
fn nothing_else_is_a_picture() {
    let (segment, _) = fragment(1, &[Sample::sync(900)]);
    let none = |fields: &str, content: &[u8]| {
        let text = response(fields, content);
        assert_eq!(urgent_of(&text), (0, 0, None), "{fields}");
    };
    none("Content-Type: text/html\r\n", &segment);
    none("", &segment);
    none("Content-Type: video/mp4\r\nContent-Encoding: gzip\r\n", &segment);
    none(MP4, b"<html>no video at all</html>");
    none(MP4, b"");
    none(MP4, &[&b"\0\0\0\x08ftyp"[..], &b"\0\0\x10\0mdat"[..], &[7; 5_000][..]].concat());
    let head = Request { head_only: true, ..Request::default() };
    let text = b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\nContent-Length: 900\r\n\r\n";
    let both = [&text[..], &text[..]].concat();
    assert_eq!(urgent(&[head, head], &both, &[]), (0, 0, None));
}

/// Found by fuzzing: a head that begins within a box and ends after it.
#[test]
fn a_box_that_goes_beyond_what_is_around_it_is_none_however_it_comes() {
    for size in [0_u8, 1, 12, 200] {
        let inner = [&b"\0\0\0\x0cmoov\0\0\0"[..], &[size], b"trak", &[0; 40]].concat();
        let mut whole = FirstFrame::new(0);
        whole.feed(&inner);
        let mut split = FirstFrame::new(0);
        inner.iter().for_each(|byte| split.feed(&[*byte]));
        assert_eq!((whole.end(), split.end()), (FrameEnd::Nowhere, FrameEnd::Nowhere), "{size}");
    }
}

#[test]
fn a_host_that_claims_an_endless_picture_gets_a_megabyte() {
    let (mut segment, _) = fragment(1, &[Sample::sync(u32::MAX)]);
    segment.resize(3 << 20, 0);
    let endless = [&b"\0\0\0\x08ftyp\0\x40\0\0free"[..], &vec![0; 3 << 20][..]].concat();
    for content in [segment, endless] {
        let text = response(MP4, &content);
        let expected = (text.len() - content.len() + FRAME_MAX as usize, 1, None);
        assert_eq!(urgent_of(&text), expected);
    }
}

#[test]
fn responses_say_how_urgent_they_are() {
    let mut responses = Responses::default();
    responses.expect(Request::default());
    let seen = responses.feed(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nPriority: u=6");
    assert_eq!((seen.heads, seen.priority), (0, None));
    let seen = responses.feed(b"\r\n\r\nall that comes");
    assert_eq!((seen.heads, seen.priority), (1, Some(Some(StreamPriority::new(6, false)))));
    assert_eq!(responses.feed(b"HTTP/1.1 200 OK\r\n\r\n").heads, 0, "it is content");
    for text in ["HTTP/1.1 101 Switching\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "nonsense\r\n"] {
        let mut responses = Responses::default();
        if text.contains("101") {
            responses.expect(Request::default());
        }
        responses.feed(text.as_bytes());
        assert!(responses.unread().is_some(), "{text}");
    }
    let mut responses = Responses::default();
    (0..1_000).for_each(|_| responses.expect(Request::default()));
    assert_eq!(responses.unread(), Some(Unread::TooMany));
}

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let sample = (1_u32..3_000, any::<bool>()).prop_map(|(size, is_sync)| Sample { size, is_sync });
    prop::collection::vec(sample, 1..20)
}

fn pieces() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..600, 0..80)
}

#[test]
fn a_place_beyond_all_files_is_given_up_like_any() {
    for start in [0, u64::MAX - 8, u64::MAX] {
        let mut found = FirstFrame::new(start);
        let begins = found.offset();
        found.feed(&[0, 0, 0, 8, b'f', b'r', b'e', b'e'].repeat(FRAME_MAX as usize / 4));
        assert_eq!(found.end(), FrameEnd::At(begins + FRAME_MAX), "{start}");
    }
}

proptest! {
    #[test]
    fn pieces_change_nothing(samples in samples(), pieces in pieces(), tracks in 1_u32..4) {
        let with_init = initialization(&[tracks]);
        let (segment, end) = fragment(tracks, &samples);
        let text = [response(MP4, &with_init), response(MP4, &segment)].concat();
        let expected = (text.len() - segment.len() + end, 1, None);
        let asked = [Request::default(); 2];
        prop_assert_eq!(urgent(&asked, &text, &pieces), expected);
        prop_assert_eq!(urgent(&asked, &text, &[]), expected);
    }

    #[test]
    fn any_bytes_are_boxes_or_none(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        at in any::<prop::sample::Index>(),
        value in any::<[u8; 4]>(),
        start in prop_oneof![Just(0), Just(u64::MAX - 9), any::<u64>()],
        pieces in pieces(),
        samples in samples(),
    ) {
        let (mut file, _) = movie(&samples, Some(1));
        let (segment, _) = fragment(1, &samples);
        file.extend_from_slice(&segment);
        // Four bytes of a valid one change: a size, a type, a count.
        let at = at.index(file.len() - 4);
        file[at..at + 4].copy_from_slice(&value);
        for bytes in [&bytes[..], &file[..]] {
            let mut whole = FirstFrame::new(start);
            whole.feed(bytes);
            let mut split = FirstFrame::new(start);
            let mut rest = bytes;
            for piece in &pieces {
                let (first, behind) = rest.split_at((*piece).min(rest.len()));
                split.feed(first);
                rest = behind;
            }
            split.feed(rest);
            prop_assert_eq!((whole.end(), whole.offset()), (split.end(), split.offset()));
            if let FrameEnd::At(end) = whole.end() {
                prop_assert!(end <= start.saturating_add(FRAME_MAX));
            }
        }
    }

    #[test]
    fn any_bytes_are_http_or_none(
        text in "(GET|HTTP/1.1|200|[ /\r\n:;=,.0-9a-zA-Z\\PC]|\r\n|Content-Length: |chunked){0,120}",
        pieces in pieces(),
    ) {
        let _ = requests(text.as_bytes());
        let _ = urgent(&[Request::default(); 3], text.as_bytes(), &pieces);
        let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{text}");
        let _ = urgent(&[Request::default(); 3], head.as_bytes(), &pieces);
    }
}
