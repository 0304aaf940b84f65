//! Waits for file descriptors, with nanosecond timeouts. Level triggered, so a handler may stop at
//! its budget; except with [`Interest::Edges`].

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::DeviceError;

/// Identifies a file descriptor to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read.
    Read,
    /// Something to read, or room to write.
    ReadWrite,
    /// Both, and the peer's end or failure. Edge triggered: once, until a call would block.
    Edges,
}

/// A ready file descriptor. Errors and hang-ups count as readable, so that the read reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token of the file descriptor.
    pub token: Token,
    /// A read will not block.
    pub readable: bool,
    /// A write will not block.
    pub writable: bool,
    /// The socket failed or is closed; with [`Interest::Edges`] also that the peer sends no more.
    pub closing: bool,
}

/// A set of file descriptors to wait for.
pub struct Poller {
    epoll: OwnedFd,
    counts_nanos: bool,
    ready: Vec<epoll::Event>,
    events: Vec<Event>,
}

impl Poller {
    /// An empty set. Create it in the waiting thread: sets its timer slack to 1 ns (default 50 us).
    pub fn new() -> Result<Self, DeviceError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| DeviceError::system("create an epoll", error))?;
        // A refusal only costs precision.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        Ok(Self {
            epoll,
            counts_nanos: true,
            ready: Vec::with_capacity(EVENTS_MAX),
            events: Vec::with_capacity(EVENTS_MAX),
        })
    }

    /// Adds `fd`, which must not be in the set. Closing its last duplicate removes it.
    pub fn add(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<(), DeviceError> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.0), flags(interest))
            .map_err(|error| DeviceError::system("wait for a file descriptor", error))
    }

    /// Changes the interest in `fd`.
    pub fn modify(
        &self,
        fd: impl AsFd,
        token: Token,
        interest: Interest,
    ) -> Result<(), DeviceError> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token.0), flags(interest))
            .map_err(|error| DeviceError::system("wait for a file descriptor", error))
    }

    /// Removes `fd`.
    pub fn remove(&self, fd: impl AsFd) -> Result<(), DeviceError> {
        epoll::delete(&self.epoll, fd)
            .map_err(|error| DeviceError::system("stop waiting for a file descriptor", error))
    }

    /// Waits until `timeout` (`None`: forever). Returns at most 64 events; none after a signal.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<&[Event]> {
        self.events.clear();
        match self.take_ready(timeout) {
            Ok(()) | Err(Errno::INTR) => {}
            // epoll_pwait2 needs Linux 5.11, and a container's seccomp filter may refuse it.
            Err(Errno::NOSYS | Errno::PERM) if self.counts_nanos => {
                self.counts_nanos = false;
                return self.wait(timeout);
            }
            Err(error) => return Err(error.into()),
        }
        self.events.extend(self.ready.iter().map(|event| {
            let flags = event.flags;
            Event {
                token: Token(event.data.u64()),
                readable: flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP),
                writable: flags.intersects(EventFlags::OUT),
                closing: flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
            }
        }));
        Ok(&self.events)
    }

    fn take_ready(&mut self, timeout: Option<Duration>) -> Result<(), Errno> {
        self.ready.clear();
        let timeout = timeout.map(timespec);
        if self.counts_nanos {
            return epoll_pwait2(&self.epoll, &mut self.ready, timeout.as_ref());
        }
        // epoll_pwait has only milliseconds, so ppoll waits on the epoll first.
        if poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], timeout.as_ref())? > 0 {
            let spare = rustix::buffer::spare_capacity(&mut self.ready);
            epoll::wait(&self.epoll, spare, Some(&timespec(Duration::ZERO)))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

/// Ends a [`Poller::wait`] from another thread. Clones wake the same poller.
#[derive(Clone, Debug)]
pub struct Waker {
    eventfd: Arc<OwnedFd>,
}

impl Waker {
    /// Add it with [`Poller::add`].
    pub fn new() -> Result<Self, DeviceError> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| DeviceError::system("create an eventfd", error))?;
        Ok(Self { eventfd: Arc::new(eventfd) })
    }

    /// Makes the poller's event ready until [`Waker::clear`].
    pub fn wake(&self) {
        // Fails only with 2^64 - 2 pending wakes, and then it is awake.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    /// Clears all wakes; returns whether there was one.
    pub fn clear(&self) -> bool {
        let mut count = [0; 8];
        rustix::io::read(&self.eventfd, &mut count).is_ok()
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// Waits until one of `fds` is ready, at most for `timeout`; returns whether one is.
pub fn wait_any(fds: &mut [PollFd<'_>], timeout: Duration) -> io::Result<bool> {
    match poll(fds, Some(&timespec(timeout))) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits until `fd` is readable, at most for `timeout`; returns whether it is.
pub fn wait_readable(fd: impl AsFd, timeout: Duration) -> io::Result<bool> {
    wait_any(&mut [PollFd::new(&fd, PollFlags::IN)], timeout)
}

#[allow(
    unsafe_code,
    reason = "rustix rounds the timeout to milliseconds where it may be an old kernel's"
)]
fn epoll_pwait2(
    epoll: &OwnedFd,
    ready: &mut Vec<epoll::Event>,
    timeout: Option<&Timespec>,
) -> Result<(), Errno> {
    let timeout = timeout.map(|timeout| [timeout.tv_sec, timeout.tv_nsec]);
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let events = ready.spare_capacity_mut();
    let room = i32::try_from(events.len()).unwrap_or(i32::MAX);
    let no_signals = std::ptr::null::<libc::sigset_t>();
    // SAFETY: the kernel writes at most `room` events, of the layout of `epoll::Event`. It reads
    // two 64-bit integers from `timeout` if that is not null, and nothing from a null mask.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            room,
            timeout,
            no_signals,
            0usize,
        )
    };
    let count = usize::try_from(count)
        .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL))?;
    // SAFETY: the kernel has written this many events, at most `room`.
    unsafe { ready.set_len(count) };
    Ok(())
}

