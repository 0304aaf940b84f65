//! Where captured packets go: a file, a pipe, or lines for people.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;

use super::frame::Frame;
use super::pcapng::{self, InterfaceBlock, LinkType, PacketBlock, StatisticsBlock};

/// What is written, and where.
#[derive(Debug)]
pub(super) struct Sink {
    target: Target,
    snaplen: u32,
    interfaces: BTreeMap<(String, LinkType), u32>,
    /// By interface.
    statistics: Vec<StatisticsBlock>,
    /// Blocks that wait to be written.
    buffer: Vec<u8>,
    /// Bytes that were written.
    written: u64,
}

#[derive(Debug)]
enum Target {
    Lines,
    Pipe,
    File(File, PathBuf),
}

impl Sink {
    /// Writes to the file `path`, to standard output where it is `-`, and lines without one.
    ///
    /// # Errors
    /// When the file cannot be made, or standard output is a terminal.
    pub(super) fn open(path: Option<&Path>, snaplen: usize) -> Result<Self> {
        let target = match path {
            None => Target::Lines,
            Some(path) if path == Path::new("-") => {
                if io::stdout().is_terminal() {
                    let why = "standard output is a terminal: send it into a file or to Wireshark, \
                               or leave --write out for lines";
                    return Err(BadInput::new(why).into());
                }
                Target::Pipe
            }
            Some(path) => Target::File(create(path)?, path.to_owned()),
        };
        let mut buffer = Vec::new();
        if !matches!(target, Target::Lines) {
            pcapng::section(concat!("roadweave ", env!("CARGO_PKG_VERSION")), &mut buffer);
        }
        let (interfaces, statistics) = (BTreeMap::new(), Vec::new());
        let mut sink =
            Self { target, snaplen: snaplen as u32, interfaces, statistics, buffer, written: 0 };
        sink.flush(|| false)?;
        Ok(sink)
    }

    /// Takes a packet, which waits for [`Sink::flush`].
    pub(super) fn take(&mut self, frame: &Frame) {
        let at = self.interface(&frame.interface, frame.link, frame.unix_nanos);
        let statistics = &mut self.statistics[at as usize];
        statistics.received += 1;
        statistics.end_unix_nanos = frame.unix_nanos;
        if let Target::Lines = self.target {
            let seconds = frame.unix_nanos / 1_000_000_000;
            let micros = frame.unix_nanos % 1_000_000_000 / 1000;
            let Frame { interface, comment, length, .. } = frame;
            let line = format!("{seconds}.{micros:06} {interface}: {comment}, {length} bytes\n");
            self.buffer.extend(line.as_bytes());
        } else {
            let block = PacketBlock {
                interface: at,
                unix_nanos: frame.unix_nanos,
                length: frame.length,
                bytes: &frame.bytes,
                is_out: frame.is_out,
                comment: &frame.comment,
            };
            pcapng::packet(&block, &mut self.buffer);
        }
    }

    /// Whether so much waits that it should be written before more is taken.
    pub(super) fn is_full(&self) -> bool {
        self.buffer.len() >= BUFFER
    }

    /// The number of an interface, which is described if it is new.
    pub(super) fn interface(&mut self, name: &str, link: LinkType, unix_nanos: u64) -> u32 {
        let full = self.interfaces.len() >= INTERFACES_MAX;
        let is_known = self.interfaces.contains_key(&(name.to_owned(), link));
        let name = if full && !is_known { REST } else { name };
        if let Some(at) = self.interfaces.get(&(name.to_owned(), link)) {
            return *at;
        }
        let at = self.statistics.len() as u32;
        self.interfaces.insert((name.to_owned(), link), at);
        self.statistics.push(StatisticsBlock {
            interface: at,
            begin_unix_nanos: unix_nanos,
            end_unix_nanos: unix_nanos,
            dropped: Some(0),
            ..StatisticsBlock::default()
        });
        if !matches!(self.target, Target::Lines) {
            let description = match link {
                LinkType::Raw => "a path of Roadweave, or its device",
                LinkType::User0 => "coded packets of Roadweave on a path",
            };
            let snaplen = self.snaplen;
            let block = InterfaceBlock { name, description, link, snaplen };
            pcapng::interface(&block, &mut self.buffer);
        }
        at
    }

