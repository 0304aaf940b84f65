use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

struct Gate {
    arrived: Arc<Mutex<Vec<u8>>>,
    /// The result of each write; everything passes once the sender is dropped.
    answers: Receiver<io::Result<usize>>,
}

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.answers.recv().unwrap_or(Ok(usize::MAX))?.min(bytes.len());
        self.arrived.lock().unwrap().extend(&bytes[..length]);
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Test {
    lines: Lines,
    arrived: Arc<Mutex<Vec<u8>>>,
    answers: Option<Sender<io::Result<usize>>>,
}

impl Test {
    fn new() -> Self {
        let (sender, answers) = channel();
        let arrived = Arc::default();
        let gate = Gate { arrived: Arc::clone(&arrived), answers };
        let notice = |lost: u64| format!("{lost} lost\n").into_bytes();
        let lines = Lines::begin(gate, None, Box::new(notice)).unwrap();
        Self { lines, arrived, answers: Some(sender) }
    }

    fn answer(&self, answer: io::Result<usize>) {
        self.answers.as_ref().unwrap().send(answer).unwrap();
    }

    fn push(&self, line: &str) {
        self.lines.push(line.as_bytes().to_vec());
    }

    fn text(&self) -> String {
        self.lines.flush(LONG, LONG);
        String::from_utf8(self.arrived.lock().unwrap().clone()).unwrap()
    }

    fn wait_for(&self, is_there: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + LONG;
        loop {
            let text = self.text();
            if is_there(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "{text:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

const LONG: Duration = Duration::from_secs(20);
const WHOLE: io::Result<usize> = Ok(usize::MAX);

#[test]
fn lines_arrive_whole_and_in_order() {
    let mut test = Test::new();
    test.answer(Ok(2));
    test.answer(Err(ErrorKind::Interrupted.into()));
    test.answer(Err(ErrorKind::WouldBlock.into()));
    test.answers = None;
    test.push("first\n");
    test.push("second\n");
    test.wait_for(|text| text == "first\nsecond\n");
    assert_eq!(test.lines.lost(), 0);
}

#[test]
fn a_reader_that_does_not_read_blocks_nothing_and_gets_the_number_of_lost_lines() {
    let mut test = Test::new();
    let begun = Instant::now();
    let line = "x".repeat(QUEUE_BYTES_MAX / 100 - 1) + "\n";
    (0..300).for_each(|_| test.push(&line));
    test.lines.flush(Duration::from_millis(20), LONG);
    assert!(begun.elapsed() < Duration::from_secs(10), "nothing waits for the reader");
    let lost = test.lines.lost();
    assert!((199..=200).contains(&lost), "{lost}");
    test.answers = None;
    let text = test.wait_for(|text| text.ends_with(" lost\n"));
    let (lines, notices): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with('x'));
    assert_eq!(lines.len() as u64, 300 - lost);
    assert_eq!(notices, [format!("{lost} lost")]);
}

#[test]
fn short_lines_do_not_fill_memory_either() {
    let test = Test::new();
    (0..2 * QUEUE_LINES_MAX).for_each(|_| test.push("\n"));
    assert!(test.lines.lost() >= QUEUE_LINES_MAX as u64 - 1);
}

#[test]
fn what_cannot_be_written_is_counted_and_reported_once_it_works_again() {
    let mut test = Test::new();
    // The partition fills in the middle of a line.
    test.answer(Ok(3));
    (0..3).for_each(|_| test.answer(Err(ErrorKind::StorageFull.into())));
    ["one\n", "two\n", "three\n"].iter().for_each(|line| test.push(line));
    test.lines.flush(LONG, LONG);
    assert_eq!((test.text().as_str(), test.lines.lost()), ("one", 3));
    // No write is tried while nothing is to be said: a pipe without a reader never heals.
    std::thread::sleep(Duration::from_millis(50));
    test.answer(WHOLE);
    test.answers = None;
    test.push("four\n");
    test.wait_for(|text| text == "one\nfour\n3 lost\n");
    test.push("five\n");
    test.wait_for(|text| text == "one\nfour\n3 lost\nfive\n");
    assert_eq!(test.lines.lost(), 3);
}

/// A pipe; its writing thread gets no processor time for `delay` before each line.
fn starved(delay: Duration) -> (Lines, io::PipeReader) {
    struct Starved(io::PipeWriter, Duration);
    impl Write for Starved {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            std::thread::sleep(self.1);
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (reader, writer) = io::pipe().unwrap();
    let room = writer.try_clone().unwrap().into();
    let notice = Box::new(|_: u64| Vec::new());
    (Lines::begin(Starved(writer, delay), Some(room), notice).unwrap(), reader)
}

#[test]
fn the_last_words_are_waited_for_while_only_the_machine_is_slow() {
    let (lines, mut reader) = starved(Duration::from_millis(400));
    lines.push(b"first\n".to_vec());
    lines.push(b"last\n".to_vec());
    lines.flush(Duration::from_millis(50), LONG);
    let mut said = [0; 64];
    let length = io::Read::read(&mut reader, &mut said).unwrap();
    assert_eq!(&said[..length], b"first\nlast\n");
}

#[test]
fn a_machine_that_never_gets_to_it_and_a_reader_who_takes_nothing_hold_no_program_up() {
    let (lines, _reader) = starved(Duration::from_secs(60));
    lines.push(b"first\n".to_vec());
    let begun = Instant::now();
    lines.flush(Duration::from_millis(50), Duration::from_millis(300));
    assert!((300..10_000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    let (lines, _reader) = starved(Duration::ZERO);
    (0..100).for_each(|_| lines.push(vec![b'x'; 4_096]));
    lines.flush(Duration::from_millis(500), Duration::from_millis(500));
    let begun = Instant::now();
    lines.flush(Duration::from_millis(50), LONG);
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
}