fn flags(interest: Interest) -> EventFlags {
    match interest {
        Interest::Read => EventFlags::IN,
        Interest::ReadWrite => EventFlags::IN | EventFlags::OUT,
        Interest::Edges => EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET,
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

const EVENTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const WAKER: Token = Token(7);

    fn poller_with_waker() -> (Poller, Waker) {
        let poller = Poller::new().unwrap();
        let waker = Waker::new().unwrap();
        poller.add(&waker, WAKER, Interest::Read).unwrap();
        (poller, waker)
    }

    fn both_kinds() -> [(Poller, Waker); 2] {
        let (young, mut old) = (poller_with_waker(), poller_with_waker());
        old.0.counts_nanos = false;
        [young, old]
    }

    #[test]
    fn a_wake_is_reported_until_it_is_cleared_or_its_descriptor_removed() {
        let (mut poller, waker) = poller_with_waker();
        let ready = |poller: &mut Poller| poller.wait(Some(Duration::ZERO)).unwrap().len();
        waker.wake();
        waker.wake();
        assert_eq!([ready(&mut poller), ready(&mut poller)], [1, 1]);
        assert!(waker.clear() && !waker.clear());
        assert_eq!(ready(&mut poller), 0);
        waker.wake();
        poller.remove(&waker).unwrap();
        assert_eq!(ready(&mut poller), 0);
    }

    #[test]
    fn a_timeout_of_less_than_a_millisecond_is_kept() {
        for (mut poller, _waker) in both_kinds() {
            let shortest = (0..20)
                .map(|_| {
                    let start = std::time::Instant::now();
                    assert!(poller.wait(Some(Duration::from_micros(200))).unwrap().is_empty());
                    start.elapsed()
                })
                .min()
                .unwrap();
            assert!(shortest >= Duration::from_micros(200), "{shortest:?}");
            assert!(shortest < Duration::from_millis(1), "{shortest:?}");
        }
    }
}