    /// Writes what waits. A reader of standard output who takes nothing is waited for until
    /// `is_over` says that it is enough.
    ///
    /// # Errors
    /// When it cannot be written; the file then ends with what was written before.
    pub(super) fn flush(&mut self, mut is_over: impl FnMut() -> bool) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        match &mut self.target {
            Target::Lines | Target::Pipe => {
                // A pipe that is ready takes as much without waiting (pipe(7), PIPE_BUF).
                for some in self.buffer.chunks(PIPE_BUF) {
                    while !takes_more()? {
                        if is_over() {
                            bail!("who reads standard output takes nothing; the rest is lost");
                        }
                    }
                    out::bytes(some)?;
                }
            }
            Target::File(file, path) => {
                if let Err(error) = file.write_all(&self.buffer) {
                    // A reader refuses a file that ends within a block.
                    let _ = file.set_len(self.written);
                    return Err(error).with_context(|| {
                        format!("cannot write to {}; what came before is in it", path.display())
                    });
                }
            }
        }
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes how it went: `missed` packets of all interfaces were not seen, if that is known; it
    /// is told of the one called `device`.
    ///
    /// # Errors
    /// As [`Sink::flush`].
    pub(super) fn end(
        &mut self,
        device: &str,
        missed: Option<u64>,
        unix_nanos: u64,
        is_over: impl FnMut() -> bool,
    ) -> Result<()> {
        if matches!(self.target, Target::Lines) {
            return self.flush(is_over);
        }
        let at = self.interface(device, LinkType::Raw, unix_nanos);
        self.statistics[at as usize].dropped = missed;
        for statistics in &mut self.statistics {
            statistics.end_unix_nanos = statistics.end_unix_nanos.max(unix_nanos);
            pcapng::statistics(statistics, &mut self.buffer);
        }
        self.flush(is_over)
    }

    /// Bytes that were written or wait.
    pub(super) fn bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }
}

/// Whether standard output takes something now, or within [`NAP`].
fn takes_more() -> io::Result<bool> {
    let output = io::stdout();
    let mut fds = [PollFd::new(&output, PollFlags::OUT)];
    match poll(&mut fds, Some(&NAP)) {
        Ok(_) => Ok(!fds[0].revents().is_empty()),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Makes a file that is this user's alone: what people said to each other is in it. One that is
/// there has to be this user's as well; so where others may write, they cannot say beforehand what
/// root writes over, or who reads it.
fn create(path: &Path) -> Result<File, BadInput> {
    let wrong = |why: &str| BadInput::new(format!("cannot make {}: {why}", path.display()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    let file = options.open(path).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => wrong("it is a link; name the file that it leads to"),
        Some(Errno::NXIO) => wrong("it is a pipe that nobody reads"),
        _ => wrong(&error.to_string()),
    })?;
    let found = file.metadata().map_err(|error| wrong(&error.to_string()))?;
    if !found.file_type().is_char_device() && found.uid() != geteuid().as_raw() {
        return Err(wrong(&format!("it is there, and belongs to user {}", found.uid())));
    }
    if !found.is_file() && !found.file_type().is_char_device() {
        return Err(wrong("it is no file; send the capture through standard output: --write -"));
    }
    if found.is_file() {
        if found.nlink() > 1 {
            return Err(wrong("it has other names, which may be somebody else's"));
        }
        file.set_len(0).map_err(|error| wrong(&error.to_string()))?;
    }
    Ok(file)
}

/// Interfaces of a file at most: a server's clients may come and go for ever.
const INTERFACES_MAX: usize = 4096;
/// The interface of all beyond these.
const REST: &str = "further paths";
/// Bytes that wait until they are written anyhow.
const BUFFER: usize = 1 << 16;
const PIPE_BUF: usize = 4096;
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use rustix::fs::{FileType, Mode};

    use super::*;

    #[test]
    fn only_a_file_of_ones_own_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let [new, own, link, foreign] =
            ["new", "own", "link", "foreign"].map(|name| folder.path().join(name));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        create(&new).unwrap();
        assert_eq!(mode(&new), 0o600);
        fs::write(&own, "what was there before").unwrap();
        create(&own).unwrap();
        assert_eq!(fs::read(&own).unwrap(), b"");
        fs::write(&own, "of importance").unwrap();
        symlink(&own, &link).unwrap();
        assert!(create(&link).unwrap_err().to_string().ends_with("name the file that it leads to"));
        fs::write(&foreign, "of importance").unwrap();
        // Only root can give files away.
        if chown(&foreign, Some(4711), None).is_ok() {
            let said = create(&foreign).unwrap_err().to_string();
            assert!(said.ends_with("belongs to user 4711"), "{said}");
            assert_eq!(fs::read(&foreign).unwrap(), b"of importance");
        }
        let second = folder.path().join("second");
        fs::hard_link(&own, &second).unwrap();
        assert!(create(&second).unwrap_err().to_string().contains("it has other names"));
        assert_eq!(fs::read(&own).unwrap(), b"of importance");
        assert!(create(folder.path()).is_err());
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(create(&pipe).unwrap_err().to_string().ends_with("nobody reads"));
    }
}
