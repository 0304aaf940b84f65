//! Waiting for file descriptors, with deadlines that are exact to the timer of the kernel.
//!
//! ```text
//! TUN, sockets, netlink, Waker --> Poller::wait(timeout) --> events, by token
//! ```
//!
//! Level triggered: what was not read is reported again, so that a handler may stop at its budget.
//! Only who asks for [`Interest::Edges`] keeps that in mind itself.

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
    /// Both, and that the peer sends no more or the socket has failed; each told once when it
    /// becomes so (edge triggered), until a read or a write has said that it would block.
    Edges,
}

/// A file descriptor that is ready. Errors and hang-ups count as readable: the read tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token of the file descriptor.
    pub token: Token,
    /// A read will not block.
    pub readable: bool,
    /// A write will not block.
    pub writable: bool,
    /// The socket has failed or is over; with [`Interest::Edges`] also: the peer sends no more.
    pub closing: bool,
}

/// A set of file descriptors to wait for.
pub struct Poller {
    epoll: OwnedFd,
    /// Whether the kernel waits for events and counts nanoseconds in one call, as far as is known.
    counts_nanos: bool,
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
            counts_nanos: true,
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
    /// When `epoll_pwait2` or `ppoll` fails, which no living process sees.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<&[Event]> {
        self.events.clear();
        match self.take_ready(timeout) {
            Ok(()) | Err(Errno::INTR) => {}
            // epoll_pwait2 is younger than kernels in use (5.11), and a container may bar what it
            // does not know.
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
        // epoll_pwait counts milliseconds; ppoll on the epoll itself counts nanoseconds everywhere,
        // for a second call.
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
/// When `ppoll` fails.
pub fn wait_readable(fd: impl AsFd, timeout: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    match poll(&mut fds, Some(&timespec(timeout))) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Puts up to as many events into `ready`, which is empty, as it has room for.
#[allow(
    unsafe_code,
    reason = "rustix rounds the timeout to milliseconds where it may be an old kernel's"
)]
fn epoll_pwait2(
    epoll: &OwnedFd,
    ready: &mut Vec<epoll::Event>,
    timeout: Option<&Timespec>,
) -> Result<(), Errno> {
    // `struct __kernel_timespec`, of 64 bits everywhere.
    let timeout = timeout.map(|timeout| [timeout.tv_sec, timeout.tv_nsec]);
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let events = ready.spare_capacity_mut();
    let room = i32::try_from(events.len()).unwrap_or(i32::MAX);
    let no_signals = std::ptr::null::<libc::sigset_t>();
    // SAFETY: the kernel writes at most `room` events into `events`, which has room for them, of
    // the layout that `epoll::Event` is declared with; it reads two integers of 64 bits from
    // `timeout` if that is not null, and nothing from a mask that is.
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
    // SAFETY: the kernel has written as many events, at most as many as there was room for.
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

    /// One as on this kernel, and one as on an old one.
    fn both_kinds() -> [(Poller, Waker); 2] {
        let (young, mut old) = (poller_with_waker(), poller_with_waker());
        old.0.counts_nanos = false;
        [young, old]
    }

    #[test]
    fn a_wake_from_another_thread_ends_the_wait() {
        for (mut poller, waker) in both_kinds() {
            let other = waker.clone();
            let thread = std::thread::spawn(move || other.wake());
            let events = poller.wait(Some(Duration::from_secs(20))).unwrap();
            assert_eq!(
                events,
                [Event { token: WAKER, readable: true, writable: false, closing: false }]
            );
            thread.join().unwrap();
        }
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
            // Milliseconds as a unit would round up to 1 ms; the best of 20 shows that they do not.
            assert!(shortest < Duration::from_millis(1), "{shortest:?}");
        }
    }

    #[test]
    fn a_removed_descriptor_is_silent() {
        let (mut poller, waker) = poller_with_waker();
        waker.wake();
        poller.remove(&waker).unwrap();
        assert!(poller.wait(Some(Duration::ZERO)).unwrap().is_empty());
    }
}
