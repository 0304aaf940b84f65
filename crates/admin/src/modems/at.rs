//! Asks a modem by AT commands over a serial device.
//!
//! ```text
//! AT+COPS? ─► device ─► echo, unsolicited codes, +COPS: 0,0,"Some",7, OK ─► answers
//! ```
//!
//! A device is open for one reading only, so others can use it and a replugged one is found. Limits
//! bound hanging modems. Source: ITU-T V.250 section 5 (result codes), 3GPP TS 27.007 (commands).

pub(super) mod answers;

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use roadweave_linux::{is_exclusive, wait_readable};
use roadweave_node::ModemFacts;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::termios::{
    ControlModes, OptionalActions, QueueSelector, Termios, ioctl_tiocexcl, ioctl_tiocnxcl, tcflush,
    tcgetattr, tcsetattr,
};

pub(super) fn facts(path: &Path) -> Result<ModemFacts, String> {
    let mut port = Port::open(path)?;
    let deadline = Instant::now() + DIALOGUE_TIMEOUT;
    let until = |timeout: Duration| deadline.min(Instant::now() + timeout);
    if port.ask("AT", until(GREETING_TIMEOUT))?.is_none() {
        return Err(SILENT.to_owned());
    }
    let mut said = Vec::new();
    for alternatives in QUESTIONS {
        for question in *alternatives {
            let lines = port.ask(question, until(ANSWER_TIMEOUT))?.unwrap_or_default();
            let is_answered = lines.iter().any(|line| answers::is_answer(line, question));
            said.extend(lines);
            if is_answered {
                break;
            }
        }
    }
    answers::of(&said)
}

#[derive(Debug)]
struct Port {
    device: File,
    before: Option<Termios>,
    line: Vec<u8>,
}

impl Port {
    fn open(path: &Path) -> Result<Self, String> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let device = match open(path, flags, Mode::empty()) {
            Ok(device) => File::from(device),
            Err(Errno::BUSY) => return Err(HELD.to_owned()),
            Err(error) => return Err(error.to_string()),
        };
        let kind = device.metadata().map_err(|error| error.to_string())?.file_type();
        if !kind.is_char_device() {
            return Err("it is not a serial device".to_owned());
        }
        // Root can open a device that another program holds exclusively.
        if is_exclusive(&device)
            || flock(&device, FlockOperation::NonBlockingLockExclusive).is_err()
        {
            return Err(HELD.to_owned());
        }
        // Fails on a port that is no terminal; such a port needs no settings either.
        let _ = ioctl_tiocexcl(&device);
        let before = tcgetattr(&device).ok();
        if let Some(mut settings) = before.clone() {
            settings.make_raw();
            settings.control_modes |= ControlModes::CLOCAL | ControlModes::CREAD;
            // A hang-up would end another program's call.
            settings.control_modes.remove(ControlModes::HUPCL);
            tcsetattr(&device, OptionalActions::Now, &settings).map_err(|it| it.to_string())?;
        }
        let _ = tcflush(&device, QueueSelector::IOFlush);
        Ok(Self { device, before, line: Vec::new() })
    }

    fn ask(&mut self, command: &str, deadline: Instant) -> Result<Option<Vec<String>>, String> {
        // A few bytes fit into any buffer, unless the device takes none.
        match self.device.write(format!("{command}\r").as_bytes()) {
            Ok(length) if length == command.len() + 1 => {}
            Ok(_) => return Err(SILENT.to_owned()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(SILENT.to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        let (mut lines, mut bytes) = (Vec::new(), 0);
        let mut buffer = [0; 1_024];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SILENT.to_owned());
            }
            match wait_readable(&self.device, left) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => return Err(error.to_string()),
            }
            let length = match self.device.read(&mut buffer) {
                Ok(0) => return Err(GONE.to_owned()),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Err(GONE.to_owned()),
            };
            bytes += length;
            if bytes > ANSWER_MAX {
                return Err("its answer is too long".to_owned());
            }
            for byte in &buffer[..length] {
                let Some(line) = self.take(*byte) else { continue };
                match AtLine::of(&line, command) {
                    AtLine::Ok => return Ok(Some(lines)),
                    AtLine::Refused => return Ok(None),
                    AtLine::Echo => {}
                    AtLine::Text if lines.len() < LINES_MAX => lines.push(line),
                    AtLine::Text => {}
                }
            }
        }
    }

    fn take(&mut self, byte: u8) -> Option<String> {
        if !matches!(byte, b'\r' | b'\n') {
            if self.line.len() < LINE_MAX {
                self.line.push(byte);
            }
            return None;
        }
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).trim().to_owned();
        (!line.is_empty()).then_some(line)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // A close would wait for output that a hanging device has not taken.
        let _ = tcflush(&self.device, QueueSelector::IOFlush);
        if let Some(before) = &mut self.before {
            before.control_modes.remove(ControlModes::HUPCL);
            let _ = tcsetattr(&self.device, OptionalActions::Now, before);
        }
        let _ = ioctl_tiocnxcl(&self.device);
        // A child of another thread, before exec, holds the descriptor and its lock.
        let _ = flock(&self.device, FlockOperation::Unlock);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtLine {
    Ok,
    Refused,
    Echo,
    Text,
}

impl AtLine {
    fn of(line: &str, command: &str) -> Self {
        match line {
            "OK" => Self::Ok,
            "ERROR" | "COMMAND NOT SUPPORT" => Self::Refused,
            // 3GPP TS 27.007 section 9.2, 27.005 section 3.2.5.
            _ if line.starts_with("+CME ERROR") || line.starts_with("+CMS ERROR") => Self::Refused,
            _ if line == command => Self::Echo,
            _ => Self::Text,
        }
    }
}

/// Within a row the first that is answered counts.
const QUESTIONS: &[&[&str]] = &[
    &["AT+CPIN?"],
    // No standard defines the number of the SIM.
    &["AT+CCID", "AT+QCCID", "AT+ICCID"],
    &["AT+COPS?"],
    &["AT+CSQ"],
    &["AT+CESQ"],
    // An APN that the network assigned takes precedence over the requested one.
    &["AT+CGCONTRDP", "AT+CGDCONT?"],
    // Quectel's: has 5G figures where the modem predates those of AT+CESQ.
    &["AT+QENG=\"servingcell\""],
];
const HELD: &str = "another program uses it";
pub(super) const SILENT: &str = "it does not answer AT commands";
const GONE: &str = "it is gone";
const GREETING_TIMEOUT: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const DIALOGUE_TIMEOUT: Duration = Duration::from_secs(8);
const LINE_MAX: usize = 512;
const LINES_MAX: usize = 32;
const ANSWER_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_answers_echo_commands_or_say_something() {
        let lines = ["OK", "ERROR", "+CME ERROR: 10", "AT+CSQ", "+CSQ: 20,99", "NO CARRIER"];
        let refused = AtLine::Refused;
        let expected = [AtLine::Ok, refused, refused, AtLine::Echo, AtLine::Text, AtLine::Text];
        assert_eq!(lines.map(|line| AtLine::of(line, "AT+CSQ")), expected);
    }
}
