//! Notifies the service manager (sd_notify(3)): readiness, watchdog and a status line. The socket
//! is nonblocking, so that a stuck service manager cannot stop packets.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use roadweave_proto::Instant;

#[derive(Debug, Default)]
pub(super) struct ServiceManager {
    socket: Option<UnixDatagram>,
    owes_ready: bool,
    watchdog: Option<Duration>,
    next_watchdog: Instant,
    next_status: Instant,
    last_status: String,
}

impl ServiceManager {
    pub(super) fn of(variable: impl Fn(&str) -> String) -> Self {
        let socket = variable("NOTIFY_SOCKET");
        let process = variable("WATCHDOG_PID");
        let is_for_us = process.is_empty() || process == std::process::id().to_string();
        let watchdog = variable("WATCHDOG_USEC").parse().ok().filter(|us| is_for_us && *us > 0);
        if socket.is_empty() {
            return Self::default();
        }
        let connected = connect(&socket);
        match connected.and_then(|it| Self::new(it, watchdog.map(Duration::from_micros))) {
            Ok(manager) => manager,
            Err(error) => {
                tracing::warn!(%error, socket, "cannot notify the service manager");
                Self::default()
            }
        }
    }

    /// `watchdog`: the manager's limit for a hang, in which three notifications fit.
    fn new(socket: UnixDatagram, watchdog: Option<Duration>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let watchdog = watchdog.map(|limit| limit / 3);
        Ok(Self { socket: Some(socket), watchdog, ..Self::default() })
    }

    pub(super) fn on_ready(&mut self) {
        self.owes_ready = !self.notify("READY=1");
    }

    pub(super) fn on_stop(&mut self) {
        self.notify("STOPPING=1");
    }

    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        others_turned: impl FnOnce() -> bool,
        status: impl FnOnce() -> String,
    ) {
        if self.socket.is_none() {
            return;
        }
        if self.owes_ready {
            self.on_ready();
        }
        if let Some(interval) = self.watchdog
            && self.next_watchdog <= now
            && others_turned()
        {
            self.next_watchdog = now + interval;
            self.notify("WATCHDOG=1");
        }
        if self.next_status <= now {
            self.next_status = now + STATUS_INTERVAL;
            let status = status().replace(['\n', '\r'], " ");
            if status != self.last_status && self.notify(&format!("STATUS={status}")) {
                self.last_status = status;
            }
        }
    }

    fn notify(&self, state: &str) -> bool {
        let sent = self.socket.as_ref().map(|socket| socket.send(state.as_bytes()));
        sent.is_some_and(|sent| sent.is_ok())
    }
}

/// A socket to `address`, a path or an abstract name after an `@`.
fn connect(address: &str) -> io::Result<UnixDatagram> {
    let address = match address.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

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
        manager.set_nonblocking(true).expect("set");
        (ServiceManager::new(ours, Some(watchdog)).expect("set"), manager)
    }

    #[test]
    fn it_hears_of_each_change_and_thrice_in_its_limit_that_the_loop_turns() {
        let (mut ours, manager) = pair(Duration::from_secs(30));
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        ours.on_ready();
        for second in 0..30 {
            let status = if second < 15 { "no session" } else { "2 paths\nREADY=0" };
            ours.handle_timeout(at(second), || true, || status.to_owned());
        }
        ours.on_stop();
        let expected = "READY=1|WATCHDOG=1|STATUS=no session|WATCHDOG=1|\
                        STATUS=2 paths READY=0|WATCHDOG=1|STOPPING=1";
        assert_eq!(heard(&manager).join("|"), expected);
    }

    #[test]
    fn the_watchdog_is_notified_only_while_all_other_threads_turn() {
        let (mut ours, manager) = pair(Duration::from_secs(30));
        let mut notified = Vec::new();
        for second in 0..100 {
            let now = Instant::ZERO + Duration::from_secs(second);
            ours.handle_timeout(now, || !(25..75).contains(&second), String::new);
            if heard(&manager).contains(&"WATCHDOG=1".to_owned()) {
                notified.push(second);
            }
        }
        assert_eq!(notified, [0, 10, 20, 75, 85, 95]);
    }

    #[test]
    fn the_environment_says_where_it_is_and_how_often_it_wants_to_hear() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let _manager = UnixDatagram::bind(&socket).expect("a socket");
        let check = |process: &str, usec: &str, expected: Option<u64>| {
            let ours = ServiceManager::of(|name| match name {
                "NOTIFY_SOCKET" => socket.display().to_string(),
                "WATCHDOG_PID" => process.to_owned(),
                _ => usec.to_owned(),
            });
            assert!(ours.socket.is_some());
            assert_eq!(ours.watchdog, expected.map(Duration::from_secs), "{process} {usec}");
        };
        let me = std::process::id().to_string();
        check(&me, "30000000", Some(10));
        check("", "30000000", Some(10));
        check("1", "30000000", None);
        check(&me, "0", None);
        check(&me, "soon", None);
        assert!(ServiceManager::of(|_| String::new()).socket.is_none());
    }

    #[test]
    fn readiness_is_notified_once_there_is_room() {
        let (mut ours, manager) = pair(Duration::from_secs(3_000));
        while ours.notify("STATUS=") {}
        ours.on_ready();
        heard(&manager);
        ours.handle_timeout(Instant::ZERO + Duration::from_secs(1), || true, String::new);
        assert!(heard(&manager).contains(&"READY=1".to_owned()));
    }

    #[test]
    fn a_service_manager_that_reads_nothing_or_is_gone_blocks_nothing() {
        let (mut ours, manager) = pair(Duration::from_micros(3));
        for milli in 0..100_000 {
            let now = Instant::ZERO + Duration::from_millis(milli);
            ours.handle_timeout(now, || true, || milli.to_string());
        }
        assert!(heard(&manager).len() < 100_000, "it would have waited");
        drop(manager);
        ours.on_ready();
        let now = Instant::ZERO + Duration::from_secs(1_000);
        ours.handle_timeout(now, || true, || "alone".to_owned());
    }
}
