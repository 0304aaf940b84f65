//! Downloads by the kernel's TCP between two namespaces, over links of `roadweave emulate`.
//!
//! ```text
//! near: connect, ask ─► linkN ═ roadweave emulate ═ linkN-far ─► far: a listener by algorithm
//! ```

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_device::netns::NetNs;
use roadweave_emulate::LinkFields;
use roadweave_lab::tcp::{Algorithm, REQUEST};
use socket2::{Domain, Socket, Type};

use super::settings::Task;
use crate::emulate::{EmulateFile, NamespaceSettings};
use crate::sandbox::clock;
use crate::sandbox::daemon::Daemon;

/// Both namespaces, and what runs there.
#[derive(Debug)]
pub(super) struct Kernel {
    near: NetNs,
    _far: NetNs,
    /// Where each algorithm listens.
    ports: Vec<(Algorithm, u16)>,
    _emulator: Daemon,
}

impl Kernel {
    /// Makes the namespaces and lets the links run.
    ///
    /// # Errors
    /// What the system refused; a congestion control that the kernel does not have.
    pub(super) fn start(links: &[LinkFields]) -> anyhow::Result<Self> {
        let (near, far) = (NetNs::create("near")?, NetNs::create("far")?);
        for namespace in [&near, &far] {
            // A connection shall learn nothing from the one before it.
            namespace.set_sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
        }
        let namespaces = NamespaceSettings {
            near: Some("near".into()),
            far: Some("far".into()),
            ..NamespaceSettings::default()
        };
        let file = EmulateFile { seed: 1, namespaces, links: links.to_vec() };
        let directory = Path::new(DIRECTORY);
        fs::create_dir_all(directory).context("cannot make a directory")?;
        let path = directory.join("emulate.toml");
        fs::write(&path, toml::to_string(&file)?).context("cannot write a file of links")?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.arg("emulate").arg("--config").arg(&path);
        let mut emulator = Daemon::start("emulator", &mut command, directory)?;
        if let Some(last) = links.last() {
            wait_for(&far, &format!("{}-far", last.name), &mut emulator)?;
        }
        let ports = Algorithm::ALL.into_iter().zip(FIRST_PORT..);
        let ports: Vec<_> = ports.collect();
        for (algorithm, port) in &ports {
            let listener = far.enter(|| listen(*algorithm, *port))??;
            thread::spawn(move || answer_all(&listener));
        }
        Ok(Self { near, _far: far, ports, _emulator: emulator })
    }

    /// Downloads over link `at`; Mbit/s, or seconds of a task with an end.
    ///
    /// # Errors
    /// When the connection cannot be made, or breaks.
    pub(super) fn fetch(
        &self,
        at: usize,
        algorithm: Algorithm,
        task: Task,
        time: Duration,
    ) -> anyhow::Result<f64> {
        let port = self.ports.iter().find(|(it, _)| *it == algorithm).context("no listener")?.1;
        let link = u8::try_from(at + 1).context("too many links")?;
        let far = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 201, link, 1), port));
        let socket = self.near.enter(|| Socket::new(Domain::IPV4, Type::STREAM, None))??;
        let begin = clock::now();
        socket.connect_timeout(&far.into(), time).with_context(|| format!("connect to {far}"))?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(time))?;
        let wanted = task.bytes().unwrap_or(u64::MAX);
        let mut request = [0; REQUEST as usize];
        request[..8].copy_from_slice(&wanted.to_be_bytes());
        stream.write_all(&request)?;
        let mut piece = vec![0; PIECE];
        let mut came = 0;
        let lasted = loop {
            let bytes = stream.read(&mut piece).context("the connection broke")?;
            let lasted = clock::now().since(begin);
            came += bytes as u64;
            if came >= wanted || task.bytes().is_none() && lasted >= time {
                break lasted.as_secs_f64();
            }
            if bytes == 0 {
                bail!("the connection ended after {came} bytes of {wanted}");
            }
        };
        // What is under way shall not meet the next connection.
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        drop(stream);
        clock::sleep_until(clock::now() + REST);
        Ok(if task.bytes().is_some() { lasted } else { came as f64 * 8e-6 / lasted })
    }
}

/// Waits until the emulator has made this interface.
fn wait_for(namespace: &NetNs, interface: &str, emulator: &mut Daemon) -> anyhow::Result<()> {
    let end = clock::now() + READY_MAX;
    while namespace.ip(&format!("link show {interface}")).is_err() {
        emulator.check_running()?;
        if clock::now() > end {
            bail!("the emulator is not ready{}", emulator.last_words());
        }
        clock::sleep_until(clock::now() + POLL);
    }
    clock::sleep_until(clock::now() + REST);
    Ok(())
}

fn listen(algorithm: Algorithm, port: u16) -> anyhow::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let name = algorithm.name();
    socket
        .set_tcp_congestion(name.as_bytes())
        .with_context(|| format!("this kernel has no {name}: modprobe tcp_{name}"))?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Answers each connection in a thread, until the program ends.
fn answer_all(listener: &TcpListener) {
    while let Ok((stream, _)) = listener.accept() {
        // One that breaks is told of by the other end.
        thread::spawn(move || answer(stream).ok());
    }
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = [0; REQUEST as usize];
    stream.read_exact(&mut request)?;
    let (wanted, _) = request.split_first_chunk().expect("a request is longer");
    let mut left = u64::from_be_bytes(*wanted);
    let piece = vec![0; PIECE];
    while left > 0 {
        let bytes = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        left -= stream.write(&piece[..bytes])? as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    // Until the other end has closed.
    stream.read(&mut [0]).map(drop)
}

/// On the sandbox's own file system.
const DIRECTORY: &str = "/run/roadweave-lab-tcp";
const FIRST_PORT: u16 = 7_001;
const BACKLOG: i32 = 64;
/// What is read or written at a time, bytes.
const PIECE: usize = 1 << 18;
/// After a connection nothing happens for so long.
const REST: Duration = Duration::from_millis(300);
/// How long the emulator may take to begin.
const READY_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);
