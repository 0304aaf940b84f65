use proptest::prelude::*;

use super::*;

fn event(length: usize) -> Up {
    Up::Event { text: "x".repeat(length) }
}

#[test]
fn messages_survive_any_cut_of_the_stream() {
    let messages = [event(0), event(5), Up::Revoked { serial: 7 }, event(1_000)];
    let stream: Vec<u8> =
        messages.iter().flat_map(|message| encode(message).expect("encoded")).collect();
    for step in [1, 3, 7, 100, stream.len()] {
        let mut decoder = FrameDecoder::default();
        let mut found = Vec::new();
        for bytes in stream.chunks(step) {
            decoder.push(bytes);
            while let Some(message) = decoder.poll::<Up>().expect("a message") {
                found.push(message);
            }
        }
        assert_eq!(found, messages, "{step} bytes at a time");
    }
}

#[test]
fn what_is_too_large_is_refused_before_it_has_come() {
    assert!(matches!(encode(&event(FRAME_MAX)), Err(FrameError::TooLarge(_))));
    let mut decoder = FrameDecoder::default();
    decoder.push(&(FRAME_MAX as u32 + 1).to_be_bytes());
    assert_eq!(decoder.poll::<Up>(), Err(FrameError::TooLarge(FRAME_MAX + 1)));
}

proptest! {
    #[test]
    fn any_bytes_are_messages_or_refused(chunks in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 0..64), 0..20,
    )) {
        let mut decoder = FrameDecoder::default();
        for chunk in chunks {
            decoder.push(&chunk);
            loop {
                match decoder.poll::<Down>() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return Ok(()),
                }
            }
        }
    }
}
