//! The connections of the bench, both ends: callers behind the boxes, and the host that answers.
//!
//! ```text
//!   caller ─ SOCKS5 ─► box ═══► server ─► host
//!          ─ a number of bytes ─────────► so many come back, then the host closes
//!          ─ none ──────────────────────► it stays open until the caller closes
//! ```
//!
//! The host closes first, as a server of HTTP without keep-alive does, so that the ports that the
//! far end connects from are free again at once.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use anyhow::Context as _;
use roadweave_types::Instant;
use socket2::{Domain, Socket, Type};

use super::site::{HOST, OneBox};
use crate::sandbox::clock;

/// What a short connection asks for, bytes.
pub const ANSWER_BYTES: u64 = 1_000;
/// Nothing is waited for longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Threads of the host. A connection has one while it is answered, and none while it is held.
const HOST_THREADS: usize = 64;
/// Callers at one box that are under way at a time.
const CALLERS: u64 = 128;

/// Answers the connections of `bench connections`, until it is killed
///
/// A process of its own: what it holds are as many descriptors as the callers'.
#[derive(Debug, clap::Args)]
pub struct HostArgs {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
}

impl HostArgs {
    /// Answers for ever.
    ///
    /// # Errors
    /// When it may not listen.
    pub fn run(&self) -> anyhow::Result<()> {
        let listen = self.listen;
        let listener =
            TcpListener::bind(listen).with_context(|| format!("cannot listen at {listen}"))?;
        let (sender, receiver) = mpsc::sync_channel::<TcpStream>(HOST_THREADS);
        let receiver = Mutex::new(receiver);
        std::thread::scope(|scope| {
            for _ in 0..HOST_THREADS {
                scope.spawn(|| answer_all(&receiver));
            }
            for socket in listener.incoming().flatten() {
                sender.send(socket).expect("the threads end with this one");
            }
        });
        Ok(())
    }
}

fn answer_all(sockets: &Mutex<mpsc::Receiver<TcpStream>>) {
    let mut held = Vec::new();
    loop {
        let Ok(socket) = sockets.lock().expect("nobody panics with it").recv() else { return };
        // What a caller does to its connection is its own to tell.
        if let Ok(Some(socket)) = answer(socket) {
            held.push(socket);
        }
    }
}

/// Answers a connection; returns it if it is to stay open.
fn answer(mut socket: TcpStream) -> std::io::Result<Option<TcpStream>> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut wanted = [0; 8];
    socket.read_exact(&mut wanted)?;
    let mut wanted = u64::from_be_bytes(wanted);
    if wanted == 0 {
        socket.write_all(&[1])?;
        return Ok(Some(socket));
    }
    let bytes = [0x5a; 65_536];
    while wanted > 0 {
        let count = usize::try_from(wanted).map_or(bytes.len(), |wanted| wanted.min(bytes.len()));
        socket.write_all(&bytes[..count])?;
        wanted -= count as u64;
    }
    Ok(None)
}

/// Why a connection came to nothing.
pub type Failure = String;

/// Asks a box for a connection to the host, as its application `number`, and the host for `wanted`
/// bytes.
fn call(at: &OneBox, number: u64, wanted: u64) -> Result<TcpStream, Failure> {
    let told = |what: &'static str| move |error: std::io::Error| failure(what, error.kind());
    let connect = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&at.application(number).into())?;
        socket.connect_timeout(&at.entrance.into(), PATIENCE)?;
        Ok(TcpStream::from(socket))
    };
    let mut socket = connect().map_err(told("calling the box"))?;
    let prepare = || {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))
    };
    prepare().map_err(told("the socket"))?;
    let mut method = [0; 2];
    socket.write_all(&[5, 1, 0]).map_err(told("the greeting"))?;
    socket.read_exact(&mut method).map_err(told("the greeting"))?;
    let request = [&[5, 1, 0, 1], &HOST.ip().octets()[..], &HOST.port().to_be_bytes()].concat();
    let mut reply = [0; 10];
    socket.write_all(&request).map_err(told("the request"))?;
    socket.read_exact(&mut reply).map_err(told("the request"))?;
    if method[1] != 0 || reply[1] != 0 {
        return Err(format!("the box answers {} and {}", method[1], reply[1]));
    }
    socket.write_all(&wanted.to_be_bytes()).map_err(told("the question"))?;
    Ok(socket)
}

fn failure(what: &str, kind: ErrorKind) -> Failure {
    format!("{what}: {kind}")
}

/// One connection from the call to its end.
fn short(at: &OneBox, number: u64) -> Result<(), Failure> {
    let mut socket = call(at, number, ANSWER_BYTES)?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES as usize);
    let read = socket.read_to_end(&mut answer);
    read.map_err(|error| failure("the answer", error.kind()))?;
    match answer.len() as u64 {
        ANSWER_BYTES => Ok(()),
        _ => Err("an answer of another length".to_owned()),
    }
}

/// What became of short connections.
#[derive(Debug, Default)]
pub struct Shorts {
    /// From when each that went well was due to its end, ascending.
    pub times: Vec<Duration>,
    /// Those that came to nothing, by why.
    pub failures: BTreeMap<Failure, u64>,
    /// From the first to the last.
    pub time: Duration,
}

