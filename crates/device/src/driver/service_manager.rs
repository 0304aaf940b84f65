//! What the service manager is told (sd_notify(3)): that the program is up, that its loop turns,
//! and in a line what it is doing.
//!
//! The socket never waits: a service manager that stands still stops no packet. That is why it is
//! not a library's, which would.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use roadweave_types::Instant;

/// The service manager that has started this program, if one wants to be told.
#[derive(Debug, Default)]
pub(super) struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// How often it wants to hear that the program is alive.
    watchdog: Option<Duration>,
    next_watchdog: Instant,
    next_status: Instant,
    /// The status that it knows.
    told: String,
}

impl ServiceManager {
    /// The one that the environment names.
    pub(super) fn of_environment() -> Self {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let socket = variable("NOTIFY_SOCKET");
        let is_for_us =
            variable("WATCHDOG_PID").parse().is_ok_and(|it: u32| it == std::process::id());
        let watchdog = match is_for_us {
            true => variable("WATCHDOG_USEC").parse().ok().filter(|us| *us > 0),
            false => None,
        };
        if socket.is_empty() {
            return Self::default();
        }
        match connect(&socket) {
            Ok(socket) => Self::new(socket, watchdog.map(Duration::from_micros)),
            Err(error) => {
                tracing::warn!(%error, socket, "the service manager cannot be told anything");
                Self::default()
            }
        }
    }

    /// `watchdog`: after so long without a word the program counts as dead.
    fn new(socket: UnixDatagram, watchdog: Option<Duration>) -> Self {
        let watchdog = watchdog.map(|limit| limit / 3);
        Self { socket: Some(socket), watchdog, ..Self::default() }
    }

    /// The program does what it is for.
    pub(super) fn on_ready(&mut self) {
        self.tell("READY=1");
    }

    /// The program ends, in order.
    pub(super) fn on_stop(&mut self) {
        self.tell("STOPPING=1");
    }

    /// A turn of the loop is over: tells that it is, and the `status`, if that is due.
    pub(super) fn handle_timeout(&mut self, now: Instant, status: impl FnOnce() -> String) {
        if self.socket.is_none() {
            return;
        }
        if let Some(interval) = self.watchdog
            && self.next_watchdog <= now
        {
            self.next_watchdog = now + interval;
            self.tell("WATCHDOG=1");
        }
        if self.next_status <= now {
            self.next_status = now + STATUS_INTERVAL;
            let status = status().replace(['\n', '\r'], " ");
            if status != self.told && self.tell(&format!("STATUS={status}")) {
                self.told = status;
            }
        }
    }

    /// Returns whether it could be told.
    fn tell(&self, state: &str) -> bool {
        let told = self.socket.as_ref().map(|socket| socket.send(state.as_bytes()));
        told.is_some_and(|told| told.is_ok())
    }
}

/// A socket to the one that listens at `address`, a path, or an abstract name after an `@`.
fn connect(address: &str) -> io::Result<UnixDatagram> {
    let address = match address.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

/// How often the status may change.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(manager: &UnixDatagram) -> Vec<String> {
        let next = || {
            let mut buffer = [0; 256];
            let length = manager.recv(&mut buffer).ok()?;
            Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
        };
        std::iter::from_fn(next).collect()
    }

    fn pair(watchdog: Duration) -> (ServiceManager, UnixDatagram) {
        let (ours, manager) = UnixDatagram::pair().expect("sockets");
        ours.set_nonblocking(true).expect("set");
        manager.set_nonblocking(true).expect("set");
        (ServiceManager::new(ours, Some(watchdog)), manager)
    }

    #[test]
    fn it_hears_of_each_change_and_thrice_in_its_limit_that_the_loop_turns() {
        let (mut ours, manager) = pair(Duration::from_secs(30));
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        ours.on_ready();
        for second in 0..30 {
            let status = if second < 15 { "no session" } else { "2 paths\nREADY=0" };
            ours.handle_timeout(at(second), || status.to_owned());
        }
        ours.on_stop();
        assert_eq!(
            heard(&manager),
            [
                "READY=1",
                "WATCHDOG=1",
                "STATUS=no session",
                "WATCHDOG=1",
                "STATUS=2 paths READY=0",
                "WATCHDOG=1",
                "STOPPING=1"
            ]
        );
    }

    #[test]
    fn one_that_reads_nothing_or_is_gone_stops_nobody() {
        let (mut ours, manager) = pair(Duration::from_micros(3));
        for milli in 0..100_000 {
            ours.handle_timeout(Instant::ZERO + Duration::from_millis(milli), || milli.to_string());
        }
        assert!(heard(&manager).len() < 100_000, "it would have waited");
        drop(manager);
        ours.on_ready();
        ours.handle_timeout(Instant::ZERO + Duration::from_secs(1_000), || "alone".to_owned());
    }
}
