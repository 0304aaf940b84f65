//! Signals as events: a file descriptor for the poller, and the signals that arrived.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::DeviceError;

/// A signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: the user pressed Ctrl-C.
    Interrupt = SIGINT as isize,
    /// SIGTERM: stop in order.
    Terminate = SIGTERM as isize,
    /// SIGUSR1: stop in order for a restart, with nothing leaving in the clear until then.
    Restart = SIGUSR1 as isize,
    /// SIGHUP: reload.
    Hangup = SIGHUP as isize,
    /// SIGCHLD: a child ended.
    Child = SIGCHLD as isize,
}

/// Catches signals until it is dropped. Repeated arrivals before [`Signals::take`] count once.
#[derive(Debug)]
pub struct Signals {
    pipe: UnixStream,
    caught: Vec<(Signal, Arc<AtomicBool>)>,
    handlers: Vec<SigId>,
}

impl Signals {
    /// Catches `signals`, so that they do not end the process.
    pub fn catch(signals: &[Signal]) -> Result<Self, DeviceError> {
        let failed = |error| DeviceError::system("catch signals", error);
        let (pipe, sender) = UnixStream::pair().map_err(failed)?;
        pipe.set_nonblocking(true).map_err(failed)?;
        sender.set_nonblocking(true).map_err(failed)?;
        let mut this = Self { pipe, caught: Vec::new(), handlers: Vec::new() };
        for signal in signals {
            let flag = Arc::new(AtomicBool::new(false));
            let number = *signal as i32;
            // The flag before the pipe, so that a woken reader finds it set.
            let handler = signal_hook::flag::register(number, Arc::clone(&flag)).map_err(failed)?;
            this.handlers.push(handler);
            let sender = sender.try_clone().map_err(failed)?;
            let handler = signal_hook::low_level::pipe::register(number, sender).map_err(failed)?;
            this.handlers.push(handler);
            this.caught.push((*signal, flag));
        }
        Ok(this)
    }

    /// Takes one signal, in the order of [`Signals::catch`]; `None`: descriptor no longer readable.
    pub fn take(&mut self) -> Option<Signal> {
        let mut bytes = [0; 64];
        while matches!(self.pipe.read(&mut bytes), Ok(1..)) {}
        let arrived = self.caught.iter().find(|(_, flag)| flag.swap(false, Ordering::AcqRel));
        arrived.map(|(signal, _)| *signal)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_signal_makes_the_descriptor_readable_and_is_taken_once() {
        let mut signals = Signals::catch(&[Signal::Terminate, Signal::Hangup]).unwrap();
        assert_eq!(signals.take(), None);
        signal_hook::low_level::raise(SIGHUP).unwrap();
        assert!(crate::wait_readable(&signals, Duration::from_secs(20)).unwrap());
        assert_eq!(signals.take(), Some(Signal::Hangup));
        assert_eq!(signals.take(), None);
        assert!(!crate::wait_readable(&signals, Duration::ZERO).unwrap());
    }
}