/// Calls `count` times by all boxes in turn, one each `interval`; without, as fast as it goes.
///
/// # Errors
/// When a namespace cannot be entered.
pub fn shorts(boxes: &[OneBox], count: u64, interval: Option<Duration>) -> anyhow::Result<Shorts> {
    let next = AtomicU64::new(0);
    let begin = clock::now();
    let of_box = |one: &OneBox| one.lan.enter(|| caller(one, &next, count, begin, interval));
    let workers = std::thread::scope(|scope| {
        let each = || boxes.iter();
        let started: Vec<_> = (0..CALLERS / boxes.len().max(1) as u64)
            .flat_map(|_| each())
            .map(|one| scope.spawn(|| of_box(one)))
            .collect();
        started
            .into_iter()
            .map(|worker| worker.join().expect("callers do not panic"))
            .collect::<Result<Vec<Shorts>, _>>()
    })?;
    let mut all = Shorts { time: clock::now() - begin, ..Shorts::default() };
    for one in workers {
        all.times.extend(one.times);
        for (why, count) in one.failures {
            *all.failures.entry(why).or_default() += count;
        }
    }
    all.times.sort_unstable();
    Ok(all)
}

fn caller(
    at: &OneBox,
    next: &AtomicU64,
    count: u64,
    begin: Instant,
    interval: Option<Duration>,
) -> Shorts {
    let mut all = Shorts::default();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return all;
        }
        // A caller that comes late counts from when it was due: waiting is part of the time.
        let due = match interval {
            Some(interval) => begin + interval.mul_f64(number as f64),
            None => clock::now(),
        };
        clock::sleep_until(due);
        match short(at, number) {
            Ok(()) => all.times.push(clock::now() - due),
            Err(why) => *all.failures.entry(why).or_default() += 1,
        }
    }
}

/// Opens `count` connections, at all boxes in turn, that stay open while they are held.
///
/// # Errors
/// When one of them does not come about, with why.
pub fn hold(boxes: &[OneBox], count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let share = |number: usize| count / boxes.len() + usize::from(number < count % boxes.len());
    let open = |(number, one): (usize, &OneBox)| {
        let connections = one.lan.enter(|| {
            let opened = (0..share(number)).map(|at| {
                let mut socket = call(one, at as u64, 0)?;
                let mut first = [0];
                let read = socket.read_exact(&mut first);
                read.map_err(|error| failure("the first byte", error.kind())).map(|()| socket)
            });
            opened.collect::<Result<Vec<_>, Failure>>()
        })?;
        connections.map_err(|why| anyhow::anyhow!("box {number}: a connection to be held: {why}"))
    };
    let opened = std::thread::scope(|scope| {
        let started: Vec<_> =
            boxes.iter().enumerate().map(|one| scope.spawn(move || open(one))).collect();
        started
            .into_iter()
            .map(|worker| worker.join().expect("callers do not panic"))
            .collect::<anyhow::Result<Vec<_>>>()
    })?;
    Ok(opened.into_iter().flatten().collect())
}

/// Reads from the host for `time` by `count` connections, through all boxes in turn; bits per
/// second of all.
///
/// # Errors
/// When one of them does not come about or breaks, with why.
pub fn bulk(boxes: &[OneBox], count: usize, time: Duration) -> anyhow::Result<f64> {
    let begin = clock::now();
    let read = |at: usize| -> anyhow::Result<u64> {
        let one = &boxes[at % boxes.len()];
        let bytes = one.lan.enter(|| {
            let mut socket = call(one, at as u64, u64::MAX)?;
            let (mut buffer, mut bytes) = (vec![0; 262_144], 0);
            while clock::now() < begin + time {
                match socket.read(&mut buffer) {
                    Ok(0) => return Err("it ends too early".to_owned()),
                    Ok(count) => bytes += count as u64,
                    Err(error) => return Err(failure("reading", error.kind())),
                }
            }
            Ok(bytes)
        })?;
        bytes.map_err(|why| anyhow::anyhow!("a long connection: {why}"))
    };
    let bytes = std::thread::scope(|scope| {
        let started: Vec<_> = (0..count).map(|at| scope.spawn(move || read(at))).collect();
        started
            .into_iter()
            .map(|worker| worker.join().expect("readers do not panic"))
            .sum::<anyhow::Result<u64>>()
    })?;
    Ok(bytes as f64 * 8.0 / (clock::now() - begin).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_sends_what_is_wanted_and_holds_what_wants_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        for wanted in [0, 1, 65_536, 200_001_u64] {
            let asking = std::thread::spawn(move || {
                let mut socket = TcpStream::connect(to).unwrap();
                socket.write_all(&wanted.to_be_bytes()).unwrap();
                let mut got = Vec::new();
                socket.read_to_end(&mut got).unwrap();
                got.len() as u64
            });
            let held = answer(listener.accept().unwrap().0).unwrap();
            assert_eq!(held.is_some(), wanted == 0);
            drop(held);
            assert_eq!(asking.join().unwrap(), wanted.max(1));
        }
    }
}
