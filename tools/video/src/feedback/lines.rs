//! Lines of a stream, with at most [`LINE_MOST`] bytes of each in memory.

use std::io::{self, BufRead as _, BufReader, Read};

#[derive(Debug)]
pub struct LineReader<R> {
    stream: BufReader<R>,
    line: Vec<u8>,
}

impl<R: Read> LineReader<R> {
    pub fn new(stream: R) -> Self {
        Self { stream: BufReader::new(stream), line: Vec::new() }
    }

    /// The next line without its end, `Some(None)` for an excessive line, `None` at the end.
    pub fn read(&mut self) -> io::Result<Option<Option<&[u8]>>> {
        self.line.clear();
        let mut fits = true;
        loop {
            let bytes = self.stream.fill_buf()?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            fits &= self.line.len() + part.len() <= LINE_MOST;
            if fits {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.stream.consume(used);
            if end.is_some() {
                return Ok(Some(fits.then_some(&self.line)));
            }
        }
    }
}

/// A program with hundreds of lanes stays below it.
const LINE_MOST: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_too_long_are_passed_over() {
        let long = vec![b'x'; LINE_MOST + 1];
        let text = [b"one\n\n".as_slice(), &long, b"\ntwo\n", &long[1..], b"\nno end"].concat();
        let mut lines = LineReader::new(&text[..]);
        let mut found = Vec::new();
        while lines.read().unwrap().is_some() {
            assert!(lines.line.capacity() <= 2 * LINE_MOST);
            found.push(lines.line.len());
        }
        assert_eq!(found[0..2], [3, 0]);
        assert_eq!(found[3..], [3, LINE_MOST]);
        let mut lines = LineReader::new(&text[5..]);
        assert_eq!(lines.read().unwrap(), Some(None));
        assert_eq!(lines.read().unwrap(), Some(Some(&b"two"[..])));
    }
}
