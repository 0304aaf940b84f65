//! TCP hosts and their callers.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::Duration;

use super::{NetNs, WAIT_MAX};

/// A host that sends each caller its address, in 48 bytes, and then echoes, until [`Host::end`].
pub struct Host {
    ended: Arc<AtomicBool>,
    address: SocketAddr,
    namespace: String,
}

impl Host {
    pub fn start(namespace: &NetNs, address: SocketAddr) -> Self {
        let listener = namespace.enter(|| TcpListener::bind(address).unwrap()).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let has_ended = ended.clone();
        spawn(move || {
            for mut socket in listener.incoming().flatten() {
                if has_ended.load(Ordering::Relaxed) {
                    return;
                }
                spawn(move || {
                    let from = socket.peer_addr().unwrap().to_string();
                    let _ = socket.write_all(format!("{from:<48}").as_bytes());
                    let mut other = socket.try_clone().unwrap();
                    let _ = std::io::copy(&mut socket, &mut other);
                    let _ = other.shutdown(Shutdown::Write);
                });
            }
        });
        Self { ended, address, namespace: namespace.name().to_owned() }
    }

    pub fn end(self, namespace: &NetNs) {
        assert_eq!(namespace.name(), self.namespace);
        self.ended.store(true, Ordering::Relaxed);
        let _ = namespace.enter(|| TcpStream::connect(self.address)).unwrap();
        sleep(Duration::from_millis(100));
    }
}

pub fn connect(camera: &NetNs, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = camera.enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(5)));
    let socket = socket.unwrap()?;
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    Ok(socket)
}

pub fn seen_from(socket: &mut TcpStream) -> std::io::Result<SocketAddr> {
    let mut address = [0; 48];
    socket.read_exact(&mut address)?;
    Ok(std::str::from_utf8(&address).unwrap().trim().parse().unwrap())
}

pub fn read_head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

pub fn byte(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

pub fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(byte).collect()
}

/// Asks the `proxy` of a box for a SOCKS5 connection: its reply (RFC 1928), and the connection.
pub fn socks(namespace: &NetNs, proxy: &str, request: &[u8]) -> (u8, TcpStream) {
    let mut socket = namespace.enter(|| TcpStream::connect(proxy).unwrap()).unwrap();
    socket.set_read_timeout(Some(4 * WAIT_MAX)).unwrap();
    socket.write_all(&[5, 1, 0]).unwrap();
    let mut method = [0; 2];
    socket.read_exact(&mut method).unwrap();
    assert_eq!(method, [5, 0]);
    socket.write_all(request).unwrap();
    let mut reply = [0; 10];
    socket.read_exact(&mut reply).unwrap();
    (reply[1], socket)
}

pub fn to_address(to: impl Into<SocketAddr>) -> Vec<u8> {
    let to = to.into();
    let address = match to.ip() {
        IpAddr::V4(v4) => [&[1], &v4.octets()[..]].concat(),
        IpAddr::V6(v6) => [&[4], &v6.octets()[..]].concat(),
    };
    [&[5, 1, 0], &address[..], &to.port().to_be_bytes()].concat()
}

pub fn there_and_back(socket: &TcpStream, sent: &[u8]) -> Vec<u8> {
    let (mut writing, bytes) = (socket.try_clone().unwrap(), sent.to_vec());
    let writer = spawn(move || {
        writing.write_all(&bytes).unwrap();
        writing.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    socket.try_clone().unwrap().read_to_end(&mut back).unwrap();
    writer.join().unwrap();
    back
}
