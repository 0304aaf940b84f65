//! The monotonic clock, shared by the processes of source, sink and demo.

use roadweave_proto::Instant;
use rustix::thread::ClockId;
use rustix::time::Timespec;

/// The system's monotonic clock: comparable between processes and network namespaces.
pub fn now() -> Instant {
    let time = rustix::time::clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("the monotonic clock counts from the boot");
    let nanos = u64::try_from(time.tv_nsec).expect("nanoseconds are not negative");
    Instant::from_nanos(seconds * 1_000_000_000 + nanos)
}

pub fn sleep_until(at: Instant) {
    let request = Timespec {
        tv_sec: i64::try_from(at.as_nanos() / 1_000_000_000).expect("within 292 years"),
        tv_nsec: i64::try_from(at.as_nanos() % 1_000_000_000).expect("below 10^9"),
    };
    while rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &request).is_err() {
        // Interrupted by a signal: the deadline has not changed.
    }
}
