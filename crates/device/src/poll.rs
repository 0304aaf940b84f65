//! Waiting for file descriptors, with deadlines that are exact to the timer of the kernel.
//!
//! ```text
//! TUN, sockets, netlink, Waker --> Poller::wait(timeout) --> events, by token
//! ```
//!
//! Level triggered: what was not read is reported again, so that a handler may stop at its budget.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::DeviceError;

/// What the owner of a file descriptor calls it; the poller only hands it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read.
    Read,
    /// Something to read, or room to write.
    ReadWrite,
}

/// A file descriptor that is ready. Errors and hang-ups count as readable: the read tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whose.
    pub token: Token,
    /// A read will not block.
    pub readable: bool,
    /// A write will not block.
    pub writable: bool,
}

/// A set of file descriptors to wait for.
pub struct Poller {
    epoll: OwnedFd,
    ready: Vec<epoll::Event>,
    events: Vec<Event>,
}

impl Poller {
    /// An empty set.
    ///
    /// Sets the timer slack of the calling thread to 1 ns (Linux rounds sleeps by 50 us otherwise),
    /// so make it in the thread that waits.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn new() -> Result<Self, DeviceError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| DeviceError::system("create an epoll", error))?;
        // Only precision is lost where the kernel refuses.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        Ok(Self {
            epoll,
            ready: Vec::with_capacity(EVENTS_MAX),
            events: Vec::with_capacity(EVENTS_MAX),
        })
    }

    /// Starts waiting for `fd`. Closing it, when no duplicate is open, ends that by itself.
    ///
    /// # Errors
    /// When it is already in the set, or of a kind that cannot be waited for.
    pub fn add(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<(), DeviceError> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.0), flags(interest))
            .map_err(|error| DeviceError::system("wait for a file descriptor", error))
    }

    /// Changes what is waited for.
    ///
    /// # Errors
    /// When `fd` is not in the set.
    pub fn modify(
        &self,
        fd: impl AsFd,
        token: Token,
        interest: Interest,
    ) -> Result<(), DeviceError> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token.0), flags(interest))
            .map_err(|error| DeviceError::system("wait for a file descriptor", error))
    }

    /// Stops waiting for `fd`.
    ///
    /// # Errors
    /// When `fd` is not in the set.
    pub fn remove(&self, fd: impl AsFd) -> Result<(), DeviceError> {
        epoll::delete(&self.epoll, fd)
            .map_err(|error| DeviceError::system("stop waiting for a file descriptor", error))
    }

    /// Waits until something is ready, or for `timeout`; `None` waits without end.
    ///
    /// Returns at most 64 events; none after the timeout or a signal.
    ///
    /// # Errors
    /// Those of `ppoll`, none of which a living process sees.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<&[Event]> {
        self.ready.clear();
        self.events.clear();
        // epoll_pwait counts milliseconds, and epoll_pwait2 is younger than kernels in use (5.11);
        // ppoll on the epoll itself counts nanoseconds everywhere.
        if timeout != Some(Duration::ZERO) && !wait_ready(&self.epoll, timeout)? {
            return Ok(&self.events);
        }
        let spare = rustix::buffer::spare_capacity(&mut self.ready);
        epoll::wait(&self.epoll, spare, Some(&timespec(Duration::ZERO)))?;
        self.events.extend(self.ready.iter().map(|event| {
            let flags = event.flags;
            Event {
                token: Token(event.data.u64()),
                readable: flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP),
                writable: flags.intersects(EventFlags::OUT),
            }
        }));
        Ok(&self.events)
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
    /// A waker; [`Poller::add`] it with a token of its own.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn new() -> Result<Self, DeviceError> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| DeviceError::system("create an eventfd", error))?;
        Ok(Self { eventfd: Arc::new(eventfd) })
    }

    /// Makes the poller's event ready until [`Waker::clear`].
    pub fn wake(&self) {
        // Fails only when 2^64 - 2 wakes are pending, which is as good as awake.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    /// Takes back all wakes so far; returns whether there was one.
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

/// Waits for one file descriptor to become readable, for at most `timeout`; returns whether it did.
///
/// # Errors
/// Those of `ppoll`.
pub fn wait_readable(fd: impl AsFd, timeout: Duration) -> io::Result<bool> {
    wait_ready(fd, Some(timeout))
}

fn wait_ready(fd: impl AsFd, timeout: Option<Duration>) -> io::Result<bool> {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    match poll(&mut fds, timeout.map(timespec).as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn flags(interest: Interest) -> EventFlags {
    match interest {
        Interest::Read => EventFlags::IN,
        Interest::ReadWrite => EventFlags::IN | EventFlags::OUT,
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

    #[test]
    fn a_wake_from_another_thread_ends_the_wait() {
        let (mut poller, waker) = poller_with_waker();
        let other = waker.clone();
        let thread = std::thread::spawn(move || other.wake());
        let events = poller.wait(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(events, [Event { token: WAKER, readable: true, writable: false }]);
        thread.join().unwrap();
    }

    #[test]
    fn a_wake_is_reported_until_it_is_cleared() {
        let (mut poller, waker) = poller_with_waker();
        waker.wake();
        waker.wake();
        for _ in 0..2 {
            assert_eq!(poller.wait(Some(Duration::ZERO)).unwrap().len(), 1);
        }
        assert!(waker.clear());
        assert!(!waker.clear());
        assert!(poller.wait(Some(Duration::ZERO)).unwrap().is_empty());
    }

    #[test]
    fn a_timeout_of_less_than_a_millisecond_is_kept() {
        let (mut poller, _waker) = poller_with_waker();
        let shortest = (0..20)
            .map(|_| {
                let start = std::time::Instant::now();
                assert!(poller.wait(Some(Duration::from_micros(200))).unwrap().is_empty());
                start.elapsed()
            })
            .min()
            .unwrap();
        assert!(shortest >= Duration::from_micros(200), "{shortest:?}");
        // Milliseconds as a unit would round up to 1 ms; the best of 20 shows that they do not.
        assert!(shortest < Duration::from_millis(1), "{shortest:?}");
    }

    #[test]
    fn a_removed_descriptor_is_silent() {
        let (mut poller, waker) = poller_with_waker();
        waker.wake();
        poller.remove(&waker).unwrap();
        assert!(poller.wait(Some(Duration::ZERO)).unwrap().is_empty());
    }
}
