//! Round-trip times: [`ping`] sends to `roadweave bench-echo` at a steady pace.
//!
//! ```text
//!   ping: 64 bytes each millisecond --> UDP --> bench-echo
//!         number in front          <-- UDP <--
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_proto::Instant;

use crate::sandbox::{clock, sockets};

const SIZE: usize = 64;
const INTERVAL: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_millis(500);
/// Uncounted packets in front, for caches, neighbour tables and timers.
const WARM_UP: usize = 100;
const LOSS_MAX: f64 = 0.05;

/// Echoes every datagram, until it is killed
#[derive(Debug, clap::Args)]
pub struct EchoArgs {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
}

impl EchoArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let socket = sockets::listening_on(self.listen)?;
        let mut buffer = [0; 2048];
        loop {
            match socket.recv_from(&mut buffer) {
                // A reply that cannot be sent is lost, as on a network.
                Ok((length, from)) => _ = socket.send_to(&buffer[..length], from),
                Err(error) if sockets::is_transient(error.kind()) => {}
                Err(error) => return Err(error).context("cannot receive"),
            }
        }
    }
}

/// Round-trip times to the echo at `to`, ascending, of `count` packets, one each millisecond. Fails
/// if more than [`LOSS_MAX`] of the replies are missing.
pub fn ping(to: SocketAddr, count: usize) -> anyhow::Result<Vec<Duration>> {
    let socket = sockets::sending_to(to)?;
    socket.set_read_timeout(Some(TIMEOUT)).context("cannot set a timeout")?;
    // With this, sleeps end at the requested nanosecond and not up to 50 us later.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let mut times = Vec::with_capacity(count);
    let mut next = clock::now();
    for number in 0..count + WARM_UP {
        clock::sleep_until(next);
        let sent = clock::now();
        let mut question = [0; SIZE];
        question[..8].copy_from_slice(&(number as u64).to_be_bytes());
        // A refused packet, as before the echo listens, has no reply.
        if socket.send(&question).is_ok()
            && let Some(received) = answer(&socket, number as u64)?
            && number >= WARM_UP
        {
            times.push(received - sent);
        }
        // After a late reply the pace continues from now, without a burst.
        next = (next + INTERVAL).max(clock::now());
    }
    let lost = 1.0 - times.len() as f64 / count.max(1) as f64;
    if lost > LOSS_MAX {
        bail!("{:.0} % of the packets to the echo at {to} were not answered", lost * 100.0);
    }
    times.sort_unstable();
    Ok(times)
}

fn answer(socket: &std::net::UdpSocket, number: u64) -> anyhow::Result<Option<Instant>> {
    let mut buffer = [0; 2048];
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let now = clock::now();
                if buffer[..length].first_chunk() == Some(&number.to_be_bytes()) {
                    return Ok(Some(now));
                }
            }
            Err(error) if sockets::is_transient(error.kind()) => return Ok(None),
            Err(error) => return Err(error).context("cannot receive"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answered_questions_are_timed_and_silence_is_an_error() {
        let echo = sockets::listening_on("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = echo.local_addr().unwrap();
        let answering = WARM_UP + 50;
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            for _ in 0..answering {
                let (length, from) = echo.recv_from(&mut buffer).unwrap();
                echo.send_to(&buffer[..length], from).unwrap();
            }
        });
        let times = ping(to, 50).unwrap();
        assert_eq!(times.len(), 50);
        assert!(times.is_sorted() && times[0] > Duration::ZERO);
        thread.join().unwrap();
        assert!(ping(to, 10).is_err());
    }
}
